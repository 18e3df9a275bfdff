"""A subscription's expression, read once and kept for every message: RocketMQ's `FilterAPI.build`."""

from functools import lru_cache

from msgspec import Struct

from model.filters import sql92
from model.filters.errors import FilterError
from model.filters.tags import ALL, tags_code, tags_of

TAG = "TAG"
SQL92 = "SQL92"

# Clients of a group send the same few expressions again and again.  An expression on the wire has 4,096 characters at
# most, so that what is kept here stays below 100 MB even if all of them were that long.
_KEPT = 256


class ParsedSubscription(Struct, frozen=True, kw_only=True):
    """What a message is compared with."""

    expression: str
    """As the client sent it; `ALL` for no expression."""
    expression_type: str = TAG
    tags: frozenset[str] = frozenset()
    """The tags wanted; none for `ALL` and for every other type than tags."""
    codes: frozenset[int] = frozenset()
    """The codes of `tags`; fewer than those when two have the same."""
    condition: sql92.Condition | None = None
    """SQL92 only: what must hold of a message's properties."""
    class_filter_mode: bool = False
    """RocketMQ's old way of filtering, by a class on a server of its own: the broker lets everything through."""


def is_tag_type(expression_type: str | None) -> bool:
    """Whether tags decide, as `ExpressionType.isTagType` says; upper and lower case are not the same."""
    return expression_type in (None, "", TAG)


def parse(expression: str | None, type: str | None = TAG) -> ParsedSubscription:  # noqa: A002 - RocketMQ's word
    """Read an expression.

    Args:
        expression: tags between ``||``, or a condition; for tags, None and "" are the same as ``*``.
        type: ``TAG`` or None, ``SQL92``, or one that nobody knows.  Such a type, "" and "tag" among them, is kept with
            its text and without tags, for RocketMQ does so: "" then matches no tag, the others match everything.

    Raises:
        FilterError: no tags between separators, no expression where the type needs one, a condition with a mistake.
    """
    return _parse(expression, type)


@lru_cache(maxsize=_KEPT)
def _parse(expression: str | None, expression_type: str | None) -> ParsedSubscription:
    if expression_type in (None, TAG):
        if not expression or expression == ALL:
            return ParsedSubscription(expression=ALL)
        tags = tags_of(expression)
        return ParsedSubscription(expression=expression, tags=tags, codes=frozenset(map(tags_code, tags)))
    assert expression_type is not None, "None is a type of tags"
    if not expression:
        raise FilterError(f"Expression can't be null! {expression_type}: only tags can be left out")
    condition = sql92.read(expression) if expression_type == SQL92 else None
    return ParsedSubscription(expression=expression, expression_type=expression_type, condition=condition)
