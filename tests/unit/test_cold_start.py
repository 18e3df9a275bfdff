"""A process that starts before its brokers or its store waits for them, and ends for what waiting cannot mend."""

import logging

import pytest

from wakeroll.errors import AccessDenied, InvalidUsage, LoginFailed, NotReachable
from wakeroll_pipeline.jobs import cold_start
from wakeroll_pipeline.jobs.cold_start import when_reachable
from wakeroll_pipeline.kafka.control_topics import FewerBrokers, InvalidTopics
from wakeroll_pipeline.metrics.health import Health
from wakeroll_pipeline.storage.small_files import StorageDenied, StorageFailed


class Parts:
    """An attempt that fails in these ways, and then succeeds."""

    def __init__(self, health: Health, *failures: Exception) -> None:
        self._health = health
        self._failures = list(failures)
        self.probed: list[str] = []

    def __call__(self) -> str:
        self.probed.append(self._health.readiness().reason)
        if self._failures:
            raise self._failures.pop(0)
        return "there"


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_start, "_AGAIN_S", 0.0)


def test_what_comes_later_is_awaited_and_named(caplog):
    """The probe has the reason of each moment, the log one line for the whole wait."""
    health = Health("the first batch is not complete")
    parts = Parts(health, NotReachable("no broker"), StorageFailed("no store"), FewerBrokers("too few brokers"))

    with caplog.at_level(logging.INFO):
        assert when_reachable(parts, health) == "there"

    assert parts.probed == [
        "not ready: the first batch is not complete",
        "not ready: no broker",
        "not ready: no store",
        "not ready: too few brokers",
    ]
    assert health.readiness().reason == "not ready: the first batch is not complete"
    assert [record.message for record in caplog.records] == [
        "no broker; waiting for it",
        "what this process waited for is there; it starts now",
    ]


def test_what_is_needed_later_begins_once_and_only_if_there_is_a_wait():
    """The start of Spark takes most of a start, and an error of the first attempt is reported without it."""
    health = Health("the first batch is not complete")
    begun: list[str] = []

    when_reachable(Parts(health), health, meanwhile=lambda: begun.append("too early"))
    with pytest.raises(LoginFailed):
        when_reachable(Parts(health, LoginFailed("wrong")), health, meanwhile=lambda: begun.append("for nothing"))
    parts = Parts(health, *[NotReachable("no broker")] * 3)
    when_reachable(parts, health, meanwhile=lambda: begun.append(f"after {len(parts.probed)} attempt"))

    assert begun == ["after 1 attempt"]


@pytest.mark.parametrize(
    "problem",
    [
        LoginFailed("wrong password"),
        AccessDenied("no right"),
        StorageDenied("wrong key"),
        InvalidUsage("lost checkpoint"),
        InvalidTopics("compacted"),
    ],
    ids=repr,
)
def test_what_waiting_cannot_mend_ends_the_process(problem):
    health = Health("the first batch is not complete")
    parts = Parts(health, NotReachable("no broker"), problem)

    with pytest.raises(type(problem), match=str(problem)):
        when_reachable(parts, health)


def test_a_process_that_waits_is_alive():
    """Otherwise a supervisor would restart it for ever."""
    now_s = 0.0
    health = Health("the first batch is not complete", clock=lambda: now_s)
    when_reachable(Parts(health, NotReachable("no broker")), health)
    now_s = 1_000.0

    assert health.liveness().ok, "the wait is over, so it is not supervised any more"
