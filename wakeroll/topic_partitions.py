"""The number of a topic's partitions, as a producer knows it."""

import logging

from confluent_kafka import KafkaException, Producer

log = logging.getLogger("wakeroll")

ANSWER_S = 2.0
"""How long to wait for the answer (s); an answer that is later counts too."""


def learn_partitions(producer: Producer, topic: str) -> None:
    """Make a producer query the partitions of a topic: by itself it learns of new ones only every five minutes."""
    try:
        producer.list_topics(topic, ANSWER_S)
    except KafkaException as problem:
        log.debug("the partitions of %s cannot be queried: %s", topic, problem.args[0])
