"""Verdicts: whether a group is healthy, and if not, the reason as a sentence. Pure functions, without thresholds.

The rules about lag are those of Burrow: they check whether offsets advance and whether the lag falls, and not its size.
So they are the same for a group with ten messages per hour and one with a million per second.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

from msgspec import Struct

from wakeroll.epoch_ms import EpochMs

Kind = Literal[
    "abandoned",
    "stalled",
    "unowned",
    "uncommitted",
    "duplicate",
    "paused",
    "behind",
    "rebalancing",
    "conflict",
    "learning",
    "empty",
    "healthy",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""All verdicts, the most urgent one first."""

LABELS = {
    "rebalancing": "rebalancing too often",
    "duplicate": "duplicate client id",
    "unowned": "unowned queues",
    "uncommitted": "no committed offset",
}
"""Verdict -> its name for people, if that differs."""

WINDOW_MS = 120_000
"""How long offsets are watched before a verdict (ms): the end of a queue is reported at least every 60 s, so a window
has two ends, and several commits at the default interval of 5 s."""
SETTLED_MS = 30_000
"""A queue without owner counts as unowned after this time (ms); hand-overs and joins take less, by the default
timeouts. An owned queue without a committed offset counts as uncommitted after this time; its owner commits its start
within seconds."""
STORM_REBALANCES = 3
STORM_GAP_MS = 60_000
"""A storm is a series of at least `STORM_REBALANCES` rebalances, less than this apart (ms); as in the mart `storms`."""
_NAMED = 3
"""Maximum number of names that a sentence lists."""


class QueueFacts(Struct, frozen=True, kw_only=True):
    """Facts about a queue that has lag or no owner; times are log times (epoch ms)."""

    name: str
    partition: str = ""
    """Name of the whole queue, if this is a slice; otherwise empty."""
    owner: str = ""
    """Client that owns the queue; empty if there is none."""
    lag: int = 0
    grown: int = 0
    """Messages that arrived since the committed offset last changed."""
    moved_ms: int = 0
    """When the committed offset last changed."""
    not_fallen_ms: int | None = None
    """Since when the lag has not fallen; None if there is no lag."""
    behind_ms: int | None = None
    """Since when messages wait; None if none waits."""
    free_ms: int | None = None
    """Since when the queue has no owner; None if it has one."""
    uncommitted_ms: int | None = None
    """Since when a client owns the queue without a committed offset, although it has messages; None if it has one."""
    why_free: str = ""
    """Reason why the strategy assigned the queue to no member; empty if it assigned it."""


class GroupFacts(Struct, frozen=True, kw_only=True):
    """Facts about a group at a moment."""

    now_ms: int
    """Log time (epoch ms)."""
    members: int = 0
    lag: int | None = None
    """Messages that wait in all queues; None if it is not known of any queue."""
    unknown: int = 0
    """Queues whose lag is not known."""
    queues: Sequence[QueueFacts] = ()
    """Queues that have lag, no owner, or no committed offset."""
    rebalances: Sequence[tuple[int, str]] = ()
    """Log time (epoch ms) and trigger of the last rebalances that moved queues, oldest first; without those that an
    operator requested."""
    conflicts: Sequence[str] = ()
    """Sentences about members whose settings conflict with those of the oldest member."""
    duplicates: Sequence[str] = ()
    """Sentences about client ids that two processes use."""
    watched_ms: int = WINDOW_MS
    """For how long the lags have been watched (ms); for less than a window, their trend is not known."""
    paused: str = ""
    """Operator, time and reason of the pause of the group, as a sentence; empty if it is not paused."""
    is_learning: bool = False
    """Whether the state is incomplete, because the model is still restoring it from the log."""


class Finding(Struct, frozen=True):
    """One problem of a group, or the finding that it is healthy."""

    kind: Kind
    reason: str


def findings(facts: GroupFacts) -> list[Finding]:
    """Return the findings about a group, the most urgent one first; never empty."""
    found = [one for one in _findings(facts) if one is not None]
    return sorted(found, key=lambda one: KINDS.index(one.kind)) or [Finding("healthy", _healthy(facts))]


