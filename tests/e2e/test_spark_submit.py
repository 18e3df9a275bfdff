"""deploy/spark-submit.md: its commands run the jobs, in local mode."""

import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.support.systems.deployment import Log, decided, deploy
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.runtime.run_status import read_status

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "deploy" / "spark-submit.md").read_text(encoding="utf-8")

until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)


@pytest.mark.operate
def test_the_jobs_decide_and_end_in_good_order(broker, tmp_path):
    """A platform that starts all its jobs by spark-submit can start these, too."""
    settings = deploy(broker, tmp_path, "submitted")
    [commands] = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    log = Log(settings)
    submitted = Child(
        "spark-submit",
        ["sh", "-ec", commands.replace("host:9092", settings.bootstrap)],
        log=tmp_path / "submit.log",
        # The master is that of the command line.
        env={**os.environ, **settings.environment(), "WAKEROLL_MASTER": "spark://nowhere:7077"},
        folder=ROOT,
        grace_s=90,
    )
    with submitted:
        status = until(lambda: read_status(settings.work_folder), "the jobs run", state=submitted.log_tail)
        log.route(2)
        log.beat("billing", "c1")
        until(
            lambda: any(one["kind"] == "assignment" for one in decided(settings)),
            "a member gets its queues",
            between=log.tick,
        )
        os.kill(status.pid, signal.SIGTERM)
        until(lambda: not submitted.is_running, "the jobs end", state=submitted.log_tail)

    assert submitted.returncode == 0, submitted.log_tail(100)
    assert "Traceback" not in submitted.log_tail(1_000)
