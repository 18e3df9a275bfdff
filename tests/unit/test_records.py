"""Reading a record: nothing about it is trusted, and whatever it holds has an answer."""

import base64
import json
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.control_log import TOPIC, ControlLog
from wakeroll_model import config
from wakeroll_model.decisions import Rejected
from wakeroll_model.events import Heartbeat, Route, RoutedQueue, Subscription, Tick, Unregister
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record, raw_of, read_event
from wakeroll_model.shard import Shard

HOME = partition_of(b"billing", 4)
BEAT = {"type": "heartbeat", "group_id": "billing", "client_id": "a", "instance_id": "a1"}
CONFIGURE = {"type": "configure", "group_id": "billing"}
ROUTE = {"type": "route", "topic": "orders", "version": "1"}
QUEUE = {"topic": "orders", "broker": "", "queue_id": 0}
PULL = BEAT | {"type": "pull", "request_id": "a1:1", "instance_id": "a1", "queue": QUEUE, "from_offset": 0}


def record_of(value: bytes | None, key: bytes | None = b"billing", partition: int = HOME, topic: str = TOPIC) -> Record:
    return Record(topic, partition, 7, 1_000, key, value)


def rule_of(event: dict[str, Any], key: bytes | None = b"billing") -> str | None:
    """Return the rule that an event breaks, None if it is good."""
    answer = read_event(record_of(json.dumps(event).encode(), key), 4)
    return answer.rule if isinstance(answer, Rejected) else None


# --- what is good ---


def test_a_heartbeat_that_says_only_who_it_is_has_the_defaults():
    """The shortest client in any language needs three fields."""
    assert read_event(record_of(json.dumps(BEAT).encode()), 4) == Heartbeat(
        group_id="billing",
        client_id="a",
        instance_id="a1",
        epoch=-1,
        owned=[],
        mode="clustering",
        consume_from="last",
        consume_from_ms=0,
        subscriptions=[],
        strategy="AVG",
        strategy_params={},
        orderly=False,
        room="",
        weight=1.0,
    )


@pytest.mark.parametrize(
    "event",
    [
        Heartbeat(
            group_id="billing",
            client_id="10.0.0.7@12#34",
            instance_id="a1",
            owned=[Queue("%RETRY%billing", "broker-a", 3)],
            subscriptions=[Subscription(topic="orders", expression="a || b", version=2**63 - 1)],
            strategy_params={"rooms": {"a": "r1"}, "queues": [{"topic": "orders", "queue_id": 1}], "virtual": 10},
        ),
        Unregister(group_id="billing", client_id="a", instance_id="a1"),
        Route(topic="orders", queues=[RoutedQueue(topic="orders", broker="", queue_id=0, room="r1")], version="1"),
        Tick(),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_comes_back_as_it_was_sent(event):
    """Client and coordinator share the declarations: what one writes, the other reads."""
    record = ControlLog(4).append(event, 0)[0]

    assert read_event(record, 4) == event


def test_unknown_fields_are_ignored():
    """Newer clients may say more, in any depth that an event has."""
    assert (
        rule_of(BEAT | {"mood": "good", "host": {"ram": [1, {"x": None}]}, "subscriptions": [{"topic": "t", "x": 1}]})
        is None
    )


BRACKETS = ["[" * 70, "[[{" * 25, "}" * 500, '\\"[' * 70, "\\" * 7 + "[" * 70, '"[' * 70, "\\\\[{" * 70]


@pytest.mark.parametrize("text", BRACKETS, ids=lambda text: text[:8])
@pytest.mark.parametrize(
    "event",
    [
        lambda text: BEAT | {"subscriptions": [{"topic": "orders", "expression": text}]},
        lambda text: BEAT | {"room": text[:255]},
        lambda text: BEAT | {"unknown": {text: [text]}},
        lambda text: (
            BEAT | {"type": "commit", "epoch": 1} | {"offsets": [{"queue": QUEUE, "offset": 3, "metadata": text}]}
        ),
    ],
    ids=["expression", "room", "unknown", "metadata"],
)
def test_brackets_inside_texts_are_texts(event, text):
    """An expression, or an application's own words, may have as many as they like, in pairs or not."""
    assert rule_of(event(text)) is None


PIECES = st.sampled_from(["[", "]", "{", "}", '"', "\\", "a", "\n", "[" * 40, "}" * 40])
TEXTS = st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=1, max_size=5)


@given(texts=TEXTS, depth=st.sampled_from([0, 5, 20, 300]))
def test_only_brackets_outside_of_texts_count_as_depth(texts, depth):
    """However texts are escaped, and whatever stands before or after the brackets."""
    deep = "[" * depth + "1" + "]" * depth
    value = json.dumps(BEAT | {"before": texts})[:-1] + f', "deep": {deep}, "after": {json.dumps(texts)}}}'

    answer = read_event(record_of(value.encode()), 4)

    assert (answer.rule if isinstance(answer, Rejected) else None) == (
        "bounds" if depth > 4 * config.MAX_DEPTH else None
    )


# --- what is not ---


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b" ",
        b"null",
        b"[]",
        b"7",
        b'"heartbeat"',
        b"hello",
        b"{",
        b'{"type": "tick"',
        b'{"type": "tick"}}',
        b"{'type': 'tick'}",
        b'{"type": "tick",}',
        b'\xef\xbb\xbf{"type": "tick"}',
        b'{"type": "t\xffck"}',
        b'{"type": "tick", "a": "\\ud800"}',
        b'{"type": "tick", "a": NaN}',
        b'{"type": "tick", "a": Infinity}',
        b"\x00\x00\x00\x00\x07\x02",
    ],
    ids=repr,
)
def test_what_is_not_a_json_object_breaks_the_rule_json(value):
    answer = read_event(record_of(value), 4)

    assert (type(answer), getattr(answer, "rule", None)) == (Rejected, "json")


