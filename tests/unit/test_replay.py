"""`python -m wakeroll_model.replay`: events in, decisions out, on anybody's machine."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.control_log import ControlLog
from tests.support.histories.group_histories import History
from wakeroll_model.events import Heartbeat, Route, RoutedQueue, Subscription, Tick
from wakeroll_model.partitioner import partition_of
from wakeroll_model.records import Record

ROOT = Path(__file__).parent.parent.parent


def run(*arguments: str, lines: str = "", hash_seed: str = "0") -> tuple[int, str, str]:
    """Run the command; return its exit code and what it said to stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "wakeroll_model.replay", *arguments],
        input=lines.encode(),
        capture_output=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def line_of(record: Record, **changes: Any) -> str:
    """Write a record as a line of the replay's input."""
    line = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": None if record.key is None else record.key.decode(),
        "value": None if record.value is None else json.loads(record.value),
    }
    return json.dumps(line | changes) + "\n"


def a_group_of_three() -> list[Record]:
    log = ControlLog(4)
    queues = [RoutedQueue(topic="orders", broker="", queue_id=number) for number in range(4)]
    wanted = [Subscription(topic="orders")]
    events = [(0, Tick()), (1, Route(topic="orders", queues=queues, version="4"))]
    events += [
        (i * 2_000, Heartbeat(group_id="billing", client_id=name, instance_id=name, subscriptions=wanted))
        for i, name in enumerate("abc", 1)
    ]
    return [record for at_ms, event in events for record in log.append(event, at_ms)]


def test_a_replay_does_not_depend_on_the_hash_seed():
    """Python shuffles its sets from one process to the next; decisions must not follow."""
    plan = [("billing", 300, ("beat", client, 1, ["orders", "payments", "refunds"], {})) for client in "dcba"]
    plan += [("billing", 0, ("route", topic, 5)) for topic in ("orders", "payments", "refunds")]
    plan += [("billing", 0, ("ticks", 50)), ("shipping", 0, ("beat", "a", 1, ["orders"], {}))]
    plan += [("billing", 500, ("beat", client, 2, ["refunds", "orders"], {})) for client in "abcd"]
    lines = "".join(map(line_of, History(plan).records))

    answers = [run(lines=lines, hash_seed=seed) for seed in ("0", "1", "4711")]

    assert [code for code, _, _ in answers] == [0, 0, 0]
    assert len(answers[0][1].splitlines()) > 50
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]


def test_each_decision_is_one_line_of_json():
    code, out, errors = run(lines="".join(map(line_of, a_group_of_three())))

    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    assert (code, errors) == (0, "")
    assert kinds[:7] == ["membership", "rebalance", *["handover"] * 4, "assignment"]


def test_a_value_may_be_given_in_base64():
    """What was no JSON when it came must be replayed as it was."""
    records = a_group_of_three()
    plain = run(lines="".join(map(line_of, records)))
    encoded = run(
        lines="".join(line_of(one, value=None, value_base64=base64.b64encode(one.value).decode()) for one in records)
    )

    assert encoded == plain


def test_a_key_may_be_given_in_base64():
    """A stray producer's key is no text; its refusal shows it all the same."""
    [beat] = [record for record in a_group_of_three() if record.offset == 2]

    _, out, _ = run(lines=line_of(beat, key_base64="/w=="))

    assert json.loads(out)["detail"] == "the key is '\ufffd'; it must be the group_id, 'billing'"


def test_bytes_that_are_no_json_are_refused_like_the_first_time():
    line = line_of(
        Record("wakeroll.groups", 1, 0, 0, b"billing", None), value_base64=base64.b64encode(b"\xff").decode()
    )

    _, out, _ = run(lines=line)

    refused = json.loads(out)
    assert (refused["kind"], refused["rule"], refused["raw"]) == ("rejected", "json", "/w==")


@pytest.mark.parametrize("value", ["null", '{"type": "tick"}'], ids=["no value", "no key"])
def test_a_record_without_a_key_or_a_value_can_be_replayed(value):
    line = '{"topic": "wakeroll.groups", "partition": 0, "offset": 0, "timestamp_ms": 1, "key": null, "value": %s}\n'

    code, out, _ = run(lines=line % value)

    assert code == 0
    assert [json.loads(answer)["detail"] for answer in out.splitlines()] == (
        ["the record has no value"] if value == "null" else []
    )


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("hello", "JSON is malformed: invalid character (byte 0)"),
        ("[]", "Expected `object`, got `array`"),
        ('{"topic": "wakeroll.groups"}', "Object missing required field `partition`"),
        ('{"topic": 1}', "Expected `str`, got `int` - at `$.topic`"),
        (line_of(Record("t", 0, 0, 0, None, None), value_base64="?"), "Only base64 data is allowed"),
    ],
    ids=["no JSON", "no object", "a field is missing", "a wrong type", "no base64"],
)
def test_a_line_that_is_no_record_ends_the_replay_with_its_number(bad, reason):
    """Exit code 2 and one sentence; a replay that skipped a line would lie."""
    good = line_of(a_group_of_three()[0])

    code, _, errors = run(lines=f"{good}\n{bad}\n")

    assert (code, errors) == (2, f"replay: line 3 is not a record: {reason}\n")


def test_partitions_say_where_a_group_belongs():
    """A system with other than four control partitions replays with its own number."""
    records = [record for record in a_group_of_three() if record.key is not None]
    home = partition_of(b"billing", 7)
    lines = "".join(line_of(record, partition=home) for record in records)

    elsewhere = [json.loads(line)["kind"] for line in run(lines=lines)[1].splitlines()]
    at_home = [json.loads(line)["kind"] for line in run("--partitions", "7", lines=lines)[1].splitlines()]

    assert elsewhere == ["rejected"] * 3
    assert "rejected" not in at_home


@pytest.mark.parametrize("partitions", ["0", "-1", "many"])
def test_a_number_of_partitions_that_cannot_be_is_a_mistake_with_a_sentence(partitions):
    code, _, errors = run(f"--partitions={partitions}", lines=line_of(a_group_of_three()[-1]))

    assert code == 2
    assert errors.splitlines()[-1].startswith("python -m wakeroll_model.replay: error: ")
    assert "--partitions" in errors.splitlines()[-1]


def test_help_says_what_it_does():
    code, out, _ = run("--help")

    assert code == 0
    assert "compute the decisions that records of control topics lead to" in out
    assert "--partitions" in out


def test_no_records_lead_to_no_decisions():
    assert run() == (0, "", "")
