"""The `users` commands: who may log in to the page."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from wakeroll_pipeline.cli.output import Output
from wakeroll_pipeline.serve.access.password_hash import LEAST_CHARACTERS
from wakeroll_pipeline.serve.access.user_file import add_user, check_new_user, read_users, remove_user

out = Output(highlight=False, soft_wrap=True)
app = typer.Typer(
    help="Add, list and remove the users of the page; docs/security.md describes the login.", no_args_is_help=True
)

UserName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the user: 1 to 64 letters, digits and . _ @ + -")
]
AuthFile = Annotated[
    Path,
    typer.Option(
        "--auth-file", metavar="FILE", help="File of the users; only its owner may read it.", show_default=False
    ),
]
Replace = Annotated[bool, typer.Option("--replace", help="Set a new password for a user that exists.")]


@app.callback()
def users() -> None:
    """Add, list and remove the users of the page."""


@app.command()
def add(name: UserName, auth_file: AuthFile, replace: Replace = False) -> None:
    """Add a user; the command prompts for the password, and stores only its hash.

    If the input is not a terminal, its first line is the password.
    """
    check_new_user(auth_file, name, replaces=replace)
    add_user(auth_file, name, _password_of(name), replaces=replace)
    out.print(f"{name} may log in with {auth_file}", markup=False)


@app.command()
def remove(name: UserName, auth_file: AuthFile) -> None:
    """Remove a user; this also ends the user's sessions."""
    remove_user(auth_file, name)
    out.print(f"{name} is removed from {auth_file}", markup=False)


@app.command("list")
def list_users(auth_file: AuthFile) -> None:
    """List the users."""
    for name in sorted(read_users(auth_file)):
        out.print(name, markup=False)


def _password_of(name: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    text = f"Password of {name} (at least {LEAST_CHARACTERS} characters)"
    return str(typer.prompt(text, hide_input=True, confirmation_prompt=True))
