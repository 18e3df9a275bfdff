"""What Kafka's tools say of a group: who has what, and which offsets are committed; to compare a record with it."""

import os
import subprocess
from pathlib import Path

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient

from wakeroll_model.coordinator_log.kafka_names import client_name
from wakeroll_pipeline.prerequisites import java_path

TOOLS = "WAKEROLL_KAFKA_TOOLS"
"""Environment variable that names a folder with the JARs of Kafka's tools; then `kafka-consumer-groups.sh` is asked."""
Owners = dict[tuple[str, int], str]
"""(Topic, partition) -> the member that has it, by its name in wakeroll."""


class GroupOracle:
    """Asks the coordinator of Kafka by a client that has nothing to do with wakeroll."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self.asked_tools = 0
        """How often Kafka's own tool has answered."""

    def owners(self, group_id: str) -> Owners | None:
        """Return who has what; None while the group is rebalancing, or not known."""
        try:
            its = self._admin.describe_consumer_groups([group_id])[group_id].result()
        except KafkaException:
            return None
        if its.state not in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY):
            return None
        return {
            (at.topic, at.partition): client_name(one.member_id, one.client_id, one.group_instance_id)
            for one in its.members
            for at in one.assignment.topic_partitions
        }

    def owners_by_tool(self, group_id: str) -> Owners | None:
        """Return what `kafka-consumer-groups.sh --describe` prints; None without the tool, or while it has no answer.

        It prints no `group.instance.id` beside a partition, so this is for groups without static members.
        """
        folder = os.environ.get(TOOLS)
        if not folder:
            return None
        words = [java_path() or "java", "-XX:TieredStopAtLevel=1", "-cp", str(Path(folder) / "*")]
        words += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
        words += ["org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server", self._bootstrap]
        done = subprocess.run([*words, "--describe", "--group", group_id], capture_output=True, text=True, check=False)
        rows = [line.split() for line in done.stdout.splitlines()]
        if done.returncode or not any(row[:1] == ["GROUP"] for row in rows):
            return None
        self.asked_tools += 1
        found: Owners = {}
        for row in rows:  # GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID
            if len(row) == 9 and row[0] == group_id and row[6] != "-":
                found[row[1], int(row[2])] = client_name(row[6], row[8], None)
        return found

    def offsets(self, group_id: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets."""
        asked = ConsumerGroupTopicPartitions(group_id)
        found = self._admin.list_consumer_group_offsets([asked])[group_id].result().topic_partitions
        return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}
