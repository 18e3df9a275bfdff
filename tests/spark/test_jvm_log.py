"""The log of a long-running session: useful lines on standard error, one per cause and minute during an outage."""

import sys

import pytest

from tests.support.running_processes import run_process

pytestmark = pytest.mark.spark

OUTAGE = """
import sys
from pathlib import Path
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.session import start_session

spark = start_session(Settings(home=Path(sys.argv[1])), "outage")
logs = spark._jvm.org.apache.logging.log4j.LogManager
for number in range(20):
    for name in ("org.apache.kafka.clients.NetworkClient", "org.apache.kafka.clients.Metadata", "our.Other"):
        logs.getLogger(name).warn(f"{name} warns {number}")
logs.getLogger("org.apache.kafka.clients.NetworkClient").error("an error")
print(logs.getContext(False).getConfiguration().getAppender("kafka_client_errors").getCount())
spark.stop()
"""


def test_an_outage_is_one_line_per_class_and_minute(tmp_path):
    """Errors and other classes are not limited; what Java itself prints at its start is in a file."""
    done = run_process([sys.executable, "-c", OUTAGE, tmp_path])

    assert done.returncode == 0, done.stderr
    lines = [line.partition(": ")[2] for line in done.stderr.splitlines() if " WARN " in line or " ERROR " in line]
    assert [line for line in lines if "clients" in line or line == "an error"] == [
        "org.apache.kafka.clients.NetworkClient warns 0",
        "org.apache.kafka.clients.Metadata warns 0",
        "an error",
    ]
    assert sum("our.Other" in line for line in lines) == 20
    assert done.stdout == "41\n", "all that Kafka's clients report is counted"
    assert "incubator" not in done.stderr
    assert "incubator" in (tmp_path / "logs" / "jvm.log").read_text()
