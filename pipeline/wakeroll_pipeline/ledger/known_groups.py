"""Names of groups that do not exist: the error, and a check by the decisions, which is faster than by `groups`."""

import difflib
from collections.abc import Sequence

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.ledger.ledger import Ledger

_NEAR = 3
"""Maximum number of similar names that the error suggests."""
_FEW = 5
"""Number of groups up to which the error lists all of them."""

_GROUPS = "select distinct group_id from decisions where kind in ('membership', 'rebalance')"


def unknown_group(group_id: str | None, names: Sequence[str]) -> str:
    """Return the sentence about a group that does not exist.

    >>> unknown_group("biling", ["audit", "billing"])
    "no group 'biling'; did you mean billing?"
    >>> unknown_group("x", ["audit", "billing"])
    "no group 'x'; the groups are: audit, billing"

    Args:
        group_id: the name that was given.
        names: all groups.
    """
    if near := difflib.get_close_matches(group_id or "", names, n=_NEAR):
        return f"no group {group_id!r}; did you mean {' or '.join(near)}?"
    if len(names) > _FEW:
        return f"no group {group_id!r}, and no similar name; `wakeroll groups` lists all {len(names)}"
    return f"no group {group_id!r}; the groups are: {', '.join(names) or 'none yet'}"


def unknown_member(client_id: str, group_id: str, names: Sequence[str]) -> str:
    """Return the sentence about a client that is not a member of a group, with the members' names.

    >>> unknown_member("c11", "billing", ["c1", "c2"])
    "no member 'c11' in group 'billing'; did you mean c1?"
    >>> unknown_member("x", "billing", [])
    "no member 'x' in group 'billing', which has none"
    """
    what = f"no member {client_id!r} in group {group_id!r}"
    if near := difflib.get_close_matches(client_id, names, n=_NEAR):
        return f"{what}; did you mean {' or '.join(near)}?"
    if len(names) > _FEW:
        return f"{what}, and no similar name; `wakeroll describe {group_id}` lists all {len(names)}"
    return f"{what}; the members are: {', '.join(sorted(names))}" if names else f"{what}, which has none"


def refuse_unknown_group(ledger: Ledger, group_id: str) -> None:
    """Reject the name of a group that does not exist.

    Raises:
        InvalidUsage: the tables have no decision about the group; the message suggests similar names.
    """
    if ledger.rows(f"{_GROUPS} and group_id = $group_id", group_id=group_id):
        return
    raise InvalidUsage(unknown_group(group_id, group_names(ledger)))


def group_names(ledger: Ledger) -> list[str]:
    """Return the names of all groups with decisions in the tables, sorted."""
    return [row.group_id for row in ledger.rows(f"{_GROUPS} order by group_id")]