@pytest.mark.parametrize("kind", ["greeting", "Heartbeat", "assignment", "", None, 7, [], {"a": 1}])
def test_a_type_that_nobody_knows_breaks_the_rule_type(kind):
    """The detail names those there are: a typing mistake is seen at once."""
    answer = read_event(record_of(json.dumps(BEAT | {"type": kind}).encode()), 4)

    assert isinstance(answer, Rejected)
    assert (answer.rule, answer.group_id, answer.client_id) == ("type", "billing", "a")
    known = (
        "arrival, cancel, commit, configure, delete, failures, heartbeat, inspect, keys, kick, level, lock, matches, "
        "pause, pull, report, reset, route, tick, unlock, unregister"
    )
    assert answer.detail.endswith(f"there are: {known}")


def test_a_type_that_is_missing_breaks_the_rule_type():
    assert rule_of({"group_id": "billing"}) == "type"


def test_an_event_in_another_control_topic_breaks_the_rule_type():
    """Both control topics know ticks; a heartbeat among the queues' events has no machine."""
    answer = read_event(record_of(json.dumps(BEAT).encode(), topic="wakeroll.queues"), 4)

    assert isinstance(answer, Rejected)
    assert (answer.rule, answer.detail) == ("type", "topic wakeroll.queues does not accept the type 'heartbeat'")


BROKEN_BOUNDS: list[dict[str, Any]] = [
    {"group_id": ""},
    {"group_id": "a" * 256},
    {"group_id": "billing\n"},
    {"group_id": "bill@ing"},
    {"group_id": "bîlling"},
    {"group_id": None},
    {"group_id": 7},
    {"client_id": ""},
    {"client_id": "a\n"},
    {"client_id": "a/b"},
    {"client_id": "a" * 256},
    {"client_id": ["a"]},
    {"instance_id": ""},
    {"instance_id": "a" * 65},
    {"instance_id": "a1\n"},
    {"epoch": -2},
    {"epoch": 2**53 + 1},
    {"epoch": 1.5},
    {"epoch": "1"},
    {"epoch": True},
    {"owned": None},
    {"owned": {}},
    {"owned": [7]},
    {"owned": [{"topic": "orders", "broker": ""}]},
    {"owned": [QUEUE | {"queue_id": -1}]},
    {"owned": [QUEUE | {"queue_id": 2**31}]},
    {"owned": [QUEUE | {"broker": "a\nb"}]},
    {"owned": [QUEUE | {"topic": "or ders"}]},
    {"owned": [QUEUE | {"topic": "orders\n"}]},
    {"owned": [QUEUE] * (config.MAX_QUEUES + 1)},
    {"mode": "quorum"},
    {"consume_from": "middle"},
    {"consume_from_ms": -1},
    {"subscriptions": [{}]},
    {"subscriptions": [{"topic": ""}]},
    {"subscriptions": [{"topic": "o" * 250}]},
    {"subscriptions": [{"topic": "orders", "version": -1}]},
    {"subscriptions": [{"topic": "orders", "version": 2**63}]},
    {"subscriptions": [{"topic": "orders", "expression": "x" * 4_097}]},
    {"subscriptions": [{"topic": "orders", "expression_type": "REGEX"}]},
    {"subscriptions": [{"topic": f"t{i}"} for i in range(config.MAX_TOPICS + 1)]},
    {"strategy": ""},
    {"strategy": "AVG\n"},
    {"strategy": "a" * 65},
    {"strategy_params": []},
    {"strategy_params": {"x": 2**63}},
    {"strategy_params": {"x": -(2**63) - 1}},
    {"strategy_params": {"x": [[[1]]]}},
    {"strategy_params": {"x": "y" * 4_097}},
    {"strategy_params": {str(i): i for i in range(config.MAX_PARAMS + 1)}},
    {"orderly": "yes"},
    {"room": "r" * 256},
    {"weight": 0},
    {"weight": -1},
    {"weight": 1e9},
    {"weight": None},
]


