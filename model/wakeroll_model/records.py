"""Records: a record of a control topic is decoded into an event, or rejected by the rule that it breaks."""

import base64
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct, structs

from wakeroll_model import config, feature_levels
from wakeroll_model.coordinator_log.kafka_events import KafkaEvent, LogEvent, Progress, read_log_event
from wakeroll_model.decisions import Rejected
from wakeroll_model.events import (
    ABOUT_A_QUEUE,
    ACCEPTED,
    ON_EVERY_PARTITION,
    UNREADABLE,
    About,
    AnyEvent,
    Arrival,
    Cancel,
    Commit,
    Configure,
    Delete,
    Event,
    Failures,
    Heartbeat,
    Inspect,
    KeyChange,
    Kick,
    Level,
    Lock,
    Matches,
    Pause,
    Pull,
    Report,
    Reset,
    Route,
    Unlock,
    Unregister,
)
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import ClientId, GroupId, Queue
from wakeroll_model.slices import MOST


class Record(Struct, frozen=True):
    """One record of a control topic; `timestamp_ms` is the broker's time, epoch milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class _Names(Struct):
    """Fields that identify a rejected record, as far as they are readable."""

    type: Any = None
    group_id: Any = None
    client_id: Any = None


_decode_event: Callable[[bytes], AnyEvent] = msgspec.json.Decoder(AnyEvent).decode


def _default_of(field: structs.FieldInfo) -> Any:
    """Return the default of a field, as `msgspec.defstruct` takes it."""
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return msgspec.field() if field.required else msgspec.field(default=field.default)


_NEW_FIELDS: Mapping[int, Mapping[type[Struct], Collection[str]]] = {
    4: {Heartbeat: ("about", "handling", "pattern", "strategy_by_default"), Unregister: ("died",)},
    5: {
        Heartbeat: ("slice_by", "pattern_expression", "pattern_expression_type"),
        Configure: ("slices",),
        Queue: ("slices", "slice"),
    },
}
"""Level -> its new fields. Below the level they are unknown fields, so they may have any value."""


def _earlier(given: Any, level: int, made: dict[Any, Any]) -> Any:
    """Return a type without the fields that are new above a level.

    `made`: type -> its form, for the types that were converted before.
    """
    if isinstance(given, type) and issubclass(given, Struct):
        if given not in made:
            new = {name for later in range(level + 1, feature_levels.NEWEST + 1) for name in _new_fields(given, later)}
            made[given] = msgspec.defstruct(
                f"{given.__name__}AtLevel{level}",
                [
                    (field.name, _earlier(field.type, level, made), _default_of(field))
                    for field in structs.fields(given)
                    if field.name not in new
                ],
                tag_field=given.__struct_config__.tag_field,
                tag=given.__struct_config__.tag,
                kw_only=True,
                frozen=True,
            )
        return made[given]
    arguments = get_args(given)
    if not arguments or get_origin(given) is Literal:
        return given
    if get_origin(given) is Annotated:
        return Annotated[_earlier(arguments[0], level, made), *arguments[1:]]
    changed = tuple(_earlier(one, level, made) for one in arguments)
    return Union[changed] if get_origin(given) in (Union, type(int | str)) else get_origin(given)[changed]  # noqa: UP007


def _new_fields(given: type[Struct], level: int) -> Collection[str]:
    return _NEW_FIELDS.get(level, {}).get(given, ())


SLICES_LEVEL = 5
"""First feature level at which partitions may be cut into slices."""
_MADE: Mapping[int, dict[Any, Any]] = {3: {}, 4: {}}
"""Level below `SLICES_LEVEL` -> type -> its form at that level; 3 also stands for lower levels."""
_DECODERS = {level: msgspec.json.Decoder(_earlier(AnyEvent, level, made)).decode for level, made in _MADE.items()}
_LATER = {earlier: later for made in _MADE.values() for later, earlier in made.items()}
_MAY_NAME_SLICES = re.compile(rb"slice|\\u")
"""Matches every JSON text with a field of level 5, and few others; JSON may write a name with escapes."""
_decode_names = msgspec.json.Decoder(_Names).decode
KEYS_LEVEL = 4
"""First feature level at which there are `keys` records."""
OPERATORS_LEVEL = 4
"""First feature level at which there are `kick`, `delete`, `pause`, `inspect`, `report` and `matches` records."""
_NEW_TYPES: Mapping[type[Event], int] = {
    Level: 2,
    KeyChange: KEYS_LEVEL,
    Kick: OPERATORS_LEVEL,
    Delete: OPERATORS_LEVEL,
    Pause: OPERATORS_LEVEL,
    Inspect: OPERATORS_LEVEL,
    Report: OPERATORS_LEVEL,
    Matches: OPERATORS_LEVEL,
}
"""Event -> the first level whose rejections list it, if that is not 1, because the bytes of decisions depend on the
list. Below that level, `keys`, `kick`, `delete`, `pause`, `inspect`, `report` and `matches` are unknown types."""
_KNOWN_TYPES: Mapping[int, frozenset[str]] = {
    level: frozenset(
        str(event.__struct_config__.tag)
        for events in ACCEPTED.values()
        for event in events
        if _NEW_TYPES.get(event, feature_levels.FIRST) <= level
    )
    for level in feature_levels.CHANGES
}
"""Level -> the types that its rejections list."""
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_encode = msgspec.json.Encoder().encode

_MAX_BYTES: Mapping[type[Event], int] = {
    Heartbeat: config.MAX_PREFERENCES_BYTES,
    Configure: config.MAX_CONFIGURE_BYTES,
    Pull: config.MAX_PULL_BYTES,
}
"""Event -> largest record, bytes; for a heartbeat without `owned`. Other events may have MAX_RECORD_BYTES."""
_ALWAYS_SMALL = min(_MAX_BYTES.values())


def kind_of_topic(topic: str) -> str:
    """Return the kind of a control topic, ``groups`` or ``queues``: the last part of its name."""
    return topic.rpartition(".")[2]


def shard_of(topic: str, partition: int) -> str:
    """Return the name of the shard of a control partition, without its era: ``groups-3``."""
    return f"{kind_of_topic(topic)}-{partition}"


def read_event(record: Record, partitions: int, level: int = feature_levels.NEWEST) -> AnyEvent | Rejected:
    """Decode a record and check that it is in the right topic and partition, with the right key.

    Args:
        record: the record as it was read; no part of it is trusted.
        partitions: number of partitions of its control topic.
        level: feature level of its shard; a rejection depends on it.

    Returns:
        The event, or the rejection by one of the rules ``json``, ``type``, ``bounds``, ``key`` and ``partition``.
    """
    value = record.value or b""
    if _is_deep(value):
        return refuse("bounds", f"objects and lists are nested more than {config.MAX_DEPTH} levels deep")
    try:
        event = _decode(value, level)
    except UNREADABLE as error:
        return _unreadable(record, error, level)
    kind = kind_of_topic(record.topic)
    if level < _NEW_TYPES.get(type(event), feature_levels.FIRST) and not isinstance(event, Level):
        return _unknown_type(type_of(event), level, event)  # as by a release that cannot read it
    if type(event) not in ACCEPTED.get(kind, ()):
        return refuse("type", f"topic {record.topic} does not accept the type {type_of(event)!r}", event)
    if len(value) > _ALWAYS_SMALL and (refusal := _oversize(value, event)):
        return refusal
    if isinstance(event, Heartbeat) and event.about is not None and (refusal := _long_description(event, event.about)):
        return refusal
    if level >= SLICES_LEVEL and _MAY_NAME_SLICES.search(value) and (refusal := _wrong_slice(event)):
        return refusal
    return _misplaced(record, event, partitions, level) or event


def read_kafka_event(record: Record) -> LogEvent | Rejected:
    """Decode an event of the log of Kafka's own groups, which only wakeroll itself writes."""
    try:
        return read_log_event(record.value)
    except UNREADABLE as error:
        return refuse("json", f"not an event about Kafka's groups: {error}")


