"""Drill: the deployment moves to another Kafka cluster.

Before: stop the producers, let the consumers handle everything (`wakeroll lag`), stop the consumers, and create the
topics of messages in the new cluster. The drill stops run and observers, lets `wakeroll restore` continue with the
state of the checkpoint in a new era, and starts run and observers for the new cluster. Groups, settings and epochs
continue. The topics of the new cluster are new ones, so each group begins at their first message. The old cluster is
not changed. The tables begin again in --to-home, because offsets of the new cluster are those of other records; the old
ones stay an archive. Afterwards: start consumers and producers with the new bootstrap.
"""

import json
import sys
from typing import Any

from drill_steps import Drill, DrillFailed, drill_parser, perform


def main(arguments: list[str]) -> int:
    """Do the drill."""
    parser = drill_parser(
        "move_brokers.py",
        __doc__,
        stop="command that stops `wakeroll run` and the observers",
        start="command that starts both, with the new bootstrap and the new home",
    )
    parser.add_argument("--to", required=True, metavar="BOOTSTRAP", help="brokers of the new cluster")
    parser.add_argument("--to-home", required=True, metavar="FOLDER", help="home of the new tables; must not exist")
    given = parser.parse_args(arguments)

    def steps(drill: Drill) -> None:
        groups = _groups(drill)
        if members := [group["group_id"] for group in groups if group["members"]]:
            raise DrillFailed(f"these groups have members: {', '.join(members)}; stop their consumers first")
        before = {group["group_id"]: group["epoch"] for group in groups}
        drill.service(given.stop)
        drill.wakeroll("run", "--bootstrap", given.to, expected=2)  # creates the control topics, and names the remedy
        drill.wakeroll("restore", "--bootstrap", given.to)
        drill.environment |= {"WAKEROLL_BOOTSTRAP": given.to, "WAKEROLL_HOME": given.to_home}
        drill.service(given.start)
        drill.until_it_runs()
        drill.until("the coordinator knows every group, in a later epoch", lambda: _continue(drill, before))

    return perform(given, steps)


def _groups(drill: Drill) -> list[dict[str, Any]]:
    """Return the groups, by the tables."""
    groups: list[dict[str, Any]] = json.loads(drill.wakeroll("groups", "--json", quiet=True))["groups"]
    return groups


def _continue(drill: Drill, before: dict[str, int]) -> bool:
    """Return whether the state of the coordinator has every group, in an epoch of the new era."""
    try:
        rows = json.loads(drill.wakeroll("state", "--json", quiet=True))["groups"]
    except DrillFailed:  # there are no snapshots yet
        return False
    now = {row["group_id"]: row["epoch"] for row in rows}
    return all(now.get(group_id, 0) > epoch for group_id, epoch in before.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
