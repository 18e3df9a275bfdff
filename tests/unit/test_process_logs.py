"""Logs of a process: no text of a client looks like a record; as JSON, each line is one object, also a library's."""

import json
import logging
import sys

import pytest

from tests.support.running_processes import run_process
from wakeroll_pipeline.cli.process_logs import JsonFormatter, TextFormatter, record_of


def formatted(message: str, *arguments: object, **more: object) -> dict[str, object]:
    record = logging.makeLogRecord(
        {"name": "wakeroll.run", "levelname": "INFO", "msg": message, "args": arguments, "created": 1.5, **more}
    )
    return json.loads(JsonFormatter().format(record))


def test_a_record_has_its_time_level_logger_and_message():
    assert formatted("running %s on %s", "record", "host:9092") == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "INFO",
        "logger": "wakeroll.run",
        "message": "running record on host:9092",
    }


def test_further_fields_of_a_record_are_kept_and_replace_none_of_the_first_four():
    """`logging` refuses some names in `extra`, but not `level`."""
    record = formatted("a batch", batch=7, shards={"groups-0"}, level="none", where=object)

    assert (record["batch"], record["shards"], record["level"]) == (7, ["groups-0"], "INFO")
    assert record["where"] == "<class 'object'>"


def test_a_traceback_is_a_field_of_its_record():
    """Otherwise a collector of logs would make a record of each of its lines."""
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = formatted("failed", exc_info=sys.exc_info())

    assert record["exception"].startswith("Traceback (most recent call last):\n")
    assert record["exception"].endswith("ValueError: two\nlines")


@pytest.mark.parametrize(
    ("line", "level", "logger", "message"),
    [
        ("%3|1.5|FAIL|producer-1| down", "ERROR", "librdkafka", "FAIL|producer-1| down"),
        ("%6|1.5|GETSUBSCRIPTIONS|x| ok", "INFO", "librdkafka", "GETSUBSCRIPTIONS|x| ok"),
        ("Deleted 0 files", "WARNING", "stderr", "Deleted 0 files"),
        ("{ not JSON", "WARNING", "stderr", "{ not JSON"),
    ],
)
def test_a_line_of_a_library_becomes_a_record(line, level, logger, message):
    expected = {"time": "1970-01-01T00:00:00.007Z", "level": level, "logger": logger, "message": message}

    assert json.loads(record_of(line, 7)) == expected


def test_a_line_of_spark_that_is_json_stays_as_it_is():
    assert record_of('{"level": "WARN"}', 7) == '{"level": "WARN"}'


PROCESS = """
import logging, os, subprocess, threading, warnings
from wakeroll_pipeline.cli.process_logs import log_as_json

log_as_json()
log_as_json()
logging.getLogger("wakeroll_pipeline").warning("by logging")
warnings.warn("by warnings", stacklevel=1)
os.write(2, b"by number\\n")
subprocess.run(["sh", "-c", "echo by a child >&2"], check=True)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
os.write(2, b"without a line end")
raise RuntimeError("at the end")
"""


def test_every_line_of_a_process_is_an_object():
    """Also those of native libraries, of children, and of an error that ends it."""
    done = run_process([sys.executable, "-c", PROCESS])
    records = [json.loads(line) for line in done.stderr.splitlines()]

    assert done.returncode == 1
    assert {(one["logger"], one["message"]) for one in records} == {
        ("wakeroll_pipeline", "by logging"),
        ("py.warnings", "UserWarning: by warnings"),
        ("stderr", "by number"),
        ("stderr", "by a child"),
        ("wakeroll", "unexpected error: division by zero"),
        ("stderr", "without a line end"),
        ("wakeroll", "unexpected error: at the end"),
    }
    assert [one["message"] for one in records if "Traceback" in one.get("exception", "")] == [
        "unexpected error: division by zero",
        "unexpected error: at the end",
    ]


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (["--log-format", "json"], {}),
        ([], {"WAKEROLL_LOG_FORMAT": "json"}),
        (["--log-format", "json", "--config", "nowhere.toml"], {}),
    ],
)
def test_the_error_that_ends_a_service_is_an_object_too(words, environment):
    """Also an error in other settings, before these are known."""
    done = run_process(
        [sys.executable, "-m", "wakeroll_pipeline.cli", "observe", *words],
        without=["WAKEROLL_BOOTSTRAP"],
        **environment,
    )

    [record] = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, done.stdout, record["level"], record["logger"]) == (2, "", "ERROR", "wakeroll")
    assert record["message"].startswith(("no broker is named", "cannot read the settings in nowhere.toml"))


def test_an_unknown_format_is_refused():
    done = run_process([sys.executable, "-m", "wakeroll_pipeline.cli", "observe", "--log-format", "xml"])

    assert (done.returncode, done.stderr) == (
        2,
        "wakeroll: invalid setting: log_format is 'xml'; it must be json or text\n",
    )


def test_a_text_with_line_breaks_and_control_characters_does_not_look_like_a_record():
    forged = "a\n12:00:00 ERROR wakeroll: forged\r\x1b[2K\u2028b"
    record = logging.makeLogRecord(
        {"name": "wakeroll.run", "levelname": "INFO", "msg": "group %s", "args": (forged,), "created": 1.5}
    )
    first, second = TextFormatter().format(record).splitlines()

    assert first.endswith("INFO wakeroll.run: group a")
    assert second == r"    12:00:00 ERROR wakeroll: forged\r\x1b[2K\u2028b"
