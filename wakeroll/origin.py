"""The origin of a message: where it was first delivered from, and how often its handler has failed since."""

from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from wakeroll.connection import is_legal
from wakeroll.headers import pairs_of, texts_of
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import MAX_DELAY_S, has_failed_messages

TOPIC = "wakeroll-topic"
PARTITION = "wakeroll-partition"
OFFSET = "wakeroll-offset"
TIMESTAMP = "wakeroll-timestamp"
ATTEMPT = "wakeroll-attempt"
ERROR = "wakeroll-error"
ERROR_TYPE = "wakeroll-error-type"
TRACE_ID = "wakeroll-trace-id"
CLIENT = "wakeroll-client"
WAIT = "wakeroll-wait-s"
HEADERS = (TOPIC, PARTITION, OFFSET, TIMESTAMP, ATTEMPT, ERROR, ERROR_TYPE, TRACE_ID, CLIENT, WAIT)
"""Headers that wakeroll adds to a message in a retry topic or a dead letter topic."""

_TRACE_PARENT = "traceparent"
"""Header of W3C Trace Context: ``version-trace_id-parent_id-flags``."""
_TRACE_ID_CHARACTERS = 32
_MOST = 2**31 - 1
"""Largest valid partition and attempt in a header."""


class Origin(NamedTuple):
    """Where a message was first delivered from. (topic, partition, offset) stays the same in every attempt."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Timestamp of the message in that topic (epoch ms); -1 if it has none."""
    attempt: int
    """Number of this attempt to process the message, from 1; of a dead letter: of the last attempt."""
    error: str
    """Error of the last attempt; empty at the first. At most 1,024 bytes of UTF-8."""
    trace_id: str
    """Trace id of the header `traceparent`, the same in every attempt; without that header, empty at the first
    attempt."""
    client_id: str
    """Member whose handler failed last; empty at the first attempt."""
    error_type: str = ""
    """Type of the exception of the last attempt, with its module, such as ``decimal.InvalidOperation``; empty if there
    was none, as after a `Retry`."""

    @property
    def queue(self) -> Queue:
        """The queue that the message was first delivered from."""
        return Queue(self.topic, "", self.partition)


def origin_of(message: Message) -> Origin:
    """Return the origin of a received message, whether it comes from its own topic or from a retry topic.

    A handler of `Consumer.run` uses it to distinguish topics and to recognize repetitions, because `Message.topic`,
    `partition` and `offset` are those of the retry topic when a message is retried. Headers with an origin count only
    in retry topics and dead letter topics: in any other topic, the application that produced the message may have
    copied them.

    >>> def handle(messages):  # doctest: +SKIP
    ...     for message in messages:
    ...         origin = origin_of(message)
    ...         if not is_known(origin.topic, origin.partition, origin.offset):
    ...             process(message)
    """
    texts = texts_of(pairs_of(message))
    topic = message.topic() or ""
    # In other topics these headers are not ours: an application may send on a message with all its headers.
    if has_failed_messages(topic) and (retried := _retried(texts)) is not None:
        return retried
    kind, at_ms = message.timestamp()
    return Origin(
        topic=topic,
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp_ms=-1 if kind == TIMESTAMP_NOT_AVAILABLE else at_ms,
        attempt=1,
        error="",
        trace_id=_trace_id(texts),
        client_id="",
    )


def headers_with(message: Message, origin: Origin, wait_s: int = 0) -> list[tuple[str, str | bytes | None]]:
    """Return the headers of a message, with its origin in place of an older one.

    Args:
        message: the message.
        origin: its origin.
        wait_s: how long it waits after the delay of its queue of the retry topic (s).
    """
    texts = [
        (TOPIC, origin.topic),
        (PARTITION, str(origin.partition)),
        (OFFSET, str(origin.offset)),
        (TIMESTAMP, str(origin.timestamp_ms)),
        (ATTEMPT, str(origin.attempt)),
        (ERROR, origin.error),
        (TRACE_ID, origin.trace_id),
        (CLIENT, origin.client_id),
    ]
    if origin.error_type:
        texts.append((ERROR_TYPE, origin.error_type))
    if wait_s:
        texts.append((WAIT, str(wait_s)))
    kept = [(name, value) for name, value in pairs_of(message) if name not in HEADERS]
    return [*kept, *((name, text.encode(errors="replace")) for name, text in texts)]


def wait_s_of(message: Message) -> int:
    """Return how long a message of a retry topic waits after the delay of its queue (s)."""
    return _number(texts_of(pairs_of(message)).get(WAIT), MAX_DELAY_S) or 0


def _retried(texts: Mapping[str, str | None]) -> Origin | None:
    """Return the origin in the headers; None if they contain no valid one."""
    topic = texts.get(TOPIC)
    partition, attempt = _number(texts.get(PARTITION), _MOST), _number(texts.get(ATTEMPT), _MOST)
    offset, timestamp_ms = _number(texts.get(OFFSET)), _number(texts.get(TIMESTAMP))
    if not topic or not is_legal(topic) or partition is None or offset is None or attempt is None:
        return None
    return Origin(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=-1 if timestamp_ms is None else timestamp_ms,
        attempt=max(attempt, 1),
        error=texts.get(ERROR) or "",
        trace_id=texts.get(TRACE_ID) or "",
        client_id=texts.get(CLIENT) or "",
        error_type=texts.get(ERROR_TYPE) or "",
    )


def _number(text: str | None, most: int = 10**18) -> int | None:
    if not text or not text.isascii() or not text.isdigit() or len(text) > len(str(most)):
        return None
    return int(text) if int(text) < most else None


def _trace_id(texts: Mapping[str, str | None]) -> str:
    parts = (texts.get(_TRACE_PARENT) or "").split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == _TRACE_ID_CHARACTERS else ""
