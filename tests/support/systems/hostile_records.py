"""Records that should not be in a control topic, made from a seed, each with the rule that it breaks."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.support.planted_bug import CLIENT
from wakeroll_model.config import CONTROL_PARTITIONS, MAX_DEPTH, MAX_QUEUES
from wakeroll_model.partitioner import partition_of

LARGE_BYTES = 4_000_000
"""Of a record that is large; one may have 8 MiB."""
LARGE_EVERY = 2_000
"""One in so many records is large."""


@dataclass(frozen=True)
class Hostile:
    """One record, and the rule that its rejection must name."""

    rule: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    """None: where its key belongs, or anywhere."""
    of_queues: bool = False
    """Whether it is for the topic of the queues' events, and not for that of the groups'."""
    by_operator: bool = False
    """Whether an operator signs it."""


def hostile_records(seed: int, count: int, groups: list[str]) -> Iterator[Hostile]:
    """Yield so many records, of every sort in turn; `groups` are groups that live, whose names they misuse."""
    dice = random.Random(seed)
    for number in range(count):
        turn, rest = divmod(number, LARGE_EVERY)
        sort = _SORTS[number % len(_SORTS)] if rest else _LARGE_SORTS[turn % len(_LARGE_SORTS)]
        yield sort(dice, dice.choice(groups))


def _of(group_id: str, rule: str, **event: object) -> Hostile:
    """Make a record that stands where it should, under its group's key."""
    return Hostile(rule, json.dumps({"group_id": group_id, **event}).encode(), group_id.encode())


def _beat(group_id: str, rule: str, **more: object) -> Hostile:
    """Make a heartbeat of a client that would join if it were let in."""
    names = {"client_id": "intruder", "instance_id": "i-1", "subscriptions": [{"topic": "orders"}]}
    return _of(group_id, rule, type="heartbeat", **{**names, **more})


def _noise(dice: random.Random, group_id: str) -> Hostile:
    return Hostile("json", b"\xff" + dice.randbytes(dice.randrange(60)), group_id.encode())


def _bad_text(_: random.Random, group_id: str) -> Hostile:
    """Good JSON, but for two bytes of a text that are no UTF-8."""
    record = _beat(group_id, "json", room="here")
    assert record.value is not None
    return Hostile("json", record.value.replace(b"here", b"\xc3\x28"), record.key)


def _cut(dice: random.Random, group_id: str) -> Hostile:
    value = _beat(group_id, "json").value
    assert value is not None
    return Hostile("json", value[: dice.randrange(1, len(value))], group_id.encode())


def _no_object(dice: random.Random, group_id: str) -> Hostile:
    return Hostile("json", dice.choice([None, b"", b"null", b"[]", b"7", b'"tick"', b"{}{}"]), group_id.encode())


def _unknown_type(dice: random.Random, group_id: str) -> Hostile:
    event: dict[str, object] = dice.choice([{}, {"type": "party"}, {"type": 7}, {"type": None}, {"kind": "heartbeat"}])
    return _of(group_id, "type", **event)


def _wrong_topic(_: random.Random, group_id: str) -> Hostile:
    record = _beat(group_id, "type")
    return Hostile("type", record.value, record.key, of_queues=True)


def _missing(dice: random.Random, group_id: str) -> Hostile:
    value = _beat(group_id, "bounds").value
    assert value is not None
    event = json.loads(value)
    del event[dice.choice(["group_id", "client_id", "instance_id"])]
    return Hostile("bounds", json.dumps(event).encode(), group_id.encode())


def _wrong_type(dice: random.Random, group_id: str) -> Hostile:
    wrong: dict[str, object] = dice.choice(
        [
            {"epoch": "seven"},
            {"client_id": 7},
            {"subscriptions": "orders"},
            {"subscriptions": [["orders"]]},
            {"owned": {"topic": "orders"}},
            {"orderly": "yes"},
            {"mode": "sometimes"},
            {"strategy_params": []},
        ]
    )
    return _beat(group_id, "bounds", **wrong)


