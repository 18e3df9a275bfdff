"""Rules that `wakeroll_model.decision_rules` checks, on the rows of each shard in order, from Spark or DuckDB.

This module only converts rows to decisions, one by one, and violations to rows.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, repeat
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from wakeroll_model.decision_rules import (
    AnswerRule,
    DecisionRule,
    EpochRule,
    NumberingRule,
    OffsetRule,
    OwnershipRule,
    RevocationRule,
    Violation,
)
from wakeroll_model.decisions import AnyDecision, Decision, Handover, Membership, Offset
from wakeroll_model.events import UNREADABLE
from wakeroll_model.queue import Queue
from wakeroll_pipeline.ledger.losses import Range
from wakeroll_pipeline.questions.quality.ordered_rows import SKIPPED, Broken
from wakeroll_pipeline.questions.quality.rule import Rule, rows_rule
from wakeroll_pipeline.questions.quality.schema_rules import FORMER_WORDS


class Question(NamedTuple):
    """A rule, and the part of the model that checks it."""

    rule: Rule
    begin: Callable[[bool], DecisionRule]
    """Creates the check of decisions; its argument is whether they begin with the first one of the shard."""
    reads_words: bool = False
    """Whether the rule depends on words in decisions, such as `how`, which had other meanings in an earlier version."""


JSON = rows_rule("decisions.json", "the JSON of a decision is valid for its kind")
HEADER = rows_rule("decisions.header", "the columns of a decision equal the fields of its JSON")

_EPOCHS = "the epoch of a group never falls, and each rebalance has a new one"
_GROWTH = "a committed offset never falls, except by a reset"

OF_DECISIONS = (
    Question(
        rows_rule(
            "decisions.numbering", "a shard numbers its decisions without gaps, and processes its records in order"
        ),
        NumberingRule,
    ),
    Question(rows_rule("decisions.epochs", _EPOCHS), EpochRule),
    Question(
        rows_rule("decisions.ownership", "a queue has at most one owner; assignments and commits name the same one"),
        OwnershipRule,
        reads_words=True,
    ),
    Question(
        rows_rule("decisions.telling", "a live member loses a queue only after its revocation was sent"),
        RevocationRule,
        reads_words=True,
    ),
    Question(rows_rule("decisions.growth", _GROWTH), OffsetRule),
    Question(
        rows_rule("decisions.answers", "a pull has at most one answer"),
        AnswerRule,
    ),
)
OF_ASSIGNMENTS = (
    Question(
        rows_rule("assignments.ownership", "a period of ownership begins where the one before it ended"),
        OwnershipRule,
    ),
    Question(rows_rule("assignments.epochs", _EPOCHS), EpochRule),
)
OF_OFFSETS = (
    # The table has no column for the progress beyond an offset.
    Question(rows_rule("offsets.growth", _GROWTH), partial(OffsetRule, has_progress=False)),
)

RULES_OF_DECISIONS = (JSON, HEADER, *(question.rule for question in OF_DECISIONS))
RULES_OF_ASSIGNMENTS = tuple(question.rule for question in OF_ASSIGNMENTS)
RULES_OF_OFFSETS = tuple(question.rule for question in OF_OFFSETS)


Lost = Mapping[str, Sequence[Range]]
"""Shard with era -> ranges of its decisions that are recorded as lost, ascending. After such a range, the state is not
known, as before the first decision."""


def violations_in_decisions(rows: Iterable[Any], lost: Lost = MappingProxyType({})) -> Iterator[Broken]:
    """Yield the violations in the rows of the view `told`, in the order of shard and seq.

    Of decisions whose records are deleted, retention has kept only some: these are checked one by one.
    """
    for shard, its_rows in groupby(rows, attrgetter("shard")):
        yield from _violations_of_shard(shard, its_rows, lost.get(shard, ()))


def violations_in_assignments(rows: Iterable[Any], lost: Lost = MappingProxyType({})) -> Iterator[Broken]:
    """Yield the violations in the rows of `assignments` and the memberships `forgotten`, in order of shard and seq."""
    return _violations(rows, _handover, OF_ASSIGNMENTS, lost)


def violations_in_offsets(rows: Iterable[Any], lost: Lost = MappingProxyType({})) -> Iterator[Broken]:
    """Yield the violations in the rows of `offsets` and the memberships `forgotten`, in order of shard and seq."""
    return _violations(rows, _offset, OF_OFFSETS, lost)


def _violations(
    rows: Iterable[Any], decision_of: Callable[[Any], AnyDecision], questions: Sequence[Question], lost: Lost
) -> Iterator[Broken]:
    for shard, its_rows in groupby(rows, attrgetter("shard")):
        asked = _Asked(questions, lost.get(shard, ()), is_dense=False)
        for row in its_rows:
            decision = decision_of(row) if row.change is None else _membership(row)
            yield from (Broken(one.rule.name, shard, found.says, None) for one, found in asked.broken_by(decision))
        yield from (Broken(one.rule.name, shard, found.says, None) for one, found in asked.broken_at_end())


def _violations_of_shard(shard: str, rows: Iterable[Any], lost: Sequence[Range]) -> Iterator[Broken]:
    asked, held = _Asked(OF_DECISIONS, lost, is_dense=True), _Held()
    unread = 0
    former: Counter[str | None] = Counter()
    for row in rows:
        at, text = _place(shard, row.seq), row.json if isinstance(row.json, str) else ""
        try:
            decision = _decode(text)
        except UNREADABLE as error:
            translated = _translated(text)
            if translated is None:
                unread += bool(row.is_archived)
                yield Broken(JSON.name, at, text[:_SHOWN], str(error))
                continue
            decision = translated
            if row.is_archived:
                former[decision.group_id] += 1
        yield from _wrong_in_header(at, row, decision)
        if row.is_archived:
            held.add(asked.broken_by(decision))
    held.add(asked.broken_at_end())
    if unread:
        # With an unreadable decision missing, the others could seem to break rules that they do not break.
        why = f"all decisions of {shard}, of which {unread} cannot be read"
        yield from (Broken(one.rule.name + SKIPPED, shard, why, None) for one in OF_DECISIONS)
        return
    yield from held.broken(shard, former)
    if former:
        why = f"{len(former)} groups of {shard}, with {sum(former.values())} decisions in words of an earlier version"
        of_words = [one for one in OF_DECISIONS if one.reads_words]
        yield from (Broken(one.rule.name + SKIPPED, shard, why, None) for one in of_words)


def _place(shard: str, seq: float) -> str:
    """Return the key of a row; a null in the column makes its numbers floats in Spark."""
    return f"{shard}/{int(seq) if seq == seq and seq is not None else None}"


class _Asked:
    """Rules that check the decisions of a shard one by one; they begin again after a lost range."""

    def __init__(self, questions: Sequence[Question], lost: Sequence[Range], *, is_dense: bool) -> None:
        """Begin before the first decision.

        Args:
            questions: the rules.
            lost: ranges of decisions that are recorded as lost, ascending; they do not touch.
            is_dense: whether no number may be missing between two decisions, except lost ones.
        """
        self._questions = questions
        self._lost = lost
        self._is_dense = is_dense
        self._rules: Sequence[tuple[Question, DecisionRule]] = ()
        self._last_seq: int | None = None

    def broken_by(self, decision: AnyDecision) -> Iterator[tuple[Question, Violation]]:
        """Process the next decision, and yield its violations."""
        if self._last_seq is None or self._is_behind_loss(self._last_seq, decision.seq):
            yield from self.broken_at_end()
            whole = self._is_dense and decision.seq == 1
            self._rules = [(one, one.begin(whole)) for one in self._questions]
        self._last_seq = decision.seq
        for question, rule in self._rules:
            for found in rule.broken_by(decision):
                yield question, found

    def broken_at_end(self) -> Iterator[tuple[Question, Violation]]:
        """Yield the violations after the last decision."""
        return ((question, found) for question, rule in self._rules for found in rule.broken_at_end())

    def _is_behind_loss(self, before: int, seq: int) -> bool:
        """Return whether decisions between two numbers are recorded as lost."""
        if self._is_dense:
            return before + 1 < seq and any(first <= before + 1 and last >= seq - 1 for first, last in self._lost)
        return any(first < seq and last > before for first, last in self._lost)


class _Held:
    """The violations in a shard until all of its rows were read: only then is it known which of them are valid.

    All are counted; for each rule and group, only the first ones are kept.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, str | None], list[str]] = {}
        """Rule and group -> its first violations, as sentences."""
        self._counts: Counter[tuple[str, str | None]] = Counter()

    def add(self, found: Iterable[tuple[Question, Violation]]) -> None:
        """Add violations."""
        for question, one in found:
            key = question.rule.name, one.group_id
            self._counts[key] += 1
            if self._counts[key] <= _KEPT:
                self._first.setdefault(key, []).append(one.says)

    def broken(self, shard: str, former: Collection[str | None]) -> Iterator[Broken]:
        """Yield a row per violation, in the order of the questions.

        Args:
            shard: the shard.
            former: groups whose decisions have words of an earlier version; rules that depend on words leave them out.
        """
        for question in OF_DECISIONS:
            name = question.rule.name
            for (rule, group_id), first in self._first.items():
                if rule != name or (question.reads_words and group_id in former):
                    continue
                more = self._counts[name, group_id] - len(first)
                yield from (Broken(name, shard, says, None) for says in first)
                yield from repeat(Broken(name, shard, f"{more} more like these", None), more)


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
        deleted=True if row.deleted in (True, 1) else UNSET,  # not if it is None, or NaN
    )


def _named(row: Any) -> dict[str, Any]:
    """Return the key, group and epoch of a decision; the union of two tables makes its integers floats."""
    return {"shard": row.shard, "seq": int(row.seq), "group_id": row.group_id, "epoch": int(row.epoch)}


def _queue(row: Any) -> Queue:
    # A null is NaN if Spark passes a column without other values. Another rule finds a text that names no slice.
    text = row.slice if isinstance(row.slice, str) and _SLICE.fullmatch(row.slice) else None
    return Queue.of_columns(row.topic, row.broker, int(row.queue_id), text)


_SLICE = re.compile("[0-9]{1,2}/(2|4|8|16|32|64)")
_FORMER_WORDS = {
    str(declared.__struct_config__.tag): words
    for declared, words in FORMER_WORDS.items()
    if issubclass(declared, Decision)
}
_decode = msgspec.json.Decoder(AnyDecision).decode
_SHOWN = 200
"""Maximum number of characters of a JSON text that is shown."""
_KEPT = 100
"""Maximum number of violations of a rule in a group that are kept as sentences; all are counted."""
