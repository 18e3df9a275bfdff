"""What a producer writes into headers and tells of arrivals; and that filters read it as it was meant."""

import asyncio
from datetime import datetime
from itertools import product

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from wakeroll import InvalidUsage, NotReachable, Producer, WakerollError, kafka_clients
from wakeroll.connection import Connection
from wakeroll.headers import described, headers_of, texts_of, wants
from wakeroll.testing import MemoryBroker
from wakeroll_model import config
from wakeroll_model.arrival_merging import Arrivals
from wakeroll_model.events import Arrival, Pull
from wakeroll_model.filters import parse
from wakeroll_model.held_queue import HeldQueue
from wakeroll_model.pull_machine import step
from wakeroll_model.queue import Queue
from wakeroll_model.shard_clock import Moment
from wakeroll_model.shard_load import NOTHING

A, B = Queue("orders", "", 0), Queue("orders", "", 1)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TAGS = st.sampled_from(["", "paid", "Aa", "BB"])
PROPERTIES = st.dictionaries(st.sampled_from(["amount", "region"]), st.sampled_from(["7", "70", "EU"]), max_size=2)


def sent(tags: str = "", properties: dict[str, str] | None = None) -> Message:
    """Return a message as a consumer gets it."""
    return Message(topic="orders", partition=0, offset=0, headers=headers_of(tags, properties or {}))


# --- headers ---


def test_a_tag_and_each_property_is_a_header():
    assert headers_of("paid", {"region": "EU", "übrig": "0 €"}) == [
        ("TAGS", b"paid"),
        ("region", b"EU"),
        ("übrig", "0 €".encode()),
    ]
    assert headers_of("", {}) == []


@pytest.mark.parametrize(
    ("tags", "properties", "sentence"),
    [
        (None, {}, "tags is None; it must be text, or empty for no tag"),
        (b"paid", {}, "tags is b'paid'; it must be text"),
        ("x" * 4_097, {}, r"tags is 'xxxxx+\.\.\.; it must be text of at most 4096 characters"),
        ("\ud800", {}, r"'\\ud800' cannot be encoded in UTF-8: surrogates not allowed"),
        ("", ["region"], r"properties is \['region'\]; it must map names to text"),
        ("", {"region": b"EU"}, r"property 'region' is {'region': b'EU'}; each value must be text"),
        ("", {"amount": 2**63}, "property 'amount' is 9223372036854775808; a whole number must have 64 bits"),
        ("", {7: "EU"}, r"property 7 is {7: 'EU'}; each name must be text"),
        ("", {"": "EU"}, "a property is named ''; it must have a name, and the tag is passed in tags="),
        ("", {"TAGS": "paid"}, "a property is named 'TAGS'; .* the tag is passed in tags="),
        ("", {"x" * 256: "EU"}, "property 'xxx.*; each name must be text of at most 255 characters"),
        ("", {"region": "x" * 4_097}, "property 'region' is .*; each value must be text of at most 4096 characters"),
        ("", {"region": "\ud800"}, r"'\\ud800' cannot be encoded"),
        (
            "",
            {f"p{number}": "" for number in range(257)},
            "properties is {.*; it must be .* at most 256 entries",
        ),
    ],
)
def test_what_cannot_be_told_is_refused_before_it_is_sent(tags, properties, sentence):
    """An arrival that breaks a bound would be rejected later, by somebody whom the producer does not hear."""
    with pytest.raises(InvalidUsage, match=sentence) as refused:
        headers_of(tags, properties)

    assert len(str(refused.value)) < 500


def test_a_subscription_chooses_by_the_headers():
    paid, dear = parse("paid || refunded"), parse("amount > 10 AND TAGS = 'paid'", "SQL92")

    assert [wants(paid, message) for message in (sent("paid"), sent("lost"), sent())] == [True, False, False]
    assert wants(dear, sent("paid", {"amount": "70"}))
    assert not wants(dear, sent("paid", {"amount": "7"}))
    assert not wants(dear, sent("", {"amount": "70"}))
    assert wants(parse("*"), sent())


