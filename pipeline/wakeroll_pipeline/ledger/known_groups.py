"""A check that a group exists.  It reads the decisions only, because the view `groups` takes seconds."""

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.ledger.ledger import Ledger

SHOWN = 20
"""Maximum number of group names in the error."""

_GROUPS = "select distinct group_id from decisions where kind in ('membership', 'rebalance')"


def refuse_unknown_group(ledger: Ledger, group_id: str) -> None:
    """Reject the name of a group that does not exist.

    Raises:
        InvalidUsage: the tables hold no decision about the group; the message names the first existing groups.
    """
    if ledger.rows(f"{_GROUPS} and group_id = $group_id", group_id=group_id):
        return
    known = [row.group_id for row in ledger.rows(f"{_GROUPS} order by group_id limit {SHOWN}")]
    raise InvalidUsage(f"no group {group_id!r}; the groups are: {', '.join(known) or 'none yet'}")