def _findings(facts: GroupFacts) -> Iterator[Finding | None]:
    if facts.is_learning:
        yield Finding("learning", "the state is being rebuilt from the log; owners appear as members report them")
        if not facts.members:  # they may not have been heard yet
            return
    if facts.paused:
        waits = f"; {_messages(facts.lag)} {_verb(facts.lag, 'wait')}" if facts.lag else ""
        yield Finding("paused", f"{facts.paused}{waits}")
    if not facts.members:
        if facts.paused:
            return
        if facts.lag:
            yield Finding("abandoned", f"no members; {_messages(facts.lag)} {_verb(facts.lag, 'wait')}")
        else:
            yield Finding("empty", f"no members{_unknown(facts)}")
        return
    yield _unowned(facts)
    if not facts.paused:  # its owners are not expected to commit
        yield _stalled(facts)
        yield _uncommitted(facts)
        yield _behind(facts)
    yield _rebalancing(facts)
    if facts.duplicates:
        yield Finding("duplicate", _first(facts.duplicates))
    if facts.conflicts:
        yield Finding("conflict", _first(facts.conflicts))


def _stalled(facts: GroupFacts) -> Finding | None:
    """Find queues that grow while their owner commits nothing."""
    stuck = [one for one in facts.queues if is_stalled(one, facts.now_ms)]
    if not stuck:
        return None
    grown = _by_partition((one, one.grown) for one in stuck)
    longest = min(stuck, key=lambda one: one.moved_ms)
    return Finding(
        "stalled",
        f"{_queues(stuck)} grew by {_messages(grown)} while nothing was committed, for "
        f"{duration(facts.now_ms - longest.moved_ms)}; {_owners(stuck)}",
    )


def _by_partition(counts: Iterable[tuple[QueueFacts, int]]) -> int:
    """Return the sum of messages of queues; for slices of one partition, only the largest number is counted."""
    largest: dict[str, int] = {}
    for queue, count in counts:
        partition = queue.partition or queue.name
        largest[partition] = max(count, largest.get(partition, 0))
    return sum(largest.values())


def is_stalled(queue: QueueFacts, now_ms: int) -> bool:
    """Return whether a queue has grown and its owner has committed nothing for a window."""
    return bool(queue.owner) and queue.grown > 0 and now_ms - queue.moved_ms >= WINDOW_MS


def _behind(facts: GroupFacts) -> Finding | None:
    """Find queues whose owners commit, and whose lag does not fall; and queues that are still catching up."""
    slow = [
        one
        for one in facts.queues
        if one.owner and one.lag and one.not_fallen_ms is not None and not is_stalled(one, facts.now_ms)
        if facts.now_ms - one.not_fallen_ms >= WINDOW_MS and one.behind_ms is not None
        if facts.now_ms - one.behind_ms >= WINDOW_MS
    ]
    if slow:
        since_ms = min(one.not_fallen_ms for one in slow if one.not_fallen_ms is not None)
        text = f"the lag of {_queues(slow)} has not fallen for {duration(facts.now_ms - since_ms)}"
        return Finding("behind", f"{text}: {_messages(_by_partition((one, one.lag) for one in slow))} wait")
    late = [
        one
        for one in facts.queues
        if one.owner and one.lag and one.behind_ms is not None and not is_stalled(one, facts.now_ms)
        if facts.now_ms - one.behind_ms >= WINDOW_MS
    ]
    if late:
        oldest = min(one.behind_ms for one in late if one.behind_ms is not None)
        state = "is catching up" if len(late) == 1 else "are catching up"
        if facts.watched_ms < WINDOW_MS:
            state = "is behind, whether it is catching up is not known yet"
            state = state if len(late) == 1 else "are behind, whether they are catching up is not known yet"
        wait = duration(facts.now_ms - oldest)
        return Finding("behind", f"{_queues(late)} {state}; the oldest message waits for {wait}")
    return None