def test_headers_of_others_do_not_disturb():
    """Traces, schemas and bytes of all kinds stand in headers; of two with one name the later counts."""
    headers = [("trace", b"\xff\xfe"), ("empty", None), ("TAGS", b"lost"), ("TAGS", b"paid")]
    message = Message(topic="orders", partition=0, offset=0, headers=headers)

    assert wants(parse("paid"), message)
    assert not wants(parse("lost"), message)
    assert not wants(parse("trace IS NOT NULL", "SQL92"), message)


@pytest.mark.parametrize("last", [b"\xff\xfe", None])
def test_a_later_header_counts_though_it_says_nothing(last):
    """The tap and every other reader of the message must know the same tag of it."""
    assert texts_of([("TAGS", b"paid"), ("TAGS", last)]).get("TAGS") is None
    assert texts_of([("TAGS", last), ("TAGS", b"paid")]) == {"TAGS": "paid"}
    message = Message(topic="orders", partition=0, offset=0, headers=[("TAGS", b"paid"), ("TAGS", last)])
    assert not wants(parse("paid"), message)


@given(tags=TEXTS, name=TEXTS.filter(lambda name: name not in ("", "TAGS")), value=TEXTS)
def test_every_text_comes_back_as_it_was_sent(tags, name, value):
    headers = dict(headers_of(tags, {name: value}))

    assert headers.pop("TAGS", b"").decode() == tags
    assert {key: text.decode() for key, text in headers.items()} == {name: value}


@pytest.mark.parametrize(
    ("value", "condition", "is_wanted"),
    [
        (12, "a > 10", True),
        (9, "a > 10", False),
        (-(2**63), "a < -9223372036854775807", True),
        (12.5, "a > 10.0", True),
        (1e300, "a BETWEEN 1.0 AND 2.0", False),
        (float("inf"), "a > 1.0", True),
        (float("nan"), "a > 1.0", True),  # for Java's Double.compare, NaN is above all numbers
        (True, "a = TRUE", True),
        (False, "a = TRUE", False),
        (False, "a = FALSE", True),
        ("12", "a > 10", True),
    ],
)
def test_a_property_is_compared_as_what_it_was(value, condition, is_wanted):
    assert wants(parse(condition, "SQL92"), sent(properties={"a": value})) is is_wanted


def test_other_headers_are_sent_as_they_are():
    """A library's own header, such as a trace, may be any bytes, and several may have one name."""
    others = [("trace", b"\xff\x00"), ("hop", b"1"), ("hop", None)]

    assert headers_of("paid", {"region": "EU"}, others) == [("TAGS", b"paid"), ("region", b"EU"), *others]
    assert headers_of("", {}, {"trace": b"\xff"}) == [("trace", b"\xff")]


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        (7, "headers is 7; it must map names to bytes, or be pairs of them"),
        ("trace", "headers is 'trace'; it must map names to bytes"),
        (["trace"], "headers has 'trace'; it must map names to bytes, or be pairs of them"),
        ({"trace": "7"}, "header 'trace' is '7'; it must be bytes; text is a property"),
        ({"TAGS": b"paid"}, "a header is named 'TAGS'; it must be printable, and no property's or tag's name"),
        ({"region": b"US"}, "a header is named 'region'"),
        ({"": b"US"}, "a header is named ''"),
        ({"\ud800": b"US"}, r"a header is named '\\ud800'"),
    ],
)
def test_other_headers_must_be_bytes_and_disturb_no_filter(others, sentence):
    with pytest.raises(InvalidUsage, match=sentence):
        headers_of("", {"region": "EU"}, others)


def test_an_arrival_knows_what_a_filter_can_read_in_other_headers():
    """Otherwise a fetch that waits for such a header would sleep on."""
    assert described(headers_of("paid", {"a": 1}, {"trace": b"\xff", "hop": b"b"})) == ("paid", {"a": "1", "hop": "b"})
    assert described([("long", b"x" * 5_000)]) == ("", None)


