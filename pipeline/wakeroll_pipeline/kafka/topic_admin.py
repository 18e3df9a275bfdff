"""Queries to a cluster about its topics; each returns in time or raises `NotReachable`."""

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ConfigResource,
    ListOffsetsResultInfo,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from wakeroll.connection import Connection
from wakeroll.errors import LoginFailed, NotReachable
from wakeroll.kafka_answers import wait_for
from wakeroll.login_errors import login_failure

PATIENCE_S = 10.0
"""Default time to wait for an answer (s); long enough for a broker that is just starting."""

_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")

_Futures = Mapping[TopicPartition, Future[ListOffsetsResultInfo]]

_CLIENT = {
    "log_level": 0,
    "reconnect.backoff.max.ms": 1_000,
    # Otherwise a request that waits for a dead controller or leader makes librdkafka connect to it without any pause:
    # with two of three brokers dead, this took 0.6 of a core instead of 0.001.
    "enable.sparse.connections": False,
}

_LOOK_UP_S = 0.1
LIST_S = 1.5
"""Time to wait for the names of all topics (s): Kafka's client cannot be stopped meanwhile."""
RENEW_S = 30.0
"""After this time without an answer, the client is replaced (s). If all brokers were missing in the metadata for a
moment, as on an overloaded machine, librdkafka 2.16 may stay connected and never answer again."""
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
    """Map of queue_id -> rack of its leader, "" without a rack, None without a leader; empty for a missing topic."""

    topic_id: str = ""
    """Id that changes if the topic is deleted and created again; empty if the brokers did not report one."""
    replicas: int = 0
    """Number of replicas of the partition that has the fewest; 0 if the topic does not exist."""


