"""One shard of the live model: the state machine, its comparison with the coordinator, and the log's time."""

import time

from wakeroll_model.coordinator_log.kafka_events import KIND
from wakeroll_model.decisions import AnyDecision, Rejected
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import Record, kind_of_topic
from wakeroll_model.shard import Shard
from wakeroll_model.signing import Signatures
from wakeroll_pipeline.live.published_progress import Agreement, PublishedProgress

ENCODE_EVERY_S = 60.0
"""Interval in which the state is encoded (s); in between, a shard remembers every event, to undo one that fails."""
_ENCODE_EVERY = 50_000
"""Number of records after which the state is encoded earlier, as while a log is read from its start."""
FOREVER = 2**62
"""Offset until which a shard only restores its state, because the state before its first record is not known."""


class ShardFollower:
    """A shard that applies the records of one control partition as they are read."""

    def __init__(
        self,
        place: ControlPartition,
        partitions: int,
        signatures: Signatures | None,
        *,
        body: bytes | None = None,
        learns_era: int | None = None,
        first: int | None = None,
    ) -> None:
        """Begin with a state.

        Args:
            place: the control partition.
            partitions: number of partitions of its topic.
            signatures: verify signed records.
            body: the state, from a snapshot; None: the empty state.
            learns_era: None if the state is the coordinator's. Otherwise the present era: the shard restores members
                and owners from heartbeats, and makes no decisions, because the state at the era's beginning is not
                known.
            first: offset of the first record to apply; None: the one after the state.
        """
        topic, partition = place
        self.place = place
        self.kind = kind_of_topic(topic)
        self.is_learning = learns_era is not None
        if learns_era is None:
            self.shard = Shard(topic, partition, partitions, body, signatures=signatures)
        else:
            # An era above all others makes the shard learn, and makes every epoch that a heartbeat shows plausible.
            era = max(learns_era, Shard(topic, partition, partitions, body).era) + 1
            self.shard = Shard(topic, partition, partitions, body, era=era, quiet_until=FOREVER, signatures=signatures)
        self.next_offset = self.shard.offset + 1 if first is None else first
        """Offset of the next record to apply."""
        self.progress = PublishedProgress(learns_era or self.shard.era, self.next_offset - 1)
        self.tick_received_s: float | None = None
        """When the newest tick was received, by the monotonic clock (s); None if none was."""
        self.at_ms = self.shard.tick_ms
        """Log time of the newest record, epoch ms; 0 before the first."""
        self.refused_signatures = 0
        """Number of records since the start whose signatures the model rejects."""
        self._encoded_s = time.monotonic()
        self._not_encoded = 0

    @property
    def name(self) -> str:
        """The shard without its era: ``groups-3``."""
        return self.shard.name

    @property
    def is_of_groups(self) -> bool:
        """Whether its entities are groups: wakeroll's or Kafka's own."""
        return self.kind in ("groups", KIND)

    @property
    def skew_ms(self) -> int:
        """Log time minus the clock of the shard (ms): the clock stands still while the log is dark."""
        return self.shard.tick_ms - self.shard.now_ms if self.shard.now_ms else 0

    def apply(self, record: Record, now_s: float) -> list[AnyDecision]:
        """Apply a record, received at a moment of the monotonic clock (s); records before the state are skipped."""
        shard = self.shard
        if record.offset < self.next_offset:
            return []
        self.next_offset = record.offset + 1
        self._not_encoded += 1
        ticked_ms = shard.tick_ms
        decisions = shard.apply(record)
        if record.timestamp_ms > self.at_ms:
            self.at_ms = record.timestamp_ms
        if record.key is None and shard.tick_ms != ticked_ms and not _is_refused(decisions):
            self.tick_received_s = now_s
        for decision in decisions:
            self.progress.made(decision, now_s)
        self.refused_signatures += _is_refused(decisions)
        return decisions

    def compare(self, decision: AnyDecision) -> Agreement:
        """Compare a published decision of this shard with the model's; a learning shard only checks the era."""
        agreement = self.progress.published(decision, self.shard.offset)
        return "equal" if self.is_learning and agreement == "different" else agreement

    def encode_if_due(self, now_s: float) -> None:
        """Encode the state from time to time, so that the shard forgets the events that led to it."""
        if now_s - self._encoded_s >= ENCODE_EVERY_S or self._not_encoded >= _ENCODE_EVERY:
            self._encoded_s, self._not_encoded = now_s, 0
            self.shard.body()


def _is_refused(decisions: list[AnyDecision]) -> bool:
    """Return whether the signature of a record was rejected."""
    return any(isinstance(one, Rejected) and one.rule == "signature" for one in decisions)
