"""Three brokers that form one cluster, on ports of this machine; a test may kill each of them, and start it again."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from tests.support.waiting import wait_until
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.broker_settings import Node, new_cluster_id
from wakeroll_pipeline.local.ports import HOST, free_ports

NUMBERS = (1, 2, 3)


class BrokerCluster:
    """Three nodes with replication 3; two of them must have a record before it counts as stored.

    Each node is a broker and a controller, and has a rack of its own. Two of three must run.
    """

    def __init__(self, folder: Path, *, settings: Mapping[str, str | int] | None = None) -> None:
        """Prepare; `settings` are more of Kafka's broker settings."""
        ports = free_ports(2 * len(NUMBERS))
        self._ports = dict(zip(NUMBERS, ports, strict=False))
        controllers = dict(zip(NUMBERS, ports[len(NUMBERS) :], strict=True))
        cluster_id = new_cluster_id()
        self.brokers = {
            number: EmbeddedBroker(
                folder / f"broker-{number}",
                port=self._ports[number],
                heap="160m",
                settings={"broker.rack": f"rack-{number}", **(settings or {})},
                node=Node(number, controllers, cluster_id),
            )
            for number in NUMBERS
        }

    @property
    def bootstrap(self) -> str:
        """The addresses of all three."""
        return ",".join(f"{HOST}:{port}" for port in self._ports.values())

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": 200, "log_level": 0})

    def start(self, *numbers: int) -> None:
        """Start nodes at once, and wait until they serve; none named: all. A node alone waits for a second one."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda number: self.brokers[number].start(), numbers or NUMBERS))

    def stop(self, number: int) -> None:
        """Stop a node in good order: other nodes become the leaders of its partitions first."""
        self.brokers[number].stop()

    def kill(self, *numbers: int) -> None:
        """Kill nodes at once; none named: all."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda number: self.brokers[number].kill(), numbers or NUMBERS))

    def make_topics(self, topics: Sequence[str], replicas: list[list[int]], config: dict[str, str]) -> None:
        """Make topics with one partition for each of these lists of nodes; the first node of a list leads first."""
        new = [NewTopic(topic, len(replicas), replica_assignment=replicas, config=config) for topic in topics]
        for future in self.admin.create_topics(new).values():
            future.result(30)

    def leader(self, topic: str, partition: int) -> int:
        """Return the number of the node that leads a partition; -1 if no node does."""
        return int(self._partitions(topic)[partition].leader)

    def in_sync(self, topic: str, partition: int) -> list[int]:
        """Return the numbers of the nodes that have all records of a partition, sorted."""
        return sorted(self._partitions(topic)[partition].isrs)

    def wait_until_whole(self) -> None:
        """Wait until every replica of every topic has all records."""
        wait_until(lambda: not self._lagging(), "all replicas are in sync", state=self._lagging)

    def wait_until_led_by(self, number: int, places: Iterable[tuple[str, int]]) -> None:
        """Wait until a node leads these partitions."""
        wanted = list(places)
        wait_until(
            lambda: all(self.leader(*place) == number for place in wanted),
            f"node {number} leads {wanted}",
            state=lambda: [self.leader(*place) for place in wanted],
        )

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()  # nodes that stop one after the other wait for their quorum

    def _partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        return dict(self.admin.list_topics(topic, timeout=30).topics[topic].partitions)

    def _lagging(self) -> list[str]:
        """Return the partitions without a leader, or with replicas that are not in sync."""
        try:
            topics = self.admin.list_topics(timeout=10).topics
        except KafkaException as error:
            return [str(error)]
        return [
            f"{topic}-{number}: {partition.isrs} of {partition.replicas}"
            for topic, its in topics.items()
            for number, partition in its.partitions.items()
            if partition.leader < 0 or len(partition.isrs) < len(partition.replicas)
        ]
