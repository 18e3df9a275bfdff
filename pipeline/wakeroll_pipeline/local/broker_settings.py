"""Kafka's settings of an embedded broker, which is alone or a node of a cluster."""

import base64
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from wakeroll_pipeline.local.ports import HOST

RECORDS = "records"
"""Folder of the records, below the broker's folder."""


class Node(NamedTuple):
    """The part of a broker in its cluster."""

    number: int = 1
    """Kafka's node.id, from 1."""
    controllers: Mapping[int, int] = {}
    """Number of each node of the cluster -> its port for the other nodes; empty: the broker is alone."""
    cluster_id: str = ""
    """Id of the cluster, the same for all its nodes; empty: the id in the folder, or a new one."""


ALONE = Node()


def new_cluster_id() -> str:
    """Return an id for a new cluster: 16 bytes in URL-safe base64.

    Kafka's argument parser rejects a leading "-".
    """
    return "w" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]


def broker_properties(port: int, node: Node) -> dict[str, str | int]:
    """Return the settings of a node.

    Args:
        port: its port for clients.
        node: its number, and the ports of all nodes.
    """
    voters = ",".join(f"{number}@{HOST}:{its_port}" for number, its_port in sorted(node.controllers.items()))
    replicas = min(len(node.controllers), 3)
    in_sync = replicas - 1 or 1
    return {
        "process.roles": "broker,controller",
        "node.id": node.number,
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CLIENTS://{HOST}:{port},CONTROLLER://{HOST}:{node.controllers[node.number]}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        # Relative to the working folder: Kafka splits this value at commas, and reads the file as Latin-1.
        "log.dirs": RECORDS,
        # A single node cannot replicate. Two of three replicas must have a record before it counts as stored.
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        # The default of 50 partitions each is for a cluster; here they only cost files, and time at the first use.
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.num.partitions": 4,
        # After a crash the node cannot register again before its last session has ended (9 s by default).
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 500,
        # A mistyped name is an error, not a topic.
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        # Control topics allow records of 8 MiB, and a batch is larger than its records.
        "message.max.bytes": 10 * 1024 * 1024,
        "replica.fetch.max.bytes": 10 * 1024 * 1024,
        "log.retention.hours": 7 * 24,
        "log.segment.bytes": 256 * 1024 * 1024,
        # By default these files take 128 MiB, and 10 MiB per segment, whatever they contain.
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        "log.index.size.max.bytes": 1024 * 1024,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }
