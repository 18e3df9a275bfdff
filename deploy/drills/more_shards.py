"""Drill: the deployment gets more shards.

Stops `wakeroll run`, raises the number of shards with `wakeroll reshard`, and starts `wakeroll run` again, for which
--start must set the new number: `partitions` in wakeroll.toml, or WAKEROLL_PARTITIONS, which this script sets for it.
Consumers go on with their queues. The change is permanent: Kafka cannot remove partitions.
"""

import sys

from drill_steps import Drill, drill_parser, perform


def main(arguments: list[str]) -> int:
    """Do the drill."""
    parser = drill_parser("more_shards.py", __doc__)
    parser.add_argument("--partitions", type=int, required=True, help="new number of shards: a multiple of the present")
    given = parser.parse_args(arguments)

    def steps(drill: Drill) -> None:
        before = drill.rows("decisions")
        drill.service(given.stop)
        drill.wakeroll("reshard", "--partitions", str(given.partitions))
        drill.environment["WAKEROLL_PARTITIONS"] = str(given.partitions)
        drill.service(given.start)
        drill.until_it_runs()
        drill.until("new decisions are in the tables", lambda: drill.rows("decisions") > before)
        drill.wakeroll("replay")

    return perform(given, steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
