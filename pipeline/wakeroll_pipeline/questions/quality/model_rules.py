"""Rules that `wakeroll_model.invariants` checks: it gets the rows of each shard in order, from Spark or from DuckDB.

This module only turns rows into decisions, and violations into rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from wakeroll_model.decisions import AnyDecision, Cause, Decision, Handover, Membership, Offset
from wakeroll_model.invariants import (
    broken_answers,
    broken_epochs,
    broken_numbering,
    broken_offsets,
    broken_ownership,
    broken_telling,
)
from wakeroll_model.queue import Queue
from wakeroll_model.records import UNREADABLE
from wakeroll_model.rows import ASSIGNMENTS, OFFSETS
from wakeroll_pipeline.ledger.losses import Range
from wakeroll_pipeline.questions.quality.ordered_rows import (
    SKIPPED,
    Broken,
    Frames,
    frames_of,
    in_order,
    never_null,
    rows_of,
)
from wakeroll_pipeline.questions.quality.rule import Rule, rows_rule
from wakeroll_pipeline.questions.quality.schema_rules import FORMER_WORDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Question(NamedTuple):
    """A rule and its function in the model.

    The function takes the decisions of a shard in order, and whether they begin with its first; it returns one sentence
    per violation.
    """

    rule: Rule
    ask: Callable[[Sequence[AnyDecision], bool], Iterable[str]]
    reads_words: bool = False
    """Whether the rule depends on the words in decisions, such as `how`; an earlier version meant other things."""


JSON = rows_rule("decisions.json", "the JSON of a decision is valid for its kind")
HEADER = rows_rule("decisions.header", "the columns of a decision equal the fields of its JSON")

_EPOCHS = "the epoch of a group never falls, and each rebalance has a new one"
_GROWTH = "a committed offset never falls, except by a reset"

OF_DECISIONS = (
    Question(
        rows_rule(
            "decisions.numbering", "a shard numbers its decisions without gaps, and processes its records in order"
        ),
        broken_numbering,
    ),
    Question(rows_rule("decisions.epochs", _EPOCHS), lambda decisions, _: broken_epochs(decisions)),
    Question(
        rows_rule("decisions.ownership", "a queue has at most one owner; assignments and commits name the same one"),
        broken_ownership,
        reads_words=True,
    ),
    Question(
        rows_rule("decisions.telling", "a live member loses a queue only after its revocation was sent"),
        broken_telling,
        reads_words=True,
    ),
    Question(rows_rule("decisions.growth", _GROWTH), lambda decisions, _: broken_offsets(decisions)),
    Question(
        rows_rule("decisions.answers", "a pull has at most one answer"),
        lambda decisions, _: broken_answers(decisions),
    ),
)
OF_ASSIGNMENTS = (
    Question(
        rows_rule("assignments.ownership", "a period of ownership begins where the one before it ended"),
        broken_ownership,
    ),
    Question(rows_rule("assignments.epochs", _EPOCHS), lambda decisions, _: broken_epochs(decisions)),
)
OF_OFFSETS = (Question(rows_rule("offsets.growth", _GROWTH), lambda decisions, _: broken_offsets(decisions)),)

RULES_OF_DECISIONS = (JSON, HEADER, *(question.rule for question in OF_DECISIONS))
RULES_OF_ASSIGNMENTS = tuple(question.rule for question in OF_ASSIGNMENTS)
RULES_OF_OFFSETS = tuple(question.rule for question in OF_OFFSETS)


Lost = Mapping[str, Sequence[Range]]
"""Shard with era -> ranges of its decisions that are missing on record, ascending.  Behind such a range, the state is
not known, as before the first decision."""


def broken_decisions(decisions: "DataFrame", lost: Lost) -> "DataFrame":
    """Return the rows of `decisions` that cannot be read or that break a rule of `wakeroll_model.invariants`."""
    from pyspark.sql import functions as f

    from wakeroll_pipeline.ledger.schemas import schema_of

    cause = [f.col(f"cause.{name}").alias(f"cause_{name}") for name in Cause.__struct_fields__]
    rows = decisions.select("shard", "seq", "kind", "group_id", "client_id", "at_ms", *cause, "json")
    return in_order(rows, ("shard",), "seq").mapInPandas(
        partial(_ask_frames, partial(violations_in_decisions, lost=lost)), schema_of(Broken)
    )


def broken_assignments(assignments: "DataFrame", memberships: "DataFrame", lost: Lost) -> "DataFrame":
    """Return the violations in `assignments`; when a group is forgotten, its owners are forgotten too."""
    complete = assignments.dropna(subset=never_null(ASSIGNMENTS))
    return _ask_rows(complete, memberships, partial(violations_in_assignments, lost=lost))


def broken_growth(offsets: "DataFrame", memberships: "DataFrame", lost: Lost) -> "DataFrame":
    """Return the violations in `offsets`; when a group is forgotten, its offsets are forgotten too."""
    complete = offsets.dropna(subset=never_null(OFFSETS))
    return _ask_rows(complete, memberships, partial(violations_in_offsets, lost=lost))


def violations_in_decisions(rows: Iterable[Any], lost: Lost = MappingProxyType({})) -> Iterator[Broken]:
    """Yield the violations in the rows of `decisions`, in the order of shard and seq."""
    for shard, its_rows in groupby(rows, attrgetter("shard")):
        yield from _violations_of_shard(shard, its_rows, lost.get(shard, ()))


def violations_in_assignments(rows: Iterable[Any], lost: Lost = MappingProxyType({})) -> Iterator[Broken]:
    """Yield the violations in the rows of `assignments` and the memberships `forgotten`, in order of shard and seq."""
    return _violations(rows, _handover, OF_ASSIGNMENTS, lost)


def violations_in_offsets(rows: Iterable[Any], lost: Lost = MappingProxyType({})) -> Iterator[Broken]:
    """Yield the violations in the rows of `offsets` and the memberships `forgotten`, in order of shard and seq."""
    return _violations(rows, _offset, OF_OFFSETS, lost)


def _ask_rows(
    rows: "DataFrame", memberships: "DataFrame", violations: Callable[[Iterable[Any]], Iterator[Broken]]
) -> "DataFrame":
    from wakeroll_pipeline.ledger.schemas import schema_of

    forgotten = memberships.where("change = 'forgotten'").select("shard", "seq", "group_id", "epoch", "change")
    both = rows.unionByName(forgotten, allowMissingColumns=True)
    return in_order(both, ("shard",), "seq").mapInPandas(partial(_ask_frames, violations), schema_of(Broken))


def _ask_frames(violations: Callable[[Iterable[Any]], Iterator[Broken]], frames: Frames) -> Frames:
    yield from frames_of(violations(rows_of(frames)), Broken)


def _violations(
    rows: Iterable[Any], decision_of: Callable[[Any], AnyDecision], questions: Sequence[Question], lost: Lost
) -> Iterator[Broken]:
    for shard, its_rows in groupby(rows, attrgetter("shard")):
        decisions = [decision_of(row) if row.change is None else _membership(row) for row in its_rows]
        for part in _parts(decisions, lost.get(shard, ()), is_dense=False):
            yield from _ask(questions, shard, part, whole=False)


def _violations_of_shard(shard: str, rows: Iterable[Any], lost: Sequence[Range]) -> list[Broken]:
    found: list[Broken] = []
    decisions: list[AnyDecision] = []
    unread = 0
    former: dict[str | None, int] = {}
    for row in rows:
        at, text = f"{shard}/{row.seq}", row.json if isinstance(row.json, str) else ""
        try:
            decision = _decode(text)
        except UNREADABLE as error:
            translated = _translated(text)
            if translated is None:
                unread += 1
                found.append(Broken(JSON.name, at, text[:_SHOWN], str(error)))
                continue
            decision = translated
            former[decision.group_id] = former.get(decision.group_id, 0) + 1
        decisions.append(decision)
        found += _wrong_in_header(at, row, decision)
    if unread:
        # With an unreadable decision missing, the others could seem to break rules that they do not break.
        why = f"all decisions of {shard}, of which {unread} cannot be read"
        return [*found, *(Broken(one.rule.name + SKIPPED, shard, why, None) for one in OF_DECISIONS)]
    of_words = [one for one in OF_DECISIONS if one.reads_words and former]
    for part in _parts(decisions, lost, is_dense=True):
        whole = part[0].seq == 1
        found += _ask([one for one in OF_DECISIONS if one not in of_words], shard, part, whole=whole)
        others = [one for one in part if one.group_id not in former] if of_words else []
        found += _ask(of_words, shard, others, whole=whole)
    if former:
        why = f"{len(former)} groups of {shard}, with {sum(former.values())} decisions in words of an earlier version"
        found += (Broken(one.rule.name + SKIPPED, shard, why, None) for one in of_words)
    return found


def _parts(decisions: Sequence[AnyDecision], lost: Sequence[Range], *, is_dense: bool) -> Iterator[list[AnyDecision]]:
    """Yield the decisions between those that are lost.

    Args:
        decisions: those of a shard in order.
        lost: ranges that do not touch, ascending.
        is_dense: whether no number may be missing between two decisions, except lost ones.
    """
    part: list[AnyDecision] = []
    for decision in decisions:
        before = part[-1].seq if part else decision.seq
        if any(
            (first <= before + 1 and last >= decision.seq - 1 and before + 1 < decision.seq)
            if is_dense
            else (first < decision.seq and last > before)
            for first, last in lost
        ):
            yield part
            part = []
        part.append(decision)
    if part:
        yield part


def _ask(questions: Sequence[Question], shard: str, decisions: Sequence[AnyDecision], *, whole: bool) -> list[Broken]:
    return [Broken(one.rule.name, shard, sentence, None) for one in questions for sentence in one.ask(decisions, whole)]


def _translated(text: str) -> AnyDecision | None:
    """Return a decision in which a word of this version replaces one of an earlier version; None if there is none."""
    try:
        said = msgspec.json.decode(text, type=dict[str, Any])
        words = _FORMER_WORDS.get(str(said.get("kind")), {})
        new = {field: its[said[field]] for field, its in words.items() if said.get(field) in its}
        return _decode(msgspec.json.encode(said | new)) if new else None
    except (*UNREADABLE, TypeError):  # a list cannot be a word
        return None


def _wrong_in_header(at: str, row: Any, decision: AnyDecision) -> Iterator[Broken]:
    says = {
        "shard": decision.shard,
        "seq": decision.seq,
        "kind": str(decision.__struct_config__.tag),
        "group_id": decision.group_id,
        "client_id": getattr(decision, "client_id", None),
        "at_ms": decision.at_ms,
        "cause_topic": decision.cause.topic,
        "cause_partition": decision.cause.partition,
        "cause_offset": decision.cause.offset,
    }
    for column, expected in says.items():
        if getattr(row, column) != expected:
            yield Broken(HEADER.name, at, f"{column} is {getattr(row, column)}", str(expected))


def _membership(row: Any) -> Membership:
    return Membership(**_named(row), client_id="", change=row.change)


def _handover(row: Any) -> Handover:
    return Handover(**_named(row), queue=_queue(row), from_=row.previous_client_id, to=row.client_id, how=row.how)


def _offset(row: Any) -> Offset:
    return Offset(
        **_named(row),
        queue=_queue(row),
        client_id=row.client_id,
        offset=int(row.committed_offset),
        reset_by=row.reset_by,
        mode=row.mode,
    )


def _named(row: Any) -> dict[str, Any]:
    """Return the key, group and epoch of a decision; the union of two tables makes its integers floats."""
    return {"shard": row.shard, "seq": int(row.seq), "group_id": row.group_id, "epoch": int(row.epoch)}


def _queue(row: Any) -> Queue:
    return Queue(row.topic, row.broker, int(row.queue_id))


_FORMER_WORDS = {
    str(declared.__struct_config__.tag): words
    for declared, words in FORMER_WORDS.items()
    if issubclass(declared, Decision)
}
_decode = msgspec.json.Decoder(AnyDecision).decode
_SHOWN = 200
"""Maximum number of characters of a JSON text that is shown."""
