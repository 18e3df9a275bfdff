"""The rights of a user of the page: a role, and the groups to which it applies."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, get_args

from msgspec import Struct

from wakeroll.errors import InvalidUsage

Role = Literal["viewer", "operator", "administrator"]
"""Each role includes the rights of the roles before it. A viewer changes nothing; an operator resets offsets, skips
messages, kicks clients, pauses and rebalances; an administrator also changes settings and deletes groups."""
ROLES: tuple[Role, ...] = get_args(Role)
MOST_PATTERNS = 100
LONGEST_PATTERN = 255


class Rights(Struct, frozen=True, kw_only=True):
    """The role of a user, and the groups that the user may change."""

    role: Role = "administrator"
    groups: tuple[str, ...] = ("*",)
    """Patterns with ``*`` and ``?`` of the names of groups that the user may change. A pattern like ``prod/orders-*``
    is for one of several deployments; no group has a name with a slash."""

    def lack(self, needed: Role, group_id: str | None = None, deployment: str = "") -> str:
        """Return the missing right of a user for a change, in words; empty if no right is missing.

        Args:
            needed: lowest role that may make the change.
            group_id: the group to change; None: any.
            deployment: name of the group's deployment, if the site shows several.
        """
        if ROLES.index(self.role) < ROLES.index(needed):
            return f"your role is {self.role}; this needs the role {needed}"
        if group_id is not None and not any(_covers(one, group_id, deployment) for one in self.groups):
            named = f"{group_id} of the deployment {deployment}" if deployment else group_id
            return f"you may change the groups {', '.join(self.groups)}; {named} is none of them"
        return ""


def _covers(pattern: str, group_id: str, deployment: str) -> bool:
    where, slash, name = pattern.rpartition("/")
    return fnmatchcase(group_id, name) and (not slash or fnmatchcase(deployment, where))


def rights_of(role: object, groups: object) -> Rights:
    """Check a role and patterns of groups.

    Raises:
        InvalidUsage: one of them is not valid.
    """
    for known in ROLES:
        if role == known:
            return Rights(role=known, groups=_patterns_of(groups))
    raise InvalidUsage(f"the role is {str(role)[:64]!r}; it must be one of: {', '.join(ROLES)}")


def _patterns_of(groups: object) -> tuple[str, ...]:
    patterns = tuple(groups) if isinstance(groups, Iterable) and not isinstance(groups, str | bytes) else ()
    if not 1 <= len(patterns) <= MOST_PATTERNS:
        raise InvalidUsage(f"the groups are {str(groups)[:64]!r}; they must be 1 to {MOST_PATTERNS} patterns of names")
    for pattern in patterns:
        if not isinstance(pattern, str) or not 1 <= len(pattern) <= LONGEST_PATTERN or not pattern.isprintable():
            raise InvalidUsage(
                f"a pattern of groups is {str(pattern)[:64]!r}; it must be a name, in which * is any text"
            )
    return patterns
