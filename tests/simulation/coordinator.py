"""The coordinators of a world, of either kind: a shard for each partition of a control topic, run in batches."""

from random import Random

from model.decisions import AnyDecision
from model.records import Record
from model.replay import encode_decision
from model.shard import Shard


class Coordinator:
    """Runs one partition, as Spark does: a batch is repeated if it dies, and what it published is published again."""

    def __init__(self, topic: str, partition: int, partitions: int, log: list[Record], rng: Random) -> None:
        self.partition = partition
        self.log = log
        """The partition's records; whoever appends to it is the broker."""
        self.decisions: list[AnyDecision] = []
        """All that was decided, each once."""
        self.encoded: list[bytes] = []
        self.differing: list[str] = []
        """Decisions of a repeated batch that are not what they were."""
        self._where = topic, partition, partitions
        self._rng = rng
        self._shard = self._shard_from(None)
        self.saved: list[tuple[int, bytes]] = [(0, self._shard.body())]
        """After each complete batch, the offset of the next record and the state."""
        self._repeat_to = -1
        self._kill_percent = -1

    @property
    def is_done(self) -> bool:
        """Whether it has applied all there is."""
        return self.saved[-1][0] == len(self.log)

    def kill_in_next_batch(self, percent: int) -> None:
        """Die in the next batch, after this part of its decisions was published."""
        self._kill_percent = percent

    def restore(self, percent: int) -> None:
        """Lose the checkpoints, and go on from an older state, as from a snapshot: what was decided since is again."""
        del self.saved[max(1, len(self.saved) * percent // 100) :]
        self._shard = self._shard_from(self.saved[-1][1])
        self._kill_percent = self._repeat_to = -1

    def batch(self, *, all_of_it: bool = False) -> list[AnyDecision]:
        """Run one batch; return what is published, in order."""
        position, body = self.saved[-1]
        to = self._repeat_to
        if to < 0:
            to = len(self.log)
            if not all_of_it and to - position > 1 and self._rng.random() < 0.3:
                to = self._rng.randint(position + 1, to)
        if to == position:
            return []
        decisions = [decision for record in self.log[position:to] for decision in self._shard.apply(record)]
        self._record(decisions)
        if self._kill_percent >= 0 and decisions:
            published = decisions[: len(decisions) * self._kill_percent // 100]
            self._kill_percent, self._repeat_to = -1, to
            self._shard = self._shard_from(body)
            return published
        self._repeat_to = -1
        self.saved.append((to, self._shard.body()))
        if self._rng.random() < 0.25:
            self._shard = self._shard_from(self.saved[-1][1])
        return decisions

    def _shard_from(self, body: bytes | None) -> Shard:
        return Shard(*self._where, body, raises=True)

    def _record(self, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            text = encode_decision(decision)
            if decision.seq > len(self.decisions):
                self.decisions.append(decision)
                self.encoded.append(text)
            elif self.encoded[decision.seq - 1] != text:
                self.differing.append(f"{decision.shard}/{decision.seq} is {text!r}")
