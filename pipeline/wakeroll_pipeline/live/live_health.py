"""The health of the whole view: whether it is current, and if not, the reason and the remedy."""

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from wakeroll.epoch_ms import EpochMs
from wakeroll_model.config import DARK_MS
from wakeroll_pipeline.live.verdicts import duration
from wakeroll_pipeline.live.view_structs import Health, Notice

BEHIND_MS = 10_000
"""Age of an unpublished decision from which on the coordinator counts as late (ms). A batch takes 0.4 s, and some
seconds while Spark compiles its first ones."""
_NAMED = 3


class ShardFacts(Struct, frozen=True, kw_only=True):
    """Facts about one shard."""

    name: str
    tick_age_ms: int | None = None
    """Time since its last tick was received; None if none was."""
    pending: int = 0
    """Number of decisions of the model that the coordinator has not published."""
    pending_ms: int = 0
    """Age of the oldest unpublished decision (ms)."""
    is_learning: bool = False
    is_different: bool = False
    """Whether the coordinator has published decisions that differ from the model's."""
    refuses_all_ticks: bool = False
    """Whether the model rejects the signatures of the records that the coordinator accepts."""


class Rebuilt(Struct, frozen=True, kw_only=True):
    """Facts about the reconstruction of the state at a past moment."""

    at_ms: int
    """The moment in log time (epoch ms)."""
    records: int
    """Number of records that were replayed."""
    took_s: float


class SystemFacts(Struct, frozen=True, kw_only=True):
    """Facts about the system that the model follows."""

    source: Literal["live", "ledger"]
    as_of_ms: int
    age_ms: int = 0
    """Time between the end of the archived log and now, for a ledger."""
    read: int = 0
    to_read: int = 0
    is_begun: bool = True
    """Whether the topics were found and reading has begun."""
    trouble: str = ""
    """Reason why records cannot be read from the brokers now; empty if they can."""
    trouble_ms: int = 0
    """Duration of this trouble (ms)."""
    last_decision_age_ms: int | None = None
    rebuilt: Rebuilt | None = None
    """None unless the model shows a moment of the past."""
    shards: Sequence[ShardFacts] = ()


def health_of(facts: SystemFacts) -> Health:
    """Return the health for these facts."""
    notices = list(_ledger_notices(facts) if facts.source == "ledger" else _live_notices(facts))
    return Health(
        source=facts.source,
        state=_state(facts, notices),
        as_of_ms=facts.as_of_ms if facts.rebuilt is None else facts.rebuilt.at_ms,
        read=facts.read,
        to_read=facts.to_read,
        tick_age_ms={one.name: one.tick_age_ms for one in facts.shards if one.tick_age_ms is not None},
        notices=notices,
    )


def _state(facts: SystemFacts, notices: Sequence[Notice]) -> Literal["starting", "live", "stale", "ledger", "past"]:
    if facts.rebuilt is not None:
        return "past"
    if facts.trouble:
        return "stale"
    if not facts.is_begun or facts.read < facts.to_read:
        return "starting"
    if facts.source == "ledger":
        return "ledger"
    return "stale" if any(one.level != "info" for one in notices) else "live"


def _ledger_notices(facts: SystemFacts) -> Iterator[Notice]:
    if (rebuilt := facts.rebuilt) is not None:
        yield Notice(
            kind="past",
            level="info",
            text=f"this is the state at {EpochMs(rebuilt.at_ms)}, rebuilt in {rebuilt.took_s:.1f} s from the snapshots "
            f"before it and {rebuilt.records:,} later records",
        )
        yield from _about_learning(facts.shards)
        return
    if facts.trouble:
        yield Notice(
            kind="tables-unreadable",
            level="error",
            text=f"the tables cannot be read: {facts.trouble}",
            remedy="`wakeroll doctor` checks the deployment; the view continues by itself",
        )
        return
    if not facts.is_begun:
        return
    if not facts.as_of_ms:
        yield Notice(kind="no-log", level="warning", text="the tables hold no records yet")
        return
    yield Notice(
        kind="ledger",
        level="info",
        text=f"this is the end of the archived log, {duration(facts.age_ms)} old; no broker is followed",
        remedy="name the brokers by --bootstrap to follow them",
    )
    yield from _about_learning(facts.shards)


def _live_notices(facts: SystemFacts) -> Iterator[Notice]:
    if facts.trouble:
        yield Notice(
            kind="broker-gone",
            level="error",
            text=f"the brokers cannot be read for {duration(facts.trouble_ms)}: {facts.trouble}; this is the last "
            "known state",
            remedy="`wakeroll doctor` checks brokers, login and topics; the view continues by itself",
        )
        return
    if not facts.is_begun or facts.read < facts.to_read:
        return
    yield from _about_keys(facts.shards)
    yield from _about_ticks(facts.shards)
    yield from _about_decisions(facts)
    yield from _about_learning(facts.shards)


def _about_keys(shards: Sequence[ShardFacts]) -> Iterator[Notice]:
    if refusing := [one.name for one in shards if one.refuses_all_ticks]:
        yield Notice(
            kind="other-keys",
            level="error",
            text=f"the ticks of {_names(refusing)} are signed with keys that this process does not have, so its state "
            "does not advance",
            remedy="name the --keys of the deployment",
        )


def _about_ticks(shards: Sequence[ShardFacts]) -> Iterator[Notice]:
    dark = [
        one for one in shards if not one.refuses_all_ticks and (one.tick_age_ms is None or one.tick_age_ms > DARK_MS)
    ]
    if not dark:
        return
    ages = [one.tick_age_ms for one in dark if one.tick_age_ms is not None]
    since = f"no ticks for {duration(max(ages))}" if ages else "no ticks have been received"
    where = "" if len(dark) == len(shards) else f" on {_names([one.name for one in dark])}"
    yield Notice(
        kind="no-ticks",
        level="error",
        text=f"{since}{where}: the clock of the groups stands still, so no silent member expires, and no route is "
        "updated",
        remedy="start an observer: `wakeroll observe`",
    )


def _about_decisions(facts: SystemFacts) -> Iterator[Notice]:
    late = [one for one in facts.shards if one.pending and one.pending_ms > BEHIND_MS]
    if late:
        count, age_ms = sum(one.pending for one in late), max(one.pending_ms for one in late)
        yield Notice(
            kind="decisions-behind",
            level="error",
            text=f"decisions are behind: the coordinator has not published {count:,} that the log requires, the oldest "
            f"for {duration(age_ms)}; this is what it will decide, and its clients do not know it yet",
            remedy="look at `wakeroll run`: is it running, and does it have batches?",
        )
    if different := [one.name for one in facts.shards if one.is_different]:
        yield Notice(
            kind="different",
            level="warning",
            text=f"the coordinator's decisions of {_names(different)} differ from those computed here, so owners "
            "and epochs may be wrong until the next snapshot",
            remedy="name the --home of the deployment, so that its snapshots can be read, and use its version",
        )


def _about_learning(shards: Sequence[ShardFacts]) -> Iterator[Notice]:
    if learning := [one.name for one in shards if one.is_learning]:
        yield Notice(
            kind="learning",
            level="warning",
            text=f"the state of {_names(learning)} at the beginning of its era is not known; members and owners are "
            "shown as heartbeats report them, until the next snapshot",
            remedy="name the --home of the deployment, so that its snapshots can be read",
        )


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
