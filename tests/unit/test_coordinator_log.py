"""The records of `__consumer_offsets`: read by Kafka's schemas, and no bytes end the reader."""

import base64
import json
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.coordinator_messages import body, encode, messages
from wakeroll_model.coordinator_log.coordinator_records import (
    CoordinatorRecord,
    Skipped,
    read_assignment,
    read_record,
    read_subscription,
)
from wakeroll_model.coordinator_log.message_format import Message, Shape, shapes
from wakeroll_model.coordinator_log.message_schemas import (
    RECORD_TYPES,
    ConsumerAssignment,
    ConsumerSubscription,
    TopicPartitions,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "coordinator_log"
SCHEMAS = {path.stem.removeprefix("schemas-"): json.loads(path.read_text()) for path in GOLDEN.glob("schemas-*.json")}
RECORDS = {path.stem.removeprefix("records-"): path.read_text() for path in GOLDEN.glob("records-*.jsonl")}
EMBEDDED = {"ConsumerProtocolSubscription": ConsumerSubscription, "ConsumerProtocolAssignment": ConsumerAssignment}
VALUES = [(number, version) for number, known in RECORD_TYPES.items() for version in known.value.VERSIONS]


def in_kafkas_words(message: type[Message], version: int, flexible: bool) -> list[Any]:
    """Return a declaration as the classes that Kafka generates describe their own."""
    there = [one for one in shapes(message) if one.since.first <= version <= one.since.last]
    fields: list[Any] = [[one.name, kind_of(one, version, flexible)] for one in there if one.tag is None]
    if flexible:
        tags = {str(one.tag): [one.name, kind_of(one, version, True)] for one in there if one.tag is not None}
        fields.append(["_tagged_fields", {"tags": tags}])
    return fields


def kind_of(shape: Shape, version: int, flexible: bool) -> Any:
    if isinstance(shape.kind, Shape):
        return {"array": kind_of(shape.kind, version, flexible), "compact": flexible, "null": shape.nullable}
    if isinstance(shape.kind, str):
        words = shape.kind.upper()
        if shape.kind in ("string", "bytes"):
            words = f"{'COMPACT_' if flexible else ''}{'NULLABLE_' if shape.nullable else ''}{words}"
        return words
    fields = in_kafkas_words(shape.kind, version, flexible)
    return {"nullable": fields} if shape.nullable else fields


def declared(name: str) -> type[Message] | None:
    """Return the declaration of one of Kafka's schemas."""
    if name in EMBEDDED:
        return EMBEDDED[name]
    known = {one.name: one for one in RECORD_TYPES.values()}
    its = known.get(name.removesuffix("Key").removesuffix("Value"))
    return None if its is None else its.key if name.endswith("Key") else its.value


EARLY = ("3.9.2", "4.0.1")
"""Brokers that have share groups in early access only: their records have another layout under the same version."""


def covers(declaration: Any, schema: Any) -> bool:
    """Return whether a declaration is a schema, with all tagged fields of the schema, and perhaps later ones."""
    if isinstance(schema, dict) and "tags" in schema:
        known = declaration["tags"]
        return all(tag in known and covers(known[tag], its) for tag, its in schema["tags"].items())
    if isinstance(schema, dict):
        return declaration.keys() == schema.keys() and all(covers(declaration[one], schema[one]) for one in schema)
    if isinstance(schema, list):
        if isinstance(declaration, dict) and "nullable" in declaration:  # before 4.1, the classes do not show it
            declaration = declaration["nullable"]
        return len(declaration) == len(schema) and all(map(covers, declaration, schema))
    return declaration == schema


@pytest.mark.parametrize("kafka", sorted(SCHEMAS))
def test_each_declaration_is_the_schema_of_the_brokers(kafka):
    """The golden schemas come from the classes in Kafka's JARs; a broker can write no other bytes."""
    for name, found in SCHEMAS[kafka].items():
        message, versions = declared(name), {version: its for version, its in found.items() if version != "type"}
        if name.startswith("ShareGroup") and kafka in EARLY:
            continue
        assert message is not None, f"Kafka {kafka} has records of {name}, which are not declared"
        if name.endswith("Key"):
            types = [number for number, its in RECORD_TYPES.items() if f"{its.name}Key" == name]
            # Before 4.1, the version of a key is the type of its record; OffsetCommit has types 0 and 1.
            assert {found["type"]} | set(map(int, versions)) - {0} - {-1} >= set(types), name
            assert all(covers(in_kafkas_words(message, 0, False), its) for its in versions.values()), name
            continue
        for version, schema in versions.items():
            assert int(version) in message.VERSIONS, f"version {version} of {name}"
            declaration = in_kafkas_words(message, int(version), int(version) >= message.FLEXIBLE)
            assert covers(declaration, schema), (name, declaration, schema)


def test_no_type_is_declared_that_no_broker_has():
    names = {name.removesuffix("Key") for schemas in SCHEMAS.values() for name in schemas if name.endswith("Key")}
    assert {one.name for one in RECORD_TYPES.values()} == names


@given(st.none() | st.binary(max_size=64), st.none() | st.binary(max_size=200))
def test_no_bytes_end_the_reader(key, value):
    found = read_record(key, value)
    assert isinstance(found, CoordinatorRecord | Skipped)
    if value is not None:
        assert read_subscription(value) is None or isinstance(read_subscription(value), ConsumerSubscription)
        assert read_assignment(value) is None or isinstance(read_assignment(value), ConsumerAssignment)


@given(st.sampled_from(VALUES), st.data())
def test_what_is_written_is_read(which, data):
    number, version = which
    known = RECORD_TYPES[number]
    key, value = data.draw(messages(known.key, 0)), data.draw(messages(known.value, version))
    written = struct.pack(">h", number) + body(key, 0, False), encode(value, version)

    assert read_record(*written) == CoordinatorRecord(number, key, value)
    assert read_record(written[0], None) == CoordinatorRecord(number, key, None)


@given(st.sampled_from(VALUES), st.data())
def test_a_record_that_is_cut_or_changed_is_read_or_skipped(which, data):
    number, version = which
    known = RECORD_TYPES[number]
    value = bytearray(encode(data.draw(messages(known.value, version)), version))
    key = struct.pack(">h", number) + body(data.draw(messages(known.key, 0)), 0, False)
    if data.draw(st.booleans()):
        del value[data.draw(st.integers(2, len(value))) :]
    for place in data.draw(st.lists(st.integers(2, max(2, len(value) - 1)), max_size=3)):
        if place < len(value):
            value[place] = data.draw(st.integers(0, 255))
    found = read_record(key, bytes(value))

    assert isinstance(found, CoordinatorRecord) or found.reason == "damaged"


def test_a_record_that_announces_more_than_it_has_costs_nothing():
    """Two billion members in eleven bytes: the reader must not reserve room for them."""
    generation = struct.pack(">h", 3) + struct.pack(">h", 0) + struct.pack(">i", 1) + b"\xff\xff\xff\xff" + bytes(8)
    found = read_record(b"\0\2\0\1g", generation + struct.pack(">i", 2**31 - 1))

    assert found == Skipped("damaged", "2147483647 items are announced before byte 24; there are 0 bytes")


def test_what_a_later_release_adds_is_skipped():
    assert read_record(b"\0\x63\0\1g", b"") == Skipped("type", "type 99 is not known; known are 0 to 23")
    assert read_record(b"\0\3\0\1g", b"\0\1") == Skipped(
        "version", "ConsumerGroupMetadata: version 1 is not known; known are 0 to 0"
    )
    assert read_record(None, b"x") == Skipped("no key", "the record has no key")
    assert read_record(b"", b"x") == Skipped("damaged", "the key is empty")
    with_tag = read_record(b"\0\3\0\1g", b"\0\0" + struct.pack(">i", 7) + b"\1\x63\2ab")
    assert isinstance(with_tag, CoordinatorRecord)
    assert with_tag.value.epoch == 7


def test_a_later_version_of_a_subscription_is_read_as_the_newest_one():
    """So do Kafka's own clients: later versions only add fields at the end."""
    newest = encode(ConsumerSubscription(topics=["orders"], rack_id="r1"), 3)
    assert read_subscription(struct.pack(">h", 9) + newest[2:] + b"more") == ConsumerSubscription(
        topics=["orders"], rack_id="r1"
    )
    assert read_subscription(b"") is None
    assert read_assignment(b"") == ConsumerAssignment(assigned_partitions=[])
    one = ConsumerAssignment(assigned_partitions=[TopicPartitions(topic="orders", partitions=[0, 2])])
    assert read_assignment(encode(one, 0)) == one


def test_names_of_any_bytes_are_texts():
    found = read_record(b"\0\2\0\3\xff\0\x41", None)
    assert isinstance(found, CoordinatorRecord)
    assert found.key.group == "\ufffd\0A"


def golden(kafka: str) -> Iterator[tuple[bytes, bytes | None]]:
    for line in RECORDS[kafka].splitlines():
        one = json.loads(line)
        value = None if one["value"] is None else base64.b64decode(one["value"])
        yield base64.b64decode(one["key"]), value


@pytest.mark.parametrize("kafka", sorted(RECORDS))
def test_all_records_of_real_brokers_are_read(kafka):
    """Classic, cooperative, static and KIP-848 members joined, left and were killed; see the README beside them."""
    found = [read_record(*record) for record in golden(kafka)]
    assert [one for one in found if isinstance(one, Skipped)] == []
    types = Counter(one.type for one in found if isinstance(one, CoordinatorRecord))
    assert types.keys() >= {1, 2} | (set() if kafka == "3.9.2" else {3, 5, 6, 7, 8, 16})
    for one in found:
        if isinstance(one, CoordinatorRecord) and one.type == 2 and one.value is not None:
            for member in one.value.members:
                assert read_subscription(member.subscription) is not None
                assert read_assignment(member.assignment) is not None
