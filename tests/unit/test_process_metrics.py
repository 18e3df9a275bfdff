"""The metrics of `run` and of the observer: what they count, and that each has a help text and a legal name."""

import os
import shutil
import subprocess

import pytest
from confluent_kafka import KafkaError, Message
from obstore.exceptions import UnauthenticatedError
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.closed_port import closed_port
from tests.support.systems.certificates import Authority
from tests.support.waiting import wait_until
from wakeroll.connection import Connection
from wakeroll_model.chain import Head
from wakeroll_pipeline.metrics.decision_metrics import DecisionMetrics
from wakeroll_pipeline.metrics.group_choice import GroupChoice
from wakeroll_pipeline.metrics.health import Health
from wakeroll_pipeline.metrics.observer_metrics import ObserverMetrics
from wakeroll_pipeline.metrics.process_metrics import ProcessMetrics, expose_process, new_registry
from wakeroll_pipeline.metrics.run_metrics import RunMetrics
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage.object_files import failure_of
from wakeroll_pipeline.storage.place import Place


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def message(topic: str, partition: int = 0) -> Message:
    return Message(topic=topic, partition=partition, offset=1)


def test_a_tick_counts_for_its_shard_and_makes_the_observer_ready(registry):
    metrics = ObserverMetrics(registry)
    assert not metrics.health.readiness().ok

    metrics.delivered("tick", message("wakeroll.groups", 2), None)

    assert registry.get_sample_value("wakeroll_observer_ticks_total", {"shard": "groups-2"}) == 1
    assert registry.get_sample_value("wakeroll_observer_last_tick_timestamp_seconds", {"shard": "groups-2"}) > 1e9
    assert metrics.health.readiness().ok


def test_a_lost_record_counts_by_its_cause(registry):
    metrics = ObserverMetrics(registry)
    metrics.delivered("tick", message("wakeroll.groups"), KafkaError(KafkaError._MSG_TIMED_OUT))
    metrics.delivered("route", message("wakeroll.groups"), KafkaError(KafkaError._MSG_TIMED_OUT))
    metrics.failed("arrival", "queue full")

    def failures(record: str, cause: str) -> float | None:
        return registry.get_sample_value(
            "wakeroll_observer_failed_deliveries_total", {"record": record, "cause": cause}
        )

    assert failures("tick", "_MSG_TIMED_OUT") == 1
    assert failures("route", "_MSG_TIMED_OUT") == 1
    assert failures("arrival", "queue full") == 1
    assert not metrics.health.readiness().ok


def test_the_mirror_is_behind_while_kafka_refuses_a_group(registry):
    metrics = ObserverMetrics(registry, mirrors=True).mirror
    metrics.wrote({"billing": 3, "audit": 0}, refused=1)
    assert registry.get_sample_value("wakeroll_observer_mirror_last_write_timestamp_seconds") == 0

    metrics.wrote({"audit": 2}, refused=0)
    assert registry.get_sample_value("wakeroll_observer_mirror_last_write_timestamp_seconds") > 1e9
    assert registry.get_sample_value("wakeroll_observer_mirrored_groups") == 2
    assert registry.get_sample_value("wakeroll_observer_mirrored_offsets_total") == 5


def test_shards_report_totals_and_counters_take_their_growth(registry):
    metrics = RunMetrics(decides=True, registry=registry).shards
    metrics.update({"groups-0": 10}, 1, {"bounds": 2})
    metrics.update({"groups-0": 12}, 1, {"bounds": 5, "internal": 1})

    assert registry.get_sample_value("wakeroll_run_state_bytes", {"shard": "groups-0"}) == 12
    assert registry.get_sample_value("wakeroll_run_internal_failures_total") == 1
    assert registry.get_sample_value("wakeroll_run_rejections_total", {"rule": "bounds"}) == 5
    assert registry.get_sample_value("wakeroll_run_rejections_total", {"rule": "internal"}) == 1


def test_era_level_and_used_share_of_a_shard_are_those_of_its_last_batch(registry):
    metrics = RunMetrics(decides=True, registry=registry).shards
    metrics.update_places({"groups-0": 1}, {"groups-0": 3}, {"groups-0": 0.5})
    metrics.update_places({"groups-0": 2}, {"groups-0": 4}, {"groups-0": 0.25})

    names = ("wakeroll_run_shard_era", "wakeroll_run_shard_level", "wakeroll_run_state_used_ratio")
    assert [registry.get_sample_value(name, {"shard": "groups-0"}) for name in names] == [2, 4, 0.25]


