from pathlib import Path
from typing import Annotated

import typer

key = typer.Typer(no_args_is_help=True, help="Keys of the server.", rich_markup_mode=None)

_State = Annotated[
    Path, typer.Option(help="The server's state folder; as for `couce serve`, INDEX/server.")
]
_STATE = Path("index/server")


@key.command()
def new(
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    role: Annotated[str, typer.Option(help="read, or admin: may change the gallery.")] = "read",
    rate: Annotated[float | None, typer.Option(help="Requests a second, at most.")] = None,
    state: _State = _STATE,
) -> None:
    """Make a key. It is shown once and kept as its hash."""
    from couce.server.keys import Keys

    keys = Keys.in_folder(state)
    token = keys.make(name, role, rate)
    typer.echo(token)
    typer.echo(f"Its hash is kept in {keys.path}.", err=True)
    typer.echo(f"Sent as: curl -H 'Authorization: Bearer {token}' ...", err=True)


@key.command(name="list")
def list_keys(state: _State = _STATE) -> None:
    """List the keys' names and roles."""
    import time

    from couce.server.keys import Keys

    for each in Keys.in_folder(state).all():
        made = time.strftime("%Y-%m-%d", time.localtime(each.made))
        rate = "" if each.rate is None else f"  {each.rate:g} requests/s"
        typer.echo(f"{each.name}  {each.role}  made {made}{rate}")


@key.command()
def revoke(
    name: Annotated[str, typer.Argument(help="Whose it is.")], state: _State = _STATE
) -> None:
    """Make a key useless, at once."""
    from couce.server.keys import Keys

    Keys.in_folder(state).revoke(name)
    typer.echo(f"{name!r} is revoked; a running server knows it already.")
