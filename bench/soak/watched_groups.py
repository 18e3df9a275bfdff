"""Kafka's own groups in a soak: `watch-kafka` records them, and its tables must say at the end what Kafka says."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.running_system import QueueId
from wakeroll_model.coordinator_log.kafka_names import client_name
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.settings import Settings

GROUPS: Mapping[str, Mapping[str, str]] = {
    "kafka-classic": {"partition.assignment.strategy": "cooperative-sticky"},
    "kafka-consumer": {"group.protocol": "consumer"},
}
"""Group -> settings of its members; each reads the topic of the same name."""
QUEUES = 8
"""Of each topic."""
_MEMBERS = 3
_ANSWER_S = 30.0

Owned = tuple[str, int | None]
"""The owner of a queue, empty if it has none, and the committed offset."""


def members_of(group_id: str, settings: Settings, log: Path) -> Child:
    """Describe the process with the members of a group; `log` has what they handle."""
    argv = [sys.executable, "-m", "bench.consumers", "--kafka", json.dumps(GROUPS[group_id])]
    argv += ["--bootstrap", settings.bootstrap, "--log", str(log)]
    argv += [f"{group_id}-{number}={group_id}" for number in range(_MEMBERS)]
    return Child(group_id, argv, log=settings.logs / f"{group_id}.log", env=os.environ, grace_s=60)


def watch_of(settings: Settings) -> Child:
    """Describe `watch-kafka`; `settings` are those of its own home."""
    argv = [sys.executable, "-m", "wakeroll_pipeline.cli", "watch-kafka", "--groups", "|".join(GROUPS)]
    return Child(
        "watch-kafka",
        argv,
        log=settings.logs / "watch-kafka.log",
        env={**os.environ, **settings.environment()},
        grace_s=60,
    )


def differences(admin: AdminClient, settings: Settings) -> list[str]:
    """Return what the tables of a watch say otherwise than Kafka, as sentences."""
    answers = [(group_id, _described(admin, group_id), _recorded(settings, group_id)) for group_id in GROUPS]
    return [
        f"{group_id} {queue}: {theirs.get(queue)} in Kafka, {ours.get(queue)} in the tables"
        for group_id, theirs, ours in answers
        for queue in sorted(theirs.keys() | ours.keys())
        if theirs.get(queue) != ours.get(queue)
    ]


def _described(admin: AdminClient, group_id: str) -> dict[QueueId, Owned]:
    group = admin.describe_consumer_groups([group_id], request_timeout=_ANSWER_S)[group_id].result()
    owners = {
        (place.topic, place.partition): client_name(member.member_id, member.client_id, member.group_instance_id)
        for member in group.members
        for place in member.assignment.topic_partitions
    }
    places = [TopicPartition(group_id, number) for number in range(QUEUES)]
    wanted = [ConsumerGroupTopicPartitions(group_id, places)]
    committed = admin.list_consumer_group_offsets(wanted, request_timeout=_ANSWER_S)[group_id].result()
    return {
        (one.topic, one.partition): (
            owners.get((one.topic, one.partition), ""),
            one.offset if one.offset >= 0 else None,
        )
        for one in committed.topic_partitions
    }


def _recorded(settings: Settings, group_id: str) -> dict[QueueId, Owned]:
    query = """
        select topic, queue_id, coalesce(owner.client_id, ''), committed_offset
        from (select * from current_assignments where group_id = $name) as owner
        full join (select * from current_offsets where group_id = $name) as committed using (topic, queue_id)
    """
    with duck_ledger(settings.warehouse) as ledger:
        rows = [tuple(row) for row in ledger.stream(query, name=group_id)]
    return {(topic, queue_id): (owner, offset) for topic, queue_id, owner, offset in rows}
