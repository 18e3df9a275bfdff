"""The `keys` commands: new keys for signed records."""

from pathlib import Path
from typing import Annotated

import typer

from model.signing import ROLES, role_of
from pipeline.cli.output import Output
from wakeroll.errors import InvalidUsage
from wakeroll.keys import add_key, entry_of, new_key

out = Output(highlight=False, soft_wrap=True)
app = typer.Typer(
    help="Make keys for signed records; docs/security.md explains how to rotate them.", no_args_is_help=True
)

RoleName = Annotated[
    str, typer.Option("--role", help=f"Role of the processes that sign with the key: {' or '.join(ROLES)}.")
]
KeyId = Annotated[
    str | None,
    typer.Option(
        "--id",
        help="Name of the key: 1 to 32 letters, digits, hyphens, underscores; default: the role and six hex digits.",
    ),
]
NewKeyFile = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="File to which the key is appended; default: print the key."),
]


@app.callback()
def keys() -> None:
    """Make keys for signed records."""


@app.command()
def new(role: RoleName, key_id: KeyId = None, file: NewKeyFile = None) -> None:
    """Make a key with a new secret, and print its entry or append it to a file."""
    try:
        key = new_key(role_of(role), key_id)
    except ValueError as error:
        raise InvalidUsage(f"--role: {error}") from None
    if file is None:
        out.print(entry_of(key), markup=False, end="")
        return
    add_key(file, key)
    out.print(f"added the key {key.key_id!r} of role {key.role} to {file}", markup=False)
