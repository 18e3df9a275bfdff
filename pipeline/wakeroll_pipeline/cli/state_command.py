"""The `state` command: what the coordinator knows, with details that no table has."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from wakeroll_model.shard import Shard
from wakeroll_pipeline.cli.live_answer import (
    group_model,
    print_age,
    provenance,
    tick_of,
)
from wakeroll_pipeline.cli.options import AsJson, LiveOptions, LogAt
from wakeroll_pipeline.cli.output import MOST_FRAMED, Output, aligned, seconds_text, write_document

if TYPE_CHECKING:
    from wakeroll_pipeline.live.live_model import LiveModel

out = Output()


class MemberState(Struct, frozen=True, kw_only=True):
    """A member of a group in the coordinator's state; a group without members has one row without a client."""

    shard: str
    group_id: str
    epoch: int
    client_id: str | None = None
    instance_id: str | None = None
    host: str | None = None
    """Host or pod of the client; this and the version are None if it does not tell."""
    app_version: str | None = None
    topics: Sequence[str] = ()
    queues: int = 0
    shown_epoch: int | None = None
    """Highest epoch that the member's heartbeats show."""
    sent_epoch: int | None = None
    """Epoch of the last assignment that was sent to the member."""
    silent_ms: int | None = None
    """Time since its last heartbeat, by the shard's clock (ms)."""


def state(
    deployment: LiveOptions,
    at: LogAt = None,
    as_json: AsJson = False,
) -> None:
    """Show the coordinator's state, from the newest snapshots and the log since: one row per group and member.

    With --bootstrap, the log is read from Kafka, to its end; without, from the tables.
    """
    with group_model(deployment.settings(), out, at_ms=at, only_states=True) as (model, _):
        _answer(model, as_json)


def _answer(model: "LiveModel", as_json: bool) -> None:
    with model.lock:
        shards = [one.shard for one in model.shards.values() if one.kind == "groups"]
        rows = [row for shard in shards for row in members_of(shard)]
        tick_ms = tick_of(model)
    health = model.health(time.monotonic())
    if as_json:
        write_document({"at_ms": tick_ms, "members": rows, **provenance(health, tick_ms)})
        return
    _write(len(shards), rows)
    print_age(health, tick_ms, out)


def members_of(shard: Shard) -> Iterator[MemberState]:
    """Yield the members of all groups of a shard, sorted by group."""
    for group_id in shard.names():
        group = shard.group(group_id)
        if group is None or group.is_forgotten:  # a queue, which `describe --holds` shows; or a deleted group
            continue
        if not group.members:
            yield MemberState(shard=shard.name, group_id=group_id, epoch=group.epoch)
        for client_id, member in group.members.items():
            yield MemberState(
                shard=shard.name,
                group_id=group_id,
                epoch=group.epoch,
                client_id=client_id,
                instance_id=member.instance_id,
                host=None if member.about is None else member.about.host,
                app_version=None if member.about is None else member.about.app_version,
                topics=sorted(member.subscriptions),
                queues=len(member.owned),
                shown_epoch=member.shown_epoch,
                sent_epoch=member.sent_epoch,
                silent_ms=shard.now_ms - member.seen_ms,
            )


def _write(shards: int, rows: Sequence[MemberState]) -> None:
    texts = list(map(_texts, rows))
    title, heads = f"state of {shards} shards", (*_NAMES, *_NUMBERS)
    if len(texts) > MOST_FRAMED:
        out.print(title)
        for line in aligned(heads, texts, _NUMBERS):
            print(line)
        return
    table = Table(title=title)
    for name in heads:
        table.add_column(name, justify="right" if name in _NUMBERS else "left")
    for row in texts:
        table.add_row(*map(Text, row))
    out.print(table)


_NAMES = ("shard", "group", "epoch", "client", "instance", "version", "host", "topics")
_NUMBERS = ("queues", "shown epoch", "sent epoch", "silent for")


def _texts(row: MemberState) -> Sequence[str]:
    """Return the texts of a row of the table."""
    head = (row.shard, row.group_id, str(row.epoch))
    if row.client_id is None or row.instance_id is None or row.silent_ms is None:
        return *head, "-", *[""] * (len(_NAMES) + len(_NUMBERS) - len(head) - 1)
    counts = (row.queues, row.shown_epoch, row.sent_epoch)
    names = (row.client_id, row.instance_id[:8], row.app_version or "-", row.host or "-", ", ".join(row.topics))
    return *head, *names, *map(str, counts), seconds_text(row.silent_ms)
