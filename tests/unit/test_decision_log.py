"""The record of decisions as an operator's commands read it: each decision once, and of the newest era alone."""

from collections.abc import Sequence

from confluent_kafka import Message, TopicPartition

from wakeroll.decision_log import DecisionLog
from wakeroll.log_reader import LogReader
from wakeroll_model.decisions import AnyDecision, Membership, Rejected
from wakeroll_model.replay import encode_decision


class Partition:
    """A partition of the decisions that has been read to its end once its messages were taken."""

    def __init__(self, decisions: Sequence[AnyDecision]) -> None:
        self._messages = [
            Message(topic="wakeroll.decisions", partition=1, offset=offset, key=b"billing", value=encode_decision(one))
            for offset, one in enumerate(decisions)
        ]

    def poll(self, _timeout: float) -> Message | None:
        return self._messages.pop(0) if self._messages else None

    def consume(self, count: int, **_: float) -> list[Message]:
        taken, self._messages = self._messages[:count], self._messages[count:]
        return taken


def log_of(decisions: Sequence[AnyDecision]) -> DecisionLog:
    reader = LogReader(lambda: Partition(decisions))
    return DecisionLog(reader, TopicPartition("wakeroll.decisions", 1), "billing", timeout=1)


def read(*places: tuple[int, int]) -> list[tuple[str, int]]:
    """Return shard and seq of what is told of decisions with these eras and seqs."""
    decisions = [
        Membership(shard=f"groups-1.{era}", seq=seq, group_id="billing", client_id="a", change="joined", epoch=1)
        for era, seq in places
    ]
    log = log_of(decisions)
    return [(decision.shard, decision.seq) for decision in log.wait(0)]


def test_a_decision_that_is_delivered_twice_is_told_once():
    assert read((1, 1), (1, 2), (1, 1), (1, 2), (1, 3)) == [("groups-1.1", 1), ("groups-1.1", 2), ("groups-1.1", 3)]


def test_a_new_era_counts_from_one():
    """And its tenth is newer than its ninth."""
    assert read((9, 700), (10, 1), (10, 2)) == [("groups-1.9", 700), ("groups-1.10", 1), ("groups-1.10", 2)]


def test_what_an_older_era_still_appends_is_not_told():
    """A driver that was given up for lost may live on for a while; what it decides counts no more."""
    assert read((9, 700), (10, 1), (9, 701), (10, 2)) == [("groups-1.9", 700), ("groups-1.10", 1), ("groups-1.10", 2)]


def test_a_rejection_by_another_shard_hides_nothing():
    """Pulls of the group are decided by shards of queues, which count by themselves."""
    rejected = Rejected(shard="queues-2.7", seq=900, group_id="billing", rule="bounds", detail="")
    joined = Membership(shard="groups-1.1", seq=1, group_id="billing", client_id="a", change="joined", epoch=1)
    log = log_of([rejected, joined])

    assert log.wait(0) == [rejected, joined]
