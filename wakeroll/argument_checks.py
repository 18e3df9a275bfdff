"""Checks of an application's arguments, made before any connection is opened."""

import functools
import os
import platform
import re
import socket
import uuid
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from wakeroll.errors import InvalidUsage
from wakeroll.expectations import problem_of, shown
from wakeroll.installed_version import installed_version
from wakeroll.pattern_choice import PatternChoice
from wakeroll.topic_filters import Sql92
from wakeroll_model import config
from wakeroll_model.client import Preferences
from wakeroll_model.client_keys import ClientKey
from wakeroll_model.events import UNREADABLE, About, CommittedOffset, Heartbeat, Policy, Subscription
from wakeroll_model.queue import ClientId, GroupId, Queue, TopicName

ALLOW_UNKNOWN = "allow_unknown_strategy=True accepts one that only a newer coordinator has"
"""Last part of the error about an unknown strategy; it names the argument of the SDK that accepts one."""
DEFAULT_STRATEGY = "SPREAD"
"""Strategy of a new group whose first consumer names none."""
LONGEST_S = 24 * 3_600
"""Longest commit interval in seconds, one day; a larger value is probably a mistake in the unit."""


_PollTimeout = Annotated[float, Meta(ge=1)]


def poll_timeout_of(seconds: object) -> float | None:
    """Return the poll timeout if it is valid; None means no timeout.

    Raises:
        InvalidUsage: it is neither None nor a number of at least 1.
    """
    if seconds is None:
        return None
    return cast(float, checked("poll_timeout", seconds, _PollTimeout))


def checked(name: str, value: object, declared: Any) -> Any:
    """Return `value` if it matches the declared type and its bounds.

    Raises:
        InvalidUsage: it does not match; the message names the argument, the value and what is expected.
    """
    try:
        return msgspec.convert(value, declared)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidUsage(problem_of(name, value, declared, error)) from None


def json_object(name: str, text: str) -> dict[str, Any]:
    """Parse a JSON object from a user's text.

    Raises:
        InvalidUsage: the text is not a JSON object, or is nested too deeply; the message names the argument.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except UNREADABLE as error:
        raise InvalidUsage(f"{name} is {shown(text)}; it must be a JSON object ({error})") from None


def group_id_of(group_id: str) -> str:
    """Return the group's name if it is valid.

    Raises:
        InvalidUsage: it is not a valid group_id.
    """
    return cast(str, checked("group_id", group_id, GroupId))


def addresses_of(bootstrap: str | Iterable[str]) -> str:
    """Return the addresses of the brokers as one text: ``host:port[,host:port]``; `Connection` checks each of them.

    Raises:
        InvalidUsage: the argument is neither text nor a list of texts.
    """
    if isinstance(bootstrap, str):
        return bootstrap
    addresses = list(bootstrap) if isinstance(bootstrap, list | tuple | set | frozenset) else [None]
    if not all(isinstance(address, str) for address in addresses):
        raise InvalidUsage(
            f"bootstrap is {shown(bootstrap)}; it must be host:port[,host:port], or a list of such addresses"
        )
    return ",".join(map(str, addresses))


def client_id_of(client_id: str | None) -> str:
    """Return the client's name, or generate one of host, process id and random digits: ``host@4711@1f0c9a2e``.

    Raises:
        InvalidUsage: it is not a valid client_id.
    """
    if client_id is not None:
        return cast(str, checked("client_id", client_id, ClientId))
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:200] or "host"
    return f"{host}@{os.getpid()}@{uuid.uuid4().hex[:8]}"


def queue_of(queue: Queue | tuple[str, int]) -> Queue:
    """Return the queue that an application names.

    Raises:
        InvalidUsage: the argument is not a queue.
    """
    match queue:
        case Queue():
            named = queue
        case (topic, queue_id):
            named = Queue(topic, "", queue_id)
        case _:
            raise InvalidUsage(f"queue is {queue!r}; it must be a Queue, or a topic and a number")
    return cast(Queue, checked("queue", msgspec.structs.asdict(named), Queue))


@functools.cache
def _types_of(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Return field -> its type, with its bounds."""
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def offset_and_text_of(queue: Queue, given: object) -> tuple[int, str]:
    """Return the offset of a queue that an application commits, and the text with it, empty if there is none.

    Raises:
        InvalidUsage: it is neither an offset nor an offset and a text, or is out of its bounds.
    """
    offset, text = given if isinstance(given, tuple) and len(given) == 2 else (given, "")
    declared = _types_of(CommittedOffset)
    number = cast(int, checked(f"the offset of {queue}", offset, declared["offset"]))
    return number, cast(str, checked(f"the text of {queue}", text, declared["metadata"]))