def refuse(rule: str, detail: str, event: Event | None = None) -> Rejected:
    """Return a rejection by this rule, with the group and client of the event."""
    return Rejected(
        rule=rule,
        detail=detail[: config.MAX_DETAIL],
        group_id=getattr(event, "group_id", None),
        client_id=getattr(event, "client_id", None),
    )


def raw_of(record: Record) -> str:
    """Return the first bytes of a record's value, in base64."""
    return base64.b64encode((record.value or b"")[: config.MAX_RAW_BYTES]).decode()


def entity_of(event: AnyEvent | LogEvent) -> str:
    """Return the entity of an event, by the key of its record; empty if the event is for every partition."""
    if isinstance(event, (*ON_EVERY_PARTITION, Progress)):
        return ""
    if isinstance(event, KafkaEvent):
        return event.group_id
    return event.queue.key if isinstance(event, ABOUT_A_QUEUE) else event.group_id


def type_of(event: Event) -> str:
    """Return the value of the field `type` of an event."""
    return str(event.__struct_config__.tag)


def _misplaced(record: Record, event: AnyEvent, partitions: int, level: int) -> Rejected | None:
    """Check the key and the partition, because a group with records in two partitions would have two coordinators."""
    key = record.key
    if isinstance(event, ON_EVERY_PARTITION):
        if key is not None:
            return refuse("key", f"a {type_of(event)} must have no key, because it is sent to every partition", event)
        return _stray_queue(event) if isinstance(event, Route) else None
    entity = entity_of(event)
    expected = entity.encode()
    what, name = ("queue", "key of its queue") if isinstance(event, ABOUT_A_QUEUE) else ("group", "group_id")
    if key != expected:
        shown = None if key is None else key[:64].decode(errors="replace")
        return refuse("key", f"the key is {shown!r}; it must be the {name}, {entity!r}", event)
    home = partition_of(expected, partitions)
    if home != record.partition:
        detail = (
            f"{what} {entity!r} belongs to partition {home} of {partitions}; the record is in partition "
            f"{record.partition}; is the producer's partitioner murmur2_random?"
        )
        refusal = refuse("partition", detail, event)
        if level >= 2:
            refusal.partition, refusal.partitions = home, partitions
        return refusal
    return None


