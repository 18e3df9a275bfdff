"""The largest size of each kind of decision, by the bounds of its fields; and a guard that enforces it."""

import re
from collections.abc import Mapping
from typing import get_args

import msgspec
from msgspec import inspect

from wakeroll_model import assignment_limits, config
from wakeroll_model.decisions import AnyDecision, Rejected
from wakeroll_model.queue import Queue

_encode = msgspec.json.Encoder().encode

_INTEGER_BYTES = 20
_ESCAPED_BYTES = 6
"""Maximum bytes of one character in JSON: a control character is ``\\u0000``."""
_NAME = 255

_CHARACTERS: Mapping[str, int] = {
    "by": 64,
    "client_id": _NAME,
    "detail": config.MAX_REPORT,  # of a report; elsewhere MAX_DETAIL
    "error": config.MAX_ERROR,
    "expression": 4_096,
    "from": _NAME,
    "group_id": _NAME,
    "instance_id": 64,
    "metadata": 4_096,
    "notes": config.MAX_DETAIL,
    "pattern": config.MAX_PATTERN,
    "raw": -(-config.MAX_RAW_BYTES // 3) * 4,
    "reason": config.MAX_DETAIL,
    "request_id": 83,
    "reset_by": _NAME,
    "rule": 16,
    "shard": _NAME,
    "strategy": 64,
    "to": _NAME,
    "topic": _NAME,
}
"""Name of a text whose declaration has no bound -> maximum number of characters."""

_ITEMS: Mapping[str, int] = {
    "ahead": config.MAX_FILTERS,
    "causes": config.MAX_CAUSES,
    "notes": config.MAX_NOTES,
    "revoke": config.MAX_CLAIMS,
    "unassigned": config.MAX_UNASSIGNED,
}
"""Name of a list -> maximum number of items. Queues that the client owns count in `queues` even if they are in
`revoke`."""

_MOST_QUEUES = config.MAX_SHARE_BYTES // assignment_limits.bytes_of(Queue("t", "", 0))

_BYTES: Mapping[str, int] = {
    # With more than `FEW_QUEUES`: one entry without a topic. With fewer, the queues are smaller by far more than this.
    "others": 128,
    "slices": 1_024,
    "queues": config.MAX_SHARE_BYTES + _MOST_QUEUES * assignment_limits.UNCOUNTED_BYTES,
}
"""Name of a list -> maximum number of bytes of all items, for lists that are bounded by bytes."""


def bounded(decision: AnyDecision) -> tuple[AnyDecision, bytes]:
    """Encode a decision; replace one that is too large for its topic with an `internal` rejection of bounded size.

    According to `largest`, no decision is too large. This is a last safeguard: if Kafka rejected a decision, the query
    would end, and again after each restart. The rejection keeps shard and seq, so that readers see no gap.
    """
    value = _encode(decision)
    if len(value) <= config.MAX_DECISION_BYTES:
        return decision, value
    kind = decision.__struct_config__.tag
    refusal = Rejected(
        shard=decision.shard,
        seq=decision.seq,
        at_ms=decision.at_ms,
        cause=decision.cause,
        rule="internal",
        detail=f"the {kind} has {len(value)} bytes; it must have at most {config.MAX_DECISION_BYTES}",
        group_id=decision.group_id,
        client_id=getattr(decision, "client_id", None),
    )
    return refusal, _encode(refusal)


def largest() -> dict[str, int]:
    """Return kind -> bytes of the largest decision of that kind.

    Raises:
        KeyError: a decision has a text or a list without a bound; the message names the field.
    """
    kinds = get_args(AnyDecision)
    return {str(kind.__struct_config__.tag): _most(kind.__name__, inspect.type_info(kind)) for kind in kinds}


def _most(name: str, declared: inspect.Type) -> int:
    """Return the maximum number of bytes of a value of this type as JSON; `name` is the name of its field."""
    match declared:
        case inspect.Metadata(type=inner):
            return _most(name, inner)
        case inspect.UnionType(types=types):
            return max(_most(name, one) for one in types)
        case inspect.StructType(fields=fields, tag=tag, tag_field=tag_field):
            tagged = len(f'"{tag_field}":"{tag}",') if tag is not None else 0
            named = sum(len(f'"{field.encode_name}":,') + _most(field.encode_name, field.type) for field in fields)
            return len("{}") + tagged + named
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return len("[]") + (_BYTES.get(name) or _ITEMS[name] * (_most(name, item) + len(",")))
        case inspect.DictType(key_type=key, value_type=value, max_length=int(most)):
            return len("{}") + (_BYTES.get(name) or most * (_most(name, key) + _most(name, value) + len(":,")))
        case inspect.StrType(pattern=str(pattern)):
            [most] = re.findall(r"\{\d,(\d+)\}\\Z$", pattern)
            return len('""') + int(most) * len('\\"')  # all patterns allow only printable ones; a quote has 2 bytes
        case inspect.StrType():
            return len('""') + _CHARACTERS[name] * _ESCAPED_BYTES
        case inspect.LiteralType(values=values):
            return max(len(_encode(value)) for value in values)
        case inspect.IntType(ge=least, le=most):
            return _INTEGER_BYTES if least is None or most is None else max(len(str(least)), len(str(most)))
        case inspect.BoolType():
            return len("false")
        case inspect.NoneType():
            return len("null")
    raise KeyError(f"{name}: no bound for {declared}")
