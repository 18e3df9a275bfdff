"""Drill: the folder of the tables is lost.

Stops `wakeroll run`, renames the folder `warehouse` in home, and lets `wakeroll restore` write the tables again, from
the records that Kafka still has. Consumers go on. Nothing is deleted: the old tables stay beside the new ones, and the
old checkpoint of `record` stays as `record.set-aside`.
"""

import sys

from drill_steps import Drill, DrillFailed, drill_parser, perform


def main(arguments: list[str]) -> int:
    """Do the drill."""
    parser = drill_parser("lost_tables.py", __doc__)
    given = parser.parse_args(arguments)

    def steps(drill: Drill) -> None:
        drill.service(given.stop)
        before = drill.rows("decisions")
        drill.say(f"the tables have {before:,} decisions")
        drill.set_aside(drill.warehouse)
        drill.wakeroll("run", expected=2)  # it names the lost tables, and the remedy
        drill.wakeroll("restore")
        drill.service(given.start)
        drill.until_it_runs()
        drill.until(
            f"the tables have {before:,} decisions again", lambda: drill.warehouse.exists() and _has(drill, before)
        )
        drill.wakeroll("replay")

    return perform(given, steps)


def _has(drill: Drill, decisions: int) -> bool:
    try:
        return drill.rows("decisions") >= decisions
    except DrillFailed:  # the table does not exist yet
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
