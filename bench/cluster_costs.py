"""What a Spark cluster costs, compared with one process: the same system on each master, in turn.

``python -m bench.cluster_costs [MASTER ...] [--seconds 60]`` prints a table. By default the masters are ``local[4]``
and ``local-cluster[2,1,1024]``, which is Spark's own standalone master with two workers and their executors, as
processes of this machine. A master such as ``spark://host:7077`` must run already. A master takes three minutes with
each number of `state_partitions`.
"""

import argparse
import shutil
import sys

from msgspec import structs

from bench.arguments import add_folder, add_times
from bench.machine import this_machine
from bench.running_system import settings_in
from bench.storage_costs import Costs, as_table, measure
from wakeroll_pipeline.local.broker import EmbeddedBroker

MASTERS = ("local[4]", "local-cluster[2,1,1024]")
STATE_PARTITIONS = (1, 2, 4)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster_costs", description=__doc__.splitlines()[0])
    parser.add_argument("masters", nargs="*", default=MASTERS, help="of Spark (default: %(default)s)")
    parser.add_argument("--state-partitions", type=int, nargs="+", default=STATE_PARTITIONS, help="(%(default)s)")
    add_times(parser, "case")
    add_folder(parser, "bench-cluster")
    given = parser.parse_args(arguments)
    machine = this_machine()
    shutil.rmtree(given.folder, ignore_errors=True)
    costs: dict[str, Costs] = {}
    with EmbeddedBroker(given.folder / "broker") as broker:
        for number, master in enumerate(given.masters):
            for partitions in given.state_partitions:
                print(f"{master} with state_partitions = {partitions}", flush=True)
                settings = settings_in(given.folder, f"m{number}-{partitions}", broker)
                settings = structs.replace(settings, master=master, state_partitions=partitions)
                costs[f"{master}, {partitions}"] = measure(settings, given.seconds, given.warmup)
    print(as_table("master, `state_partitions`", costs))
    print(f"\n{machine.sentence_with_load}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
