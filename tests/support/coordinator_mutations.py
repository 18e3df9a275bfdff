"""Hostile records of `__consumer_offsets`, made from a seed: damaged copies of what brokers wrote, and noise."""

import base64
import json
import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Message

GOLDEN = Path(__file__).parents[1] / "golden" / "coordinator_log"
_NUMBERS = (
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
    b"\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80",
)
_TEXTS = (b"", b"\xff\xfe", b"\xed\xa0\x80", b"\0", "\u202e\x1b[31m".encode(), b"a" * 300, b"'; drop table x; --")


class Hostile(NamedTuple):
    """A record that no coordinator would write, or only at another time."""

    key: bytes | None
    value: bytes | None


def golden_records() -> list[Hostile]:
    """Return what brokers of all versions wrote."""
    lines = [json.loads(line) for path in sorted(GOLDEN.glob("records-*.jsonl")) for line in path.open()]
    return [Hostile(base64.b64decode(one["key"]), one["value"] and base64.b64decode(one["value"])) for one in lines]


def hostile_records(seed: int, count: int) -> Iterator[Hostile]:
    """Yield so many records, each sort in its turn."""
    chance, golden = random.Random(seed), golden_records()
    for number in range(count):
        yield _SORTS[number % len(_SORTS)](chance, chance.choice(golden), golden)


def messages_of(records: Iterable[Hostile], partition: int = 0) -> list[Message]:
    """Return records as a consumer would; their times go back now and then."""
    return [
        Message(
            partition=partition, offset=at, key=one.key, value=one.value, timestamp=(1, 1_790_000_000_000 + at - at % 7)
        )
        for at, one in enumerate(records)
    ]


def _flipped(chance: random.Random, data: bytes | None, least: int = 0) -> bytes | None:
    if not data or len(data) <= least:
        return data
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        found[chance.randrange(least, len(found))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    return bytes(found)


def _patched(chance: random.Random, data: bytes | None, patches: Sequence[bytes]) -> bytes | None:
    if data is None:
        return None
    at, patch = chance.randrange(len(data) + 1), chance.choice(patches)
    return data[:at] + patch + data[at + chance.choice([0, len(patch)]) :]


def _as_it_is(_: random.Random, one: Hostile, __: list[Hostile]) -> Hostile:
    return one


def _noise(chance: random.Random, _: Hostile, __: list[Hostile]) -> Hostile:
    return Hostile(
        chance.choice([None, chance.randbytes(chance.randrange(40))]), chance.randbytes(chance.randrange(200))
    )


def _typed_noise(chance: random.Random, _: Hostile, __: list[Hostile]) -> Hostile:
    group = chance.choice(_TEXTS)
    key = struct.pack(">hh", chance.randrange(-2, 30), len(group)) + group + chance.randbytes(chance.randrange(20))
    return Hostile(key, struct.pack(">h", chance.randrange(-1, 6)) + chance.randbytes(chance.randrange(300)))


def _other_value(chance: random.Random, one: Hostile, golden: list[Hostile]) -> Hostile:
    return Hostile(one.key, chance.choice(golden).value)


def _deleted(_: random.Random, one: Hostile, __: list[Hostile]) -> Hostile:
    return Hostile(one.key, None)


def _cut(chance: random.Random, one: Hostile, __: list[Hostile]) -> Hostile:
    return Hostile(one.key, one.value and one.value[: chance.randrange(len(one.value) + 1)])


def _cut_key(chance: random.Random, one: Hostile, __: list[Hostile]) -> Hostile:
    return Hostile(one.key and one.key[: chance.randrange(len(one.key) + 1)], one.value)


def _damaged(chance: random.Random, one: Hostile, __: list[Hostile]) -> Hostile:
    return Hostile(one.key, _flipped(chance, one.value, 2))


def _damaged_key(chance: random.Random, one: Hostile, __: list[Hostile]) -> Hostile:
    return Hostile(_flipped(chance, one.key, 2), one.value)


def _with_number(chance: random.Random, one: Hostile, __: list[Hostile]) -> Hostile:
    return Hostile(one.key, _patched(chance, one.value, _NUMBERS))


def _with_text(chance: random.Random, one: Hostile, __: list[Hostile]) -> Hostile:
    return Hostile(_patched(chance, one.key, _TEXTS), _patched(chance, one.value, _TEXTS))


_SORTS = (
    _as_it_is,
    _noise,
    _typed_noise,
    _other_value,
    _deleted,
    _cut,
    _cut_key,
    _damaged,
    _damaged_key,
    _with_number,
    _with_text,
)
