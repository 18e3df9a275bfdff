"""The columns of tables about groups: each value has the same text in all commands."""

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from wakeroll_pipeline.cli.output import clock_text
from wakeroll_pipeline.cli.styled_text import curve, plain, plain_text, verdict_text
from wakeroll_pipeline.cli.text_table import Column
from wakeroll_pipeline.live.verdicts import KINDS, LABELS
from wakeroll_pipeline.live.view_structs import (
    FailureRow,
    GroupSummary,
    HoldRow,
    MemberRow,
    PartitionRow,
    QueueRow,
    RebalanceRow,
)
from wakeroll_pipeline.live.view_text import (
    UNKNOWN,
    ago,
    catch_up_text,
    count_text,
    epoch_text,
    lag_text,
    offsets_text,
    rate_text,
    wait_text,
)


def counted(groups: Sequence[GroupSummary]) -> str:
    """Return how many groups there are, and how many have each verdict."""
    counts = Counter(one.verdict for one in groups)
    verdicts = ", ".join(f"{counts[kind]:,} {LABELS.get(kind, kind)}" for kind in KINDS if counts[kind])
    return f"{len(groups):,} {'group' if len(groups) == 1 else 'groups'}{': ' if verdicts else ''}{verdicts}"


def group_columns(rows: Sequence[GroupSummary], now_ms: int) -> list[Column]:
    """Return the columns of a list of groups."""
    rebalanced = [f"{ago(one.rebalanced_ms, now_ms)} ago: {one.trigger}" if one.rebalanced_ms else "" for one in rows]
    return [
        Column("group", [plain_text(one.group_id, "bold") for one in rows]),
        Column("verdict", [verdict_text(one.verdict) for one in rows]),
        Column("members", [count_text(one.members) for one in rows], is_number=True),
        Column("queues", [count_text(one.queues) for one in rows], is_number=True),
        Column("lag", [lag_text(one.lag_messages, one.lag_unknown) for one in rows], is_number=True),
        Column("waits", [_waits(one, now_ms) for one in rows]),
        Column("rebalanced", rebalanced),
        Column("reason", [plain(one.reason) for one in rows], is_sentence=True),
    ]


def lag_columns(rows: Sequence[GroupSummary], now_ms: int) -> list[Column]:
    """Return the columns of a list of groups by their lag."""
    return [
        Column("group", [plain_text(one.group_id, "bold") for one in rows]),
        Column("queues", [count_text(one.queues) for one in rows], is_number=True),
        Column("not known", [count_text(one.lag_unknown) for one in rows], is_number=True, rank=1),
        Column("lag", [lag_text(one.lag_messages, one.lag_unknown) for one in rows], is_number=True),
        Column("largest", [count_text(one.max_lag_messages) for one in rows], is_number=True, rank=4),
        Column("waits", [_waits(one, now_ms) for one in rows], is_number=True),
        *_rates(rows),
    ]


def queue_columns(rows: Sequence[QueueRow], now_ms: int, *, is_unicode: bool = True) -> list[Column]:
    """Return the columns of a list of queues."""
    return [
        Column("queue", [plain(one.name) for one in rows]),
        Column("owner", [_owner(one) for one in rows]),
        Column("committed", [count_text(one.committed_offset) for one in rows], is_number=True, rank=2),
        Column("end", [count_text(one.end_offset) for one in rows], is_number=True, rank=2),
        Column("lag", [count_text(one.lag_messages) for one in rows], is_number=True),
        Column("waits", [_waits(one, now_ms) for one in rows], is_number=True, rank=1),
        *_rates(rows),
        Column("since", [_known_time(one.from_ms) for one in rows], rank=4),
        Column("epoch", [count_text(one.epoch) for one in rows], is_number=True, rank=7),
        Column("before", [plain(one.previous_client_id or UNKNOWN) for one in rows], rank=6),
        Column("how it came free", [one.how or UNKNOWN for one in rows], rank=5),
        Column("trend", [_trend(one, is_unicode) for one in rows], rank=3),
        *_notes([one.note for one in rows]),
    ]


