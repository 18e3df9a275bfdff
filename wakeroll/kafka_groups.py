"""Kafka's own consumer groups: their members and committed offsets, read and written from outside the group."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, TopicPartition

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable, WakerollError
from wakeroll.kafka_answers import wait_for
from wakeroll_model.queue import Queue

MIRRORED = "wakeroll"
"""Metadata, or its first word, of offsets that wakeroll wrote to a group of Kafka. It tells them apart from the commits
of that group's consumers."""

_Answer = TypeVar("_Answer")

_UNREACHABLE = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


@dataclass(frozen=True)
class KafkaGroup:
    """A consumer group of Kafka, classic or of KIP-848, as its broker describes it."""

    group_id: str
    members: tuple[str, ...]
    """Members of the group, each as ``client_id@host``; empty if none is live."""
    offsets: Mapping[Queue, int]
    """Committed offsets: queue -> the next message to consume. Empty if there is no such group."""


class StoredOffset(NamedTuple):
    """A committed offset as Kafka stores it."""

    offset: int
    text: str
    """The metadata that was committed with it."""


class KafkaGroups:
    """Queries and changes of Kafka's groups. No method joins a group, and none has an effect on a live one."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        """Prepare; each answer is waited for at most `timeout` seconds.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        self._bootstrap = connection.bootstrap
        self._timeout = timeout
        self._admin = connection.admin(error_cb=lambda _: None, log_level=0)

    def read(self, group_id: str) -> KafkaGroup:
        """Return the members and offsets of a group.

        Raises:
            WakerollError: Kafka refuses to describe the group, for example because a right is missing.
            NotReachable: no broker answered in time.
        """
        asked = self._admin.describe_consumer_groups([group_id], request_timeout=self._timeout)
        found = self._answer(asked[group_id], f"describe the group {group_id!r}")
        members = [f"{member.client_id}@{member.host.lstrip('/')}" for member in found.members]
        if not members and found.state not in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD):
            members = ["a member that is joining"]
        wanted = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group_id)], request_timeout=self._timeout
        )
        partitions = self._answer(wanted[group_id], f"list the offsets of the group {group_id!r}").topic_partitions
        offsets = {
            Queue(at.topic, "", at.partition): at.offset
            for at in partitions or []
            if at.error is None and at.offset >= 0
        }
        return KafkaGroup(group_id, tuple(sorted(members)), offsets)

    def stored(self, group_id: str) -> dict[Queue, StoredOffset] | KafkaError:
        """Return the committed offsets of a group with their metadata, or the reason why Kafka does not return them.

        Raises:
            NotReachable: no broker answered in time.
        """
        wanted = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group_id)], request_timeout=self._timeout
        )
        answer = self._wait(wanted[group_id])
        if isinstance(answer, KafkaError):
            return answer
        return {
            Queue(at.topic, "", at.partition): StoredOffset(at.offset, at.metadata or "")
            for at in answer.topic_partitions or []
            if at.error is None and at.offset >= 0
        }

    def write(
        self, offsets: Mapping[str, Mapping[Queue, int]], texts: Mapping[tuple[str, Queue], str] = {}
    ) -> dict[str, dict[Queue, KafkaError]]:
        """Set committed offsets of groups without members; Kafka creates a group that does not exist.

        Args:
            offsets: group -> queue -> the next message to consume.
            texts: group and queue -> metadata of its offset, which begins with `MIRRORED`; the default is `MIRRORED`
                alone.

        Returns:
            The offsets that Kafka refused: group -> queue -> why, such as UNKNOWN_MEMBER_ID if the group has members.

        Raises:
            NotReachable: no broker answered in time.
        """
        asked: dict[str, Future[ConsumerGroupTopicPartitions]] = {}
        for group_id, of_group in offsets.items():
            places = [
                TopicPartition(queue.topic, queue.queue_id, offset, metadata=texts.get((group_id, queue), MIRRORED))
                for queue, offset in of_group.items()
            ]
            # One request per group: Kafka's client takes no more at once.
            asked |= self._admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group_id, places)], request_timeout=self._timeout
            )
        refused: dict[str, dict[Queue, KafkaError]] = {}
        for group_id, future in asked.items():
            answer = self._wait(future)
            if isinstance(answer, KafkaError):
                refused[group_id] = dict.fromkeys(offsets[group_id], answer)
                continue
            places = answer.topic_partitions or []
            if wrong := {Queue(at.topic, "", at.partition): at.error for at in places if at.error is not None}:
                refused[group_id] = wrong
        return refused

    def _answer(self, future: Future[_Answer], what: str) -> _Answer:
        answer = self._wait(future)
        if isinstance(answer, KafkaError):
            raise WakerollError(f"Kafka refuses to {what}: {answer.str()}")
        return answer

    def _wait(self, future: Future[_Answer]) -> _Answer | KafkaError:
        answers = wait_for({"": future}, self._timeout)
        if answers is None:
            raise NotReachable(f"no Kafka broker answered at {self._bootstrap} within {self._timeout:g} s")
        answer = answers[""]
        if isinstance(answer, KafkaError) and answer.code() in _UNREACHABLE:
            raise NotReachable(f"no Kafka broker answered at {self._bootstrap} ({answer.str()})")
        return answer
