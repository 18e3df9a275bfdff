"""`run` and `observe` with logs as JSON, while their broker comes and goes: each line is one object."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

LEVELS = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}

until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)


def child(command: str, settings: Settings) -> Child:
    return Child(
        command,
        [sys.executable, "-m", "wakeroll_pipeline.cli", command, "--log-format", "json"],
        log=settings.logs / f"{command}.log",
        env={**os.environ, **settings.environment()},
        grace_s=90,
    )


def records_of(child: Child) -> list[Mapping[str, str]]:
    return [json.loads(line) for line in child.log.read_text(encoding="utf-8").splitlines()]


def has_logged(child: Child, logger: str) -> Callable[[], bool]:
    """Return whether a logger whose name begins so has written a line."""
    return lambda: any(record["logger"].startswith(logger) for record in records_of(child))


@pytest.mark.operate
def test_each_line_is_one_object_also_those_of_spark_and_of_kafkas_client(tmp_path: Path):
    """A collector of logs needs no rule for each library."""
    broker = EmbeddedBroker(tmp_path / "broker")
    with broker:
        settings = Settings(
            bootstrap=broker.bootstrap, home=str(tmp_path / "home"), checkpoints=str(tmp_path / "checkpoints")
        )
        ensure_topics(settings.connection)
        observer, jobs = child("observe", settings), child("run", settings)
        with observer, jobs:
            until(lambda: read_status(settings.work_folder), "the jobs run", state=jobs.log_tail)
            broker.stop()
            until(
                has_logged(observer, "wakeroll_pipeline.observer."),
                "the observer misses the broker",
                state=observer.log_tail,
            )
            until(has_logged(jobs, "org.apache."), "Spark misses the broker", state=jobs.log_tail)
            broker.start()
        records = {one.name: records_of(one) for one in (observer, jobs)}

    assert (observer.returncode, jobs.returncode) == (0, 0)
    for record in (*records["observe"], *records["run"]):
        assert {"time", "level", "logger", "message"} <= record.keys(), record
        assert record["level"] in LEVELS, record
        assert record["time"].endswith("Z"), record
    assert "wakeroll.run" in {record["logger"] for record in records["run"]}
