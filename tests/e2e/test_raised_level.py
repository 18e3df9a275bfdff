"""The feature level of a deployment: a new one has the newest, and an operator raises that of an old one."""

import json
import re
import shlex
import uuid
from pathlib import Path

import msgspec
import pytest

from tests.support.waiting import wait_until
from wakeroll.keys import add_key, new_key
from wakeroll_model import feature_levels
from wakeroll_model.decisions import Rejected
from wakeroll_model.events import Unregister
from wakeroll_model.partitioner import partition_of
from wakeroll_pipeline.kafka.new_deployment import ensure_deployment
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.e2e

PAGE = (Path(__file__).parents[2] / "docs" / "upgrading.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ *(wakeroll .*)$", PAGE, flags=re.MULTILINE)


def settings_of(broker, tmp_path, **given: str) -> Settings:
    prefix = f"level-{uuid.uuid4().hex[:6]}"
    return Settings(bootstrap=broker.bootstrap, prefix=prefix, home=str(tmp_path / "home"), **given)


def shown(wakeroll, settings: Settings, *more: str) -> dict[str, object]:
    where = ("--bootstrap", settings.bootstrap, "--prefix", settings.prefix, "--home", settings.home)
    code, told, complaint = wakeroll("upgrade", *where, "--json", *more)
    assert code == 0, complaint
    return json.loads(told)


def levels_in(answer: dict[str, object]) -> list[tuple[int, bool]]:
    return [(one["level"], one["is_certain"]) for one in answer["shards"]]


def test_the_pages_commands_show_the_level_and_raise_it(coordinator, wakeroll, tmp_path):
    """Only the broker's name is replaced. The coordinator begins without a level, like a deployment of release 0.1."""
    where = ("--prefix", coordinator.connection.topics.prefix, "--home", str(tmp_path))
    said = []
    for command in COMMANDS:
        words = [word.replace("host:9092", coordinator.connection.bootstrap) for word in shlex.split(command)[1:]]
        code, told, complaint = wakeroll(*words, *where)
        assert code == 0, complaint
        said.append(" ".join(told.split()))

    assert [command.removesuffix(" --bootstrap host:9092") for command in COMMANDS] == [
        "wakeroll upgrade",
        "wakeroll upgrade --bootstrap host:9092 --execute",
    ]
    plan, done = said
    assert "│ groups-0 │ 1 │" in plan
    newest = feature_levels.OFFERED
    for level in range(2, newest + 1):
        assert f"new at level {level}: {feature_levels.CHANGES[level]}" in plan
    assert "Nothing has changed" in plan
    assert f"│ queues-3 │ {newest} │" in done
    assert f"raised to level {newest} from these offsets on" in done
    wait_until(lambda: set(coordinator.levels.values()) == {feature_levels.OFFERED}, "the newest level is in force")


def test_a_record_in_the_wrong_partition_is_answered_with_the_right_one(coordinator, wakeroll, tmp_path, group_id):
    """Through a real broker: with a librdkafka that knows too few partitions, this is what a client sends."""
    connection = coordinator.connection
    prefix, home = connection.topics.prefix, str(tmp_path)
    where = ("--bootstrap", connection.bootstrap, "--prefix", prefix, "--home", home)
    code, _, complaint = wakeroll("upgrade", "--execute", *where)
    assert code == 0, complaint
    wait_until(lambda: set(coordinator.levels.values()) == {feature_levels.OFFERED}, "the newest level is in force")
    home_partition = partition_of(group_id.encode(), 4)
    producer = connection.producer()
    event = msgspec.json.encode(Unregister(group_id=group_id, client_id="c", instance_id="i"))

    producer.produce(connection.topics.groups, event, key=group_id.encode(), partition=(home_partition + 1) % 4)
    assert producer.flush(30) == 0

    def refusals() -> list[Rejected]:
        return [one for one in tuple(coordinator.decided) if isinstance(one, Rejected) and one.group_id == group_id]

    wait_until(lambda: refusals() != [], "the record is rejected")
    assert [(one.rule, one.partition, one.partitions) for one in refusals()] == [("partition", home_partition, 4)]


def test_a_new_deployment_begins_at_the_newest_level(broker, wakeroll, tmp_path):
    """Nobody depends on how it decided before; a second start of `run` changes nothing."""
    settings = settings_of(broker, tmp_path)

    assert ensure_deployment(settings) == []
    assert ensure_deployment(settings) == []

    first = shown(wakeroll, settings)
    assert levels_in(first) == [(feature_levels.OFFERED, True)] * 8
    assert shown(wakeroll, settings, "--execute") == first


def test_without_an_operator_s_key_a_new_deployment_begins_at_level_1(broker, wakeroll, tmp_path):
    """Its topics are there all the same, and the finding says how to raise the level later."""
    observer, operator = tmp_path / "observer.toml", tmp_path / "all.toml"
    add_key(observer, new_key("observer", "obs-1"))
    operator.write_text(observer.read_text())
    add_key(operator, new_key("operator", "ops-1"))
    settings = settings_of(broker, tmp_path, keys=str(observer))

    [finding] = ensure_deployment(settings)

    assert not finding.fatal
    assert str(finding).startswith(
        "the new deployment begins at feature level 1 and without keys on record: there is no "
    )
    assert levels_in(shown(wakeroll, settings, "--keys", str(operator))) == [(1, True)] * 8
    assert (
        levels_in(shown(wakeroll, settings, "--keys", str(operator), "--execute"))
        == [(feature_levels.OFFERED, True)] * 8
    )
