"""Parsed expressions of subscriptions, like those of RocketMQ's `FilterAPI.build`, and their cache."""

from msgspec import Struct

from wakeroll_model import config
from wakeroll_model.filters import sql92
from wakeroll_model.filters.filter_error import FilterError
from wakeroll_model.filters.tags import ALL, tags_code, tags_of

TAG = "TAG"
SQL92 = "SQL92"


class ParsedSubscription(Struct, frozen=True, kw_only=True):
    """A parsed subscription, with which messages are compared."""

    expression: str
    """Expression as the client sent it; `ALL` if it sent none."""
    expression_type: str = TAG
    tags: frozenset[str] = frozenset()
    """Tags that match; empty for `ALL` and for all types other than tags."""
    codes: frozenset[int] = frozenset()
    """Codes of `tags`; fewer than the tags if two have equal codes."""
    condition: sql92.Condition | None = None
    """Condition on the properties of a message; None for all types other than SQL92."""
    class_filter_mode: bool = False
    """Whether RocketMQ's obsolete filtering by a class on a filter server applies; the broker then filters nothing."""


def is_tag_type(expression_type: str | None) -> bool:
    """Return the result of `ExpressionType.isTagType`, which is case-sensitive."""
    return expression_type in (None, "", TAG)


def parse(expression: str | None, type: str | None = TAG) -> ParsedSubscription:  # noqa: A002 - RocketMQ's word
    """Parse an expression.

    Args:
        expression: tags separated by ``||``, or a condition; for tags, None and "" mean ``*``.
        type: ``TAG`` or None, ``SQL92``, or an unknown type.  As in RocketMQ, an unknown type (such as "" or "tag")
            keeps the text and gets no tags: "" then matches no tag, the other unknown types match every message.

    Raises:
        FilterError: the expression has separators but no tags, is absent although its type needs one, or is an invalid
            condition.
    """
    key = expression, type
    parsed = _kept.get(key)
    if parsed is None:
        parsed = _parse(expression, type)
        _kept.keep(key, parsed)
    return parsed


_Key = tuple[str | None, str | None]


class Kept:
    """A cache of the parsed subscriptions that were used recently, up to `config.MAX_FILTERS_KEPT` characters.

    The clients of a group send the same few expressions repeatedly, and every batch needs those of held pulls.  The
    cache has two generations instead of an order of use: so it needs no search, and threads can share it.
    """

    def __init__(self) -> None:
        """Create an empty cache."""
        self._young: dict[_Key, ParsedSubscription] = {}
        self._old: dict[_Key, ParsedSubscription] = {}
        self._characters = 0
        """Number of characters of the young generation."""

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def get(self, key: _Key) -> ParsedSubscription | None:
        """Return the cached subscription of an expression and its type, and mark it as used; None if there is none."""
        parsed = self._young.get(key)
        if parsed is None and (parsed := self._old.get(key)) is not None:
            self.keep(key, parsed)
        return parsed

    def keep(self, key: _Key, parsed: ParsedSubscription) -> None:
        """Add a subscription; when the young generation fills its half, drop the old generation."""
        characters = len(key[0] or "") + 1
        if self._characters + characters > config.MAX_FILTERS_KEPT // 2:
            self._old, self._young, self._characters = self._young, {}, 0
        self._young[key] = parsed
        self._characters += characters


_kept = Kept()


def _parse(expression: str | None, expression_type: str | None) -> ParsedSubscription:
    if expression_type in (None, TAG):
        if not expression or expression == ALL:
            return ParsedSubscription(expression=ALL)
        tags = tags_of(expression)
        return ParsedSubscription(expression=expression, tags=tags, codes=frozenset(map(tags_code, tags)))
    assert expression_type is not None, "None is a type of tags"
    if not expression:
        raise FilterError(f"Expression can't be null! {expression_type} requires an expression; only TAG does not")
    condition = sql92.read(expression) if expression_type == SQL92 else None
    return ParsedSubscription(expression=expression, expression_type=expression_type, condition=condition)
