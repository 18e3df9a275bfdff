"""The queries of pages: search, filter, order and page number, from the address of a page."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, get_args

from msgspec import Struct, structs

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.live.verdicts import KINDS
from wakeroll_pipeline.live.view_structs import GroupSummary, MemberRow, QueueRow

PER_PAGE = 100
"""Maximum number of rows of a table on a page; a browser updates this many in 10 ms."""
_NEVER = 2**62

Sort = Literal["verdict", "name", "members", "queues", "lag", "wait", "rebalanced"]
SORTS: tuple[Sort, ...] = get_args(Sort)
_LARGEST_FIRST = ("members", "queues", "lag", "wait", "rebalanced")

_KEYS: Mapping[Sort, Callable[[GroupSummary], Any]] = {
    "verdict": lambda one: KINDS.index(one.verdict),
    "name": lambda one: one.group_id,
    "members": lambda one: -one.members,
    "queues": lambda one: -one.queues,
    "lag": lambda one: -1 if one.lag_messages is None else -one.lag_messages,
    "wait": lambda one: _NEVER if one.behind_since_ms is None else one.behind_since_ms,
    "rebalanced": lambda one: -(one.rebalanced_ms or 0),
}

_One = TypeVar("_One")


class Slice(Struct, Generic[_One], frozen=True, kw_only=True):
    """The rows of one page of a table."""

    rows: Sequence[_One]
    total: int
    """Number of rows on all pages."""
    page: int
    pages: int

    @property
    def first(self) -> int:
        """Number of the first row, from 1; 0 if there is none."""
        return (self.page - 1) * PER_PAGE + 1 if self.total else 0

    @property
    def last(self) -> int:
        """Number of the last row."""
        return self.first + len(self.rows) - 1 if self.total else 0


def slice_of(rows: Sequence[_One], page: int) -> Slice[_One]:
    """Return one page of rows; the nearest page if there is no such page."""
    pages = max(1, -(-len(rows) // PER_PAGE))
    page = min(max(page, 1), pages)
    return Slice(rows=rows[(page - 1) * PER_PAGE : page * PER_PAGE], total=len(rows), page=page, pages=pages)


class _Query(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The query of a page."""

    def params(self, **changes: Any) -> dict[str, str]:
        """Return the query as parameters of an address, with changes; defaults are left out."""
        query, default = structs.replace(self, **changes), type(self)()
        given = {name: getattr(query, name) for name in query.__struct_fields__}
        return {
            name: "1" if value is True else str(value)
            for name, value in given.items()
            if value != getattr(default, name)
        }


class GroupsQuery(_Query, frozen=True, kw_only=True, omit_defaults=True):
    """The query of the list of groups."""

    q: str = ""
    """Text to search for in the name, the topics and the reason, in any case."""
    verdict: str = ""
    """A verdict, or ``attention`` for all except healthy and empty groups; empty for all groups."""
    sort: Sort = "verdict"
    reverse: bool = False
    page: int = 1

    def matching(self, groups: Sequence[GroupSummary]) -> list[GroupSummary]:
        """Return the groups that the text matches."""
        text = self.q.casefold().strip()
        return [one for one in groups if text in _text_of(one)] if text else list(groups)

    def of_verdict(self, groups: Sequence[GroupSummary]) -> list[GroupSummary]:
        """Return the groups with the verdict."""
        if self.verdict == "attention":
            return [one for one in groups if one.verdict not in ("healthy", "empty")]
        return [one for one in groups if one.verdict == self.verdict] if self.verdict else list(groups)

    def ordered(self, groups: Sequence[GroupSummary]) -> list[GroupSummary]:
        """Return the groups in order; equal ones by name."""
        by_name = sorted(groups, key=lambda one: one.group_id)
        return sorted(by_name, key=_KEYS[self.sort], reverse=self.reverse)

    def sorted_by(self, sort: Sort) -> dict[str, str]:
        """Return the parameters that sort by a column; if it is sorted by it already, in reverse order."""
        return self.params(sort=sort, reverse=self.sort == sort and not self.reverse, page=1)

    def direction(self, sort: Sort) -> str:
        """Return the value of ``aria-sort`` for a column."""
        if self.sort != sort:
            return "none"
        return "descending" if (sort in _LARGEST_FIRST) != self.reverse else "ascending"


