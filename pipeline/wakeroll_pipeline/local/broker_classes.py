"""The embedded broker's classes in one file, so that it starts sooner: see `spark/class_data_sharing.py`.

`python -m wakeroll_pipeline.local.broker_classes` starts a broker in a temporary folder, creates a topic, and lets the
JVM write the loaded classes (50 MB). With the file, a start takes 4.5 s of CPU instead of 8.
"""

import sys
import tempfile
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from wakeroll_pipeline.local.broker import BrokerFailed, EmbeddedBroker
from wakeroll_pipeline.spark.class_data_sharing import MAKING_S, ClassFile, main
from wakeroll_pipeline.spark.jar_paths import BROKER, broker_jars, class_file


def broker_classes() -> ClassFile:
    """Return the file of the broker's classes.

    Raises:
        JarsMissing: JARs of the broker are missing.
    """
    return ClassFile(
        path=class_file(BROKER),
        jars=broker_jars(),
        says="the broker's classes, 50 MB, so that it starts sooner (only once; some seconds)",
        make=_make,
    )


def _make(file: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = EmbeddedBroker(Path(folder), java=[f"-XX:ArchiveClassesAtExit={file}"])
        try:
            broker.start()
            # No log: the client is still there when the broker stops, and would report that.
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic("any", 1)])["any"].result()
        except KafkaException as error:
            raise BrokerFailed(f"the embedded broker created no topic: {error}") from error
        finally:
            broker.stop(MAKING_S)


if __name__ == "__main__":
    sys.exit(main(broker_classes))
