"""The settings of Kafka's clients that an application or a deployment may set, by `kafka_config` or `--kafka-config`.

Names are librdkafka's or those of Kafka's Java clients. A setting that is in neither table is refused, because wakeroll
was not tested with it and its guarantees might not hold.
"""

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, Literal, NamedTuple

from wakeroll.errors import InvalidUsage
from wakeroll.repeated_errors import repeated

log = logging.getLogger("wakeroll")

KafkaConfig = Mapping[str, str | int | float | bool | Callable[..., Any] | logging.Logger]
"""Name of a setting -> its value; numbers and flags may be text, as in a file."""

_INT: Final = 2**31 - 1


class Number(NamedTuple):
    """A number in a range, both ends included."""

    low: int
    high: int
    is_whole: bool = True


class Word(NamedTuple):
    """One of several words."""

    words: tuple[str, ...]


Kind = Number | Word | Literal["text", "flag", "function", "logger"]
"""The type of a setting."""

LOGIN = ("https.", "sasl.", "ssl.")
"""Prefixes of the settings of a login. They are text, and Kafka's clients check them."""

CONNECTION: Mapping[str, Kind] = {
    "api.version.request.timeout.ms": Number(1, 300_000),
    "bootstrap.servers": "text",
    "broker.address.family": Word(("any", "v4", "v6")),
    "broker.address.ttl": Number(0, 86_400_000),
    "client.dns.lookup": Word(("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")),
    "client.id": "text",
    "connections.max.idle.ms": Number(0, _INT),
    "debug": "text",
    "enable.metrics.push": "flag",
    "enable.sasl.oauthbearer.unsecure.jwt": "flag",
    "enable.ssl.certificate.verification": "flag",
    "log.connection.close": "flag",
    "log.thread.name": "flag",
    "log_level": Number(0, 7),
    "logger": "logger",
    "metadata.max.age.ms": Number(1_000, 86_400_000),
    "metadata.recovery.rebootstrap.trigger.ms": Number(0, _INT),
    "metadata.recovery.strategy": Word(("none", "rebootstrap")),
    "oauth_cb": "function",
    "receive.message.max.bytes": Number(100_000_000, _INT),
    "reconnect.backoff.max.ms": Number(100, 10_000),
    "reconnect.backoff.ms": Number(0, 10_000),
    "retry.backoff.max.ms": Number(1, 10_000),
    "retry.backoff.ms": Number(1, 10_000),
    "security.protocol": "text",
    "socket.connection.setup.timeout.ms": Number(1_000, _INT),
    "socket.keepalive.enable": "flag",
    "socket.max.fails": Number(1, 1_000_000),
    "socket.nagle.disable": "flag",
    "socket.receive.buffer.bytes": Number(0, 100_000_000),
    "socket.send.buffer.bytes": Number(0, 100_000_000),
    "socket.timeout.ms": Number(1_000, 300_000),
    "topic.metadata.propagation.max.ms": Number(0, 3_600_000),
    "topic.metadata.refresh.fast.interval.ms": Number(1, 60_000),
    "topic.metadata.refresh.interval.ms": Number(1_000, 3_600_000),
    "topic.metadata.refresh.sparse": "flag",
}
"""Settings of all clients, besides those of the login. The bounds are Kafka's, or narrower where a longer wait would
exceed the session, or a record of the control plane could not be read."""

