"""What `wakeroll run` costs while nothing changes, with more and more members in one shard.

``python -m bench.idle_cost [--members 0 10000 100000]`` prints a table. The members send a heartbeat each 20 s, and the
observer a tick per second. It takes two to three minutes with each number of members.
"""

import argparse
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

import msgspec
from msgspec import structs

from bench.arguments import add_folder, add_times
from bench.machine import this_machine
from bench.process_usage import cpu_s, descendants, written_bytes
from bench.running_system import running_system, settings_in
from bench.settled_state import prepare_settled
from bench.storage_costs import sampled_batches
from bench.text_tables import digits, table
from wakeroll.connection import Connection, close_producer
from wakeroll.epoch_ms import now_ms
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import Settings

MEMBERS = (0, 10_000, 100_000)
EACH = 10
"""Members of a group."""
PERIOD_S = 20
_SLOTS = 10
"""Parts of a second, over which the heartbeats of a second are spread."""
_QUERIES = ("coordinate", "record")

Beats = Sequence[tuple[str, bytes]]
"""Group and record of the heartbeat of each member."""


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.idle_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, nargs="*", default=MEMBERS, help="(%(default)s)")
    add_times(parser, "number")
    add_folder(parser, "bench-idle")
    given = parser.parse_args(arguments)
    machine = this_machine()
    shutil.rmtree(given.folder, ignore_errors=True)
    with EmbeddedBroker(given.folder / "broker") as broker:
        rows = [
            _row(settings_in(given.folder, f"idle-{members}", broker), members, given.warmup, given.seconds)
            for members in given.members
        ]
    heads = ("members", "state MB", *(f"batch of `{name}` ms" for name in _QUERIES))
    print(table((*heads, "Python, % of a core", "Java, % of a core", "written, MB/s"), rows))
    print(f"\n{machine.sentence_with_load}")
    return 0


def _row(settings: Settings, members: int, warmup_s: float, seconds: float) -> tuple[str, ...]:
    """Run the system with so many members, and measure its jobs."""
    settings = structs.replace(settings, partitions=1)
    ensure_topics(settings.connection, partitions=1, inbox_partitions=settings.inbox_partitions)
    beats: Beats = []
    if members:
        population = prepare_settled(settings, members // EACH, EACH, now_ms())
        beats = [(who[0], msgspec.json.encode(population.beat(*who))) for who in population.everybody()]
    with ExitStack() as stack:
        connection = stack.enter_context(running_system(settings))
        stack.callback(_started(connection, beats).set)
        time.sleep(warmup_s)
        status = read_status(settings.work_folder)
        assert status is not None, "`run` is ready"
        before, began_s = _used(status.pid), time.monotonic()
        with sampled_batches(settings) as batches:
            time.sleep(seconds)
        used = [after - one for one, after in zip(before, _used(status.pid), strict=True)]
        python, java, written = (one / (time.monotonic() - began_s) for one in used)
        status = read_status(settings.work_folder)
        assert status is not None, "`run` was ready"
    return (
        f"{members:,}",
        digits(sum(status.states.values()) / 1e6),
        *(digits(median(batches[name])) for name in _QUERIES),
        digits(100 * python),
        digits(100 * java),
        digits(written / 1e6),
    )


def _used(pid: int) -> tuple[float, float, float]:
    """Return the processor time of Python and of Java (s), and the bytes that Java has written."""
    names = descendants(pid)
    java = [child for child, name in names.items() if name == "java"]
    python = [pid, *(child for child in names if child not in java)]
    return sum(map(cpu_s, python)), sum(map(cpu_s, java)), sum(map(written_bytes, java))


def _started(connection: Connection, beats: Beats) -> threading.Event:
    """Send each heartbeat once per period in a thread, until the event is set."""
    ended = threading.Event()

    def send() -> None:
        producer, slot = connection.producer(log_level=0), 0
        slots = PERIOD_S * _SLOTS
        while not ended.wait(1 / _SLOTS):
            for group_id, value in beats[slot % slots :: slots]:
                producer.produce(connection.topics.groups, value, key=group_id)
            producer.poll(0)
            slot += 1
        close_producer(producer, 1)

    threading.Thread(target=send, daemon=True).start()
    return ended


if __name__ == "__main__":
    sys.exit(main())