TopicChoice = Iterable[str] | Mapping[str, str] | Mapping[Any, str] | re.Pattern[str]
"""Topics that a consumer subscribes: names, a mapping of name or pattern to filter, or a pattern of names.

`Any`: mypy gives a mapping with a name and a pattern keys of type `object`.
"""
_INLINE = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}
"""Flag of Python's patterns -> the letter of the same flag in RE2."""


def wanted_of(topics: TopicChoice | None, pattern: str | None) -> tuple[list[Subscription], PatternChoice]:
    """Return the subscriptions and the pattern of an application's arguments.

    Raises:
        InvalidUsage: there is neither a topic nor a pattern, there are several patterns, or one argument is not valid.
    """
    given = {topics: "*"} if isinstance(topics, re.Pattern) else topics
    keys = [key for key in given if isinstance(key, re.Pattern)] if isinstance(given, Mapping) else []
    if keys and pattern is not None:
        raise InvalidUsage("topics and pattern are both patterns; pass one of them")
    if len(keys) > 1:
        raise InvalidUsage(f"topics has {len(keys)} patterns; a member has one: join them with |, with one filter")
    if isinstance(given, Mapping) and keys:
        expression = given[keys[0]]
        text = str(checked("the expression of a pattern", expression, _types_of(Heartbeat)["pattern_expression"]))
        choice = PatternChoice(_expression_of(keys[0]), (text, "SQL92" if isinstance(expression, Sql92) else "TAG"))
        rest = {key: one for key, one in given.items() if not isinstance(key, re.Pattern)}
        return subscriptions_of(rest) if rest else [], choice
    choice = PatternChoice() if pattern is None else PatternChoice(_expression_of(pattern))
    if pattern is not None and given is None:
        return [], choice
    return subscriptions_of(() if given is None else given), choice


def _expression_of(pattern: str | re.Pattern[Any]) -> str:
    """Return a pattern of topics as RE2 reads it, as far as Python can check it; an observer evaluates it."""
    flags, text = 0, pattern
    if isinstance(pattern, re.Pattern):
        flags, text = pattern.flags & ~(re.UNICODE | re.ASCII), pattern.pattern
    if not isinstance(text, str):
        raise InvalidUsage(f"pattern is {shown(text)}; it must be text, or a compiled pattern of text")
    inline = "".join(letter for flag, letter in _INLINE.items() if flags & flag)
    if unknown := flags & ~sum(_INLINE):
        raise InvalidUsage(f"pattern has the flags {re.RegexFlag(unknown)!r}; those that it may have are I, M and S")
    text = f"(?{inline}){text}" if inline else text
    checked("pattern", text, _types_of(Heartbeat)["pattern"])
    if not text:
        raise InvalidUsage("pattern is empty; it must be a regular expression of topics' names")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidUsage(f"pattern is {shown(text)}; it must be a regular expression ({error})") from None
    return text


def subscriptions_of(topics: Iterable[str] | Mapping[Any, str]) -> list[Subscription]:
    """Return one subscription per topic, for a list of names or a mapping of topic to expression.

    Raises:
        InvalidUsage: `topics` is a string, is empty or has too many names, a name is not a valid topic name, or an
            expression is not text or too long.
    """
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise InvalidUsage(f"topics is {topics!r}; it must be a list of names, like [{str(topics)!r}]")
    wanted = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, "*")
    if not wanted:
        raise InvalidUsage("topics is empty; name at least one topic")
    for topic in wanted:
        checked("a topic", topic, TopicName)
    subscriptions = [_subscription(topic, expression) for topic, expression in wanted.items()]
    values = [msgspec.to_builtins(subscription) for subscription in subscriptions]
    checked("topics", values, _types_of(Heartbeat)["subscriptions"])
    return subscriptions


def _subscription(topic: str, expression: str) -> Subscription:
    text = str(checked(f"the expression of {topic}", expression, str))
    return Subscription(
        topic=topic, expression=text, expression_type="SQL92" if isinstance(expression, Sql92) else "TAG"
    )