def queue_lag_columns(rows: Sequence[QueueRow], now_ms: int) -> list[Column]:
    """Return the columns of a list of queues by their lag."""
    wanted = ("queue", "owner", "committed", "end", "lag", "waits", *(one.head for one in _rates(())), "trend")
    return [one for one in queue_columns(rows, now_ms) if one.head in wanted]


def partition_lag_columns(rows: Sequence[PartitionRow]) -> list[Column]:
    """Return the columns of a list of partitions that are cut."""
    return [
        Column("partition", [plain(one.name) for one in rows]),
        Column("slices", [count_text(one.slices) for one in rows], is_number=True),
        Column("committed", [count_text(one.committed_offset) for one in rows], is_number=True),
        Column("end", [count_text(one.end_offset) for one in rows], is_number=True),
        Column("lag", [count_text(one.lag_messages) for one in rows], is_number=True),
    ]


def member_columns(rows: Sequence[MemberRow], now_ms: int) -> list[Column]:
    """Return the columns of a list of members."""
    return [
        Column("member", [plain(one.client_id) for one in rows]),
        Column("queues", [count_text(one.queues) for one in rows], is_number=True),
        Column("lag", [lag_text(one.lag_messages, one.lag_unknown) for one in rows], is_number=True),
        Column("caught up in", [_caught_up(one) for one in rows], is_number=True, rank=4),
        Column("releasing", [count_text(one.releasing) for one in rows], is_number=True, rank=2),
        Column("waiting", [count_text(one.waiting) for one in rows], is_number=True, rank=2),
        Column("heartbeat", [f"{ago(one.seen_ms, now_ms)} ago" for one in rows], is_number=True),
        Column("epoch shown", [epoch_text(one.shown_epoch, one.sent_epoch) for one in rows], is_number=True, rank=1),
        Column("instance", [plain(one.instance_id[:8]) for one in rows], rank=4),
        Column("version", [plain(one.app_version or UNKNOWN) for one in rows], rank=5),
        Column("host", [plain(one.host or UNKNOWN) for one in rows], rank=3),
        Column("joined", [_known_time(one.joined_ms) for one in rows], rank=6),
        *_patterns(rows),
        Column("topics", [plain(", ".join(sub.topic for sub in one.subscriptions)) for one in rows], rank=7),
        *_notes(["; ".join(filter(None, (one.leaving, one.conflict, rival_text(one)))) for one in rows]),
    ]


def _patterns(rows: Sequence[MemberRow]) -> list[Column]:
    """Return the column of patterns, if there are any."""
    return [Column("pattern", [plain(one.pattern) for one in rows], rank=7)] if any(one.pattern for one in rows) else []


def rebalance_columns(rows: Sequence[RebalanceRow], now_ms: int) -> list[Column]:
    """Return the columns of a list of rebalances."""
    return [
        Column("epoch", [str(one.epoch) for one in rows], is_number=True),
        Column("at", [clock_text(one.at_ms) for one in rows]),
        Column("trigger", [plain(one.trigger) for one in rows]),
        Column("ago", [ago(one.at_ms, now_ms) for one in rows], is_number=True, rank=3),
        Column("strategy", [plain(one.strategy) for one in rows], rank=2),
        Column("clients", [count_text(one.clients) for one in rows], is_number=True, rank=1),
        Column("queues", [count_text(one.queues) for one in rows], is_number=True, rank=1),
        Column("moved", [count_text(one.moved) for one in rows], is_number=True),
        Column("spread", [count_text(one.spread) for one in rows], is_number=True, rank=4),
        Column("by", [plain(one.by or UNKNOWN) for one in rows], rank=5),
        Column("cause", [plain(one.cause) for one in rows], rank=6),
        *_notes(["; ".join(one.notes) for one in rows]),
    ]


