"""The rules about decisions read the rows of a shard one by one, and keep only what is open."""

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from wakeroll_model import config
from wakeroll_model.decisions import AnyDecision, Cause, Handover, Offset, Wake
from wakeroll_model.queue import Queue
from wakeroll_model.replay import encode_decision
from wakeroll_pipeline.questions.quality.model_rules import violations_in_decisions, violations_in_offsets

QUEUE = Queue("orders", "", 0)
SHARD = "groups-1.1"


def row_of(decision: AnyDecision, seq: int, at_ms: int) -> SimpleNamespace:
    """Return the row of a decision about the record with the same number."""
    decision.shard, decision.seq, decision.at_ms = SHARD, seq, at_ms
    decision.cause = Cause("wakeroll.groups", 1, seq)
    return SimpleNamespace(
        shard=SHARD,
        seq=seq,
        kind=decision.__struct_config__.tag,
        group_id=decision.group_id,
        client_id=getattr(decision, "client_id", None),
        at_ms=at_ms,
        cause_topic="wakeroll.groups",
        cause_partition=1,
        cause_offset=seq,
        json=encode_decision(decision).decode(),
        is_archived=True,
    )


def a_commit(offset: int) -> Offset:
    return Offset(group_id="billing", client_id="a", queue=QUEUE, offset=offset, epoch=1)


def an_answer(request: int) -> Wake:
    return Wake(
        group_id="billing",
        client_id="a",
        queue=QUEUE,
        request_id=f"life-1:{request}",
        reason="arrival",
        next_offset=request,
        held_ms=0,
    )


def a_long_history(decisions: int) -> Iterator[SimpleNamespace]:
    """Yield the rows of a group that commits and is woken every two seconds."""
    yield row_of(Handover(group_id="billing", queue=QUEUE, from_=None, to="a", how="first", epoch=1), 1, 0)
    for seq in range(2, decisions):
        yield row_of(a_commit(seq) if seq % 2 else an_answer(seq), seq, 1_000 * seq)


def test_the_memory_of_the_rules_does_not_grow_with_the_history():
    """A ledger of years is checked with the memory of a day's: a decision that is settled is not kept."""

    def peak(decisions: int) -> int:
        tracemalloc.start()
        try:
            assert list(violations_in_decisions(a_long_history(decisions))) == []
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    shortest = 4 * config.REMEMBER_MS // 1_000  # the rules have forgotten the first answers

    assert peak(5 * shortest) < 2 * peak(shortest)


def test_all_violations_of_a_history_are_counted():
    """Only the first ones are kept as sentences, so a ledger with a million of them needs no memory for the others."""
    rows = [row_of(Handover(group_id="billing", queue=QUEUE, from_=None, to="a", how="first", epoch=1), 1, 0)]
    rows += [row_of(a_commit(1_000 - seq), seq, seq) for seq in range(2, 502)]

    found = list(violations_in_decisions(rows))

    assert Counter(one.rule for one in found) == {"decisions.growth": 499}
    assert found[0].found == "decision groups-1.1/3 of orders-0 has offset 997; expected more than 998"
    assert {one.found for one in found[100:]} == {"399 more like these"}


@pytest.mark.parametrize(
    ("again_ms", "found"),
    [
        (60_000, ["decision groups-1.1/3 answers life-1:1 again, after decision groups-1.1/2"]),
        (config.REMEMBER_MS, []),
        (5 * config.REMEMBER_MS, []),
    ],
)
def test_a_pull_is_answered_once_while_its_answer_is_remembered(again_ms, found):
    """A coordinator forgets an answer after a while, and the rule does too."""
    rows = [
        row_of(Handover(group_id="billing", queue=QUEUE, from_=None, to="a", how="first", epoch=1), 1, 0),
        row_of(an_answer(1), 2, 0),
        row_of(an_answer(1), 3, again_ms),
    ]

    assert [one.found for one in violations_in_decisions(rows)] == found


def test_the_state_is_unknown_behind_decisions_that_are_lost_on_record():
    """A commit of a queue whose hand-over is lost is no violation; a lower one than before the loss is none either."""
    header = {"shard": SHARD, "group_id": "billing", "epoch": 1, "topic": "orders", "broker": "", "queue_id": 0}
    rows = [
        SimpleNamespace(**header, seq=seq, client_id="a", committed_offset=offset, reset_by=None, mode="clustering",
                        change=None, deleted=None, slice=None)
        for seq, offset in ((1, 10), (9, 5), (10, 4))
    ]  # fmt: skip

    assert [one.found for one in violations_in_offsets(rows, {SHARD: [(2, 8)]})] == [
        "decision groups-1.1/10 of orders-0 has offset 4; expected more than 5"
    ]
