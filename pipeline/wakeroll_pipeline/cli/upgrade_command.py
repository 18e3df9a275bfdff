"""The `upgrade` command: shows the feature level of each shard, and raises it."""

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from rich.table import Table

from wakeroll.errors import InvalidUsage
from wakeroll.keys import key_to_sign, warning_of
from wakeroll.operator_name import this_user
from wakeroll_model.events import Level
from wakeroll_model.feature_levels import CHANGES, FIRST, OFFERED
from wakeroll_model.partitioner import ControlPartition
from wakeroll_pipeline.cli.live_answer import live_model
from wakeroll_pipeline.cli.options import AsJson, BrokerOptions, By
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.cli.shard_requests import carry_out, text_of
from wakeroll_pipeline.kafka.rights_check import require_rights
from wakeroll_pipeline.runtime.run_status import name_of, running

if TYPE_CHECKING:
    from wakeroll_pipeline.live.live_model import LiveModel

log = logging.getLogger("wakeroll")
out = Output(highlight=False)

ToLevel = Annotated[
    int,
    typer.Option(
        "--level",
        min=FIRST,
        help="Level to raise the shards to; default: the newest level that this release knows.",
    ),
]
Execute = Annotated[bool, typer.Option("--execute", help="Raise the level; default: show the levels only.")]


class ShardLevel(Struct, frozen=True, kw_only=True):
    """The feature level of a shard."""

    shard: str
    level: int
    is_certain: bool
    """False if neither a state nor the whole log of the shard can be read: its level may be higher."""


def upgrade(
    deployment: BrokerOptions,
    level: ToLevel = OFFERED,
    execute: Execute = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Show the feature level of each shard; with --execute, raise it: first install this release for all processes.

    A level changes the decisions of shards, from a position of the log on. It never decreases.
    """
    if level > OFFERED:
        raise InvalidUsage(f"--level is {level}, but this release offers levels {FIRST} to {OFFERED}")
    settings = deployment.settings()
    if execute:
        if settings.keys and (warning := warning_of(settings.keys)):
            log.warning("%s", warning)
        key_to_sign(settings.read_keys(), "operator")  # one that cannot sign is refused before brokers are asked
        refuse_older(settings.work_folder, level)
        require_rights(settings.connection, ["upgrader"])
    offsets: dict[ControlPartition, int] = {}
    with live_model(settings, out) as model:
        found = _levels(model, settings.work_folder)
        if execute and (places := _below(model, found, level)):
            event = Level(level=level, by=by or this_user())
            signing = key_to_sign(settings.read_keys(), "operator")
            late = partial(_below_in_log, model, level, settings.work_folder)
            offsets = carry_out(settings.connection, signing, event, places, late, out)
            found = _levels(model, settings.work_folder)
    if as_json:
        write_document({"newest_level": OFFERED, "shards": found, "raised": len(offsets)})
        return
    out.print(_table(found))
    out.print(_sentence(found, level, offsets), markup=False)
    if offsets and not running(settings.work_folder):
        out.print("no coordinator runs in this --home; `wakeroll doctor` on its machine shows the levels that it has")


def refuse_older(work_folder: Path, level: int) -> None:
    """Refuse to raise the level while a coordinator of this home runs that does not support it.

    Raises:
        InvalidUsage: there is such a coordinator; the message names its process.
    """
    for replica, status in running(work_folder).items():
        if status.newest_level < level:
            raise InvalidUsage(
                f"{name_of(replica, status)} is of an older release, which knows feature levels up to "
                f"{status.newest_level}; restart it with this release first, then raise the level to {level}"
            )


def _levels(model: "LiveModel", work_folder: Path) -> list[ShardLevel]:
    """Return the level of each shard, from the log and the running coordinators."""
    reported: dict[str, int] = {}
    for status in running(work_folder).values():
        reported |= {shard: max(level, reported.get(shard, 0)) for shard, level in status.shard_levels.items()}
    with model.lock:
        found = [
            ShardLevel(
                shard=one.name,
                level=max(one.shard.level, reported.get(one.name, FIRST)),
                is_certain=one.name in reported or not one.is_learning,
            )
            for one in model.shards.values()
        ]
    return sorted(found, key=lambda one: one.shard)


def _below(model: "LiveModel", found: list[ShardLevel], level: int) -> list[ControlPartition]:
    """Return the control partitions whose shards may be below a level."""
    low = {one.shard for one in found if one.level < level}
    with model.lock:
        return sorted(place for place, one in model.shards.items() if one.name in low)


def _below_in_log(model: "LiveModel", level: int, work_folder: Path) -> list[ControlPartition]:
    """Return the partitions whose shards are below a level, by the log or by a coordinator of this home.

    A coordinator with other keys rejects the record, though it is valid by the keys of this command.
    """
    reported = [status.shard_levels for status in running(work_folder).values()]
    with model.lock:
        return [
            place
            for place, one in model.shards.items()
            if min([one.shard.level, *(there.get(one.name, level) for there in reported)]) < level
        ]


def _table(found: list[ShardLevel]) -> Table:
    table = Table(title=f"feature levels; this release offers {FIRST} to {OFFERED}")
    table.add_column("shard")
    table.add_column("level", justify="right")
    for one in found:
        table.add_row(one.shard, str(one.level) if one.is_certain else f"{one.level} or higher")
    return table


def _sentence(found: list[ShardLevel], level: int, offsets: dict[ControlPartition, int]) -> str:
    """Return a sentence about the change, or about the possible change."""
    if offsets:
        return f"raised to level {level} from these offsets on: {text_of(offsets)}"
    lowest = min((one.level for one in found), default=level)
    if lowest >= level:
        return f"all shards are at level {level} or above: there is nothing to raise"
    news = "; ".join(f"new at level {number}: {CHANGES[number]}" for number in range(lowest + 1, level + 1))
    return f"{news}. Nothing has changed; repeat the command with --execute to raise the level"
