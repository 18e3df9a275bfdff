"""A broker with the whole system for the time of a measurement, and what its processes report."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from bench.frame import NotMeasured
from wakeroll.connection import Connection
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.local_system import LocalSystem
from wakeroll_pipeline.local.ports import HOST
from wakeroll_pipeline.local.traffic import Probe
from wakeroll_pipeline.settings import Settings

QueueId = tuple[str, int]
"""Topic and number of a queue."""
_FLUSH_S = 60.0
_FULL_S = 0.1
_REFRESH_MS = 5_000


def settings_in(folder: Path, prefix: str, broker: EmbeddedBroker, login: Path | None = None) -> Settings:
    """Return settings whose data is in a folder, so that several systems can use one broker.

    `login`: file of client settings; None if the broker needs none.
    """
    home, checkpoints = (str((folder / prefix / name).absolute()) for name in ("home", "checkpoints"))
    kafka_config = None if login is None else str(login.absolute())
    return Settings(
        bootstrap=broker.bootstrap, kafka_config=kafka_config, prefix=prefix, home=home, checkpoints=checkpoints
    )


@contextmanager
def running_system(settings: Settings) -> Iterator[Connection]:
    """Run observer and jobs for the time of a `with`; raise an error if one of them ended meanwhile."""
    system = LocalSystem(settings)
    try:
        system.start(threading.Event())
        yield settings.connection
        system.check()
    finally:
        system.stop()


@contextmanager
def probing(connection: Connection, topic: str) -> Iterator[None]:
    """Send five heartbeats per second during a `with` block, each of a new instance of one client."""
    probe = Probe(connection, topic)
    probe.start()
    try:
        yield
    finally:
        probe.close()


def orders_of(connection: Connection) -> str:
    """Return the topic with the messages of a measurement."""
    return f"{connection.topics.prefix}.orders"


def make_topic(connection: Connection, topic: str, partitions: int, **config: str) -> None:
    """Create a topic.

    Raises:
        NotMeasured: the broker refuses it.
    """
    error = Cluster(connection).create([NewTopic(topic, partitions, config=config)])[topic]
    if error is not None:
        raise NotMeasured(f"the topic {topic} cannot be created: {error.str()}")


def until(what: str, done: Callable[[], bool], limit_s: float, where: Path) -> None:
    """Wait until something is done.

    Raises:
        NotMeasured: it is not done within `limit_s` seconds; the message names it, and `where` its logs are.
    """
    deadline_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline_s:
            raise NotMeasured(f"{what}: not true within {limit_s:g} s; see {where}")
        time.sleep(0.05)


def tls_broker(folder: Path) -> tuple[EmbeddedBroker, Path]:
    """Return a broker that encrypts all connections, not started, and the client settings with which it is reached.

    Raises:
        CalledProcessError: openssl cannot make a certificate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    making = ("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 2 -keyout broker.key "
              f"-out broker.crt -subj /CN=broker -addext subjectAltName=IP:{HOST}")  # fmt: skip
    subprocess.run(making.split(), cwd=folder, capture_output=True, check=True)
    certificate, both = (folder / "broker.crt").absolute(), (folder / "broker.pem").absolute()
    both.write_bytes((folder / "broker.key").read_bytes() + certificate.read_bytes())
    client = folder / "client.properties"
    client.write_text(f"security.protocol=SSL\nssl.ca.location={certificate}\n", encoding="utf-8")
    settings = {
        "listener.security.protocol.map": "CLIENTS:SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
    }
    login = {"security.protocol": "SSL", "ssl.ca.location": str(certificate)}
    return EmbeddedBroker(folder / "broker", settings=settings, login=login), client


class SteadyTraffic(threading.Thread):
    """Produces until it is closed; late messages are produced at once. Nobody else produces to these topics."""

    def __init__(self, connection: Connection, queues: Sequence[QueueId], per_second: int) -> None:
        """Prepare; `per_second` is the number of messages of all queues together."""
        super().__init__(name="steady-traffic", daemon=True)
        self._connection = connection
        self._queues = list(queues)
        self._pause_s = 1 / per_second
        self._ended = threading.Event()

    def add(self, queues: Sequence[QueueId]) -> None:
        """Produce to further queues too."""
        self._queues = [*self._queues, *queues]

    def run(self) -> None:
        """Produce until `close`."""
        producer = self._connection.producer(**{"topic.metadata.refresh.interval.ms": _REFRESH_MS, "log_level": 0})
        due_s, number = time.monotonic(), 0
        while not self._ended.wait(max(0.0, due_s - time.monotonic())):
            queues = self._queues
            topic, queue_id = queues[number % len(queues)]
            try:
                producer.produce(topic, b"%d" % number, partition=queue_id)
            except BufferError:  # the broker is down
                producer.poll(_FULL_S)
                continue
            except KafkaException as problem:
                if problem.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                # The partition is new, and the producer does not know it yet: the next queue has its turn.
            producer.poll(0)
            number += 1
            due_s += self._pause_s
        producer.flush(_FLUSH_S)

    def close(self) -> None:
        """Stop, and wait until the broker has acknowledged all messages. A second call does nothing."""
        self._ended.set()
        self.join()