@pytest.mark.parametrize("change", BROKEN_BOUNDS, ids=lambda change: repr(change)[:60])
def test_a_heartbeat_outside_its_bounds_breaks_the_rule_bounds(change):
    assert rule_of(BEAT | change) == "bounds"


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"1" + b"0" * 400, b"-" + b"9" * 400])
def test_a_number_that_nothing_holds_breaks_the_rule_bounds(number):
    """In a parameter, where any number may stand: it could be read, but never be saved."""
    value = json.dumps(BEAT).encode()[:-1] + b', "strategy_params": {"x": ' + number + b"}}"

    answer = read_event(record_of(value), 4)

    assert (type(answer), getattr(answer, "rule", None)) == (Rejected, "bounds")


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "or ders"},
        {"version": 1},
        {"version": "v" * 65},
        {"queues": [QUEUE | {"min_offset": -1}]},
        {"queues": [QUEUE | {"max_offset": 2**63}]},
        {"queues": [QUEUE] * (config.MAX_QUEUES + 1)},
        {"queues": [QUEUE, QUEUE | {"topic": "payments"}]},
    ],
    ids=lambda change: repr(change)[:60],
)
def test_a_route_outside_its_bounds_breaks_the_rule_bounds(change):
    """A queue in another topic's route could be given twice: once through each."""
    assert rule_of(ROUTE | change, key=None) == "bounds"


@pytest.mark.parametrize("missing", ["group_id", "client_id", "instance_id"])
def test_a_heartbeat_must_say_who_it_is(missing):
    assert rule_of({name: value for name, value in BEAT.items() if name != missing}) == "bounds"


@pytest.mark.parametrize(
    "setting",
    [
        {"session_timeout_ms": 99},
        {"heartbeat_ms": 24 * 3_600_000 + 1},
        {"settle_ms": -1},
        {"max_members": 0},
        {"handover": "gentle"},
        {"strategy": None},
        {"revoke_timeout_ms": 1.5},
    ],
    ids=repr,
)
def test_a_configure_outside_its_bounds_breaks_the_rule_bounds(setting):
    assert rule_of({"type": "configure", "group_id": "billing"} | setting) == "bounds"


