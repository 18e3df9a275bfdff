"""How the latency of wakes depends on the number of clients that wait.

``python -m bench.waiting_scale [--clients 200 1000 5000]`` prints a table. All clients wait on the same queues, to
which messages arrive at a steady rate; a message wakes all that wait on its queue. Each number takes three minutes.
"""

import argparse
import shutil
import sys

from bench.arguments import add_folder, add_times
from bench.latency_figures import latency_of
from bench.machine import this_machine
from bench.path_latency import PER_SECOND, QUEUES, answers_to, whole_system
from bench.running_system import settings_in
from bench.text_tables import digits, table
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.settings import Settings

CLIENTS = (200, 1_000, 5_000)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.waiting_scale", description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="*", default=CLIENTS, help="(%(default)s)")
    add_times(parser, "number")
    add_folder(parser, "bench-waiting")
    given = parser.parse_args(arguments)
    machine = this_machine()
    shutil.rmtree(given.folder, ignore_errors=True)
    with EmbeddedBroker(given.folder / "broker") as broker:
        rows = [
            _row(settings_in(given.folder, f"waiting-{clients}", broker), clients, given.seconds, given.warmup)
            for clients in given.clients
        ]
    print(table(("clients", "wakes/s", "arrival to wake, p50 ms", "p99 ms"), rows))
    print(f"\n{PER_SECOND} messages per second to {QUEUES} queues. {machine.sentence_with_load}")
    return 0


def _row(settings: Settings, clients: int, seconds: float, warmup_s: float) -> tuple[str, str, str, str]:
    with whole_system(settings) as (connection, ears):
        answers = answers_to(connection, ears, clients, seconds, warmup_s)
    woken = latency_of(answer.latency_ms for answer in answers if answer.was_held)
    return f"{clients:,}", digits(woken.count / seconds), digits(woken.p50_ms), digits(woken.p99_ms)


if __name__ == "__main__":
    sys.exit(main())
