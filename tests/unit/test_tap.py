"""What the tap tells of a message that somebody else has written."""

import pytest

from wakeroll_model.config import MAX_PROPERTIES
from wakeroll_model.events import Arrival
from wakeroll_model.filters import tags_code
from wakeroll_model.queue import Queue
from wakeroll_pipeline.operators.message_arrivals import arrival_of

ORDERS = Queue("orders", "", 3)


def said(*headers):
    """Return tags, code and properties of the arrival of a message with these headers."""
    arrival = arrival_of("orders", 3, 7, 1_000, headers)
    return arrival.tags, arrival.tags_code, arrival.properties


def test_an_arrival_says_where_its_queue_ends_and_what_its_message_says():
    headers = [("TAGS", b"paid"), ("region", "Übersee".encode())]

    assert arrival_of("orders", 3, 7, 1_000, headers) == Arrival(
        queue=ORDERS,
        next_offset=8,
        tags="paid",
        tags_code=tags_code("paid"),
        properties={"region": "Übersee"},
        stored_ms=1_000,
    )


def test_a_message_without_a_time_has_none():
    """Kafka says -1 then, which is no time that an arrival may tell."""
    assert arrival_of("orders", 3, 7, -1, []).stored_ms is None


@pytest.mark.parametrize("headers", [(), (("TAGS", b""),), (("TAGS", None),), (("TAGS", b"paid"), ("TAGS", None))])
def test_a_message_without_a_tag_has_none(headers):
    """That is known of it, so that who waits for a tag need not wake."""
    assert said(*headers) == ("", tags_code(""), {})


@pytest.mark.parametrize("value", [b"\xff\xfe", b"x" * 4_097])
def test_tags_that_cannot_be_told_are_not_known(value):
    """Who waits for a tag is woken, and looks for itself."""
    assert said(("TAGS", value), ("region", b"EU")) == (None, None, {"region": "EU"})


def test_of_headers_with_one_name_the_last_counts():
    """As for the reader of the message, whatever stands in it."""
    assert said(("TAGS", b"lost"), ("TAGS", b"paid"), ("a", b"1"), ("a", b"2"), ("b", b"1"), ("b", b"\xff")) == (
        "paid",
        tags_code("paid"),
        {"a": "2"},
    )


def test_what_is_no_text_is_no_property():
    assert said(("trace", b"\xff\xfe"), ("empty", None), ("region", b"EU"))[2] == {"region": "EU"}


@pytest.mark.parametrize(
    "headers",
    [[(f"p{number}", b"") for number in range(MAX_PROPERTIES + 1)], [("x" * 256, b"")], [("a", b"x" * 4_097)]],
)
def test_of_properties_without_room_none_is_told(headers):
    """A condition on a part of them would judge wrongly; on properties that are not known it holds."""
    assert said(("region", b"EU"), *headers)[2] is None


def test_as_much_as_an_arrival_has_room_for_is_told():
    tags = "x" * 4_096
    properties = {f"{number:0>255}": "ü" * 4_096 for number in range(MAX_PROPERTIES)}
    headers = [("TAGS", tags.encode()), *((name, text.encode()) for name, text in properties.items())]

    assert said(*headers) == (tags, tags_code(tags), properties)
