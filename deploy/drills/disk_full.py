"""Drill: the disk of home and checkpoints is full.

Fills the file system of --home with a file named `drill-ballast`, waits until `wakeroll run` has ended, runs it once on
the full disk to show its reason, deletes the file, and starts it again. Other programs that write to this file system
fail meanwhile. The file is deleted in any case. Consumers go on, but nobody can join or take over a queue until the
disk has room.
"""

import errno
import os
import sys

from drill_steps import Drill, drill_parser, perform

_BLOCK = bytes(1024 * 1024)


def main(arguments: list[str]) -> int:
    """Do the drill."""
    parser = drill_parser("disk_full.py", __doc__)
    given = parser.parse_args(arguments)

    def steps(drill: Drill) -> None:
        drill.until_it_runs()
        before = drill.rows("decisions")
        ballast = drill.home / "drill-ballast"
        try:
            with ballast.open("wb", buffering=0) as file:

                def fills() -> bool:
                    """Take what room there is: a process that ends may have left some."""
                    _fill(file.fileno())
                    return not drill.runs()

                drill.until("the disk is full, and `wakeroll doctor` finds that run has ended", fills)
                drill.wakeroll("run", expected=1)  # it ends with the reason
        finally:
            ballast.unlink()
            drill.say(f"deleted {ballast}")
        drill.service(given.stop)  # a service manager may be in the middle of another attempt
        drill.service(given.start)
        drill.until_it_runs()
        drill.until("new decisions are in the tables", lambda: drill.rows("decisions") > before)
        drill.wakeroll("replay")

    return perform(given, steps)


def _fill(file: int) -> None:
    """Write to a file until there is no room."""
    size = len(_BLOCK)
    while size:
        try:
            os.write(file, _BLOCK[:size])
        except OSError as problem:
            if problem.errno != errno.ENOSPC:
                raise
            size //= 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