@pytest.mark.parametrize("timestamp", [0, -1, 1.5, True, "now", 2**60, datetime(2026, 1, 1)])
def test_a_time_that_is_none_is_refused(timestamp):
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        with Producer(broker.bootstrap) as producer, pytest.raises(InvalidUsage, match=r"epoch ms|has no time zone"):
            producer.send("orders", b"1", timestamp=timestamp)


def test_a_coroutine_returns_when_a_message_is_stored():
    async def send() -> list[tuple[int | None, bytes | None]]:
        with Producer(broker.bootstrap) as producer:
            stored = await asyncio.gather(*(producer.send_and_wait("orders", str(one), key="a") for one in range(50)))
            with pytest.raises(WakerollError, match="a message for nowhere was lost"):
                await producer.send_and_wait("nowhere", b"1")
            leaving = asyncio.create_task(producer.send_and_wait("orders", b"50", key="a"))
            await asyncio.sleep(0)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            return [(message.offset(), message.value()) for message in stored]

    with MemoryBroker() as broker:
        broker.create_topic("orders")
        found = asyncio.run(send())

    assert found == [(one, str(one).encode()) for one in range(50)]


# --- arrivals ---


def test_messages_that_say_nothing_of_themselves_are_told_together():
    """Many a second come; the newest tells of all.  Nothing is claimed of a topic that nobody ever tagged."""
    arrivals = Arrivals()
    for offset in range(1_000):
        arrivals.note(A, offset, 1_700_000_000_000 + offset, "", {})
    arrivals.note(B, 3, None, "", {})

    assert len(arrivals) == 2
    assert arrivals.take() == [
        Arrival(queue=A, next_offset=1_000, stored_ms=1_700_000_000_999),
        Arrival(queue=B, next_offset=4),
    ]
    assert arrivals.take() == []


def test_messages_that_say_something_are_told_each_for_what_it_is():
    """Of a topic with tags a message without one is known to have none: it is nothing for whoever wants a tag."""
    arrivals = Arrivals()
    for offset, tags, properties in ((0, "paid", {"region": "EU"}), (1, "lost", {}), (2, "lost", {}), (3, "", {})):
        arrivals.note(A, offset, None, tags, properties)

    assert arrivals.take() == [
        Arrival(queue=A, next_offset=1, tags="paid", tags_code=3433164, properties={"region": "EU"}),
        Arrival(queue=A, next_offset=3, tags="lost", tags_code=3327780, properties={}),
        Arrival(queue=A, next_offset=4, tags="", tags_code=0, properties={}),
    ]


def test_where_each_message_says_something_else_less_is_said_of_them():
    """An order's number in each message must not make an arrival of each; whoever may want one is woken."""
    arrivals = Arrivals()
    for offset in range(1_000):
        arrivals.note(A, offset, None, "paid" if offset % 2 else "lost", {"order": str(offset)})
    few = arrivals.take()
    for offset in range(1_000, 2_000):
        arrivals.note(A, offset, None, f"tag-{offset}", {})
        assert len(arrivals) <= config.MAX_TOLD

    assert few == [
        Arrival(queue=A, next_offset=999, tags="lost", tags_code=3327780),
        Arrival(queue=A, next_offset=1_000, tags="paid", tags_code=3433164),
    ]
    assert arrivals.take() == [Arrival(queue=A, next_offset=2_000)]


def test_receipts_out_of_order_tell_of_the_newest():
    arrivals = Arrivals()
    for offset in (4, 6, 5):
        arrivals.note(A, offset, None, "paid", {})

    assert [arrival.next_offset for arrival in arrivals.take()] == [7]


WISHES = [("*", "TAG"), ("paid", "TAG"), ("Aa", "TAG"), ("amount > 10", "SQL92")]
NOW = Moment(0, 0, may_expire=True)