MESSAGES: Mapping[str, Kind] = {
    "batch.num.messages": Number(1, 1_000_000),
    "batch.size": Number(1, _INT),
    "check.crcs": "flag",
    "client.rack": "text",
    "compression.codec": Word(("none", "gzip", "snappy", "lz4", "zstd")),
    "compression.level": Number(-1, 12),
    "compression.type": Word(("none", "gzip", "snappy", "lz4", "zstd")),
    "delivery.timeout.ms": Number(0, _INT),
    "error_cb": "function",
    "fetch.error.backoff.ms": Number(0, 300_000),
    "fetch.max.bytes": Number(1_000_000, _INT - 512),
    "fetch.max.wait.ms": Number(0, 300_000),
    "fetch.message.max.bytes": Number(1, 1_000_000_000),
    "fetch.min.bytes": Number(1, 100_000_000),
    "fetch.queue.backoff.ms": Number(0, 300_000),
    "fetch.wait.max.ms": Number(0, 300_000),
    "linger.ms": Number(0, 900_000, is_whole=False),
    "max.partition.fetch.bytes": Number(1, 1_000_000_000),
    "message.copy.max.bytes": Number(0, 1_000_000_000),
    "message.max.bytes": Number(1_000, 1_000_000_000),
    "message.timeout.ms": Number(0, _INT),
    "queue.buffering.max.kbytes": Number(1, _INT),
    "queue.buffering.max.messages": Number(0, _INT),
    "queue.buffering.max.ms": Number(0, 900_000, is_whole=False),
    "queued.max.messages.kbytes": Number(1, 2_097_151),
    "queued.min.messages": Number(1, 10_000_000),
    "request.timeout.ms": Number(1, 900_000),
    "statistics.interval.ms": Number(0, 86_400_000),
    "stats_cb": "function",
    "sticky.partitioning.linger.ms": Number(0, 900_000),
    "throttle_cb": "function",
}
"""Settings of the clients that read or send the application's messages. Clients for heartbeats, assignments and
decisions do not use them: a fetch that waits for a megabyte would delay an assignment."""

JAVA: Mapping[str, Kind] = {
    "auto.include.jmx.reporter": "flag",
    "buffer.memory": Number(0, 2**63 - 1),
    "default.api.timeout.ms": Number(0, _INT),
    "fetch.max.wait.ms": Number(0, _INT),
    "max.block.ms": Number(0, 2**63 - 1),
    "max.poll.records": Number(1, _INT),
    "max.request.size": Number(0, _INT),
    "metric.reporters": "text",
    "receive.buffer.bytes": Number(-1, _INT),
    "security.providers": "text",
    "send.buffer.bytes": Number(-1, _INT),
    "socket.connection.setup.timeout.max.ms": Number(0, 2**63 - 1),
    "ssl.enabled.protocols": "text",
    "ssl.keymanager.algorithm": "text",
    "ssl.protocol": "text",
    "ssl.provider": "text",
    "ssl.secure.random.implementation": "text",
    "ssl.trustmanager.algorithm": "text",
}
"""Settings of Kafka's Java clients without an equivalent in librdkafka; only Spark receives them."""

_STRATEGY = "the coordinator assigns queues by `strategy`"
_SESSION = "`wakeroll configure` sets it for a group"
_COMMITS = "wakeroll commits what is processed, every `commit_interval` seconds"
_SENDS = "wakeroll's producers keep the order and lose no message by settings of their own"
_TRANSACTIONS = "wakeroll's producers do not use transactions"
_VERSIONS = "wakeroll needs brokers that tell their versions"
_READS = "the value of a message is passed on as bytes"