def _out_of_bounds(dice: random.Random, group_id: str) -> Hostile:
    wrong: dict[str, object] = dice.choice(
        [
            {"epoch": -2},
            {"epoch": 10**30},
            {"weight": -1.0},
            {"consume_from_ms": -1},
            {"client_id": "c" * 256},
            {"client_id": "c/1"},
            {"owned": [{"topic": "orders", "broker": "", "queue_id": -1}]},
            {"subscriptions": [{"topic": "orders"}] * 1_001},
        ]
    )
    return _beat(group_id, "bounds", **wrong)


def _deep(dice: random.Random, group_id: str) -> Hostile:
    depth = dice.randrange(2 * MAX_DEPTH + 1, 5_000)
    nested = dice.choice([b"[" * depth, b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth])
    return Hostile("bounds", nested, group_id.encode())


def _wrong_key(dice: random.Random, group_id: str) -> Hostile:
    key = dice.choice([None, b"", b"\xff", b"somebody-else", group_id.encode() + b" "])
    return Hostile("key", _beat(group_id, "key").value, key)


def _tick_with_key(_: random.Random, group_id: str) -> Hostile:
    return Hostile("key", b'{"type":"tick"}', group_id.encode())


def _wrong_partition(dice: random.Random, group_id: str) -> Hostile:
    record = _beat(group_id, "partition")
    home = partition_of(group_id.encode(), CONTROL_PARTITIONS)
    elsewhere = (home + dice.randrange(1, CONTROL_PARTITIONS)) % CONTROL_PARTITIONS
    return Hostile("partition", record.value, record.key, elsewhere)


def _impossible_settings(_: random.Random, group_id: str) -> Hostile:
    record = _of(group_id, "settings", type="configure", heartbeat_ms=60_000, session_timeout_ms=30_000)
    return replace(record, by_operator=True)


def _forged(dice: random.Random, group_id: str) -> Hostile:
    """Make what an operator or the observer says, by somebody who has no key, or not that one."""
    queue = {"topic": "orders", "broker": "", "queue_id": 0}
    reset = {"request_id": "forged", "offsets": [{"queue": queue, "offset": 99}], "by": "mallory"}
    return dice.choice(
        [
            _of(group_id, "signature", type="configure", session_timeout_ms=100_000),
            _of(group_id, "signature", type="reset", **reset),
            Hostile("signature", b'{"type":"tick"}', partition=0),
            Hostile("signature", b'{"type":"tick"}', partition=0, by_operator=True),
            Hostile("signature", b'{"type":"tick"}', partition=0, of_queues=True),
            Hostile("signature", b'{"type":"route","topic":"orders","version":"gone"}', partition=1),
        ]
    )


def _stranger_s_commit(_: random.Random, group_id: str) -> Hostile:
    queue = {"topic": "orders", "broker": "", "queue_id": 0}
    offsets = [{"queue": queue, "offset": 5}]
    return _of(group_id, "commit", type="commit", client_id="intruder", instance_id="i-1", epoch=1, offsets=offsets)


def _poison(_: random.Random, group_id: str) -> Hostile:
    """A good event, at which the machine itself breaks."""
    return _beat(group_id, "internal", client_id=CLIENT)


def _long_text(_: random.Random, group_id: str) -> Hostile:
    return _beat(group_id, "bounds", room="r" * LARGE_BYTES)


def _many_queues(_: random.Random, group_id: str) -> Hostile:
    queue = {"topic": "orders", "broker": "", "queue_id": 0}
    return _beat(group_id, "bounds", owned=[queue] * (MAX_QUEUES + 1))


_LARGE_SORTS = (_long_text, _many_queues)
_SORTS: tuple[Callable[[random.Random, str], Hostile], ...] = (
    _noise,
    _bad_text,
    _cut,
    _no_object,
    _unknown_type,
    _wrong_topic,
    _missing,
    _wrong_type,
    _out_of_bounds,
    _deep,
    _wrong_key,
    _tick_with_key,
    _wrong_partition,
    _impossible_settings,
    _forged,
    _stranger_s_commit,
    _poison,
)
