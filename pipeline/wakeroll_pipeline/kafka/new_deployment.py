"""The start of a deployment: its topics are created, and its shards begin at the newest feature level."""

from confluent_kafka import KafkaError

from wakeroll.errors import WakerollError
from wakeroll.operator_name import this_user
from wakeroll_model.events import Level
from wakeroll_model.feature_levels import FIRST, NEWEST
from wakeroll_pipeline.kafka.control_topics import Finding, ensure_topics
from wakeroll_pipeline.kafka.level_records import append_level
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.settings import Settings


def ensure_deployment(settings: Settings) -> list[Finding]:
    """Create missing topics, check existing ones, and raise the level of control topics that did not exist.

    Several processes may do so at once: a second record of a level has no effect.

    Returns:
        Findings that are not fatal.

    Raises:
        InvalidTopics, NotReachable: as `ensure_topics`.
    """
    connection = settings.connection
    found = Cluster(connection).racks(connection.topics.control)
    findings = ensure_topics(
        connection,
        partitions=settings.partitions,
        inbox_partitions=settings.inbox_partitions,
        replication=settings.replication,
    )
    new = [topic for topic, racks in found.items() if not isinstance(racks, KafkaError) and not racks]
    places = [(topic, partition) for topic in new for partition in range(settings.partitions)]
    try:
        if places:
            append_level(connection, settings.read_keys(), Level(level=NEWEST, by=this_user()), places)
    except WakerollError as error:
        text = f"the new deployment begins at feature level {FIRST}: {error}; to raise it: wakeroll upgrade"
        findings.append(Finding(new[0], text, fatal=False))
    return findings
