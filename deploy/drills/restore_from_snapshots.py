"""Drill: the checkpoints are lost.

Stops `wakeroll run`, renames the folder of the checkpoints, and lets `wakeroll restore` continue from the newest
snapshots and the records since. Consumers go on with their queues. Nothing is deleted: the old checkpoints stay beside
the new ones.
"""

import sys

from drill_steps import Drill, drill_parser, perform


def main(arguments: list[str]) -> int:
    """Do the drill."""
    parser = drill_parser("restore_from_snapshots.py", __doc__)
    given = parser.parse_args(arguments)

    def steps(drill: Drill) -> None:
        drill.until("there are snapshots", lambda: drill.rows("snapshots") > 0)
        drill.service(given.stop)
        before = drill.rows("decisions")
        drill.set_aside(drill.checkpoints)
        drill.wakeroll("run", expected=2)  # it does not begin with an empty state
        drill.wakeroll("restore")
        drill.service(given.start)
        drill.until_it_runs()
        drill.until("new decisions are in the tables", lambda: drill.rows("decisions") > before)
        drill.wakeroll("replay")

    return perform(given, steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
