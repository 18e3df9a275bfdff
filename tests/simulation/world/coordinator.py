"""The coordinator of a world: a shard over one control partition, in batches, with its state saved between them."""

from random import Random

from model.decisions import AnyDecision
from model.replay import encode_decision
from model.shard import Shard
from world.broker import TOPIC, Broker
from world.plan import PARTITIONS


class Coordinator:
    """Runs one partition, as Spark does: a batch is repeated if it dies, and what it published is published again."""

    def __init__(self, broker: Broker, partition: int, rng: Random) -> None:
        self._broker = broker
        self._rng = rng
        self.partition = partition
        self.position = 0
        """Offset of the next record; the batch before is complete."""
        self.decisions: list[AnyDecision] = []
        """All that was decided, each once."""
        self.encoded: list[bytes] = []
        self.differing: list[str] = []
        """Decisions of a repeated batch that are not what they were."""
        self.batches = 0
        self._shard = Shard(TOPIC, partition, PARTITIONS, raises=True)
        self._saved = self._shard.body()
        self._repeat_to = -1
        self._kill_percent = -1

    def kill_in_next_batch(self, percent: int) -> None:
        """Die in the next batch, after this part of its decisions was published."""
        self._kill_percent = percent

    def batch(self, *, all_of_it: bool = False) -> list[AnyDecision]:
        """Run one batch; return what is published, in order."""
        records = self._broker.log[self.partition]
        to = self._repeat_to
        if to < 0:
            to = len(records)
            if not all_of_it and to - self.position > 1 and self._rng.random() < 0.3:
                to = self._rng.randint(self.position + 1, to)
        if to == self.position:
            return []
        self.batches += 1
        decisions = [decision for record in records[self.position : to] for decision in self._shard.apply(record)]
        self._record(decisions)
        if self._kill_percent >= 0 and decisions:
            published = decisions[: len(decisions) * self._kill_percent // 100]
            self._kill_percent, self._repeat_to = -1, to
            self._shard = Shard(TOPIC, self.partition, PARTITIONS, self._saved, raises=True)
            return published
        self.position, self._repeat_to = to, -1
        self._saved = self._shard.body()
        if self._rng.random() < 0.25:
            self._shard = Shard(TOPIC, self.partition, PARTITIONS, self._saved, raises=True)
        return decisions

    def _record(self, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            text = encode_decision(decision)
            if decision.seq > len(self.decisions):
                self.decisions.append(decision)
                self.encoded.append(text)
            elif self.encoded[decision.seq - 1] != text:
                self.differing.append(f"{decision.shard}/{decision.seq} is {text!r}")
