"""`couce serve`, whose options are the settings that couce.server.settings defines."""

from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

# `couce serve` parses its own arguments, and imports the settings only then. So `couce --help`
# stays quick.
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def serve(context: typer.Context) -> None:
    """Serve searches over HTTP, with a web page."""
    serve_app(_serve)(context.args, prog_name="couce serve")


def serve_app(function: Callable[..., None]) -> typer.Typer:
    """A Typer command that calls ``function`` and has an option for each setting of the server."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command()(_with_options(function))
    return app


def _serve(config: Path | None, **options: Any) -> None:
    """Serve searches over HTTP, with a web page.

    Every option can also be given as an environment variable (--max-bytes is COUCE_MAX_BYTES) or in
    a TOML file (max_bytes). An option wins over a variable, and a variable over the file.
    """
    from couce.server.run import serve as run
    from couce.server.settings import read_settings

    given = {name: value for name, value in options.items() if value not in (None, [])}
    run(read_settings(given, config), typer.echo)


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Gives ``function`` a signature with a parameter for each setting, which Typer reads."""
    from couce.server.settings import ServerSettings

    kinds: dict[str, Any] = {
        "config": Annotated[Path | None, typer.Option(help="A TOML file with these settings.")]
    }
    kinds |= {name: _option(name, field) for name, field in ServerSettings.model_fields.items()}
    function.__annotations__ = {**kinds, "return": None}
    function.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in kinds.items()
        ]
    )
    return function


def _option(name: str, field: "FieldInfo") -> Any:
    """The type and option of a setting.

    Without the option, the value is None. Then a variable or the file may give the value.
    """
    kinds = get_args(field.annotation) or (field.annotation,)
    kind: Any = next((each for each in (bool, int, float) if each in kinds), str)
    if get_origin(field.annotation) is tuple:
        kind = list[str]
    default = "" if field.default in (None, (), False) else f" [default: {field.default}]"
    flag = f"--{name.replace('_', '-')}"
    return Annotated[kind | None, typer.Option(flag, help=f"{field.description}{default}")]
