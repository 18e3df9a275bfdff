"""A subscription's expression, read once and kept for every message: RocketMQ's `FilterAPI.build`."""

from msgspec import Struct

from model import config
from model.filters import sql92
from model.filters.filter_error import FilterError
from model.filters.tags import ALL, tags_code, tags_of

TAG = "TAG"
SQL92 = "SQL92"


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
    key = expression, type
    parsed = _kept.get(key)
    if parsed is None:
        parsed = _parse(expression, type)
        _kept.keep(key, parsed)
    return parsed


_Key = tuple[str | None, str | None]


class Kept:
    """The subscriptions that were read or used lately: those of at most `config.MAX_FILTERS_KEPT` characters.

    Clients of a group send the same few expressions again and again, and every batch needs those that are held.  Two
    generations, rather than one in the order of use: nothing is looked through, and several threads do no harm.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._young: dict[_Key, ParsedSubscription] = {}
        self._old: dict[_Key, ParsedSubscription] = {}
        self._characters = 0
        """Of the young ones."""

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def get(self, key: _Key) -> ParsedSubscription | None:
        """Return what is kept of an expression and its type; that was a use."""
        parsed = self._young.get(key)
        if parsed is None and (parsed := self._old.get(key)) is not None:
            self.keep(key, parsed)
        return parsed

    def keep(self, key: _Key, parsed: ParsedSubscription) -> None:
        """Keep one more; when the young ones fill their half, the old ones are forgotten."""
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
        raise FilterError(f"Expression can't be null! {expression_type}: only tags can be left out")
    condition = sql92.read(expression) if expression_type == SQL92 else None
    return ParsedSubscription(expression=expression, expression_type=expression_type, condition=condition)
