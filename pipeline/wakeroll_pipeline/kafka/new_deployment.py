"""The start of a deployment: its topics are created, and its shards receive the newest feature level and their keys."""

from confluent_kafka import KafkaError

from wakeroll.errors import NotReachable, WakerollError
from wakeroll.keys import InvalidKeys, key_to_sign
from wakeroll.operator_name import this_user
from wakeroll_model.events import KeyChange, Level
from wakeroll_model.feature_levels import FIRST, OFFERED
from wakeroll_model.valid_keys import on_record
from wakeroll_pipeline.kafka.control_topics import Finding, ensure_topics
from wakeroll_pipeline.kafka.shard_records import append_to_shards
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.settings import Settings


def ensure_deployment(settings: Settings, *, decides: bool = True) -> list[Finding]:
    """Create missing topics, check existing ones, and begin control topics that did not exist.

    They receive the newest feature level; and, if the deployment has a key file, its keys are recorded. Several
    processes may do so at once: a second record of a level or of a key has no effect.

    Args:
        settings: settings of the deployment.
        decides: whether this process is a coordinator. Any other process begins no topic without a key that can sign.

    Returns:
        Findings that are not fatal.

    Raises:
        InvalidTopics: as `ensure_topics`.
        NotReachable: as `ensure_topics`; or a coordinator must create the topics first.
    """
    connection = settings.connection
    found = Cluster(connection).racks(connection.topics.control)
    new = [topic for topic, racks in found.items() if not isinstance(racks, KafkaError) and not racks]
    if new and not decides:
        _await_coordinator(settings, new[0])
    findings = ensure_topics(
        connection,
        partitions=settings.partitions,
        inbox_partitions=settings.inbox_partitions,
        replication=settings.replication,
    )
    places = [(topic, partition) for topic in new for partition in range(settings.partitions)]
    try:
        if places:
            keys = settings.read_keys()
            signing = key_to_sign(keys, "operator")
            append_to_shards(connection, signing, Level(level=OFFERED, by=this_user()), places)
            if settings.keys:
                added = [on_record(key) for key in keys.all]
                append_to_shards(connection, signing, KeyChange(added=added, by=this_user()), places)
    except WakerollError as error:
        text = (
            f"the new deployment begins at feature level {FIRST} and without keys on record: {error}; to mend it: "
            "wakeroll upgrade --execute, then wakeroll keys publish --execute"
        )
        findings.append(Finding(new[0], text, fatal=False))
    return findings


def _await_coordinator(settings: Settings, missing: str) -> None:
    """Leave the first records of a missing topic to a coordinator, unless this process can sign them."""
    try:
        key_to_sign(settings.read_keys(), "operator")
    except InvalidKeys as error:
        raise NotReachable(f"the topic {missing} does not exist, and a coordinator must begin it: {error}") from None
