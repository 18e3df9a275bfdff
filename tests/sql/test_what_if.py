"""`wakeroll what-if` on tables: the state of any moment, a change, and what would come of it."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.support.control_log import START_MS
from tests.support.ledgers import PARTITIONS, a_day
from wakeroll.connection import Topics
from wakeroll.epoch_ms import EpochMs
from wakeroll_model.partitioner import partition_of
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import ShardState
from wakeroll_model.what_if import Variation, predict, situation_of
from wakeroll_pipeline.live.ledger_reader import model_of, whole_ledger

pytestmark = pytest.mark.spark

Command = Callable[..., tuple[int, str]]
HOME = "wakeroll.groups", partition_of(b"billing", PARTITIONS)


@pytest.fixture
def what_if(day, wakeroll, monkeypatch) -> Command:
    """The command on the day, run in this process; it returns the exit code and what it says."""
    monkeypatch.setenv("COLUMNS", "200")

    def what_if(*arguments: str) -> tuple[int, str]:
        code, said, complaint = wakeroll("what-if", "--home", str(day.parent), *arguments)
        return code, said + complaint

    return what_if


def newest() -> Shard:
    story = a_day()
    story.snapshot()
    [body] = [bytes(row[6]) for row in story.snapshots[-2 * PARTITIONS :] if row[:2] == HOME]
    return Shard(*HOME, PARTITIONS, body)


def shard_then(warehouse: Path, at_ms: int | None = None) -> Shard:
    """Return the shard of billing at a moment of log time (epoch ms), as the command has it."""
    with whole_ledger(warehouse) as opened:
        model = model_of(opened, Topics(), PARTITIONS, at_ms, detail="states")
    shard = model.shard_of("billing")
    assert shard is not None
    return shard


def test_the_newest_state_is_what_the_log_led_to(day):
    """From the last snapshot and the records behind it."""
    assert state_of(shard_then(day)) == state_of(newest())


def state_of(shard: Shard) -> ShardState:
    """Return a shard's state but for who has signed records: the story's coordinator did not ask for signatures."""
    state = msgspec.msgpack.decode(shard.body(), type=ShardState)
    state.signers = {}
    return state


def test_any_moment_can_be_asked_about(day):
    """Before the first snapshot and behind it: as many members as there were then."""
    moments = {4: ["c1"], 9: ["c1", "c2"], 25: ["c2", "c3"], 105: ["c3"]}

    for seconds, clients in moments.items():
        assert situation_of(shard_then(day, START_MS + seconds * 1_000), "billing").clients == clients, seconds


def test_each_strategy_stands_beside_how_it_is_now(what_if):
    predicted = predict(newest(), "billing", Variation(add=2, settings={"strategy": "AVG_BY_CIRCLE"}))

    code, said = what_if("--group", "billing", "--strategy", "SPREAD", "--strategy", "AVG_BY_CIRCLE", "--add", "2")

    assert code == 0, said
    assert re.search(r"now +│ strategy SPREAD, 2 more +│ strategy AVG_BY_CIRCLE, 2 more", re.sub("┃", "│", said))
    assert re.search(rf"moved +│ +│ \d+ queues +│ {len(predicted.moved)} queues", said)
    assert re.search(r"members +│ 1 +│ 3 +│ 3", said)
    assert "orders ·+··+··+·· " in said


def test_a_picture_shows_what_moves(what_if, tmp_path):
    picture = tmp_path / "what if.svg"
    predicted = predict(newest(), "billing", Variation(add=1))

    code, said = what_if("--group", "billing", "--add", "1", "--picture", str(picture))

    assert code == 0, said
    boxes = [box.get("class") for box in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}rect")]
    assert boxes.count("new") == len(predicted.moved) > 0
    assert boxes.count("has") == len(predicted.now.owners) + len(predicted.then.owners) - len(predicted.moved)


def test_a_past_that_was_otherwise(what_if):
    """Had c2 gone, and had there been twelve queues: a day of before the tables grew."""
    at = str(EpochMs(START_MS + 25_000))

    code, said = what_if("--group", "billing", "--at", at, "--remove", "c2", "--queues", "orders=12")

    assert code == 0, said
    assert f"billing at {at}" in said
    assert re.search(r"queues +│ 8, 0 unowned +│ 12, 0 unowned", said)
    assert re.search(r"c2 +│ 4, lag 3200 +│ -", said)
    assert re.search(r"c3 +│ 4, lag 3200 +│ 12, lag 6400", said)


def test_a_group_that_nobody_is_in_any_more_is_named(what_if):
    """As the demo leaves its group: a table of nothing would puzzle."""
    code, said = what_if("--group", "billing", "--remove", "c3")

    assert code == 0, said
    assert "without c3: the group has no members; use --at TIME for a moment when it had some" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "--group billing",
            "no change is named; use at least one of --strategy, --add, --remove, --queues, --slices, --settings",
        ),
        ("--group biling --add 1", "no group 'biling'; did you mean billing?"),
        ("--group billing --strategy SPRAED", "SPRAED"),
        ("--group billing --remove c9", "no client 'c9' in billing; there are: c3"),
        ("--group billing --queues orders", "--queues is 'orders'; it must be TOPIC=N, such as orders=12"),
        (
            "--group billing --settings speed=9",
            "--settings is 'speed=9'; it must be NAME=VALUE, with a name of: profile, ",
        ),
        ("--group billing --settings settle_ms=-1", "settle_ms"),
        (
            "--group billing --add 1 --at 2020-01-01T00:00:00Z",
            "is before the archived log, which begins at 2023-11-14T22:13",
        ),
        (f"--group audit --add 1 --at {START_MS}", "no group 'audit'"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_sentence(what_if, arguments, sentence):
    code, said = what_if(*arguments.split())

    assert code == 2
    assert sentence in said


def test_a_picture_that_cannot_be_written_is_a_failure(what_if, tmp_path: Path):
    code, said = what_if("--group", "billing", "--add", "1", "--picture", str(tmp_path / "not there" / "x.svg"))

    assert code == 1
    assert "No such file or directory" in said


def test_a_script_gets_the_prediction_as_json(what_if):
    predicted = predict(newest(), "billing", Variation(add=1))

    code, said = what_if("--group", "billing", "--add", "1", "--json")

    assert code == 0, said
    [answer] = json.loads(said)["predictions"]
    assert answer["moved"] == [str(queue) for queue in predicted.moved]
    assert answer["then"]["owners"] == {str(queue): owner for queue, owner in predicted.then.owners.items()}
