from pathlib import Path
from typing import Annotated

import typer

key = typer.Typer(
    no_args_is_help=True, help="Make, list and revoke keys of the server.", rich_markup_mode=None
)

_State = Annotated[Path, typer.Option(help="The state folder of the server, as for `couce serve`.")]
_STATE = Path("index/server")


@key.command()
def new(
    name: Annotated[str, typer.Argument(help="The name of the key, for example of its owner.")],
    role: Annotated[
        str,
        typer.Option(
            help="What the key allows: read, or admin (also change the gallery and reload)."
        ),
    ] = "read",
    rate: Annotated[
        float | None,
        typer.Option(help="The largest number of requests per second. [default: no limit]"),
    ] = None,
    state: _State = _STATE,
) -> None:
    """Make a key. It is shown once; only its hash is kept."""
    from couce.server.auth import Keys

    keys = Keys.in_folder(state)
    token = keys.make(name, role, rate)
    typer.echo(token)
    typer.echo(f"Only the hash of the key is kept, in {keys.path}.", err=True)
    typer.echo(f"Next: send it as curl -H 'Authorization: Bearer {token}' ...", err=True)


@key.command(name="list")
def list_keys(state: _State = _STATE) -> None:
    """List the names, roles and rate limits of all keys."""
    import time

    from couce.server.auth import Keys

    for each in Keys.in_folder(state).all():
        made = time.strftime("%Y-%m-%d", time.localtime(each.made))
        rate = "" if each.rate is None else f"  {each.rate:g} requests/s"
        typer.echo(f"{each.name}  {each.role}  made {made}{rate}")


@key.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The name of the key, for example of its owner.")],
    state: _State = _STATE,
) -> None:
    """Revoke a key. Running servers refuse it at once."""
    from couce.server.auth import Keys

    Keys.in_folder(state).revoke(name)
    typer.echo(f"The key {name!r} is revoked. Running servers refuse it at once.")