def large(size: int) -> dict[str, Any]:
    """Return parameters of about this many bytes, each within its own bounds."""
    return {"strategy_params": {"x": ["y" * 4_000] * (size // 4_003)}}


def compact(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("event", "most"),
    [
        (BEAT | large(250_000), None),
        (BEAT | large(300_000), 262_144),
        (CONFIGURE | large(60_000), None),
        (CONFIGURE | large(70_000), 65_536),
        (PULL | {"unknown": "x" * 60_000}, None),
        (PULL | {"unknown": "x" * 70_000}, 65_536),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else str(value),
)
def test_an_event_has_at_most_so_many_bytes_of_what_the_state_keeps(event, most):
    """25 records of 8 MiB made a state of 205 MB, written in each batch, for ever."""
    is_pull = event["type"] == "pull"
    key, topic = (b"orders@0", "wakeroll.queues") if is_pull else (b"billing", TOPIC)
    says = "the record without `owned`" if event["type"] == "heartbeat" else "the record"
    expected = f"{event['type']}: {says} has {len(compact(event))} bytes; it must have at most {most}"

    answer = read_event(Record(topic, partition_of(key, 4), 7, 1_000, key, compact(event)), 4)

    if most is None:
        assert not isinstance(answer, Rejected)
    else:
        assert isinstance(answer, Rejected)
        assert (answer.rule, answer.detail, answer.group_id) == ("bounds", expected, "billing")


@pytest.mark.parametrize("size", [250_000, 300_000])
def test_what_a_client_owns_does_not_count(size):
    """It lists what it was assigned, however much that is."""
    event = BEAT | large(size)

    with_owned = read_event(record_of(compact(event | {"owned": [QUEUE] * 20_000})), 4)
    without = read_event(record_of(compact(event)), 4)

    assert getattr(with_owned, "detail", None) == getattr(without, "detail", None)


@pytest.mark.parametrize("depth", [100, 900, 950, 990, 5_000, 100_000])
@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}")], ids=["lists", "objects"])
@pytest.mark.parametrize("place", [b"type", b"group_id", b"strategy_params", b"unknown"])
def test_what_is_nested_too_deeply_breaks_a_rule_however_much_stack_is_left(place, depth, opened, closed):
    """Spark's stack is deeper than a replay's: the same record must get the same answer in both."""
    deep = opened * depth + b"1" + closed * depth
    value = json.dumps(BEAT).encode()[:-1] + b', "' + place + b'": ' + deep + b"}"

    def read_below(frames: int) -> Any:
        return read_event(record_of(value), 4) if frames == 0 else read_below(frames - 1)

    shallow, far_below = read_below(0), read_below(sys.getrecursionlimit() // 2)

    assert isinstance(shallow, Rejected)
    assert shallow == far_below


@pytest.mark.parametrize(
    ("key", "shown"),
    [(None, "None"), (b"", "''"), (b"Billing", "'Billing'"), (b"billing\n", "'billing\\n'"), (b"\xff\xfe", "'��'")],
    ids=repr,
)
def test_a_key_that_is_not_the_groups_breaks_the_rule_key(key, shown):
    answer = read_event(record_of(json.dumps(BEAT).encode(), key), 4)

    assert isinstance(answer, Rejected)
    assert (answer.rule, answer.client_id) == ("key", "a")
    assert answer.detail == f"the key is {shown}; it must be the group_id, 'billing'"


@pytest.mark.parametrize("event", [{"type": "tick"}, ROUTE], ids=["tick", "route"])
def test_a_key_on_what_goes_to_every_partition_breaks_the_rule_key(event):
    assert (rule_of(event, key=None), rule_of(event, key=b"orders")) == (None, "key")


@pytest.mark.parametrize("partition", [partition for partition in range(4) if partition != HOME])
def test_a_group_in_another_partition_breaks_the_rule_partition(partition):
    """A producer with another partitioner would give the group a second coordinator."""
    answer = read_event(record_of(json.dumps(BEAT).encode(), partition=partition), 4)

    assert isinstance(answer, Rejected)
    assert answer.rule == "partition"
    assert answer.detail == (
        f"group 'billing' belongs to partition {HOME} of 4; the record is in partition {partition}; "
        "is the producer's partitioner murmur2_random?"
    )


# --- what a refusal keeps ---


def test_a_refusal_keeps_the_first_four_kibibytes():
    """Enough to see what it was; a stray producer of videos must not fill the decisions."""
    value = b"x" * 10_000

    assert base64.b64decode(raw_of(record_of(value))) == value[:4_096]


def test_a_record_without_a_value_has_nothing_to_keep():
    assert raw_of(record_of(None)) == ""


def test_a_refusal_names_nobody_whose_name_is_not_valid():
    """The name would become a Kafka key and a row's column."""
    answer = read_event(record_of(json.dumps(BEAT | {"client_id": "a\nb", "epoch": -7}).encode()), 4)

    assert isinstance(answer, Rejected)
    assert (answer.group_id, answer.client_id) == ("billing", None)


def test_a_detail_is_short_however_long_the_mistake():
    answer = read_event(record_of(json.dumps({"type": "t" * 100_000}).encode()), 4)

    assert isinstance(answer, Rejected)
    assert len(answer.detail) <= config.MAX_DETAIL


# --- whatever comes ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted({*Heartbeat.__struct_fields__, *Route.__struct_fields__, "type"})
ODD_EVENTS = st.builds(
    lambda event, odd: json.dumps(event | odd).encode(errors="replace"),
    st.sampled_from([BEAT, ROUTE, {"type": "configure", "group_id": "billing"}, {"type": "tick"}, {}]),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3),
)


@given(
    value=st.none() | st.binary(max_size=300) | ODD_EVENTS,
    key=st.sampled_from([None, b"billing"]) | st.binary(max_size=20),
    partition=st.just(HOME) | st.integers(0, 3),
    topic=st.sampled_from([TOPIC, "wakeroll.queues", "other", ""]),
)
def test_no_record_stops_a_shard(value, key, partition, topic):
    """Whatever the bytes: the shard answers, its answers are JSON, and its state can be saved and read again."""
    shard = Shard(topic, partition, 4)

    decisions = shard.apply(record_of(value, key, partition, topic))

    assert [msgspec.json.decode(msgspec.json.encode(decision))["seq"] for decision in decisions] == [
        decision.seq for decision in decisions
    ]
    saved = shard.body()
    again = Shard(topic, partition, 4, saved)
    assert [again.group(name) or again.queue(name) for name in again.names()].count(None) == 0