def _unowned(facts: GroupFacts) -> Finding | None:
    """Find queues that have had no owner for longer than a hand-over takes."""
    free = [one for one in facts.queues if one.free_ms is not None and facts.now_ms - one.free_ms >= SETTLED_MS]
    if not free:
        return None
    why = next((one.why_free for one in free if one.why_free), "")
    verb = "has" if len(free) == 1 else "have"
    return Finding("unowned", f"{_queues(free)} {verb} no owner" + (f": {why}" if why else ""))


def _uncommitted(facts: GroupFacts) -> Finding | None:
    """Find queues whose owner has never committed a start: it does not read, or commits nothing."""
    since = [
        (one.uncommitted_ms, one)
        for one in facts.queues
        if one.owner and one.uncommitted_ms is not None and facts.now_ms - one.uncommitted_ms >= SETTLED_MS
    ]
    if not since:
        return None
    silent = [one for _, one in since]
    lag = _by_partition((one, one.lag) for one in silent)
    waits = f"{_messages(lag)} {_verb(lag, 'wait')}" if lag else "the lag is not known"
    return Finding(
        "uncommitted",
        f"{_queues(silent)} {'has' if len(silent) == 1 else 'have'} no committed offset, "
        f"{duration(facts.now_ms - min(at_ms for at_ms, _ in since))} after the assignment; {waits}; {_owners(silent)}",
    )


def _rebalancing(facts: GroupFacts) -> Finding | None:
    """Find a storm that still lasts."""
    series: list[tuple[int, str]] = []
    later_ms = facts.now_ms
    for at_ms, trigger in reversed(facts.rebalances):
        if later_ms - at_ms >= STORM_GAP_MS:
            break
        series.append((at_ms, trigger))
        later_ms = at_ms
    if len(series) < STORM_REBALANCES:
        return None
    triggers = [trigger for _, trigger in series]
    counts = ", ".join(f"{name} {triggers.count(name)}" for name in sorted(set(triggers)))
    took = duration(facts.now_ms - series[-1][0])
    return Finding("rebalancing", f"{len(series)} rebalances in the last {took} ({counts})")


def _healthy(facts: GroupFacts) -> str:
    unknown = _unknown(facts)
    if facts.lag is None:
        return "every queue has an owner; the lag is not known"
    if facts.lag and facts.watched_ms < WINDOW_MS:
        waits = f"{_messages(facts.lag)} {_verb(facts.lag, 'wait')}"
        return f"{waits}; whether they are being consumed is not known yet{unknown}"
    if facts.lag:
        return f"{_messages(facts.lag)} {_verb(facts.lag, 'wait')}, and are being consumed{unknown}"
    return f"every queue has an owner{unknown}" if unknown else "everything is consumed"


def _unknown(facts: GroupFacts) -> str:
    if not facts.unknown:
        return ""
    return f"; the lag of {facts.unknown} {'queue' if facts.unknown == 1 else 'queues'} is not known"


def clock(at_ms: int | None, as_of_ms: int) -> str:
    """Return a time in UTC, without the date if that is the date of `as_of_ms`.

    >>> clock(1_782_871_200_500, 1_782_871_300_000), clock(None, 0)
    ('02:00:00', '-')
    """
    if at_ms is None:
        return "-"
    date, _, time = str(EpochMs(max(at_ms, 0))).partition("T")
    return time[:8] if date == str(EpochMs(max(as_of_ms, 0))).partition("T")[0] else f"{date} {time[:8]}"


def duration(ms: int) -> str:
    """Return a duration in words: ``42 s``, ``3 min``, ``2 h 5 min``, ``3 d``.

    >>> duration(42_300), duration(200_000), duration(7_500_000), duration(-5)
    ('42 s', '3 min', '2 h 5 min', '0 s')
    """
    seconds = max(ms, 0) // 1_000
    if seconds < 120:
        return f"{seconds} s"
    minutes = seconds // 60
    if minutes < 120:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    return f"{hours // 24} d"


def _verb(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _queues(queues: Sequence[QueueFacts]) -> str:
    return _first([one.name for one in queues])


def _owners(queues: Iterable[QueueFacts]) -> str:
    owners = sorted({one.owner for one in queues})
    return ("owner: " if len(owners) == 1 else "owners: ") + _first(owners)


def _first(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more