def _oversize(value: bytes, event: AnyEvent) -> Rejected | None:
    """Check the size of the part of an event that the shard's state stores.

    `owned` of a heartbeat is not counted: it is bounded by what the coordinator assigned, and already in the state.
    """
    limit = _MAX_BYTES.get(type(event))
    if limit is None or len(value) <= limit:
        return None
    what, size = "the record", len(value)
    if isinstance(event, Heartbeat):
        what, size = "the record without `owned`", len(_encode(structs.replace(event, owned=[])))
    if size <= limit:
        return None
    return refuse("bounds", f"{type_of(event)}: {what} has {size} bytes; it must have at most {limit}", event)


def _long_description(event: Heartbeat, about: About) -> Rejected | None:
    """Check the size of a client's description, which counts towards no limit of its group."""
    size = len(_encode(about))
    if size <= config.MAX_ABOUT_BYTES:
        return None
    detail = f"heartbeat: `about` has {size} bytes; it must have at most {config.MAX_ABOUT_BYTES}"
    return refuse("bounds", detail, event)


def _decode(value: bytes, level: int) -> AnyEvent:
    """Decode an event by the declarations of a level: fields of later levels are unknown, and have no effect.

    At level 4, only the few records that name slices need another declaration, and cost more; every later level reads
    all others in the same way.
    """
    if level >= SLICES_LEVEL or (level == SLICES_LEVEL - 1 and not _MAY_NAME_SLICES.search(value)):
        return _decode_event(value)
    event: AnyEvent = _in_full(_DECODERS[max(level, min(_DECODERS))](value))
    return event


def _in_full(value: Any) -> Any:
    """Convert a value that was read in the form of an earlier level to the present form."""
    if isinstance(value, Struct):
        named = {name: _in_full(getattr(value, name)) for name in value.__struct_fields__}
        return _LATER.get(type(value), type(value))(**named)
    if isinstance(value, list | tuple):
        return type(value)(map(_in_full, value))
    return value


