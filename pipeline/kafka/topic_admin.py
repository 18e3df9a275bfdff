"""What a cluster is asked about its topics; every answer comes in time, or `NotReachable` is raised."""

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    ConfigResource,
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable

PATIENCE_S = 10.0
"""Long enough for a broker that is just starting."""

_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")

_Futures = Mapping[TopicPartition, Future[ListOffsetsResultInfo]]

_LOOK_UP_S = 0.1
_FIRST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_AFTER: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_UNREACHABLE = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._AUTHENTICATION,
        KafkaError.REQUEST_TIMED_OUT,
    }
)


class Racks(dict[int, str | None]):
    """queue_id -> the rack of its leader; "" if that has none, None if nobody leads.  Empty: there is no such topic."""

    topic_id: str = ""
    """Another one if the topic was deleted and made again; empty if the brokers did not say."""


class Cluster:
    """The brokers behind a connection, as somebody who asks about topics sees them."""

    def __init__(
        self, connection: Connection, *, patience_s: float = PATIENCE_S, stop: threading.Event | None = None
    ) -> None:
        """Prepare to ask; nothing is sent yet.

        Args:
            connection: the brokers, and how to log in.
            patience_s: how long to wait for each answer, in seconds.
            stop: once set, nothing is waited for any more.

        Raises:
            InvalidUsage: Kafka's client does not take the settings.
        """
        self._bootstrap = connection.bootstrap
        self._patience_s = patience_s
        self._stop = stop or threading.Event()
        self._reason = ""
        self._admin = connection.admin(error_cb=self._remember, **{"log_level": 0, "reconnect.backoff.max.ms": 1_000})

    def racks(self, topics: Iterable[str]) -> dict[str, Racks | KafkaError]:
        """Ask for the partitions of topics, and where their leaders stand; one request, which makes no topic.

        Returns:
            Every topic's partitions, or the error that the brokers have for it (it is not an error to be missing).
        """
        asked = TopicCollection(list(topics))
        answers = self._answers(self._admin.describe_topics(asked, request_timeout=self._patience_s))
        return {topic: _racks(answer) for topic, answer in answers.items()}

    def offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """Ask for the first offset of partitions, and for that of their next message.

        Ask only for partitions with a leader: for another, Kafka's client waits in vain until the time is over.

        Returns:
            (topic, partition) -> both offsets; without those that their leader did not tell.
        """
        wanted = list(partitions)
        first, after = self._list(wanted, _FIRST), self._list(wanted, _AFTER)
        starts, ends = self._found(first), self._found(after)
        return {where: (start, ends[where]) for where, start in starts.items() if where in ends}

    def ends(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Ask for the offset of the next message of partitions: one request to each broker that leads some.

        As in `offsets`, ask only for partitions with a leader, and those are missing whose leader did not tell.
        """
        return self._found(self._list(partitions, _AFTER))

    def since(self, moments: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Ask for the first offset of partitions whose message is not older than a moment, epoch ms.

        As in `offsets`, ask only for partitions with a leader.

        Returns:
            (topic, partition) -> the offset; the offset of the next message, if all are older.
        """
        asked = {TopicPartition(*where): OffsetSpec.for_timestamp(at_ms) for where, at_ms in moments.items()}
        if not asked:
            return {}
        found = self._found(self._admin.list_offsets(asked, request_timeout=self._patience_s))
        ends = self.ends(where for where, offset in found.items() if offset < 0)
        return {where: ends.get(where, offset) for where, offset in found.items() if where in ends or offset >= 0}

    def settings(self, topics: Iterable[str]) -> dict[str, dict[str, str] | KafkaError]:
        """Ask for the settings of topics: name -> value, as `kafka-configs` shows them."""
        asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        answers = self._answers(self._admin.describe_configs(asked, request_timeout=self._patience_s))
        return {
            resource.name: answer
            if isinstance(answer, KafkaError)
            else {name: entry.value or "" for name, entry in answer.items()}
            for resource, answer in answers.items()
        }

    def create(self, topics: list[NewTopic]) -> dict[str, KafkaError | None]:
        """Make topics; one that exists by now has an error, TOPIC_ALREADY_EXISTS."""
        answers = self._answers(self._admin.create_topics(topics, request_timeout=self._patience_s))
        return {name: answer if isinstance(answer, KafkaError) else None for name, answer in answers.items()}

    def _list(self, partitions: Iterable[tuple[str, int]], spec: OffsetSpec) -> _Futures:
        """Send a request for offsets; Kafka's client refuses one for nothing."""
        asked = {TopicPartition(topic, partition): spec for topic, partition in partitions}
        return self._admin.list_offsets(asked, request_timeout=self._patience_s) if asked else {}

    def _found(self, futures: _Futures) -> dict[tuple[str, int], int]:
        """Wait for offsets; leave out the partitions that have an error instead."""
        return {
            (at.topic, at.partition): answer.offset
            for at, answer in self._answers(futures).items()
            if not isinstance(answer, KafkaError)
        }

    def _answers(self, futures: Mapping[_Key, Future[_Answer]]) -> dict[_Key, _Answer | KafkaError]:
        """Wait for all answers of a request; they come together.

        The client's own `request_timeout` is not enough: as long as it has never met a broker, list_offsets and
        describe_configs wait for ever (confluent-kafka 2.16).
        """
        deadline = time.monotonic() + self._patience_s
        answers: dict[_Key, _Answer | KafkaError] = {}
        for key, future in futures.items():
            while not future.done():
                if self._stop.is_set() or time.monotonic() > deadline:
                    raise self._silence()
                try:
                    future.exception(_LOOK_UP_S)
                except TimeoutError:
                    continue
            try:
                answers[key] = future.result()
            except KafkaException as error:
                problem: KafkaError = error.args[0]
                if problem.code() in _UNREACHABLE:
                    raise self._silence(problem.str()) from None
                answers[key] = problem
        return answers

    def _silence(self, reason: str = "no answer") -> NotReachable:
        self._admin.poll(0)  # lets the client say what it met
        why, self._reason = self._reason or reason, ""
        return NotReachable(f"no Kafka broker answered at {self._bootstrap} within {self._patience_s:g} s ({why})")

    def _remember(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # which only counts the others
            self._reason = error.str()


def _racks(answer: TopicDescription | KafkaError) -> Racks | KafkaError:
    if isinstance(answer, KafkaError):
        return Racks() if answer.code() == KafkaError.UNKNOWN_TOPIC_OR_PART else answer
    racks = Racks(
        (partition.id, None if partition.leader is None else partition.leader.rack or "")
        for partition in answer.partitions
    )
    racks.topic_id = str(answer.topic_id)
    return racks
