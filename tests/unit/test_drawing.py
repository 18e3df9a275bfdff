"""Pictures of who has what: each queue once, and what moved stands out."""

import doctest
import xml.etree.ElementTree as ElementTree
from collections import Counter

from wakeroll_model import Queue, assignment_chart
from wakeroll_model.assignment_chart import rows_of, text_of
from wakeroll_pipeline.questions.assignment_svg import Panel, svg_of

ORDERS = [Queue("orders", "", number) for number in range(4)]
SENT = [Queue("sent", "b-1", number) for number in range(2)]


def boxes(svg: str) -> Counter[str | None]:
    return Counter(box.get("class") for box in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect"))


def test_the_example_is_what_is_drawn():
    assert doctest.testmod(assignment_chart).failed == 0


def test_a_queue_that_nobody_has_is_drawn_too():
    """Else rows of two pictures would not stand below each other."""
    rows = rows_of({"a": ORDERS[:1], "b": []}, before={ORDERS[1]: "b"}, queues=SENT)

    assert {client: text_of(row) for client, row in rows.items()} == {
        "a": "orders +·  sent@b-1 ··",
        "b": "orders ··  sent@b-1 ··",
    }


def test_every_queue_of_every_panel_is_a_box():
    before = dict.fromkeys(ORDERS, "a")
    now = Panel("now", ["spread: 4"], rows_of({"a": ORDERS, "b": []}))
    then = Panel("what <if>?", [], rows_of({"a": ORDERS[:2], "b": ORDERS[2:]}, before))

    assert boxes(svg_of([now, then])) == {None: 1, "none": 4, "has": 6, "new": 2}


def test_a_group_without_members_is_an_empty_picture():
    assert boxes(svg_of([Panel("now", [], rows_of({}))])) == {None: 1}


def test_ten_thousand_queues_are_a_picture_that_can_be_looked_at():
    many = [Queue("orders", "", number) for number in range(10_000)]
    shares = {f"c{number}": many[number::100] for number in range(100)}

    drawn = svg_of([Panel("now", [], rows_of(shares))])

    assert boxes(drawn)["has"] == 10_000
    assert float(ElementTree.fromstring(drawn).get("width", "")) < 25_000