def milliseconds_of(commit_interval: float | None) -> int | None:
    """Convert a commit interval from seconds to ms; None means never.

    Raises:
        InvalidUsage: the interval is not a number above 0 and at most `LONGEST_S`.
    """
    checked("commit_interval", commit_interval, float | None)
    if commit_interval is not None and not 0 < commit_interval <= LONGEST_S:
        raise InvalidUsage(
            f"commit_interval is {commit_interval!r}; it must be more than 0 and at most {LONGEST_S} seconds, "
            "or None to commit only when commit() is called"
        )
    return None if commit_interval is None else max(round(commit_interval * 1_000), 1)


def require_strategy(name: str, remedy: str) -> None:
    """Refuse a strategy that this release does not have: a coordinator of this release assigns no queue by it.

    Args:
        name: name of the strategy, such as ``AVG`` or ``MACHINE_ROOM_NEARBY-AVG``.
        remedy: how the caller's interface accepts a strategy of a newer coordinator; the end of the error.

    Raises:
        InvalidUsage: there is no such strategy; the message lists those that exist.
    """
    from wakeroll_model import strategies  # it loads all of them

    try:
        strategies.find(name)
    except strategies.StrategyError as error:
        from difflib import get_close_matches  # here, because few mistake a name

        what, _, known = str(error).partition("; ")
        outer, dash, _ = name.partition("-")
        inner = (f"{outer}-{one}" for one in strategies.listed() if dash)
        similar = get_close_matches(name.upper(), [*strategies.listed(), *inner], 1)
        proposal = f" (did you mean {similar[0]}?)" if similar else ""
        raise InvalidUsage(f"{what}{proposal}; {known}; {remedy}") from None


def client_key_of(path: str | os.PathLike[str], group_id: str) -> ClientKey:
    """Return the key that signs the events of a group's clients, from a key file.

    Raises:
        InvalidUsage: the file cannot be used, or has no such key.
    """
    from wakeroll.keys import client_key_for, read_keys  # here, because few clients sign

    return client_key_for(read_keys(path).clients, group_id)


def about_of(host: str | None, app_version: str, labels: Mapping[str, str]) -> About:
    """Return the description of a client: host, versions, labels and this library.

    Args:
        host: its host or pod; empty: the name of this machine; None: the description has no host.
        app_version: version of the application; empty if it has none.
        labels: labels that the application chose.

    Raises:
        InvalidUsage: a part is out of its bounds, or all of them together have more than `config.MAX_ABOUT_BYTES`.
    """
    named = re.sub(r"[^ -~]", "?", socket.gethostname())[:253] if host == "" else host or ""
    given = dict(labels) if isinstance(labels, Mapping) else labels
    told = {"host": named, "sdk": _sdk(), "app_version": app_version, "labels": given}
    declared = _types_of(About)
    for name, value in told.items():
        checked(name, value, declared[name])
    about = msgspec.convert(told, About)
    size = len(msgspec.json.encode(about))
    if size > config.MAX_ABOUT_BYTES:
        raise InvalidUsage(
            f"host, app_version and labels have {size} bytes as JSON; they must have at most {config.MAX_ABOUT_BYTES}"
        )
    return about


@functools.cache
def _sdk() -> str:
    return f"wakeroll/{installed_version()} Python/{platform.python_version()}"


def preferences_of(
    subscriptions: list[Subscription], consume_from: Policy, consume_from_ms: int | None, **others: Any
) -> Preferences:
    """Return the client's preferences, each field checked against the bounds that a heartbeat declares.

    Raises:
        InvalidUsage: a field is out of its bounds, or `consume_from_ms` does not fit `consume_from`.
    """
    if (consume_from == "timestamp") != (consume_from_ms is not None):
        raise InvalidUsage(
            f"consume_from is {consume_from!r} and consume_from_ms is {consume_from_ms!r}; "
            "'timestamp' requires a time in epoch ms, and no other policy accepts one"
        )
    given = {"consume_from": consume_from, "consume_from_ms": consume_from_ms or 0, **others}
    given = {name: dict(value) if isinstance(value, Mapping) else value for name, value in given.items()}
    declared = _types_of(Heartbeat)
    for name, value in given.items():
        checked(name, value, declared[name])
    return Preferences(subscriptions=subscriptions, **given)
