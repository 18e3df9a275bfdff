"""The driver is killed again and again while it is busy: nothing is missing, contradictory or repeated.

KILLS=20 tells the whole story; for every change one is enough, beside those of test_outages.py.
"""

import os
import random
import time

import pytest

from fleet import Fleet

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

KILLS = int(os.environ.get("KILLS", "1"))


def test_a_driver_that_dies_at_any_moment_loses_and_repeats_nothing(broker, spark, tmp_path):
    """The log is the truth: whatever died, the next driver decides what the first would have decided."""
    seed = int(os.environ.get("SEED", str(random.randrange(10**6))))
    print(f"KILLS={KILLS} SEED={seed}")
    moments = random.Random(seed)
    # Tables are written all the time: whenever it dies, it is likely to be in the middle of that.
    with Fleet(broker.bootstrap, tmp_path, record_interval_ms=1_000) as fleet:
        for _ in range(KILLS):
            fleet.wait_until_decided()
            time.sleep(moments.uniform(0.0, 4.0))
            fleet.system.jobs.kill()
            fleet.system.jobs.start()
        fleet.wait_until_decided()
        fleet.wait_until_consumed()

    fleet.check(spark)