class TopicRow(Struct, frozen=True, kw_only=True):
    """A topic, and the groups that subscribe it."""

    topic: str
    groups: Sequence[GroupSummary]
    """The most urgent verdict first, then by name."""

    @property
    def members(self) -> int:
        """Number of members of these groups."""
        return sum(one.members for one in self.groups)


class TopicsQuery(_Query, frozen=True, kw_only=True, omit_defaults=True):
    """The query of the list of topics."""

    q: str = ""
    """Text to search for in the name of the topic, in any case."""
    page: int = 1

    def rows(self, groups: Sequence[GroupSummary]) -> list[TopicRow]:
        """Return the matching topics by name, with their groups."""
        text, found = self.q.casefold().strip(), dict[str, list[GroupSummary]]()
        for group in GroupsQuery().ordered(groups):
            for topic in group.topics:
                if text in topic.casefold():
                    found.setdefault(topic, []).append(group)
        return [TopicRow(topic=topic, groups=its) for topic, its in sorted(found.items())]


class GroupQuery(_Query, frozen=True, kw_only=True, omit_defaults=True):
    """The query of the page of one group."""

    q: str = ""
    """Text to search for in the names of queues and of their clients; members are filtered by it too."""
    page: int = 1
    """Page of the queues."""
    members: int = 1
    """Page of the members."""

    def queues(self, rows: Sequence[QueueRow]) -> Slice[QueueRow]:
        """Return the page of the matching queues."""
        text = self.q.casefold().strip()
        found = [one for one in rows if text in f"{one.name} {one.owner} {one.next_owner}".casefold()] if text else rows
        return slice_of(found, self.page)

    def of_members(self, rows: Sequence[MemberRow]) -> Slice[MemberRow]:
        """Return the page of the members."""
        return slice_of(sorted(rows, key=lambda one: one.client_id), self.members)


def groups_query(params: Mapping[str, str]) -> GroupsQuery:
    """Read the query of the list of groups.

    Raises:
        InvalidUsage: a parameter has a value that is not valid; the message names both.
    """
    verdict, sort = params.get("verdict", ""), params.get("sort", "verdict")
    if verdict not in ("", "attention", *KINDS):
        raise InvalidUsage(f"verdict is {verdict!r}; it must be one of: attention, {', '.join(KINDS)}")
    for known in SORTS:
        if known == sort:
            return GroupsQuery(
                q=params.get("q", "")[:255],
                verdict=verdict,
                sort=known,
                reverse=params.get("reverse", "") == "1",
                page=_number(params, "page"),
            )
    raise InvalidUsage(f"sort is {sort!r}; it must be one of: {', '.join(SORTS)}")


def topics_query(params: Mapping[str, str]) -> TopicsQuery:
    """Read the query of the list of topics.

    Raises:
        InvalidUsage: the page number is not valid.
    """
    return TopicsQuery(q=params.get("q", "")[:255], page=_number(params, "page"))


def group_query(params: Mapping[str, str]) -> GroupQuery:
    """Read the query of the page of a group.

    Raises:
        InvalidUsage: a page number is not valid.
    """
    return GroupQuery(q=params.get("q", "")[:255], page=_number(params, "page"), members=_number(params, "members"))


def _number(params: Mapping[str, str], name: str) -> int:
    text = params.get(name, "1")
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= 1_000_000):
        raise InvalidUsage(f"{name} is {text[:64]!r}; it must be a number from 1 to 1000000")
    return int(text)


def _text_of(one: GroupSummary) -> str:
    return " ".join((one.group_id, one.reason, *one.topics)).casefold()
