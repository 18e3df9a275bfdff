"""The conversion of raw records of `__consumer_offsets` to events, with counts of unreadable records."""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from confluent_kafka import Message

from wakeroll_model.coordinator_log.coordinator_records import TOPIC, CoordinatorRecord, Skipped, read_record
from wakeroll_model.coordinator_log.kafka_events import AnyKafkaEvent, Committed, Source
from wakeroll_model.coordinator_log.record_events import TopicOf, event_of, ids_of
from wakeroll_pipeline.kafka_watch.commit_sampling import offset_of, time_of
from wakeroll_pipeline.kafka_watch.topic_facts import TopicFacts
from wakeroll_pipeline.kafka_watch.watched_ledger import Told

log = logging.getLogger(__name__)

_MOST_NAMES = 100_000
"""Maximum number of groups for which the match with the pattern is cached."""


class RecordDecoder:
    """Decodes the records of the groups that are watched. For one thread."""

    def __init__(self, topics: TopicFacts, groups: re.Pattern[str], own: Sequence[str]) -> None:
        """Prepare.

        Args:
            topics: returns the names of topics by their ids.
            groups: matches the whole names of the groups to watch.
            own: prefixes of the names of wakeroll's own groups in Kafka, which are left out.
        """
        self._topics = topics
        self._groups = groups
        self._own = tuple(own)
        self._wanted: dict[bytes, bool] = {}
        """Group, as in the keys -> whether it is watched."""
        self.skipped: Counter[str] = Counter()
        """Reason -> number of unreadable records."""

    def is_wanted(self, name: bytes) -> bool:
        """Return whether a group is watched, by its name in the keys; records of other groups are not decoded."""
        known = self._wanted.get(name)
        if known is None:
            if len(self._wanted) >= _MOST_NAMES:
                self._wanted.clear()
            text = name.decode(errors="replace")
            known = self._wanted[name] = bool(text and not text.startswith(self._own) and self._groups.fullmatch(text))
        return known

    def decode(self, records: Sequence[Message], topic_of: TopicOf) -> Iterator[Told]:
        """Yield the events of records of one group; several commits are one event."""
        commits: list[Committed] = []
        at_ms = 0
        for raw in records:
            found = self._read(raw, topic_of)
            if isinstance(found, Committed):
                commits.append(found)
                at_ms = max(at_ms, time_of(raw))
            elif found is not None:
                yield Told(time_of(raw), found)
        if commits:
            first = commits[0]
            yield Told(
                at_ms,
                Committed(
                    group_id=first.group_id,
                    source=commits[-1].source,
                    offsets=[one for its in commits for one in its.offsets],
                    deleted=[one for its in commits for one in its.deleted],
                ),
            )

    def report(self) -> None:
        """Log how many records could not be read."""
        if self.skipped:
            counts = ", ".join(f"{number} for the reason {reason!r}" for reason, number in sorted(self.skipped.items()))
            log.info("records of %s that were skipped: %s", TOPIC, counts)

    def _read(self, raw: Message, topic_of: TopicOf) -> AnyKafkaEvent | None:
        partition, offset = raw.partition() or 0, offset_of(raw)
        found = read_record(raw.key(), raw.value())
        if isinstance(found, Skipped):
            if not self.skipped[found.reason]:
                log.warning("skipped %s-%d@%d: %s", TOPIC, partition, offset, found.detail)
            self.skipped[found.reason] += 1
            return None
        assert isinstance(found, CoordinatorRecord), "a record is read or skipped"
        self._topics.learn(ids_of(found))
        return event_of(found, Source(partition, offset), topic_of)
