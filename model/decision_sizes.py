"""How large a decision can become, by the bounds of what it holds; and the guard behind that."""

import re
from collections.abc import Mapping
from typing import get_args

import msgspec
from msgspec import inspect

from model import config
from model.decisions import AnyDecision, Rejected

_encode = msgspec.json.Encoder().encode

_INTEGER_BYTES = 20
_ESCAPED_BYTES = 6
"""The most that one character takes in JSON: a control character is ``\\u0000``."""
_NAME = 255

_CHARACTERS: Mapping[str, int] = {
    "by": 64,
    "client_id": _NAME,
    "detail": config.MAX_DETAIL,
    "from": _NAME,
    "group_id": _NAME,
    "instance_id": 64,
    "metadata": 4_096,
    "notes": config.MAX_DETAIL,
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
"""Name of a text that declares no bound itself -> the most characters that it has."""

_ITEMS: Mapping[str, int] = {
    "causes": config.MAX_CAUSES,
    "notes": config.MAX_NOTES,
    "revoke": config.MAX_CLAIMS,
    "unassigned": config.MAX_UNASSIGNED,
}
"""Name of a list -> the most items that it has.  Own queues in `revoke` count among those in `queues`."""

_BYTES: Mapping[str, int] = {"queues": config.MAX_SHARE_BYTES}
"""Name of a list -> the most bytes that its items take, where bytes are what is bounded."""


def bounded(decision: AnyDecision) -> tuple[AnyDecision, bytes]:
    """Encode a decision; one that is too large for its topic becomes a refusal of bounded size, `internal`.

    That never happens, see `largest`: it is the last guard, because a decision that Kafka does not take would end the
    query, and again after each restart.  The refusal keeps shard and seq, so that readers miss no number.
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
    """Return the most bytes that a value of this type takes as JSON; `name` is its field's."""
    match declared:
        case inspect.Metadata(type=inner):
            return _most(name, inner)
        case inspect.UnionType(types=types):
            return max(_most(name, one) for one in types)
        case inspect.StructType(fields=fields, tag=tag, tag_field=tag_field):
            tagged = len(f'"{tag_field}":"{tag}",') if tag is not None else 0
            named = sum(len(f'"{field.encode_name}":,') + _most(field.encode_name, field.type) for field in fields)
            return len("{}") + tagged + named
        case inspect.ListType(item_type=item):
            return len("[]") + (_BYTES.get(name) or _ITEMS[name] * (_most(name, item) + len(",")))
        case inspect.StrType(pattern=str(pattern)):
            [most] = re.findall(r"\{\d,(\d+)\}\\Z$", pattern)
            return len('""') + int(most) * len('\\"')  # printable, by all patterns: a quote has two bytes
        case inspect.StrType():
            return len('""') + _CHARACTERS[name] * _ESCAPED_BYTES
        case inspect.LiteralType(values=values):
            return max(len(_encode(value)) for value in values)
        case inspect.IntType():
            return _INTEGER_BYTES
        case inspect.NoneType():
            return len("null")
    raise KeyError(f"{name}: no bound for {declared}")
