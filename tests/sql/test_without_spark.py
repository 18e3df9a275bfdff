"""The commands that ask need neither Java nor Spark, nor what comes with it: the extra `ask` is enough."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running_processes import run_process
from wakeroll_pipeline.live.view_structs import GroupView

pytestmark = pytest.mark.spark  # the tables are made with it

AGE = {"source", "last_tick_ms", "tick_age_ms", "notices"}
"""What every answer about groups says about itself."""

WITHOUT = """
import sys
for name in ("pyspark", "py4j", "delta", "pandas", "numpy", "pyarrow", "great_expectations", "dbt"):
    sys.modules[name] = None  # an import fails
from wakeroll_pipeline.cli import main
main()
"""


def ask(warehouse: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that finds no Java and none of these packages."""
    command = [sys.executable, "-c", WITHOUT, *words, "--home", str(warehouse.parent)]
    return run_process(command, without=("JAVA_HOME",), PATH="")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("groups", "billing"),
        ("describe billing --holds", "held"),
        ("lag", "lag of the groups"),
        ("lag billing", "orders-3"),
        ("state", "state of 4 shards"),
        ("explain --group billing --queue orders-3", "orders-3 of billing is owned by c3"),
        ("replay", "decisions compared: equal"),
        ("what-if --group billing --add 1", "1 more"),
        ("sql select+count(*)+as+handovers+from+handovers", "handovers"),
    ],
)
def test_a_question_is_answered(day, words, found):
    done = ask(day, *(word.replace("+", " ") for word in words.split()))

    assert (done.returncode, done.stderr) == (0, "")
    assert found in done.stdout


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("groups", {"groups", *AGE}),
        (
            "describe billing",
            {*GroupView.__struct_fields__, *AGE},
        ),
        ("lag", {"groups", *AGE}),
        ("lag billing", {"queues", "members", "partitions", *AGE}),
        ("state", {"groups", *AGE}),
        ("explain --group billing --queue orders-3", {"answer", "missing", "steps"}),
        ("replay", {"exit_code", "is_equal", "period", "run", "shards", "tables"}),
        ("what-if --group billing --add 1", {"at_ms", "predictions"}),
    ],
)
def test_an_answer_is_json_on_request(day, wakeroll, words, names):
    """One document, for a script."""
    code, said, complaint = wakeroll(*words.split(), "--json", "--home", str(day.parent))

    assert (code, complaint) == (0, "")
    assert set(json.loads(said)) == names


@pytest.mark.parametrize("words", ["groups", "describe billing", "lag", "state"])
def test_tables_of_another_prefix_are_refused_by_name(day, wakeroll, words):
    """They would look as if nothing had been recorded."""
    code, said, complaint = wakeroll(*words.split(), "--prefix", "test.other", "--home", str(day.parent))

    assert (code, said) == (2, "")
    assert complaint == "wakeroll: these tables are of a deployment with the prefix 'wakeroll'; use --prefix wakeroll\n"


def test_spark_is_asked_for_by_name_only_where_it_is_installed(day):
    done = ask(day, "sql", "select 1", "--engine", "spark")

    assert done.returncode == 2
    assert done.stderr == (
        "wakeroll: --engine spark needs the extra `spark` (pyspark is missing); "
        "install it with: pip install 'wakeroll[spark]'\n"
    )


def test_lag_counts_messages_and_the_age_of_the_oldest(day, wakeroll):
    """Of the day: c3 has read half of what the queues hold."""
    code, said, _ = wakeroll("lag", "billing", "--json", "--home", str(day.parent))

    queues = json.loads(said)["queues"]
    assert code == 0
    unknown = [row for row in queues if row["lag_messages"] is None]
    known = queues[len(unknown) :]
    assert [(row["queue_id"], row["committed_offset"]) for row in unknown] == [(8, None), (9, None)], "never committed"
    assert [row["lag_messages"] for row in known] == sorted((row["lag_messages"] for row in known), reverse=True)
    assert all(row["lag_messages"] == max(row["end_offset"] - row["committed_offset"], 0) for row in known)
    behind = [row for row in known if row["lag_messages"]]
    assert behind
    assert all(row["behind_since_ms"] >= 1_700_000_000_000 for row in behind)
    assert re.search("lag +waits", wakeroll("lag", "billing", "--home", str(day.parent))[1])