RESERVED: Mapping[str, str] = {
    "acks": _SENDS,
    "allow.auto.create.topics": "a consumer waits for a topic that does not exist yet",
    "api.version.fallback.ms": _VERSIONS,
    "api.version.request": _VERSIONS,
    "auto.commit.enable": _COMMITS,
    "auto.commit.interval.ms": "`commit_interval` is the interval of commits (s)",
    "auto.offset.reset": "`consume_from` says where a queue without a committed offset starts",
    "broker.version.fallback": _VERSIONS,
    "delivery.report.only.error": "wakeroll needs each delivery report",
    "enable.auto.commit": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "enable.gapless.guarantee": _SENDS,
    "enable.idempotence": _SENDS,
    "enable.partition.eof": "wakeroll notices the end of a queue by itself; `lag` returns the distance to it",
    "group.id": "wakeroll's groups are not Kafka's; `group_id` names the group",
    "group.instance.id": "`client_id` names a member across restarts",
    "group.protocol": _STRATEGY,
    "group.protocol.type": _STRATEGY,
    "group.remote.assignor": _STRATEGY,
    "heartbeat.interval.ms": _SESSION,
    "interceptor.classes": "wakeroll's clients load no plugins",
    "isolation.level": "messages of open and aborted transactions are not delivered",
    "key.deserializer": _READS,
    "key.serializer": _READS,
    "max.in.flight": _SENDS,
    "max.in.flight.requests.per.connection": _SENDS,
    "max.poll.interval.ms": "a thread of its own sends heartbeats; `handle_timeout` bounds a call of a handler",
    "message.send.max.retries": _SENDS,
    "metadata.broker.list": "`bootstrap` names the brokers",
    "offset.store.method": _COMMITS,
    "on_commit": _COMMITS,
    "on_delivery": "`Producer.send` has `on_delivery`",
    "partition.assignment.strategy": _STRATEGY,
    "partitioner": "a key has the partition that Kafka's Java clients choose; `Producer.send` has `partition`",
    "plugin.library.paths": "wakeroll's clients load no plugins",
    "produce.offset.report": "wakeroll needs each delivery report",
    "queue.buffering.backpressure.threshold": _SENDS,
    "queuing.strategy": _SENDS,
    "request.required.acks": _SENDS,
    "retries": _SENDS,
    "session.timeout.ms": _SESSION,
    "topic.blacklist": "`topics` names what a consumer reads",
    "transaction.timeout.ms": _TRANSACTIONS,
    "transactional.id": _TRANSACTIONS,
    "value.deserializer": _READS,
    "value.serializer": _READS,
}
"""Settings whose values wakeroll's clients rely on -> what to use instead."""

_KINDS: Mapping[str, Kind] = {**JAVA, **CONNECTION, **MESSAGES}
"""All settings except those of a login."""


def checked_settings(given: KafkaConfig) -> tuple[dict[str, str], dict[str, Any]]:
    """Return settings as text, and callbacks and loggers, by name.

    Exceptions of callbacks are logged, except those of `oauth_cb`: raised in Kafka's client, they would end a thread of
    the SDK.

    Raises:
        InvalidUsage: a setting may not be set, or its value has another type; the message names all such settings, and
            no value of a login.
    """
    problems, texts, objects = [], dict[str, str](), dict[str, Any]()
    for name, value in given.items():
        if name in RESERVED:
            problems.append(f"{name} ({RESERVED[name]})")
        elif (kind := "text" if name.startswith(LOGIN) else _KINDS.get(name)) is None:
            from difflib import get_close_matches  # here, because few mistake a name

            similar = "".join(f"; did you mean {match}?" for match in get_close_matches(name, _KINDS, 1))
            problems.append(f"{name} (not among the settings that wakeroll passes on{similar})")
        elif kind in ("function", "logger"):
            if not (isinstance(value, logging.Logger) if kind == "logger" else callable(value)):
                problems.append(f"{name} (it must be a {kind})")
            objects[name] = value if name in ("logger", "oauth_cb") else _guarded(name, value)
        else:
            texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
            if expected := _expectation(kind, texts[name]):
                problems.append(f"{name} (it is {value!r}; it must be {expected})")
    if problems:
        raise InvalidUsage(
            f"these settings of Kafka's clients cannot be set: {'; '.join(problems)}; docs/sdk.md lists those that can"
        )
    return texts, objects


def _expectation(kind: Kind, text: str) -> str:
    """Return what a value must be; empty if the value is valid."""
    match kind:
        case Number(low, high, is_whole):
            try:
                number = int(text) if is_whole else float(text)
            except ValueError:
                number = high + 1
            return "" if low <= number <= high else f"a number from {low} to {high}"
        case Word(words):
            return "" if text in words else f"one of: {', '.join(words)}"
        case "flag":
            return "" if text in ("true", "false") else "true or false"
        case _:
            return ""


def _guarded(name: str, call: Any) -> Callable[..., None]:
    """Return a callback that logs exceptions."""

    @wraps(call)
    def guarded(*arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as problem:
            if (others := repeated.words(f"callback {name}: {type(problem).__name__}")) is not None:
                log.exception("the callback %s of kafka_config failed%s", name, others)

    return guarded
