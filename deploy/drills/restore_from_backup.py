"""Drill: the volume with tables and checkpoints is lost, and there is a copy of the tables.

Copies the tables while `wakeroll run` writes them, waits until it has written more, and stops it. Then it renames the
folders of home and of the checkpoints, puts the copy in place of home, and lets `wakeroll restore` continue from its
snapshots and the records since. Consumers go on with their queues. Nothing is deleted: the old folders stay beside the
new ones.
"""

import sys
from pathlib import Path

from drill_steps import Drill, drill_parser, perform

COPY = "command that makes a copy of home while `wakeroll run` writes; {} stands for the new folder"
_COPIER = Path(__file__).parents[1] / "backup" / "copy_tables.py"


def main(arguments: list[str]) -> int:
    """Do the drill."""
    parser = drill_parser("restore_from_backup.py", __doc__)
    parser.add_argument("--copy", metavar="COMMAND", default="", help=f"{COPY}; default: {_COPIER.name}")
    given = parser.parse_args(arguments)

    def steps(drill: Drill) -> None:
        drill.until("there are snapshots", lambda: drill.rows("snapshots") > 0)
        copied = drill.home.with_name(f"{drill.home.name}.drill-copy")
        default = f"{sys.executable} {_COPIER} {drill.home} {{}}"
        drill.service((given.copy or default).replace("{}", str(copied)))
        before = drill.rows("decisions")
        drill.until("there are decisions that the copy lacks", lambda: drill.rows("decisions") > before)
        drill.service(given.stop)
        lost = drill.rows("decisions")
        drill.set_aside(drill.home)
        if drill.checkpoints.exists():
            drill.set_aside(drill.checkpoints)
        copied.rename(drill.home)
        drill.say(f"the copy is in place: {drill.rows('decisions'):,} of {lost:,} decisions")
        drill.wakeroll("restore", "--from-snapshots")
        drill.service(given.start)
        drill.until_it_runs()
        drill.until("all decisions are in the tables again", lambda: drill.rows("decisions") > lost)
        drill.wakeroll("check")
        drill.wakeroll("replay")

    return perform(given, steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