def failure_columns(rows: Sequence[FailureRow], now_ms: int) -> list[Column]:
    """Return the columns of a list of failed messages."""
    return [
        Column("failed", [clock_text(one.at_ms) for one in rows]),
        Column("ago", [ago(one.at_ms, now_ms) for one in rows], is_number=True, rank=3),
        Column("member", [plain(one.client_id) for one in rows]),
        Column("queue", [plain(one.queue) for one in rows]),
        Column("offsets", [offsets_text(one.first_offset, one.last_offset) for one in rows]),
        Column("messages", [count_text(one.messages) for one in rows], is_number=True, rank=2),
        Column("attempt", [count_text(one.attempt) for one in rows], is_number=True, rank=1),
        Column("next", ["retry" if one.outcome == "retry" else "dead letter" for one in rows], rank=1),
        Column("error", [plain(one.error) for one in rows], is_sentence=True),
    ]


def hold_columns(rows: Sequence[HoldRow], now_ms: int) -> list[Column]:
    """Return the columns of a list of held pulls."""
    return [
        Column("queue", [plain(one.queue) for one in rows]),
        Column("client", [plain(one.client_id) for one in rows]),
        Column("from offset", [count_text(one.from_offset) for one in rows], is_number=True),
        Column("held for", [ago(one.since_ms, now_ms) for one in rows], is_number=True),
        Column("ends", [clock_text(one.until_ms) for one in rows], rank=1),
    ]


def member_lag_columns(rows: Sequence[MemberRow], now_ms: int) -> list[Column]:
    """Return the columns of a list of members by their lag."""
    wanted = ("member", "queues", "lag", "caught up in")
    return [one for one in member_columns(rows, now_ms) if one.head in wanted]


def _rates(rows: Sequence[GroupSummary] | Sequence[QueueRow]) -> list[Column]:
    """Return the columns of rates, and of the time until everything is consumed."""
    times = [catch_up_text(one.lag_messages, one.catch_up_ms, one.consumed_per_s) for one in rows]
    return [
        Column("arriving", [rate_text(one.arriving_per_s) for one in rows], is_number=True, rank=3),
        Column("consumed", [rate_text(one.consumed_per_s) for one in rows], is_number=True, rank=2),
        Column("caught up in", times, is_number=True, rank=1),
    ]


def _caught_up(one: MemberRow) -> str:
    return catch_up_text(one.lag_messages, one.catch_up_ms, None)


def _waits(one: GroupSummary | QueueRow, now_ms: int) -> str:
    return wait_text(one.behind_since_ms, now_ms, is_longer=one.behind_is_longer)


def _owner(row: QueueRow) -> Text | str:
    """Return the owner, whether it must release the queue, and the client that waits for it."""
    owner: Text | str = plain(row.owner) if row.owner else Text("nobody", "bold red")
    if row.releasing:
        owner = Text.assemble(owner, (" must release", "yellow"))
    if row.next_owner:
        owner = Text.assemble(owner, (f", then {plain(row.next_owner)}", "yellow"))
    return owner


def rival_text(row: MemberRow) -> str:
    """Return a sentence about another instance that wants the name of a member; empty if there is none."""
    return f"instance {row.rival} wants this client id" if row.rival else ""


def _trend(row: QueueRow, is_unicode: bool) -> str:
    if row.trend == "none" or not is_unicode:
        return UNKNOWN if row.trend == "none" else row.trend
    return f"{_ARROWS[row.trend]} {row.trend} {curve(row.samples)}".rstrip()


_ARROWS = {"rising": "↑", "falling": "↓", "steady": "="}


def _known_time(at_ms: int | None) -> str:
    return "not known" if at_ms is None else clock_text(at_ms)


def _notes(texts: Sequence[str]) -> list[Column]:
    """Return the column of notes, if there are any."""
    return [Column("note", [plain(one) for one in texts], is_sentence=True)] if any(texts) else []
