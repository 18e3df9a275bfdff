"""Drill: the clock of a broker jumps.

Runs --jump, which sets the clock of a broker (or of its machine) forward or back, then --back, which corrects it, and
shows that no session ended because of it: the coordinator counts the time of ticks, not differences of log times. Each
command returns when the broker works again. Retention by time is Kafka's own: with a clock a week ahead, Kafka deletes
records that are still needed.
"""

import sys

from drill_steps import Drill, DrillFailed, drill_parser, perform


def main(arguments: list[str]) -> int:
    """Do the drill."""
    parser = drill_parser("clock_jump.py", __doc__, stop="")
    parser.add_argument("--jump", required=True, metavar="COMMAND", help="command that changes a broker's clock")
    parser.add_argument("--back", required=True, metavar="COMMAND", help="command that corrects it")
    given = parser.parse_args(arguments)

    def steps(drill: Drill) -> None:
        drill.until_it_runs()
        before = _expired(drill)
        for command in (given.jump, given.back):
            drill.service(command)
            seen = drill.rows("decisions")
            drill.until("new decisions are in the tables", lambda seen=seen: drill.rows("decisions") > seen + 10)
            [times] = drill.query("select min(at_ms) as first_ms, max(at_ms) as last_ms from events")
            drill.say(f"log times reach from {times['first_ms']} to {times['last_ms']} (epoch ms)")
        drill.until_it_runs()
        if (expired := _expired(drill) - before) > 0:
            raise DrillFailed(f"{expired} members expired during the drill")
        drill.say("no member expired")
        drill.wakeroll("replay")

    return perform(given, steps)


def _expired(drill: Drill) -> int:
    [row] = drill.query("select count(*) as n from memberships where change = 'expired'")
    return int(row["n"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
