"""The number of a topic's partitions, in the metadata of a producer."""

import logging

from confluent_kafka import KafkaException, Producer

log = logging.getLogger("wakeroll")

ANSWER_S = 2.0
"""How long to wait for the answer (s); an answer that is later counts too."""


def learn_partitions(producer: Producer, topic: str, timeout: float = ANSWER_S) -> None:
    """Make a producer query the partitions of a topic: by itself it learns of new ones only every five minutes.

    It waits at most `timeout` seconds for the answer, or `ANSWER_S` if that is shorter.
    """
    try:
        producer.list_topics(topic, min(timeout, ANSWER_S))
    except KafkaException as problem:
        log.debug("the partitions of %s cannot be queried: %s", topic, problem.args[0])