def _wrong_slice(event: AnyEvent) -> Rejected | None:
    """Check the slices in an event by the rules that no declaration can express."""
    named = event.slices if isinstance(event, Configure) and event.slices is not UNSET else {}
    for number in (*named.values(), *(queue.slices for queue in _queues_in(event))):
        if number & (number - 1):
            detail = f"{type_of(event)}: `slices` is {number}; it must be a power of two, 1 to {MOST}"
            return refuse("bounds", detail, event)
    for queue in _queues_in(event):
        if queue.slice >= queue.slices:
            detail = f"{type_of(event)}: `slice` is {queue.slice}; it must be below `slices`, {queue.slices}"
            return refuse("bounds", detail, event)
    return None


def _queues_in(event: AnyEvent) -> Iterable[Queue]:
    """Yield the queues that an event names."""
    match event:
        case Heartbeat():
            yield from event.owned
            yield from (call.queue for call in event.handling)
        case Commit() | Reset():
            yield from (entry.queue for entry in event.offsets)
        case Failures():
            yield from (failure.queue for failure in event.failures)
        case Lock() | Unlock() | Delete():
            yield from event.queues
        case Pull() | Cancel() | Arrival():
            yield event.queue
        case _:
            pass


def _stray_queue(route: Route) -> Rejected | None:
    """Check that a route names queues of its own topic only: otherwise two routes could name the same queue."""
    for routed in route.queues:
        if routed.topic != route.topic:
            return refuse("bounds", f"the route of {route.topic} names {routed.queue}, a queue of another topic", route)
    return None


def _is_deep(value: bytes) -> bool:
    """Return whether a value's brackets nest too deeply, before a decoder recurses into them.

    The result depends on the bytes alone, not on the free stack, so every process decides the same about a record.
    Texts are removed only if brackets inside them could change the result.
    """
    return _nests(value) and _nests(_without_texts(value))


def _without_texts(value: bytes) -> bytes:
    """Return a JSON value without its texts, in one pass.

    A backslash occurs only inside texts, up to the first byte that is not JSON, where a decoder stops too. So without
    escaped backslashes, and then without escaped quotes, every quote begins or ends a text.
    """
    pieces = value.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    return b"".join(pieces[::2])


def _nests(value: bytes) -> bool:
    """Return whether brackets may nest too deeply, including brackets inside texts; quick, and not exact.

    Up to four times the depth may pass.
    """
    brackets = value.translate(None, delete=_ALL_BUT_BRACKETS)
    for _ in range(config.MAX_DEPTH):
        if len(brackets) <= 2 * config.MAX_DEPTH:
            return False
        before, brackets = len(brackets), brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(brackets) == before:
            break
    return len(brackets) > 2 * config.MAX_DEPTH


def _unreadable(record: Record, error: Exception, level: int) -> Rejected:
    """Return the rejection of an undecodable record, with its group and client if they can be read."""
    value = record.value or b""
    try:
        names = _decode_names(value)
    except UNREADABLE:
        names = None
    if names is None or not isinstance(error, msgspec.ValidationError):
        return refuse("json", "the record has no value" if record.value is None else f"not a JSON object: {error}")
    known = _KNOWN_TYPES[level]
    if isinstance(names.type, str) and names.type in known:
        refusal = refuse("bounds", f"{names.type}: {error}")
    else:
        refusal = _unknown_type(names.type, level)
    refusal.group_id = _if_valid(names.group_id, GroupId)
    refusal.client_id = _if_valid(names.client_id, ClientId)
    return refusal


def _unknown_type(name: Any, level: int, event: Event | None = None) -> Rejected:
    """Return the rejection of a record without a type that this level has."""
    found = f"no type {name[:64]!r}" if isinstance(name, str) else "the record has no type"
    return refuse("type", f"{found}; there are: {', '.join(sorted(_KNOWN_TYPES[level]))}", event)


def _if_valid(name: Any, declared: Any) -> str | None:
    """Return `name` if it matches the declared pattern, else None."""
    try:
        return str(msgspec.convert(name, declared))
    except msgspec.ValidationError:
        return None
