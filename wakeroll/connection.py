"""The connection to the broker: address, topic names and client settings, declared once for all clients."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from wakeroll.client_errors import counted
from wakeroll.client_properties import librdkafka_settings, missing_files
from wakeroll.client_settings import MESSAGES, checked_settings
from wakeroll.errors import AccessDenied, InvalidUsage, NotReachable
from wakeroll.kafka_clients import clients_of, is_in_memory
from wakeroll.login_errors import is_denied
from wakeroll.retry_clock import RetryClock
from wakeroll.steady_clients import UNUSED_GROUP
from wakeroll_model.client_keys import ClientKey, ClientSigner, covering

MURMUR2 = "murmur2_random"
"""Partitioner of Kafka's Java clients and of Spark; librdkafka's default (CRC32) chooses other partitions."""

_Client = TypeVar("_Client", Producer, Consumer, AdminClient)

# Kafka's rule. RocketMQ also allows topic names like %RETRY%billing, which no Kafka broker accepts.
_is_legal = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z").match
# Kafka's Java clients, including Spark's, require the port; librdkafka would silently use 9092.
_address = re.compile(r"(\w+://)?(\[[\w.:%]+\]|[^\s:,/\[\]]+):(?P<port>[0-9]{1,5})").fullmatch


RECONNECT_MS = 1_000
"""How long a consumer waits before it connects to a broker again (ms). Kafka's default begins with 100 ms and should
grow to 10 s. Measured with librdkafka 2.16: it does not grow while all brokers are down, so each consumer connects 18
times per second, and 100 consumers overload a broker that starts on the same machine. With 1 s, each connects twice per
second.

The longer wait has a price. A client connects to an address of `bootstrap` first, then it receives the brokers' own
addresses, closes that connection, and does not connect for half of this time because of a query for metadata. So such a
query, if it is the first one, takes 505 ms. A query about a partition goes to that partition's broker at once, in 5
ms."""
_OPERATORS_RECONNECT_MS = 40
"""`RECONNECT_MS` for an operator's clients, which make few queries; the first query takes 25 ms."""
_ORDERED: Mapping[str, str | int | bool] = {
    "enable.idempotence": True,
    # A second request in flight can lose the first. If a partition was just created, its leader may reject the first
    # request ("not leader") and then accept the second, because it knows no earlier sequence number of this producer
    # (KAFKA-14359). librdkafka concludes that the first was stored too, and reports success.
    "max.in.flight.requests.per.connection": 1,
    "linger.ms": 0,
    "partitioner": MURMUR2,
}
"""Settings of a producer that keeps order, avoids duplicates and partitions keys as Kafka's Java clients do."""
_BACKOFF = ("reconnect.backoff.ms", "reconnect.backoff.max.ms")


@dataclass(frozen=True)
class Topics:
    """The names of the control plane's four topics."""

    prefix: str = "wakeroll"

    @property
    def groups(self) -> str:
        """Events about groups; keyed by group_id."""
        return f"{self.prefix}.groups"

    @property
    def queues(self) -> str:
        """Events about queues; keyed by the queue."""
        return f"{self.prefix}.queues"

    @property
    def inbox(self) -> str:
        """Decisions for clients; keyed by client_id."""
        return f"{self.prefix}.inbox"

    @property
    def decisions(self) -> str:
        """All decisions; keyed by group_id, queue or shard."""
        return f"{self.prefix}.decisions"

    @property
    def leases(self) -> str:
        """Claims and renewals of leases; it exists only where processes use leases. See `wakeroll_model.lease_log`."""
        return f"{self.prefix}.leases"

    @property
    def chain(self) -> str:
        """The newest lines of the tables' hash chains; only the recorder writes. See `wakeroll_model.chain`."""
        return f"{self.prefix}.chain"

    @property
    def kafka(self) -> str:
        """Name of the log of a watch of Kafka's own groups. It is in the ledger only; no topic has this name."""
        return f"{self.prefix}.kafka"

    @property
    def control(self) -> tuple[str, str]:
        """The topics whose records the coordinator reads."""
        return (self.groups, self.queues)

    @property
    def all(self) -> tuple[str, str, str, str]:
        """All four topics."""
        return (self.groups, self.queues, self.inbox, self.decisions)


