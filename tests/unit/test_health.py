"""Liveness and readiness of a process, with a clock under control."""

from wakeroll_pipeline.metrics.health import LOOP_TIMEOUT_S, Answer, Health


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_process_that_starts_is_alive_and_not_ready():
    """Spark may need minutes to start; a probe that ended it would never let it."""
    health = Health("the first batch is not complete")

    assert health.liveness() == Answer(True, "alive: starting or stopping; no loop runs")
    assert health.readiness() == Answer(False, "not ready: the first batch is not complete")


def test_a_loop_without_a_new_round_is_not_alive():
    clock = Clock()
    health = Health("", clock)
    health.beat("router")
    health.beat("ticker")
    clock.now_s += LOOP_TIMEOUT_S
    health.beat("router")
    assert health.liveness() == Answer(True, "alive: time since the last round of router 0.0 s, ticker 300.0 s")

    clock.now_s += 1
    assert health.liveness() == Answer(False, "not alive: no new round of ticker for 301 s; the limit is 300 s")

    health.beat("ticker")
    assert health.liveness().ok


def test_a_process_that_stops_is_alive_and_no_longer_ready():
    """It finishes its last batch, and nobody may end it before."""
    clock = Clock()
    health = Health("no tick", clock)
    health.beat("run")
    health.ready()
    assert health.readiness() == Answer(True, "ready")

    health.stopping()
    health.ready()  # the last batch, or an acknowledgement that was under way
    health.beat("run")
    clock.now_s += 10 * LOOP_TIMEOUT_S
    assert health.liveness().ok
    assert health.readiness() == Answer(False, "not ready: the process is stopping")


def test_readiness_lapses_when_nothing_succeeds_any_more():
    """After a rotated password an observer delivered no tick, and said for ever that it was ready."""
    clock = Clock()
    health = Health("no tick yet", clock, lapsed="no tick was acknowledged", lapse_s=15)
    clock.now_s += 100
    assert health.readiness() == Answer(False, "not ready: no tick yet")

    health.ready()
    clock.now_s += 15
    assert health.readiness().ok
    clock.now_s += 1
    assert health.readiness() == Answer(False, "not ready: no tick was acknowledged for 16 s")

    health.ready()
    assert health.readiness().ok
