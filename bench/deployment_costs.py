"""The cost of deployments by their size and their place: the figures of docs/cluster.md and docs/storage.md.

Each is the whole system in a few variants, one after the other on one broker.
"""

import os
import time
import uuid
from argparse import Namespace
from collections.abc import Mapping
from contextlib import closing
from statistics import median

from msgspec import structs

from bench.decision_reader import Decided, Listener
from bench.frame import Bench, numbers, option, times
from bench.path_latency import PER_SECOND, QUEUES, answers_to, heartbeats_of, whole_system
from bench.process_usage import cpu_s, descendants, written_bytes
from bench.running_system import command_s, make_topic, orders_of, running_system, sampled_batches, settings_in
from bench.steady_load import flood, settle
from bench.text_tables import digits, table
from bench.timings import latency_of
from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import Settings

MEMBERS = (0, 10_000, 100_000)
PERIOD_S = 20
"""Between two heartbeats of a member."""
CLIENTS = (200, 1_000, 5_000)
MASTERS = ("local[4]", "local-cluster[2,1,1024]")
STATE_PARTITIONS = (1, 2, 4)
COMMAND_RUNS = 5
_QUERIES = ("coordinate", "record")


def idle_cost(given: Namespace) -> str:
    """Return what `wakeroll run` costs while nothing changes, with more and more members in one shard."""
    with EmbeddedBroker(given.folder / "broker") as broker:
        rows = [
            _idle(settings_in(given.folder, f"idle-{members}", broker), members, given.seconds, given.warmup)
            for members in given.members
        ]
    heads = ("members", "state MB", *(f"batch of `{name}` ms" for name in _QUERIES))
    return table((*heads, "Python, % of a core", "Java, % of a core", "written, MB/s"), rows)


def _idle(settings: Settings, members: int, seconds: float, warmup_s: float) -> tuple[str, ...]:
    settings = structs.replace(settings, partitions=1)
    beats = settle(settings, members)
    with running_system(settings) as connection, flood(connection, beats, members / PERIOD_S):
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
    state_mb = sum(status.states.values()) / 1e6
    medians = (median(batches[name]) for name in _QUERIES)
    return (f"{members:,}", *map(digits, (state_mb, *medians, 100 * python, 100 * java, written / 1e6)))


def _used(pid: int) -> tuple[float, float, float]:
    """Return the processor time of Python and of Java (s), and the bytes that Java has written."""
    names = descendants(pid)
    java = [child for child, name in names.items() if name == "java"]
    python = [pid, *(child for child in names if child not in java)]
    return sum(map(cpu_s, python)), sum(map(cpu_s, java)), sum(map(written_bytes, java))


def waiting_scale(given: Namespace) -> str:
    """Return how the latency of wakes depends on the number of clients that wait, on the same queues."""
    rows = []
    with EmbeddedBroker(given.folder / "broker") as broker:
        for clients in given.clients:
            with whole_system(settings_in(given.folder, f"waiting-{clients}", broker)) as (connection, ears):
                answers = answers_to(connection, ears, clients, given.seconds, given.warmup)
            woken = latency_of(answer.latency_ms for answer in answers if answer.was_held)
            rows.append((f"{clients:,}", *map(digits, (woken.count / given.seconds, woken.p50_ms, woken.p99_ms))))
    heads = ("clients", "wakes/s", "arrival to wake, p50 ms", "p99 ms")
    return f"{table(heads, rows)}\n\n{PER_SECOND} messages per second to {QUEUES} queues."


def cluster_costs(given: Namespace) -> str:
    """Return what a Spark cluster costs, compared with one process, with each number of state partitions."""
    with EmbeddedBroker(given.folder / "broker") as broker:
        variants = {
            f"{master}, {partitions}": structs.replace(
                settings_in(given.folder, f"m{number}-{partitions}", broker), master=master, state_partitions=partitions
            )
            for number, master in enumerate(given.masters)
            for partitions in given.state_partitions
        }
        return _compared("master, `state_partitions`", variants, given)


def storage_costs(given: Namespace) -> str:
    """Return what tables and checkpoints in an object store cost, compared with a local folder."""
    with EmbeddedBroker(given.folder / "broker") as broker:
        uri, access = f"{given.uri}/{uuid.uuid4().hex[:8]}", load(os.environ)
        remote = structs.replace(
            settings_in(given.folder, "remote", broker),
            home=uri,
            checkpoints=f"{uri}/checkpoints",
            work=str(given.folder / "work"),
            s3_endpoint=access.s3_endpoint,
            s3_region=access.s3_region,
            s3_addressing=access.s3_addressing,
        )
        return _compared(
            "data in", {"a local folder": settings_in(given.folder, "local", broker), given.uri: remote}, given
        )


def _compared(head: str, variants: Mapping[str, Settings], given: Namespace) -> str:
    """Run a whole system with each of these settings for some time, then ask its tables; return a table."""
    heads = (head, "heartbeat p50 ms", "p99 ms", *(f"batch of {name} ms" for name in _QUERIES), "`groups` s")
    rows = []
    for name, settings in variants.items():
        print(name, flush=True)
        with running_system(settings) as connection:
            make_topic(connection, orders_of(connection), QUEUES)
            with (
                closing(Listener(connection, connection.topics.inbox, settings.inbox_partitions)) as listener,
                sampled_batches(settings) as batches,
            ):
                heartbeat = heartbeats_of(connection, Decided(listener), given.seconds, given.warmup)
        groups_s = median(command_s(settings, "groups") for _ in range(COMMAND_RUNS))
        medians = (median(batches[query]) for query in _QUERIES)
        rows.append((name, *map(digits, (heartbeat.p50_ms, heartbeat.p99_ms, *medians, groups_s))))
    return table(heads, rows)


BENCHES = (
    Bench(
        "idle_cost",
        "What 0 to 100,000 members cost that only send heartbeats (docs/cluster.md).",
        "eight minutes",
        idle_cost,
        options=(option("--members", type=numbers, default=MEMBERS, help="numbers, by comma"), *times("number")),
    ),
    Bench(
        "waiting_scale",
        "The latency of wakes with 200 to 5,000 waiting clients (docs/cluster.md).",
        "ten minutes",
        waiting_scale,
        options=(option("--clients", type=numbers, default=CLIENTS, help="numbers, by comma"), *times("number")),
    ),
    Bench(
        "cluster_costs",
        "Executors and state partitions, beside one process (docs/cluster.md).",
        "a quarter of an hour",
        cluster_costs,
        options=(
            option("--masters", nargs="+", default=MASTERS, help="of Spark; one such as spark://host:7077 must run"),
            option("--state-partitions", type=numbers, default=STATE_PARTITIONS, help="numbers, by comma"),
            *times("case"),
        ),
    ),
    Bench(
        "storage_costs",
        "An object store beside a local folder (docs/storage.md).",
        "five minutes",
        storage_costs,
        options=(
            option("uri", help="folder in a store that runs, such as s3a://bucket/path; access by AWS's variables"),
            *times("place"),
        ),
    ),
)