@dataclass(frozen=True)
class Connection:
    """A broker, its login, and the names of the control plane's topics.

    Raises:
        InvalidUsage: `bootstrap` is not a list of addresses, or a setting may not be set (see
            `wakeroll.client_settings`). Each method raises it if Kafka's client rejects the settings.
    """

    bootstrap: str
    """``host:port[,host:port]``."""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """More client settings as text, like those of ``--kafka-config``, in librdkafka's names or in those of Java
    clients. Callbacks may be passed here too; they are moved to `callbacks`."""
    topics: Topics = field(default_factory=Topics)
    client_keys: tuple[ClientKey, ...] = ()
    """Keys that sign the events of clients, each for its groups; clients of other groups do not sign."""
    callbacks: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Settings that are functions or loggers."""

    def __post_init__(self) -> None:
        texts, callbacks = checked_settings(self.config)
        object.__setattr__(self, "config", texts)
        object.__setattr__(self, "callbacks", {**self.callbacks, **callbacks})
        if not self.bootstrap:
            raise InvalidUsage("bootstrap is empty; it must name a broker, like 'localhost:9092'")
        for address in self.bootstrap.split(","):
            found = _address(address.strip())
            if found is None or not 0 < int(found["port"]) < 65_536:
                raise InvalidUsage(f"bootstrap is {self.bootstrap!r}; it must be host:port[,host:port]")
        named = self.config.get("bootstrap.servers", self.bootstrap)
        if named != self.bootstrap:
            raise InvalidUsage(
                f"the Kafka settings name bootstrap.servers {named!r}, but bootstrap is {self.bootstrap!r}; name the "
                "brokers once"
            )

    @property
    def has_login(self) -> bool:
        """Whether clients log in, or verify the brokers' certificates."""
        return librdkafka_settings(self.config).get("security.protocol", "PLAINTEXT").upper() != "PLAINTEXT"

    @property
    def user(self) -> str:
        """The user or certificate of the login, for messages; never a secret."""
        settings = librdkafka_settings(self.config)
        user = settings.get("sasl.username") or settings.get("ssl.certificate.location")
        user = user or settings.get("ssl.keystore.location")
        return "a client without a login" if user is None else repr(user)

    @property
    def login(self) -> str:
        """The user, the mechanism and the protocol of the login; never a secret."""
        settings = librdkafka_settings(self.config)
        over = settings.get("security.protocol", "PLAINTEXT").upper()
        if "sasl.mechanism" in settings:
            return f"{self.user} by {settings['sasl.mechanism']} over {over}"
        is_certified = "ssl.certificate.location" in settings or "ssl.keystore.location" in settings
        return f"{self.user} by certificate over {over}" if is_certified else f"{self.user}, over {over}"

    @property
    def clock(self) -> RetryClock:
        """The clock by which failed messages wait for their next attempt."""
        return clients_of(self.bootstrap).clock

    @property
    def is_in_memory(self) -> bool:
        """Whether the broker is in the memory of this process, for tests."""
        return is_in_memory(self.bootstrap)

    def client_key(self, group_id: str) -> ClientKey | None:
        """Return the key that signs the events of a group's clients; None if they are not signed."""
        if not covering(self.client_keys, group_id):
            return None
        from wakeroll.keys import client_key_for  # here, because few clients sign

        return client_key_for(self.client_keys, group_id)

    def client_signer(self, group_id: str) -> ClientSigner | None:
        """Return a new signer for the events of a client of a group; None if they are not signed."""
        key = self.client_key(group_id)
        if key is None:
            return None
        from wakeroll.keys import new_client_signer

        return new_client_signer(key)

    def producer(self, **settings: Any) -> Producer:
        """Create a producer that keeps order, avoids duplicates and partitions keys like Kafka's Java clients.

        Args:
            settings: settings that this client needs. The user's settings of the connection take precedence, and the
                user's settings of messages are left out.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        return self._producer(settings, of_messages=False)

    def producer_settings(self, **settings: Any) -> dict[str, Any]:
        """Return the settings of such a producer without `callbacks`, for use in another process."""
        made = self._settings({**_ORDERED, **settings}, of_messages=False)
        return {name: value for name, value in made.items() if name not in self.callbacks}

    def message_producer(self) -> Producer:
        """Create a client for the application's messages, with all of the user's settings.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        return self._producer({}, of_messages=True)

    def _producer(self, settings: Mapping[str, Any], *, of_messages: bool) -> Producer:
        return self._make(clients_of(self.bootstrap).producer, {**_ORDERED, **settings}, of_messages=of_messages)

    def consumer(self, **settings: Any) -> Consumer:
        """Create a consumer for `assign`; Kafka's own groups and offsets are not used.

        Args:
            settings: settings that this client needs. The user's settings of the connection take precedence, and the
                user's settings of messages are left out.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        return self._consumer(settings, of_messages=False)

    def message_consumer(self, **settings: Any) -> Consumer:
        """Create a client for the application's messages, with all of the user's settings.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        return self._consumer(settings, of_messages=True)

    def _consumer(self, settings: Mapping[str, Any], *, of_messages: bool) -> Consumer:
        ours = {
            "group.id": UNUSED_GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 500,
        }
        if "reconnect.backoff.max.ms" not in settings:
            ours["reconnect.backoff.ms"] = RECONNECT_MS
        return self._make(clients_of(self.bootstrap).consumer, {**ours, **settings}, of_messages=of_messages)

    def operators_consumer(self, **settings: Any) -> Consumer:
        """Create a consumer for an operator's queries: it reads the oldest record if its position was deleted.

        It logs no errors of Kafka's client, because exceptions report them.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        quiet = {"error_cb": lambda _: None, "log_level": 0}
        quick = {"fetch.wait.max.ms": 100, "reconnect.backoff.ms": _OPERATORS_RECONNECT_MS}
        return self.consumer(**{"auto.offset.reset": "earliest", **quick, **quiet, **settings})

    def admin(self, **settings: Any) -> AdminClient:
        """Create a client that describes and creates topics.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        return self._make(clients_of(self.bootstrap).admin, settings)

    @contextmanager
    def answering(self, timeout: float) -> Iterator[None]:
        """Convert a KafkaException of the block, which waits `timeout` seconds for answers, to an error for the user.

        Raises:
            AccessDenied: the brokers deny the principal a right.
            NotReachable: the block raised another KafkaException.
        """
        try:
            yield
        except KafkaException as problem:
            if is_denied(problem.args[0]):
                raise AccessDenied(
                    f"the brokers at {self.bootstrap} deny {self.user} an operation: {problem.args[0].str()}; "
                    "`wakeroll acls` prints the ACLs of each role"
                ) from None
            raise NotReachable(
                f"no Kafka broker answered at {self.bootstrap} within {timeout:g} s ({problem.args[0].str()})"
            ) from None

    def _settings(self, settings: Mapping[str, Any], *, of_messages: bool) -> dict[str, Any]:
        """Return all settings of a client; the user's take precedence over ours."""
        given = {**librdkafka_settings(self.config), **self.callbacks}
        if not of_messages:
            given = {name: value for name, value in given.items() if name not in MESSAGES}
        if not given.keys().isdisjoint(_BACKOFF):  # one of ours could contradict the other of the user's
            settings = {name: value for name, value in settings.items() if name not in _BACKOFF}
        return {"bootstrap.servers": self.bootstrap, **settings, **given}

    def _make(
        self, kind: Callable[[dict[str, Any]], _Client], settings: Mapping[str, Any], *, of_messages: bool = False
    ) -> _Client:
        client = self._settings(settings, of_messages=of_messages)
        if "error_cb" in client:
            client["error_cb"] = counted(client["error_cb"])
        try:
            return kind(client)
        except KafkaException as problem:
            texts = librdkafka_settings(self.config)
            absent = "".join(f"; {name} is {file!r}, which does not exist" for name, file in missing_files(texts))
            raise InvalidUsage(f"Kafka's client rejects these settings: {problem.args[0].str()}{absent}") from None


