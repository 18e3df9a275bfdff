"""The settings of a deployment, and what is said of those that cannot be."""

from pathlib import Path

import pytest

from wakeroll_model.config import DEFAULT_LIMITS, Limits
from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.settings import InvalidSettings, Settings


def test_a_limit_of_the_environment_is_one_that_the_observer_tells():
    settings = load({"WAKEROLL_MAX_GROUPS": "7", "WAKEROLL_MAX_GROWTH": "1000"})

    assert settings.limits == Limits(max_groups=7, max_growth=1_000)


def test_a_deployment_that_names_no_limit_tells_the_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert load({}).limits == DEFAULT_LIMITS


def test_a_child_process_has_the_same_limits():
    """`up` starts its observer with the environment alone."""
    settings = Settings(max_ended=5, max_filters_per_queue=6)

    assert load(settings.environment()) == settings


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_groups": 0}, "max_groups is 0; it must be a whole number from 1 to 10000000"),
        ({"max_group_bytes": 1_000}, "max_group_bytes is 1000; it must be a whole number from 262144 to"),
        (
            {"max_shard_bytes": 1_000_000},
            "max_group_bytes is 33554432; it must be at most max_shard_bytes (1000000)",
        ),
        (
            {"max_holds_per_queue": 200_000},
            "max_holds_per_queue is 200000; it must be at most max_holds_per_shard (100000)",
        ),
    ],
)
def test_limits_that_cannot_be_or_contradict_each_other_are_refused(given, sentence):
    with pytest.raises(InvalidSettings) as told:
        load({}, None, **given)

    assert sentence in str(told.value)


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("metrics_port", "65535", "it must be a whole number from 0 to 65534"),
        ("metrics_port", "-1", "it must be a whole number from 0 to 65534"),
        ("metrics_port", "http", "metrics_port is 'http'; it must be a whole number from 0 to 65534"),
        ("metrics_address", "", "metrics_address is ''; it must be text, not empty"),
        ("metrics_max_groups", "0", "metrics_max_groups is '0'; it must be a whole number from 1 to"),
    ],
)
def test_settings_of_metrics_have_bounds(name, given, sentence):
    with pytest.raises(InvalidSettings) as told:
        load({f"WAKEROLL_{name.upper()}": given})

    assert sentence in str(told.value)


def test_metrics_are_not_exposed_unless_a_port_is_named():
    settings = load({})

    assert (settings.metrics_port, settings.metrics_address, settings.metrics_max_groups) == (0, "127.0.0.1", 1_000)
    assert load({"WAKEROLL_METRICS_PORT": "9464"}).metrics_port == 9464


def test_groups_to_mirror_are_a_regular_expression():
    assert load({}).mirrored_groups is None
    groups = load({"WAKEROLL_MIRROR_OFFSETS": "orders-.*"}).mirrored_groups
    assert groups is not None
    assert groups.fullmatch("orders-eu")
    with pytest.raises(InvalidSettings, match=r"mirror_offsets is 'orders-\('; it must be a regular expression \("):
        load({}, mirror_offsets="orders-(").mirrored_groups  # noqa: B018


@pytest.mark.parametrize(
    ("given", "is_standby", "locks_files"),
    [
        ({}, False, True),
        ({"standby": "true"}, True, True),
        ({"replica": "b"}, True, True),
        ({"locks": "lease"}, False, False),
        ({"home": "s3a://bucket/home"}, False, False),
        ({"checkpoints": "file:///var/checkpoints"}, False, True),
        ({"home": "s3a://bucket/home", "locks": "file"}, False, True),
    ],
)
def test_files_are_locked_where_that_works_and_replicas_stand_by(given, is_standby, locks_files):
    settings = load({}, None, **given)

    assert (settings.is_standby, settings.locks_files) == (is_standby, locks_files)
    assert load(settings.environment()) == settings


def test_the_name_of_a_replica_is_a_part_of_a_file_name():
    with pytest.raises(InvalidSettings, match=r"replica is 'a/b'; it must be 0 to 64 characters"):
        load({}, None, replica="a/b")


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({}, "{here}/checkpoints"),
        ({"home": "a"}, "{here}/a/checkpoints"),
        ({"home": "b"}, "{here}/b/checkpoints"),
        ({"home": "s3a://bucket/a"}, "s3a://bucket/a/checkpoints"),
        ({"home": "a", "checkpoints": "c"}, "{here}/c"),
        ({"home": "s3a://bucket/a", "checkpoints": "checkpoints"}, "{here}/checkpoints"),
    ],
)
def test_checkpoints_belong_to_their_home(given, folder):
    """Two systems in one folder, with a home each, must not continue each other's queries; also in a child process."""
    settings = load({}, **given)
    assert str(settings.checkpoints_folder) == folder.format(here=Path.cwd())
    assert load(settings.environment()).checkpoints_folder == settings.checkpoints_folder