class Cluster:
    """Queries about topics to the brokers of a connection."""

    def __init__(
        self,
        connection: Connection,
        *,
        patience_s: float = PATIENCE_S,
        stop: threading.Event | None = None,
        renew_s: float = RENEW_S,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            connection: the brokers, and the login.
            patience_s: how long to wait for each answer, in seconds.
            stop: when set, all waits end.
            renew_s: time without an answer (s) after which the client is replaced; a new client reads certificates
                again.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        self._connection = connection
        self._bootstrap = connection.bootstrap
        self._patience_s = patience_s
        self._renew_s = renew_s
        self._stop = stop or threading.Event()
        self._reason = ""
        self._failure: LoginFailed | None = None
        self._admin = self._make()
        self._received_s = time.monotonic()

    def racks(self, topics: Iterable[str]) -> dict[str, Racks | KafkaError]:
        """Query the partitions of topics and the racks of their leaders: one request, which creates no topic.

        Returns:
            The partitions of each topic, or the error that the brokers report for it. A missing topic is not an error.
        """
        asked = TopicCollection(list(topics))
        answers = self._answers(self._admin.describe_topics(asked, request_timeout=self._patience_s))
        return {topic: _racks(answer) for topic, answer in answers.items()}

    def existing(self, topics: Iterable[str]) -> dict[str, Racks]:
        """Query the partitions of topics that must exist, as `racks` does.

        Raises:
            NotReachable: a topic does not exist or cannot be described, or no broker answered.
        """
        found: dict[str, Racks] = {}
        for topic, racks in self.racks(topics).items():
            if not isinstance(racks, Racks):
                raise NotReachable(f"cannot describe the topic {topic}: {racks.str()}")
            if not racks:
                raise NotReachable(f"there is no topic {topic}; `wakeroll up` and `wakeroll run` create it")
            found[topic] = racks
        return found

    def names(self) -> list[str]:
        """Query the names of all topics that this principal may describe.

        Raises:
            NotReachable: no broker answers within `LIST_S`; the call cannot end earlier.
        """
        try:
            listed = self._admin.list_topics(timeout=min(self._patience_s, LIST_S))
        except KafkaException as problem:
            raise self._silence(problem.args[0].str()) from None
        self._received_s = time.monotonic()
        return list(listed.topics)

    def operations(self, topics: Iterable[str]) -> dict[str, frozenset[str] | KafkaError]:
        """Query which operations this principal may perform on topics.

        Returns:
            For each topic, the operations, such as WRITE or DESCRIBE_CONFIGS (all of them if the brokers have no
            authorizer), or the error of the brokers.
        """
        asked = TopicCollection(list(topics))
        futures = self._admin.describe_topics(
            asked, request_timeout=self._patience_s, include_authorized_operations=True
        )
        return {topic: _operations(answer) for topic, answer in self._answers(futures).items()}

    def offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """Query the first offset and the end offset of partitions.

        Query only partitions with a leader: for others, Kafka's client waits until the timeout.

        Returns:
            (topic, partition) -> both offsets; without partitions whose leader did not answer.
        """
        wanted = list(partitions)
        first, after = self._list(wanted, _FIRST), self._list(wanted, _AFTER)
        starts, ends = self._found(first), self._found(after)
        return {where: (start, ends[where]) for where, start in starts.items() if where in ends}

    def all_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """Query the first offset and the end offset of every one of these partitions.

        A topic that was just created has no leader for a moment, even after some broker has reported one. So the query
        is repeated until the patience ends.

        Returns:
            (topic, partition) -> both offsets.

        Raises:
            NotReachable: a partition has no leader, or no broker answered.
        """
        wanted = list(partitions)
        deadline = time.monotonic() + self._patience_s
        found = self.offsets(wanted)
        while silent := sorted(set(wanted) - found.keys()):
            if time.monotonic() > deadline or self._stop.wait(_LOOK_UP_S):
                topic, partition = silent[0]
                raise NotReachable(
                    f"{topic}-{partition} has no leader: cannot read its first offset and its end offset"
                )
            found |= self.offsets(silent)
        return found

    def ends(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Query the end offset of partitions: one request to each broker that leads some.

        As in `offsets`, query only partitions with a leader. Partitions whose leader did not answer are left out.
        """
        return self._found(self._list(partitions, _AFTER))

    def since(self, moments: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Query the first offset whose message is not older than a moment (epoch ms), for each partition.

        As in `offsets`, query only partitions with a leader.

        Returns:
            (topic, partition) -> the offset; the end offset if all messages are older.
        """
        asked = {TopicPartition(*where): OffsetSpec.for_timestamp(at_ms) for where, at_ms in moments.items()}
        if not asked:
            return {}
        found = self._found(self._admin.list_offsets(asked, request_timeout=self._patience_s))
        ends = self.ends(where for where, offset in found.items() if offset < 0)
        return {where: ends.get(where, offset) for where, offset in found.items() if where in ends or offset >= 0}

    def settings(self, topics: Iterable[str]) -> dict[str, dict[str, str] | KafkaError]:
        """Query the settings of topics: name -> value, as `kafka-configs` shows them."""
        asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        answers = self._answers(self._admin.describe_configs(asked, request_timeout=self._patience_s))
        return {
            resource.name: answer
            if isinstance(answer, KafkaError)
            else {name: entry.value or "" for name, entry in answer.items()}
            for resource, answer in answers.items()
        }

    def brokers(self) -> int:
        """Query how many brokers the cluster has now.

        Raises:
            NotReachable: no broker answered.
        """
        answer = self._answers({"cluster": self._admin.describe_cluster(request_timeout=self._patience_s)})["cluster"]
        if isinstance(answer, KafkaError):
            raise self._silence(answer.str())
        return len(answer.nodes)

    def create(self, topics: list[NewTopic]) -> dict[str, KafkaError | None]:
        """Create topics; a topic that already exists has the error TOPIC_ALREADY_EXISTS."""
        answers = self._answers(self._admin.create_topics(topics, request_timeout=self._patience_s))
        return {name: answer if isinstance(answer, KafkaError) else None for name, answer in answers.items()}

    def grow(self, topics: Iterable[str], partitions: int) -> dict[str, KafkaError | None]:
        """Raise the number of partitions of topics; Kafka cannot lower it."""
        wanted = [NewPartitions(topic, partitions) for topic in topics]
        answers = self._answers(self._admin.create_partitions(wanted, request_timeout=self._patience_s))
        return {name: answer if isinstance(answer, KafkaError) else None for name, answer in answers.items()}

    def _list(self, partitions: Iterable[tuple[str, int]], spec: OffsetSpec) -> _Futures:
        """Send a request for offsets; an empty one, which Kafka's client would reject, is skipped."""
        asked = {TopicPartition(topic, partition): spec for topic, partition in partitions}
        return self._admin.list_offsets(asked, request_timeout=self._patience_s) if asked else {}

    def _found(self, futures: _Futures) -> dict[tuple[str, int], int]:
        """Wait for offsets; leave out partitions with an error, and partitions whose leader does not run.

        For the latter, librdkafka reports no error, but an invalid offset (confluent-kafka 2.16).
        """
        return {
            (at.topic, at.partition): answer.offset
            for at, answer in self._answers(futures).items()
            if not isinstance(answer, KafkaError) and answer.offset != OFFSET_INVALID
        }

    def _answers(self, futures: Mapping[_Key, Future[_Answer]]) -> dict[_Key, _Answer | KafkaError]:
        """Wait for all answers of a request. Raises: NotReachable, LoginFailed."""
        answers = wait_for(futures, self._patience_s, self._end_early)
        if answers is None:
            raise self._silence()
        for answer in answers.values():
            if isinstance(answer, KafkaError) and answer.code() in _UNREACHABLE:
                raise self._silence(answer.str())
        self._received_s = time.monotonic()
        return answers

    def _end_early(self) -> None:
        """Raise NotReachable after a stop signal, or the failure of a login, which Kafka's client retries for ever."""
        if self._stop.is_set():
            raise self._silence()
        self._admin.poll(0)  # lets the client report its errors
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _silence(self, reason: str = "no answer") -> NotReachable:
        self._admin.poll(0)  # lets the client report its errors
        why, self._reason = self._reason or reason, ""
        if time.monotonic() - self._received_s > self._renew_s:
            self._admin, self._received_s = self._make(), time.monotonic()
        return NotReachable(f"no Kafka broker answered at {self._bootstrap} within {self._patience_s:g} s ({why})")

    def _make(self) -> AdminClient:
        return self._connection.admin(error_cb=self._remember, **_CLIENT)

    def _remember(self, error: KafkaError) -> None:
        self._failure = login_failure(self._bootstrap, self._connection.config, error) or self._failure
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # this error only repeats the others
            self._reason = error.str()


def _racks(answer: TopicDescription | KafkaError) -> Racks | KafkaError:
    if isinstance(answer, KafkaError):
        return Racks() if answer.code() == KafkaError.UNKNOWN_TOPIC_OR_PART else answer
    racks = Racks(
        (partition.id, None if partition.leader is None else partition.leader.rack or "")
        for partition in answer.partitions
    )
    racks.topic_id = str(answer.topic_id)
    racks.replicas = min((len(partition.replicas) for partition in answer.partitions), default=0)
    return racks


def _operations(answer: TopicDescription | KafkaError) -> frozenset[str] | KafkaError:
    if isinstance(answer, KafkaError):
        return answer
    return frozenset(AclOperation(operation).name for operation in answer.authorized_operations or ())