def is_legal(topic: str) -> bool:
    """Return whether Kafka allows this topic name. A broker rejects requests that name any other topic."""
    return _is_legal(topic) is not None


def close_producer(producer: Producer, timeout: float) -> None:
    """Wait at most `timeout` seconds for acknowledgements, drop the remaining records, and close the client.

    No thread may use it any more. Without this, librdkafka keeps undelivered records, and reconnects to a broker that
    is gone until Python's garbage collector finds the producer.
    """
    with suppress(KafkaException):  # a fatal error, such as that of a log that has lost records
        producer.flush(timeout)
    producer.purge()
    # The callbacks that are due run here. In `close`, which serves the rest without a stop, a callback that is called
    # after a fatal error was raised ends as SystemError, and its call is lost.
    for _ in range(len(producer) + 1):
        with suppress(KafkaException):
            producer.poll(0)
    with suppress(KafkaException, SystemError):  # a fatal error that came since; the client is destroyed nevertheless
        producer.close()


def take(consumer: Consumer, most: int, timeout: float) -> list[Message]:
    """Return received messages, including errors; wait at most `timeout` seconds for the first one."""
    first = consumer.poll(timeout)
    # consume() alone would wait for all of them.
    return [] if first is None else [first, *consumer.consume(most - 1, timeout=0)]
