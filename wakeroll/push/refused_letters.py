"""Failed messages that their topic refuses: the errors of such a refusal, and the lines of the log about them."""

import logging
import time

from confluent_kafka import KafkaError, Message

from wakeroll.connection import Connection
from wakeroll.errors import WakerollError
from wakeroll.failure_topics import ensure_failure_topics, max_message_bytes
from wakeroll.login_errors import is_denied
from wakeroll.origin import Origin, headers_with

log = logging.getLogger("wakeroll")

TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE})
MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""Errors of a topic that was deleted, or of a partition that it lacks."""
_REFUSED = (
    TOO_LARGE
    | MISSING
    | {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_REQUIRED_ACKS,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._INVALID_ARG,
    }
)
LOG_EVERY_S = 10.0
"""Minimum time between two lines (s)."""
ANSWER_S = 5.0
"""Maximum duration of a request about the topic (s)."""


def is_refusal(error: KafkaError) -> bool:
    """Return whether the error comes again until an operator changes the topic, or a right."""
    return error.code() in _REFUSED


class RefusedLetters:
    """Reports refused messages of one `run`, with the remedy, and creates a deleted topic again."""

    def __init__(self, connection: Connection, group_id: str) -> None:
        """Begin without messages."""
        self._connection = connection
        self._group_id = group_id
        self._next_s = 0.0
        self._silent = 0
        """Refusals that were not reported since the last line."""

    def report(self, topic: str, message: Message, origin: Origin, error: KafkaError, again_s: float) -> None:
        """Report a message that a topic refuses; it is sent again after `again_s` seconds."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            self._silent += 1
            return
        more = f"; and {self._silent} others since the last such line" if self._silent else ""
        log.error(
            "cannot store the failed message %d of %s in %s: %s; %s. It waits in place: the committed offset of its "
            "queue does not pass it, and other messages go on; it is sent again every %g s%s",
            origin.offset,
            origin.queue,
            topic,
            error.str(),
            self._remedy(topic, message, origin, error),
            again_s,
            more,
        )
        self._next_s, self._silent = time.monotonic() + LOG_EVERY_S, 0

    def _remedy(self, topic: str, message: Message, origin: Origin, error: KafkaError) -> str:
        if error.code() in TOO_LARGE:
            limit = max_message_bytes(self._connection, topic, ANSWER_S)
            known = "" if limit is None else f", and max.message.bytes of the topic is {limit}"
            return f"with its headers it has {_size_of(message, origin)} bytes{known}; raise max.message.bytes"
        if is_denied(error):
            return (
                f"{self._connection.user} needs the right to write there; "
                f"`wakeroll acls client=PRINCIPAL --group {self._group_id}` prints the ACLs"
            )
        if error.code() in MISSING:
            return self._create()
        return "check the settings of the topic: cleanup.policy must be delete"

    def _create(self) -> str:
        """Create the topics again if they were deleted; return a clause for the log."""
        try:
            ensure_failure_topics(self._connection, self._group_id, ANSWER_S)
        except WakerollError as problem:
            return str(problem)
        return "the topic was created again"


def _size_of(message: Message, origin: Origin) -> int:
    """Return the bytes of key, value and headers of a message on its way to the topic."""
    headers = headers_with(message, origin)
    parts = [message.key(), message.value(), *(part for pair in headers for part in pair)]
    return sum(len(part.encode() if isinstance(part, str) else part) for part in parts if part is not None)
