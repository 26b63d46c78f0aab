"""The command line. Each command imports what it needs in its body, so that --help is quick."""

import sys
import warnings
from typing import Annotated, NoReturn

import typer

from couce import __version__
from couce.cli.analyze import analyze
from couce.cli.audit import audit
from couce.cli.data import data
from couce.cli.demo import demo
from couce.cli.doctor import doctor
from couce.cli.embed import embed
from couce.cli.evaluate import evaluate
from couce.cli.export import export
from couce.cli.index import index
from couce.cli.key import key
from couce.cli.search import search
from couce.cli.serve import PASS_ON, serve
from couce.cli.shared.console import show_messages
from couce.cli.train import train
from couce.errors import CouceError

app = typer.Typer(
    name="couce",
    help="Image retrieval that looks at the object, not at its background.",
    no_args_is_help=True,
    add_completion=False,
    # Importing rich to format --help would take longer than everything else.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(train)
app.command()(evaluate)
app.command()(audit)
app.command()(export)
app.command()(embed)
app.add_typer(index, name="index")
app.command(context_settings=PASS_ON)(serve)
app.command()(search)
app.add_typer(key, name="key")
app.add_typer(data, name="data")
app.add_typer(analyze, name="analyze")
app.command()(doctor)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"couce {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


# The modules that may be missing, and the extra of couce that installs each.
_EXTRAS = {
    "faiss": "cpu",
    "matplotlib": "analysis",
    "onnxruntime": "cpu",
    "onnx": "train",
    "pytorch_metric_learning": "train",
    "safetensors": "train",
    "scipy": "train",
    "sklearn": "analysis",
    "torch": "train",
    "torchvision": "train",
}


def main() -> None:
    """Runs the command line. An error that the user can correct is one sentence and exit code 2."""
    show_messages()
    warnings.showwarning = lambda message, *_: typer.echo(f"couce: {message}", err=True)
    try:
        app()
    except CouceError as error:
        _fail(str(error))
    except OSError as error:
        if error.filename is None or error.strerror is None:
            raise
        _fail(f"{error.filename}: {error.strerror.lower()}")
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        _fail(
            f"this command needs {error.name}, which is not installed; run"
            f" pip install 'couce[{_EXTRAS[error.name]}]'"
        )


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"couce: {sentence}", err=True)
    sys.exit(2)
