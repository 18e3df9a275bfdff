"""The coordinator's latency without and with `wakeroll serve` beside it, in rounds that take turns."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from bench.decision_reader import Answer, Ears
from bench.latency_figures import latency_of
from bench.page_figures import Beside
from bench.page_readers import draining
from bench.path_latency import CLIENTS, PER_SECOND, QUEUES, orders_of, whole_system
from bench.running_system import settings_in
from bench.served_page import ServedPage
from bench.waiting_consumers import Crowd
from wakeroll.epoch_ms import now_ms
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.traffic import Probe
from wakeroll_pipeline.settings import Settings

WARMUP_S = 45.0
"""Before the first round, of heartbeats and of waiting consumers each; meanwhile the JVM compiles."""
_PAUSE_S = 2.0
"""At the beginning of each part of a round, that does not count."""
_SLICE_S = 0.2


class _Answers:
    """The answers of all rounds of one kind."""

    def __init__(self) -> None:
        self.told: list[Answer] = []
        self.woken: list[Answer] = []

    def figures(self) -> Beside:
        """Return the latencies; of wakes, only those of pulls that had to wait."""
        return Beside(
            latency_of(answer.latency_ms for answer in self.told),
            latency_of(answer.latency_ms for answer in self.woken if answer.was_held),
        )


def measure(folder: Path, rounds: int, seconds: float, warmup_s: float = WARMUP_S) -> tuple[Beside, Beside]:
    """Run the whole system, and the page beside it in half of the rounds.

    Args:
        folder: of the data and the logs.
        rounds: of each kind.
        seconds: that count in a round, of heartbeats and of waiting consumers each.
        warmup_s: before the first round, of each.

    Returns:
        The latencies without and with the page.
    """
    without, with_page = _Answers(), _Answers()
    with EmbeddedBroker(folder / "broker") as broker:
        settings = settings_in(folder, "ours", broker)
        print("the whole system starts", flush=True)
        with whole_system(settings) as (connection, ears):
            crowd = Crowd(connection, orders_of(connection), CLIENTS, QUEUES)
            probe = Probe(connection, orders_of(connection))
            probe.start()
            try:
                _round(ears, crowd, warmup_s, _Answers())
                for number in range(rounds):
                    # In changing order, so that what becomes faster or slower meanwhile does so for both.
                    for has_page in (number % 2 == 1, number % 2 == 0):
                        kind = "with" if has_page else "without"
                        print(f"round {number + 1} of {rounds}, {kind} the page", flush=True)
                        log = folder / f"serve-{number}.log"
                        with _page(settings, log) if has_page else nullcontext():
                            _round(ears, crowd, seconds, with_page if has_page else without)
            finally:
                probe.close()
    return without.figures(), with_page.figures()


@contextmanager
def _page(settings: Settings, log: Path) -> Iterator[None]:
    """Serve the page, open once, during a `with` block."""
    with ServedPage(settings, log) as page:
        page.until_ready()
        with draining(page.address, "/events/groups"):
            yield
            page.check()


def _round(ears: Ears, crowd: Crowd, seconds: float, answers: _Answers) -> None:
    def told() -> list[Answer]:
        end_s = time.monotonic() + _PAUSE_S + seconds
        found = []
        while time.monotonic() < end_s:
            found += ears.assignments(_SLICE_S)
        return found

    answers.told += _counted(told)
    answers.woken += _counted(lambda: crowd.run(ears, PER_SECOND, _PAUSE_S + seconds))


def _counted(answers: Callable[[], list[Answer]]) -> list[Answer]:
    """Return the answers to events of the time that counts."""
    since_ms = now_ms() + round(_PAUSE_S * 1_000)
    return [answer for answer in answers() if answer.at_ms >= since_ms]