def test_a_lease_is_held_or_awaited(registry):
    metrics = RunMetrics(registry=registry)
    held = {"record": False}
    metrics.leases.watch(lambda: held)
    assert registry.get_sample_value("wakeroll_lease_held", {"lease": "record"}) == 0

    held["record"] = True
    assert registry.get_sample_value("wakeroll_lease_held", {"lease": "record"}) == 1


def test_a_process_is_ready_in_the_roles_that_it_has_now(registry):
    """A standby becomes a recorder without a restart; a recorder that hangs does not hide that decisions are made."""
    health = Health("the first batch is not complete")
    roles = {"coordinator": "coordinate", "standby": ""}
    ProcessMetrics(registry, lambda: {role: health.is_ready(query) for role, query in roles.items()})

    def ready() -> dict[str, float]:
        [family] = [one for one in registry.collect() if one.name == "wakeroll_ready"]
        return {sample.labels["role"]: sample.value for sample in family.samples}

    assert ready() == {"coordinator": 0, "standby": 0}

    health.judged("coordinate", "")
    health.ready()
    assert ready() == {"coordinator": 1, "standby": 1}

    roles = {"coordinator": "coordinate", "recorder": "record"}
    health.judged("record", "record has completed no batch for 70 s, and 5 records wait")
    health.awaits("record has completed no batch for 70 s, and 5 records wait")
    assert ready() == {"coordinator": 1, "recorder": 0}

    health.stopping()
    assert ready() == {"coordinator": 0, "recorder": 0}


def test_the_disk_of_a_folder_has_a_size_once_the_folder_exists(registry, tmp_path):
    expose_process(registry, Settings(home=str(tmp_path / "home"), bootstrap=""), dict)
    free, size = (f"wakeroll_disk_{what}_bytes" for what in ("free", "size"))
    assert registry.get_sample_value(free, {"folder": "home"}) is None

    (tmp_path / "home").mkdir()

    assert 0 < registry.get_sample_value(free, {"folder": "home"}) < registry.get_sample_value(size, {"folder": "home"})


def test_a_deployment_in_an_object_store_has_only_the_disk_of_its_work(registry, tmp_path):
    places = {"home": "s3a://bucket/home", "checkpoints": "s3a://bucket/checkpoints", "work": str(tmp_path)}
    expose_process(registry, Settings(**places), dict)

    folders = {
        sample.labels["folder"]
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "wakeroll_disk_free_bytes"
    }
    assert folders == {"work"}


def test_divergent_decisions_are_counted_as_their_number_grows(registry):
    metrics = RunMetrics(writes=True, registry=registry).tables
    for since_start in (0, 3, 3, 5):
        metrics.diverged(since_start)

    assert registry.get_sample_value("wakeroll_run_divergent_decisions_total") == 5


def test_a_standby_has_no_metrics_of_the_tables_before_its_turn(registry):
    """The age of its last snapshot would raise an alert."""
    metrics = RunMetrics(registry=registry)
    name = "wakeroll_run_last_snapshot_timestamp_seconds"
    assert registry.get_sample_value(name) is None

    metrics.begin_writing()
    metrics.begin_writing()

    assert registry.get_sample_value(name) > 1e9


def test_the_newest_line_of_a_chain_has_its_number_and_the_beginning_of_its_hash(registry):
    """As one number that a float holds exactly: a label would make a new series with each line."""
    heads = [Head("events", 58, "fffffffffffff" + "0" * 51), Head("decisions", 31, "0000000000001" + "f" * 51)]
    metrics = RunMetrics(writes=True, registry=registry).tables
    assert registry.get_sample_value("wakeroll_chain_newest_line", {"table": "events"}) is None

    metrics.chains.watch(lambda: heads)

    page = generate_latest(registry).decode()
    figures = dict(line.split(" ") for line in page.splitlines() if line.startswith("wakeroll_chain"))
    assert {name: int(float(figure)) for name, figure in figures.items()} == {
        'wakeroll_chain_newest_line{table="decisions"}': 31,
        'wakeroll_chain_newest_line{table="events"}': 58,
        'wakeroll_chain_newest_line_hash{table="decisions"}': 1,
        'wakeroll_chain_newest_line_hash{table="events"}': 0xFFFFFFFFFFFFF,
    }


