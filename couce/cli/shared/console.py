"""Shows the log messages of this package on the terminal."""

import logging


class _Handler(logging.Handler):
    """Prints information to standard output and warnings to standard error, a line for each."""

    def emit(self, record: logging.LogRecord) -> None:
        # Imported here, because rich would slow down --help.
        from rich.console import Console

        stderr = record.levelno >= logging.WARNING
        console = Console(highlight=False, markup=False, stderr=stderr)
        # A file name may contain bytes that are not text, or characters that the terminal cannot
        # show. Both are printed as escapes.
        text = self.format(record).encode("utf-8", "surrogateescape")
        encoding = console.encoding or "utf-8"
        shown = text.decode("utf-8", "backslashreplace").encode(encoding, "backslashreplace")
        console.print(shown.decode(encoding), soft_wrap=True)
        console.file.flush()


def show_messages() -> None:
    """Shows the log messages of this package from now on."""
    log = logging.getLogger("couce")
    if not any(isinstance(handler, _Handler) for handler in log.handlers):
        log.addHandler(_Handler())
    log.setLevel(logging.INFO)
    log.propagate = False
