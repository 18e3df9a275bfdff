"""CPU time of a batch of `record`: 200 heartbeats and 200 committed offsets, in this process and its JVM.

``python -m bench.record_cost [--batches 20] [--folder FOLDER]`` prints one line per round. No broker is needed.
"""

import argparse
import os
import shutil
import sys
import time
from itertools import count

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from bench.arguments import add_folder
from bench.process_usage import cpu_s
from bench.recording import RECORDS
from wakeroll.connection import Topics
from wakeroll_model.decisions import Cause, Offset
from wakeroll_model.events import Heartbeat
from wakeroll_model.queue import Queue
from wakeroll_model.replay import encode_decision
from wakeroll_pipeline.jobs import record
from wakeroll_pipeline.ledger.tables import ensure_tables
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.session import jvm_of, start_session

PAIRS = 200
"""Heartbeats of a batch, and committed offsets."""
ROUNDS = 3
_GROUPS = 40
_START_MS = 1_700_000_000_000


def batch_from(offsets: "count[int]") -> pa.Table:
    """Return the records of the next batch, of one partition of each topic."""
    topics, rows = Topics(), []
    for offset in (next(offsets) for _ in range(PAIRS)):
        group_id, at_ms = f"g{offset % _GROUPS}", _START_MS + offset
        event = Heartbeat(group_id=group_id, client_id="c", instance_id="i")
        rows.append((topics.groups, 0, offset, at_ms, group_id.encode(), msgspec.json.encode(event)))
        decision = Offset(
            shard="groups-0.1",
            seq=offset + 1,
            at_ms=at_ms,
            cause=Cause(topics.groups, 0, offset),
            group_id=group_id,
            client_id="c",
            queue=Queue("orders", "", offset % 8),
            offset=offset,
            epoch=2,
        )
        rows.append((topics.decisions, 0, offset, at_ms, b"", encode_decision(decision)))
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), RECORDS, strict=True)]
    return pa.table(columns, RECORDS)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the first batches of each round do not count."""
    parser = argparse.ArgumentParser(prog="python -m bench.record_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=20, help="that count, in each round (%(default)s)")
    add_folder(parser)
    given = parser.parse_args(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    settings = Settings(home=str(given.folder))
    spark = start_session(settings, "bench.record_cost")
    try:
        jvm = jvm_of(spark)
        assert jvm is not None, "this process started the JVM"
        ensure_tables(spark, settings.warehouse)
        write = record.writer(settings.warehouse, Topics())
        offsets, numbers = count(), count()
        for _ in range(ROUNDS):
            for _ in range(given.batches // 2):
                write(spark.createDataFrame(batch_from(offsets)), next(numbers))
            batches = [spark.createDataFrame(batch_from(offsets)) for _ in range(given.batches)]
            began_s, python_s, java_s = time.monotonic(), cpu_s(os.getpid()), cpu_s(jvm)
            for batch in batches:
                write(batch, next(numbers))
            python_ms, java_ms, all_ms = (
                1_000 * (now - before) / given.batches
                for now, before in (
                    (cpu_s(os.getpid()), python_s),
                    (cpu_s(jvm), java_s),
                    (time.monotonic(), began_s),
                )
            )
            print(
                f"a batch of {2 * PAIRS} records: {python_ms + java_ms:.0f} ms of CPU ({python_ms:.0f} in Python), "
                f"{all_ms:.0f} ms in all",
                flush=True,
            )
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