def test_a_failed_step_of_upkeep_is_no_success(registry):
    metrics = RunMetrics(writes=True, registry=registry).tables
    before = registry.get_sample_value("wakeroll_upkeep_last_success_timestamp_seconds")
    metrics.did_upkeep("compact events", 1.5, False)
    assert registry.get_sample_value("wakeroll_upkeep_last_success_timestamp_seconds") == before

    metrics.did_upkeep("compact events", 2.0, True)
    steps = "wakeroll_upkeep_steps_total"
    assert registry.get_sample_value(steps, {"step": "compact events", "outcome": "failure"}) == 1
    assert registry.get_sample_value(steps, {"step": "compact events", "outcome": "success"}) == 1
    assert registry.get_sample_value("wakeroll_upkeep_seconds_total", {"step": "compact events"}) == 3.5


def test_a_process_exposes_only_what_it_does():
    """Zeros of a job that runs elsewhere would fire alerts."""

    def names(metrics: RunMetrics | ObserverMetrics) -> set[str]:
        return {family.name for family in metrics.registry.collect()}

    assert "wakeroll_run_last_snapshot_timestamp_seconds" not in names(RunMetrics(decides=True))
    assert "wakeroll_run_internal_failures" not in names(RunMetrics(writes=True))
    assert "wakeroll_observer_mirrored_groups" not in names(ObserverMetrics())


def test_errors_of_kafkas_clients_count_by_their_name():
    """A broker that is away, and a login that is rejected, look alike from outside: nothing is read."""
    registry = CollectorRegistry()
    ProcessMetrics(registry, dict)

    def errors() -> float:
        return registry.get_sample_value("wakeroll_kafka_client_errors_total", {"cause": "_TRANSPORT"}) or 0.0

    before, heard = errors(), []
    with closed_port() as port:
        admin = Connection(f"127.0.0.1:{port}").admin(error_cb=heard.append, log_level=0)
        wait_until(lambda: errors() > before, "an error is counted", between=lambda: admin.poll(0.1))

    assert heard, "the client's own callback is called too"


def test_failed_requests_to_a_store_count_by_their_kind():
    registry = CollectorRegistry()
    ProcessMetrics(registry, dict)

    def errors(kind: str) -> float | None:
        return registry.get_sample_value("wakeroll_store_errors_total", {"kind": kind})

    before = errors("failed"), errors("denied")
    failure_of("read", Place.of("s3a://bucket/file"), TimeoutError("no answer"))
    failure_of("read", Place.of("s3a://bucket/file"), UnauthenticatedError("InvalidAccessKeyId"))

    assert (errors("failed"), errors("denied")) == (before[0] + 1, before[1] + 1)


def test_the_jvm_is_a_process_beside_this_one():
    metrics = RunMetrics(registry=CollectorRegistry())
    metrics.watch_jvm(None)
    metrics.watch_jvm(os.getpid())

    assert metrics.registry.get_sample_value("wakeroll_jvm_process_resident_memory_bytes") > 1e6


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed")
@pytest.mark.parametrize("role", ["run", "observe", "tap", "serve"])
def test_promtool_accepts_names_types_and_help(role, tmp_path):
    registry = new_registry()
    if role == "serve":
        DecisionMetrics(registry, GroupChoice(registry, 1))
    elif role == "observe":
        ObserverMetrics(registry, mirrors=True).delivered("tick", message("wakeroll.groups"), None)
    else:
        metrics = RunMetrics(decides=role == "run", writes=role == "run", registry=registry)
        metrics.shards.update_places({"groups-0": 1}, {"groups-0": 1}, {"groups-0": 0.5})
        metrics.leases.watch(lambda: {"record": True})
    ProcessMetrics(
        registry,
        lambda: {role: True},
        {"home": tmp_path},
        {"ssl.ca.location": str(Authority(tmp_path).certificate)},
    )
    page = generate_latest(registry)

    assert b"wakeroll_ready{" in page
    assert b"wakeroll_certificate_end_timestamp_seconds{" in page
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
