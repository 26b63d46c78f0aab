"""What the rooms tell through `logging`, shown on the terminal."""

import logging


class _Handler(logging.Handler):
    """Information goes to standard output, warnings to standard error; a line each, never broken."""

    def emit(self, record: logging.LogRecord) -> None:
        from rich.console import Console  # which --help does not need

        stderr = record.levelno >= logging.WARNING
        console = Console(highlight=False, markup=False, stderr=stderr)
        # A file's name may hold bytes that are not text, or letters that the terminal cannot show.
        text = self.format(record).encode("utf-8", "surrogateescape")
        encoding = console.encoding or "utf-8"
        shown = text.decode("utf-8", "backslashreplace").encode(encoding, "backslashreplace")
        console.print(shown.decode(encoding), soft_wrap=True)
        console.file.flush()


def show_messages() -> None:
    """From now on, shows what every room of this package tells."""
    log = logging.getLogger("couce")
    if not any(isinstance(handler, _Handler) for handler in log.handlers):
        log.addHandler(_Handler())
    log.setLevel(logging.INFO)
    log.propagate = False