def woken(arrivals: list[Arrival]) -> set[str]:
    """Return which pulls these wake: of the real machine, for every offset and several wishes."""
    queue = HeldQueue(key=A.key)
    first = Pull(request_id="i0:1", group_id="g", client_id="first", instance_id="i0", queue=A, from_offset=0)
    step(queue, first, NOW, NOTHING)
    for from_offset, (number, (expression, expression_type)) in product(range(12), enumerate(WISHES)):
        pull = Pull(
            request_id="i1:1",
            group_id="billing",
            client_id=f"{from_offset}-{number}",
            instance_id="i1",
            queue=A,
            from_offset=from_offset,
            expression=expression,
            expression_type=expression_type,
        )
        assert step(queue, pull, NOW, NOTHING) == []
    return {decision.client_id for arrival in arrivals for decision in step(queue, arrival, NOW, NOTHING)}


@given(messages=st.lists(st.tuples(TAGS, PROPERTIES, st.booleans()), max_size=12), most=st.integers(1, 4))
def test_what_is_told_in_few_arrivals_wakes_whoever_an_arrival_a_message_would_wake(messages, most):
    """Somebody may be woken in vain, and read; nobody sleeps on."""
    one, each = Arrivals(), Arrivals()
    together: list[Arrival] = []
    apart: list[Arrival] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "MAX_TOLD", most)
        for offset, (tags, properties, tells) in enumerate(messages):
            one.note(A, offset, None, tags, properties)
            assert len(one) <= most
            each.note(A, offset, None, tags, properties)
            apart += each.take()
            together += one.take() if tells else []
        together += one.take()

    assert woken(together) >= woken(apart)


@given(messages=st.lists(st.tuples(TAGS, PROPERTIES, st.booleans()), max_size=12))
def test_what_is_told_together_wakes_whom_an_arrival_a_message_would_wake(messages):
    """The third of a message says whether the producer tells what it has so far."""
    one, each = Arrivals(), Arrivals()
    together: list[Arrival] = []
    apart: list[Arrival] = []
    for offset, (tags, properties, tells) in enumerate(messages):
        one.note(A, offset, None, tags, properties)
        each.note(A, offset, None, tags, properties)
        apart += each.take()
        together += one.take() if tells else []
    together += one.take()

    assert len(apart) == len(messages)
    assert len(together) <= len(apart)
    assert woken(together) == woken(apart)


# --- making one ---


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"bootstrap": ""}, r"bootstrap is empty; it must name a broker"),
        ({"kafka_config": {"no.such.setting": "1"}}, r"cannot be set: no\.such\.setting \(not among"),
    ],
)
def test_a_wrong_argument_is_named(arguments, sentence):
    with pytest.raises(InvalidUsage, match=sentence):
        Producer(**{"bootstrap": "127.0.0.1:1", **arguments})


def test_a_broker_that_does_not_answer_is_named():
    with pytest.raises(NotReachable, match=r"no Kafka broker answered at 127\.0\.0\.1:1"):
        Producer("127.0.0.1:1", connect_timeout=0.5)


def test_a_producer_has_one_request_in_flight():
    """With more, the first records of a partition that was just created can be lost (see `Connection.producer`)."""
    made = []
    kafka_clients.register("127.0.0.1:1", kafka_clients.KafkaClients(producer=made.append))
    try:
        Connection("127.0.0.1:1").producer()
    finally:
        kafka_clients.unregister("127.0.0.1:1")

    assert made[0]["enable.idempotence"] is True
    assert made[0]["max.in.flight.requests.per.connection"] == 1


class Unreadable(Exception):
    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (KeyError("no such order"), r"on_delivery failed: KeyError\('no such order'\)"),
        (SystemExit(3), r"on_delivery failed: SystemExit\(3\)"),
        (Unreadable(), "on_delivery failed: Unreadable, whose text cannot be read"),
    ],
    ids=["an error", "the end of a process", "an error without a text"],
)
def test_the_producer_goes_on_whatever_a_callback_raises(problem, told):
    """Its thread serves the messages of everybody: if it ended, nothing would be delivered any more, without a word."""

    def fail(*_: object) -> None:
        raise problem

    with MemoryBroker() as broker, Producer(broker.bootstrap) as producer:
        broker.create_topic("orders")
        producer.send("orders", b"1", on_delivery=fail)
        with pytest.raises(WakerollError, match=told):
            producer.flush(10)

        producer.send("orders", b"2")
        assert producer.flush(10)
