"""The `keys` commands: they make keys for signed records, and show and change the recorded valid keys."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from msgspec import Struct
from rich.table import Table

from wakeroll.errors import InvalidUsage
from wakeroll.keys import (
    ALGORITHMS,
    Algorithm,
    InvalidKeys,
    add_key,
    create_keys,
    entry_of,
    key_to_sign,
    new_client_key,
    new_key,
    public_half,
    read_keys,
    replace_keys,
    warning_of,
)
from wakeroll.operator_name import this_user
from wakeroll_model.client_keys import ROLE as CLIENT
from wakeroll_model.client_keys import ClientKey
from wakeroll_model.events import KeyChange, ValidKey
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import KEYS_LEVEL
from wakeroll_model.signing import ROLES, Key, Keys, role_of
from wakeroll_model.valid_keys import changed, on_record
from wakeroll_pipeline.cli.live_answer import live_model
from wakeroll_pipeline.cli.options import AsJson, BrokerOptions, By, declared
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.cli.shard_requests import carry_out, text_of
from wakeroll_pipeline.kafka.rights_check import require_rights
from wakeroll_pipeline.runtime.run_status import name_of, running
from wakeroll_pipeline.settings import Settings

if TYPE_CHECKING:
    from wakeroll_pipeline.live.live_model import LiveModel

log = logging.getLogger("wakeroll")
out = Output(highlight=False, soft_wrap=True)
app = typer.Typer(
    help="Make keys for signed records, and decide which are valid; docs/security.md explains how to rotate them.",
    no_args_is_help=True,
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
    typer.Option(
        "--file",
        metavar="FILE",
        help="File to which the key is appended; default: print the key, if its algorithm is hmac.",
    ),
]
HowToSign = Annotated[
    str,
    typer.Option(
        "--algorithm",
        help="ed25519: a process that verifies needs only the public key; counts from feature level 4 on. hmac: a "
        "process that verifies has the secret, and could sign.",
    ),
]
ObserverFile = Annotated[
    Path | None,
    typer.Option("--observer", metavar="FILE", help="File for the observer's keys alone, unless there is one."),
]
PublicFile = Annotated[
    Path | None,
    typer.Option(
        "--public",
        metavar="FILE",
        help="File for the public keys, for processes that only verify, unless there is one.",
    ),
]
To = Annotated[
    Path | None, typer.Option("--to", metavar="FILE", help="File to write, in place of an earlier one; default: print.")
]
OwnFile = Annotated[Path, typer.Option("--file", metavar="FILE", help="The key file.")]
KeyIds = Annotated[list[str], typer.Argument(metavar="KEY...", help="Names of the keys.")]
Execute = Annotated[
    bool, typer.Option("--execute", help="Change the valid keys; default: show what would be changed only.")
]

_ALGORITHM = {True: "Ed25519", False: "HMAC"}


class KeyState(Struct, frozen=True, kw_only=True):
    """A key, as the log and the key file contain it."""

    key_id: str
    role: str
    groups: str
    fingerprint: str
    public_key: str
    """The public key of Ed25519, in hex; empty for the secret of an HMAC."""
    on_record: bool
    """Whether it is valid in every shard."""
    in_file: bool


@app.callback()
def keys() -> None:
    """Make keys for signed records, and change the valid ones."""


@app.command()
def new(
    role: RoleName,
    groups: GroupPrefix = None,
    key_id: KeyId = None,
    algorithm: HowToSign = "ed25519",
    file: NewKeyFile = None,
) -> None:
    """Make a new key, and append it to a file."""
    if algorithm not in ALGORITHMS:
        raise InvalidUsage(f"--algorithm is {algorithm!r}; it must be one of: {', '.join(ALGORITHMS)}")
    key = _new(role, groups, key_id, cast("Algorithm", algorithm))
    if file is None:
        if key.public_key:
            raise InvalidUsage("a private key is not printed; name the file to which it is appended by --file FILE")
        out.print(entry_of(key), markup=False, end="")
        return
    add_key(file, key)
    out.print(f"added the key {key.key_id!r} of role {role} to {file}", markup=False)


@app.command()
def ensure(file: OwnFile, observer: ObserverFile = None, public: PublicFile = None) -> None:
    """Make a file with new keys of an operator and an observer, unless there is one: for the first start of a platform.

    Several processes may do so at once; afterwards, all of them have the same files.
    """
    _ensure(
        file, [new_key(role, algorithm="ed25519") for role in ROLES], f"with a key of each role: {', '.join(ROLES)}"
    )
    found = read_keys(file)
    if observer is not None:
        _ensure(observer, found.of_role("observer"), "with the observer's keys")
    if public is not None:
        _ensure(public, [public_half(key) for key in found.all], "with the public keys")


@app.command("public")
def public_keys(file: OwnFile, to: To = None) -> None:
    """Write the public keys of a file, for pages, coordinators and commands that verify and do not sign."""
    found = [public_half(key) for key in read_keys(file).all]
    if to is None:
        out.print("\n".join(map(entry_of, found)), markup=False, end="")
        return
    replace_keys(to, found)
    out.print(f"wrote the public keys {', '.join(key.key_id for key in found)} to {to}", markup=False)


@app.command("list")
@declared
def list_keys(
    deployment: BrokerOptions,
    as_json: AsJson = False,
) -> None:
    """Show the recorded valid keys, and the keys in the key file."""
    settings = deployment.settings()
    own = settings.read_keys()
    with live_model(settings, out, _lenient(own)) as model:
        valid = _valid(model)
    found = _states(valid.values(), own if settings.keys else Keys.of([]))
    if as_json:
        write_document({"keys": found})
        return
    out.print(_table(found))
    if unverified := [one.key_id for one in found if one.on_record and not one.in_file and not one.public_key]:
        out.print(f"not verified, because the key file lacks them: signatures by {', '.join(unverified)}", markup=False)
    if not any(valid.values()):
        out.print("no keys are on record: each process accepts the keys of its own key file", markup=False)


@app.command()
@declared
def publish(
    deployment: BrokerOptions,
    execute: Execute = False,
    by: By = None,
) -> None:
    """Make the keys of the key file valid on record, beside those that are.

    First give all coordinators and pages the file, unless it has no new secret of an HMAC: public keys are on record.
    """
    settings = deployment.settings()
    if not settings.keys:
        raise InvalidUsage("no key file is named; use --keys FILE: the development keys are not put on record")
    added = [on_record(key) for key in settings.read_keys().all]
    _change(settings, KeyChange(added=added, by=by or this_user()), execute=execute)


@app.command()
@declared
def remove(
    deployment: BrokerOptions,
    key_ids: KeyIds,
    execute: Execute = False,
    by: By = None,
) -> None:
    """Make keys invalid at once, even if they are in key files."""
    settings = deployment.settings()
    _change(settings, KeyChange(removed=key_ids, by=by or this_user()), execute=execute)


def _ensure(file: Path, keys: Sequence[Key | ClientKey], contents: str) -> None:
    """Make a file with keys, unless it exists, and print its keys."""
    if create_keys(file, keys):
        out.print(f"made {file} {contents}", markup=False)
    else:
        read_keys(file)
        out.print(f"{file} exists; nothing has changed", markup=False)


def _new(role: str, groups: str | None, key_id: str | None, algorithm: Algorithm) -> Key | ClientKey:
    if role == CLIENT:
        if groups is None:
            raise InvalidUsage("--role client needs --groups PREFIX: the groups whose clients must sign with the key")
        return new_client_key(groups, key_id, algorithm)
    if groups is not None:
        raise InvalidUsage(f"--groups is for --role client, not for {role!r}")
    try:
        return new_key(role_of(role), key_id, algorithm)
    except ValueError as error:
        raise InvalidUsage(f"--role: {error}, {CLIENT}") from None


def _change(settings: Settings, change: KeyChange, *, execute: bool) -> None:
    """Show the effect of a change, and append it to all shards if `execute` is set."""
    own = settings.read_keys()
    if execute:
        if settings.keys and (warning := warning_of(settings.keys)):
            log.warning("%s", warning)
        key_to_sign(own, "operator")  # a file of public keys is named as such, before brokers are asked
        require_rights(settings.connection, ["upgrader"])
    with live_model(settings, out, _lenient(own)) as model:
        _refuse_low(model)
        wanted: dict[ControlPartition, dict[str, ValidKey]] = {}
        before = _valid(model)
        for place, valid in before.items():
            after = changed(valid, change)
            if isinstance(after, str):
                raise InvalidUsage(after)
            wanted[place] = after
        places = [place for place in wanted if wanted[place] != before[place]]
        named = {key_id for place in places for key_id in wanted[place].keys() ^ before[place].keys()}
        if unknown := sorted(set(change.removed) - named):
            raise InvalidUsage(f"no key {unknown[0]!r} is valid on record; `wakeroll keys list` shows the valid ones")
        if not places:
            out.print("the keys on record are so already: nothing has changed")
            return
        refuse_without(settings.work_folder, [key for key in change.added if key.key_id in named])
        what = f"{'valid' if change.added else 'invalid'}: {', '.join(sorted(named))}"
        if not execute:
            out.print(f"would become {what}. Nothing has changed; repeat the command with --execute", markup=False)
            return
        signing = _signing(own, before.values())

        def late() -> list[ControlPartition]:
            return [place for place, valid in _valid(model).items() if valid != wanted[place]]

        offsets = carry_out(settings.connection, signing, change, places, late, out)
        out.print(f"{what}, from these offsets on: {text_of(offsets)}", markup=False)


def refuse_without(work_folder: Path, added: Sequence[ValidKey]) -> None:
    """Refuse to make a key valid while a coordinator of this home runs that lacks its secret: it would stop.

    No process lacks a public key, because the record contains it.

    Raises:
        InvalidUsage: there is such a coordinator; the message names its process and the key.
    """
    for replica, status in running(work_folder).items():
        for key in added:
            if not key.public_key and key.fingerprint not in status.fingerprints:
                raise InvalidUsage(
                    f"{name_of(replica, status)} lacks the key {key.key_id!r}, and would stop if it became valid; "
                    "restart it with this key file first"
                )


def _lenient(own: Keys) -> Keys:
    """Return keys by which the log can be read to find the recorded keys, even if this file lacks some."""
    return Keys.of(own.by_id.values(), own.clients, may_lack=True)


def _valid(model: "LiveModel") -> dict[ControlPartition, Mapping[str, ValidKey]]:
    """Return the keys on record, by control partition."""
    with model.lock:
        return {place: dict(one.shard.keys) for place, one in sorted(model.shards.items())}


def _refuse_low(model: "LiveModel") -> None:
    with model.lock:
        low = [one.name for one in model.shards.values() if one.shard.level < KEYS_LEVEL]
    if low:
        raise InvalidUsage(
            f"{min(low)} is below feature level {KEYS_LEVEL}, from which on keys can be on record; "
            "`wakeroll upgrade --execute` raises it"
        )


def _signing(own: Keys, valid: Iterable[Mapping[str, ValidKey]]) -> Key:
    """Return the last operator key of the file that every shard accepts, and that is not a public key.

    Raises:
        InvalidKeys: there is none.
    """
    shards = [its for its in valid if its]
    for key in reversed(own.of_role("operator")):
        if key.secret and all(its.get(key.key_id) == on_record(key) for its in shards):
            return key
    raise InvalidKeys("the key file has no operator key that is valid on record; `wakeroll keys list` shows both")


def _states(shards: Iterable[Mapping[str, ValidKey]], own: Keys) -> list[KeyState]:
    """Return all keys, recorded ones first."""
    every = list(shards)
    valid = {key: None for its in every for key in its.values()}
    mine = [on_record(key) for key in own.all]
    return [
        KeyState(
            key_id=key.key_id,
            role=key.role,
            groups=key.groups,
            fingerprint=key.fingerprint,
            public_key=key.public_key,
            on_record=bool(every) and all(its.get(key.key_id) == key for its in every),
            in_file=key in mine,
        )
        for key in dict.fromkeys([*valid, *mine])
    ]


def _table(found: Sequence[KeyState]) -> Table:
    table = Table(title="keys of signed records")
    for name in ("key", "role", "groups", "algorithm", "fingerprint", "valid on record", "in the key file"):
        table.add_column(name)
    for one in found:
        groups = f"{one.groups}*" if one.role == CLIENT else ""
        marks = ("yes" if one.on_record else "no", "yes" if one.in_file else "no")
        table.add_row(one.key_id, one.role, groups, _ALGORITHM[bool(one.public_key)], one.fingerprint, *marks)
    return table
