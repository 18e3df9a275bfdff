"""The coordinators of a world, of either kind: a shard for each partition of a control topic, run in batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from wakeroll_model import feature_levels
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.shard import Shard


@dataclass
class Era:
    """What a coordinator decided between two losses of its state."""

    number: int
    position: int
    """Offset of the first record that it read."""
    quiet_until: int
    """Offset of the first record that it decides about."""
    body: bytes | None
    """What it began with; None: nothing."""
    base: "Era | None"
    """The era that the body is of."""
    base_position: int
    """Offset of the first record that the body does not know."""
    first: int
    """Number of its first decision."""
    ended_at: int = 2**62
    """Offset of the first record that it did not decide about, for its state was lost."""

    def knows(self, offset: int) -> bool:
        """Whether it has learnt from a record before its end, or what it began with has."""
        if offset >= self.position:
            return True
        return self.base is not None and offset < self.base_position and self.base.knows(offset)


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
        self.eras = [Era(1, 0, 0, None, None, 0, 0)]
        self._where = topic, partition, partitions
        self._rng = rng
        self.level = feature_levels.FIRST
        """Feature level of an era that begins without a state."""
        self._shard = self._shard_from(None)
        self.saved: list[tuple[int, bytes]] = []
        """After each complete batch of this era, the offset of the next record and the state."""
        self._snapshots: list[tuple[Era, int, bytes]] = []
        self.begin_at(self.level)
        self.away_until_ms = 0
        """Until this time of the world it does not run."""
        self.longest_batch = 0
        """The most records of a batch until it has caught up with the log; 0: any number."""
        self._repeat_to = -1
        self._kill_percent = -1
        self._publishes_any = False
        self._reached = 0
        """Offset of the first record that it has not decided about yet."""

    def begin_at(self, level: int) -> None:
        """Begin at a feature level, as a new deployment does, and in each era without a state."""
        self.level = level
        self._shard = self._shard_from(None)
        self.saved = [(0, self._shard.body())]
        self._snapshots = [(self.eras[0], *self.saved[0])]

    @property
    def is_done(self) -> bool:
        """Whether it has applied all there is."""
        return self.saved[-1][0] == len(self.log)

    def decided(self, era: Era) -> Sequence[AnyDecision]:
        """Return what was decided in an era."""
        number = self.eras.index(era)
        return self.decisions[era.first : self.eras[number + 1].first if era is not self.eras[-1] else None]

    def end_of(self, era: Era) -> int:
        """Return the offset of the first record that another era decides about; the end of the log if there is none."""
        number = self.eras.index(era)
        return self.eras[number + 1].quiet_until if era is not self.eras[-1] else len(self.log)

    def kill_in_next_batch(self, percent: int, *, any_part: bool = False) -> None:
        """Die in the next batch, after this part of its decisions was published: the first ones, or any."""
        self._kill_percent, self._publishes_any = percent, any_part

    def restore(self, percent: int) -> None:
        """Lose the checkpoints, and go on from an older state, as from a snapshot: what was decided since is again."""
        del self.saved[max(1, len(self.saved) * percent // 100) :]
        self._shard = self._shard_from(self.saved[-1][1])
        self._kill_percent = self._repeat_to = -1

    def follow(self, other: "Coordinator") -> None:
        """Decide whatever another coordinator has decided, so that it is on record when this one's state is lost."""
        position, _ = self.saved[-1]
        if other._reached > position:
            self._record([one for record in self.log[position : other._reached] for one in self._shard.apply(record)])
            self._reached = max(self._reached, other._reached)
            self.saved.append((other._reached, self._shard.body()))
            self._repeat_to = -1

    def lose(self, snapshot_percent: int, kept_percent: int) -> None:
        """Lose the state, and begin a new era.

        Args:
            snapshot_percent: which of all snapshots there is; below 0: none.
            kept_percent: how much of the log is there, at its end; what is older is read by nobody any more.  A log
                that begins before the snapshot is read from there.
        """
        end = len(self.log)
        position = end * (100 - kept_percent) // 100
        self.eras[-1].ended_at, self._reached = self._reached, position
        if snapshot_percent < 0:
            base, base_position, body = None, 0, None
        else:
            base, base_position, body = self._snapshots[(len(self._snapshots) - 1) * snapshot_percent // 100]
            position = max(position, base_position)
        number = self.eras[-1].number + 1
        self.eras.append(Era(number, position, end, body, base, base_position, len(self.decisions)))
        self._shard = self._shard_from(body)
        self.saved = [(position, self._shard.body())]
        self._kill_percent = self._repeat_to = -1

    def batch(self, *, all_of_it: bool = False) -> list[AnyDecision]:
        """Run one batch; return what is published, in order."""
        position, body = self.saved[-1]
        to = self._repeat_to
        if to < 0:
            to = len(self.log)
            if not all_of_it and to - position > 1 and self._rng.random() < 0.3:
                to = self._rng.randint(position + 1, to)
            if self.longest_batch:
                to = min(to, position + self._rng.randint(1, self.longest_batch))
                self.longest_batch = 0 if to == len(self.log) else self.longest_batch
        if to == position:
            return []
        decisions = [decision for record in self.log[position:to] for decision in self._shard.apply(record)]
        self._record(decisions)
        self._reached = max(self._reached, to)
        if self._kill_percent >= 0 and decisions:
            published = decisions[: len(decisions) * self._kill_percent // 100]
            if self._publishes_any:
                published = [one for one in decisions if self._rng.randrange(100) < self._kill_percent]
            self._kill_percent, self._repeat_to, self._publishes_any = -1, to, False
            self._shard = self._shard_from(body)
            return published
        self._repeat_to = -1
        self.saved.append((to, self._shard.body()))
        if len(self.saved) % 10 == 0:
            self._snapshots.append((self.eras[-1], *self.saved[-1]))
        if self._rng.random() < 0.25:
            self._shard = self._shard_from(self.saved[-1][1])
        return decisions

    def _shard_from(self, body: bytes | None) -> Shard:
        era = self.eras[-1]
        return Shard(*self._where, body, era=era.number, quiet_until=era.quiet_until, level=self.level)

    def _record(self, decisions: list[AnyDecision]) -> None:
        first = self.eras[-1].first
        for decision in decisions:
            text = encode_decision(decision)
            if first + decision.seq > len(self.decisions):
                self.decisions.append(decision)
                self.encoded.append(text)
            elif self.encoded[first + decision.seq - 1] != text:
                self.differing.append(f"{decision.shard}/{decision.seq} is {text!r}")
