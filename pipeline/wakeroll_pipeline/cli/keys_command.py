"""The `keys` commands: new keys for signed records."""

from pathlib import Path
from typing import Annotated

import typer

from wakeroll.errors import InvalidUsage
from wakeroll.keys import add_key, entry_of, new_client_key, new_key
from wakeroll_model.client_keys import ROLE as CLIENT
from wakeroll_model.client_keys import ClientKey
from wakeroll_model.signing import ROLES, Key, role_of
from wakeroll_pipeline.cli.output import Output

out = Output(highlight=False, soft_wrap=True)
app = typer.Typer(
    help="Make keys for signed records; docs/security.md explains how to rotate them.", no_args_is_help=True
)

RoleName = Annotated[
    str, typer.Option("--role", help=f"Role of the processes that sign with the key: {', '.join(ROLES)} or {CLIENT}.")
]
GroupPrefix = Annotated[
    str | None,
    typer.Option(
        "--groups",
        metavar="PREFIX",
        help="For a client key: beginning of the names of the groups whose clients must sign with it; '' for all.",
        show_default=False,
    ),
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
def new(role: RoleName, groups: GroupPrefix = None, key_id: KeyId = None, file: NewKeyFile = None) -> None:
    """Make a key with a new secret, and print its entry or append it to a file."""
    key = _new(role, groups, key_id)
    if file is None:
        out.print(entry_of(key), markup=False, end="")
        return
    add_key(file, key)
    out.print(f"added the key {key.key_id!r} of role {role} to {file}", markup=False)


def _new(role: str, groups: str | None, key_id: str | None) -> Key | ClientKey:
    if role == CLIENT:
        if groups is None:
            raise InvalidUsage("--role client needs --groups PREFIX: the groups whose clients must sign with the key")
        return new_client_key(groups, key_id)
    if groups is not None:
        raise InvalidUsage(f"--groups is for --role client, not for {role!r}")
    try:
        return new_key(role_of(role), key_id)
    except ValueError as error:
        raise InvalidUsage(f"--role: {error}, {CLIENT}") from None
