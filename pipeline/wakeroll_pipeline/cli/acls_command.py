"""The `acls` command: the minimum rights of each role, for the principals that have it."""

import shlex
from typing import Annotated, Any

import typer
from rich.table import Table

from wakeroll.connection import Topics, is_legal
from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.options import AsJson, ConfigOptions, Prefix
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.kafka.role_rights import ROLES, Right, Scope, rights_of

out = Output(highlight=False, soft_wrap=True)

Grants = Annotated[
    list[str],
    typer.Argument(
        metavar="ROLE=PRINCIPAL",
        help=f"Roles and the principals that have them, such as client=User:billing. Roles: {', '.join(ROLES)}.",
    ),
]
MessageTopics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="Topic of messages of the application; may be repeated. 'orders.*': all whose names begin with 'orders.', "
        "for members that subscribe a pattern.",
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="GROUP",
        help="Group of the application; may be repeated. For clients that use Consumer.run, waker, dead-letters, "
        "mirror, importer and watcher.",
    ),
]
AsTable = Annotated[bool, typer.Option("--table", help="Print a table instead of commands.")]
Server = Annotated[str, typer.Option("--bootstrap", metavar="HOST:PORT,...", help="Brokers in the printed commands.")]


def acls(
    deployment: ConfigOptions,
    grants: Grants,
    topics: MessageTopics = None,
    groups: Groups = None,
    prefix: Prefix = None,
    bootstrap: Server = "localhost:9092",
    as_table: AsTable = False,
    as_json: AsJson = False,
) -> None:
    """Print the ACLs that each role needs, as kafka-acls commands, as a table, or as JSON; nothing is changed.

    No broker is queried. The roles of `wakeroll run` are coordinator and recorder.
    """
    for topic in topics or ():
        if topic != "*" and not is_legal(topic.removesuffix("*")):
            raise InvalidUsage(
                f"--topic is {topic!r}; it must be 1 to 249 letters, digits, dots, underscores, hyphens; or the "
                "beginning of names and '*'"
            )
    names = Topics(deployment.settings(prefix=prefix).prefix)
    scope = Scope(names, tuple(topics or ()), tuple(groups or ()))
    roles: dict[str, list[str]] = {}
    for role, principal in map(_grant, grants):
        roles.setdefault(principal, []).append(role)
    rows = [(principal, its, right) for principal, its in roles.items() for right in rights_of(its, scope)]
    if as_json:
        write_document({"acls": [entry for principal, its, right in rows for entry in _entries(principal, its, right)]})
    elif as_table:
        out.print(_table(rows))
    else:
        for principal, _, right in rows:
            print(_command(bootstrap, principal, right))


def _grant(text: str) -> tuple[str, str]:
    role, _, principal = text.partition("=")
    if not role or ":" not in principal or principal.endswith(":"):
        raise InvalidUsage(f"{text!r} is not ROLE=PRINCIPAL, such as client=User:billing")
    return role, principal


def _entries(principal: str, roles: list[str], right: Right) -> list[dict[str, Any]]:
    """Return one entry per operation, with the names of Kafka's AdminClient."""
    return [
        {
            "roles": roles,
            "principal": principal,
            "host": "*",
            "resource_type": right.kind.upper(),
            "resource_name": right.name.removesuffix("*") or right.name,
            "pattern_type": "PREFIXED" if _is_prefix(right) else "LITERAL",
            "operation": "DESCRIBE_CONFIGS" if operation == "DescribeConfigs" else operation.upper(),
            "permission_type": "ALLOW",
        }
        for operation in right.operations
    ]


def _command(bootstrap: str, principal: str, right: Right) -> str:
    words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--command-config", "admin.properties", "--add"]
    words += ["--allow-principal", principal]
    for operation in right.operations:
        words += ["--operation", operation]
    if _is_prefix(right):
        words += ["--resource-pattern-type", "prefixed"]
    words += [f"--{right.kind}", right.name.removesuffix("*") or right.name]
    return shlex.join(words)


def _is_prefix(right: Right) -> bool:
    """Return whether a right is for all names with a prefix; for a right on all names, Kafka's own ``*`` is literal."""
    return right.name.endswith("*") and right.name != "*"


def _table(rows: list[tuple[str, list[str], Right]]) -> Table:
    table = Table()
    for name in ("principal", "roles", "resource", "name", "operations"):
        table.add_column(name)
    for principal, roles, right in rows:
        table.add_row(principal, ", ".join(roles), right.kind, right.name, ", ".join(right.operations))
    return table
