"""The `users` commands: the users who may log in to the page."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.output import Output
from wakeroll_pipeline.serve.access.password_hash import LEAST_CHARACTERS
from wakeroll_pipeline.serve.access.rights import Role
from wakeroll_pipeline.serve.access.user_file import User, add_user, check_new_user, read_users, remove_user
from wakeroll_pipeline.serve.access.user_file import grant as change

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


RoleName = Annotated[
    Role | None,
    typer.Option(
        "--role",
        help="viewer: changes nothing; operator: resets offsets, skips messages, kicks, pauses, rebalances; "
        "administrator: also changes settings and deletes groups. Default: administrator for a new user.",
        show_default=False,
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--groups",
        metavar="PATTERN",
        help="Names of the groups that the user may change, like 'orders-*'; repeat it for more. Default: all.",
        show_default=False,
    ),
]
ByProxy = Annotated[
    bool,
    typer.Option("--no-password", help="For a user that a proxy names (`serve --auth-header`): there is no login."),
]


@app.callback()
def users() -> None:
    """Add, list and remove the users of the page."""


@app.command()
def add(
    name: UserName,
    auth_file: AuthFile,
    role: RoleName = None,
    groups: Groups = None,
    no_password: ByProxy = False,
    replace: Replace = False,
) -> None:
    """Add a user; the command prompts for the password, and stores only its hash.

    If the input is not a terminal, its first line is the password.
    """
    check_new_user(auth_file, name, replaces=replace)
    password = None if no_password else _password_of(name)
    added = add_user(auth_file, name, password, role=role, groups=groups or None, replaces=replace)
    what = "is known by a proxy" if no_password else "may log in"
    out.print(f"{name} {what} with {auth_file}, as {_rights_of(added)}", markup=False)


@app.command()
def grant(name: UserName, auth_file: AuthFile, role: RoleName = None, groups: Groups = None) -> None:
    """Change the role or the groups of a user; the change is valid from the user's next request on."""
    if role is None and not groups:
        raise InvalidUsage("nothing is granted; name --role or --groups")
    out.print(f"{name} is {_rights_of(change(auth_file, name, role, groups or None))}", markup=False)


@app.command()
def remove(name: UserName, auth_file: AuthFile) -> None:
    """Remove a user; this also ends the user's sessions."""
    remove_user(auth_file, name)
    out.print(f"{name} is removed from {auth_file}", markup=False)


@app.command("list")
def list_users(auth_file: AuthFile) -> None:
    """List the users with their roles and groups."""
    for name, user in sorted(read_users(auth_file).items()):
        out.print(f"{name}: {_rights_of(user)}{'' if user.password else ', by a proxy only'}", markup=False)


def _rights_of(user: User) -> str:
    rights = user.rights
    groups = "all groups" if rights.groups == ("*",) else ", ".join(rights.groups)
    return rights.role if rights.role == "viewer" else f"{rights.role} of {groups}"


def _password_of(name: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    text = f"Password of {name} (at least {LEAST_CHARACTERS} characters)"
    return str(typer.prompt(text, hide_input=True, confirmation_prompt=True))
