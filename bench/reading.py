"""``python -m bench.reading --home HOME``: the floor of all queries to the ledger, a Spark that only reads `events`.

It prints the result as JSON. The session and the views are those of the commands.
"""

import argparse
import sys
import time

import msgspec
from msgspec import Struct
from pyspark.sql import functions as f

from wakeroll_pipeline.ledger.tables import open_views
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.session import start_brief_session


class Read(Struct, frozen=True):
    """What a Spark has read."""

    seconds: float
    """For all columns of `events`; Spark was there already."""
    event_bytes: int


def main(arguments: list[str] | None = None) -> int:
    """Read, and tell."""
    parser = argparse.ArgumentParser(prog="python -m bench.reading", description=__doc__.splitlines()[0])
    parser.add_argument("--home", required=True)
    settings = Settings(home=parser.parse_args(arguments).home)
    spark = start_brief_session(settings, "bench.reading")
    try:
        open_views(spark, settings.warehouse)
        events = spark.table("events")
        sizes = (f.octet_length(f.coalesce(events[name].cast("string"), f.lit(""))) for name in events.columns)
        began = time.monotonic()
        [found] = events.select(f.sum(sum(sizes, f.lit(0))).alias("bytes")).collect()
        seconds = time.monotonic() - began
    finally:
        spark.stop()
    sys.stdout.buffer.write(msgspec.json.encode(Read(round(seconds, 2), found.bytes)) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
