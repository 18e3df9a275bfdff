"""The past over HTTP, from tables: earlier moments, what happened, why, what if, and what has no answer."""

import json
import re
import socket
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from tests.support.control_log import START_MS
from tests.support.delta_tables import write_tables
from tests.support.ledgers import PARTITIONS, Story, a_day
from tests.support.systems.web_site import answering
from wakeroll.connection import Topics
from wakeroll.epoch_ms import EpochMs
from wakeroll_model.decisions import Handover, Membership, Rebalance, Rejected
from wakeroll_model.events import Reset, ResetOffset
from wakeroll_model.queue import Queue
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.live.ledger_reader import read_ledger
from wakeroll_pipeline.live.live_model import ViewSource
from wakeroll_pipeline.questions.happenings import happenings
from wakeroll_pipeline.serve.history import History
from wakeroll_pipeline.serve.web_app import WebApp

TOPICS = Topics()
HOSTILE = "<script>alert(1)</script>"


def a_day_with_a_reset() -> Story:
    story = a_day()
    offsets = [ResetOffset(queue=Queue("orders", "", 0), offset=7)]
    story.append(Reset(request_id="r1", group_id="billing", offsets=offsets, by="mia"))
    story.nonsense(json.dumps({"type": HOSTILE}).encode())
    story.pass_seconds(3)
    return story


@pytest.fixture(scope="module")
def story() -> Story:
    return a_day_with_a_reset()


@pytest.fixture(scope="module")
def site(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    warehouse = tmp_path_factory.mktemp("it's a home") / "warehouse"
    write_tables(warehouse, story)
    with site_of(warehouse, warehouse) as address:
        yield address


def site_of(present: Path, past: Path):
    """Serve the end of the log of one warehouse, and the past of another."""
    source = ViewSource(read_ledger(present, TOPICS, PARTITIONS))
    history = History(past, TOPICS, PARTITIONS)
    return answering(WebApp(source, CollectorRegistry(), ["127.0.0.1"], history=history))


def get(address: str) -> tuple[int, str]:
    try:
        answer = urlopen(address, timeout=60)
    except HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.read().decode()


def answer_of(site: str, path: str, **params: object) -> dict:
    status, text = get(f"{site}{path}?{urlencode(params)}")
    assert status == 200, text
    return json.loads(text)


def second(number: int) -> str:
    """Return a moment: so many seconds after the start of the story."""
    return str(EpochMs(START_MS + number * 1_000))


# --- moments ---


@pytest.mark.parametrize(
    ("number", "members"), [(3, ["c1"]), (8, ["c1", "c2"]), (15, ["c1", "c2", "c3"]), (27, ["c2", "c3"])]
)
def test_a_group_is_shown_as_it_was(site, number, members):
    view = answer_of(site, "/api/groups/billing", at=second(number))

    assert [one["client_id"] for one in view["members"]] == members
    assert (view["health"]["state"], view["health"]["as_of_ms"]) == ("past", START_MS + number * 1_000)


def test_the_list_shows_the_groups_of_that_time(site):
    assert [one["group_id"] for one in answer_of(site, "/api/groups", at=second(3))["groups"]] == ["billing"]
    assert [one["group_id"] for one in answer_of(site, "/api/groups", sort="name")["groups"]] == ["audit", "billing"]


def test_a_moment_may_be_given_in_epoch_milliseconds(site):
    at = START_MS + 8_000

    assert answer_of(site, "/api/groups/billing", at=at) == answer_of(site, "/api/groups/billing", at=second(8))


@pytest.mark.parametrize("path", ["/", "/groups/billing"])
def test_every_link_of_a_page_leads_to_its_moment(site, path):
    """A reader who looks around in the past must not return to the present unknowingly; only `Now` does that."""
    at = second(8)
    page = get(f"{site}{path}?at={quote(at)}")[1]
    links = [unescape(one) for one in re.findall(r'<a [^>]*href="(/[^"]*)"', page)]
    elsewhere = [one for one in links if f"at={quote(at, safe='')}" not in one]

    assert len(links) > 5
    assert elsewhere == [path]
    assert page.count('name="at" value="') == page.count(f'name="at" value="{at}"') + page.count('id="at" ') - 1


def test_the_stream_of_a_moment_has_its_regions(site):
    events = Stream(site, f"/events/groups/billing?at={quote(second(8))}")
    name, update = events.next()
    events.close()

    assert (name, update["state"], update["now_ms"]) == ("update", "past", START_MS + 8_000)
    assert "c2" in update["regions"]["members"]
    assert "c3" not in update["regions"]["members"]


def test_the_stream_of_a_moment_that_does_not_exist_lets_the_page_be_loaded_again(site):
    """The page that is loaded then shows the reason."""
    events = Stream(site, "/events/groups?at=yesterday")
    name, _ = events.next()
    events.close()

    assert name == "gone"


class Stream:
    """A browser's event stream, read by hand."""

    def __init__(self, site: str, path: str) -> None:
        host, port = site.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        self._lines = self._socket.makefile("rb")

    def next(self) -> tuple[str, dict]:
        """Return name and contents of the next event that is not a keep-alive."""
        name = ""
        for line in self._lines:
            if line.startswith(b"event: "):
                name = line.removeprefix(b"event: ").decode().strip()
            elif line.startswith(b"data: ") and name != "working":
                return name, json.loads(line.removeprefix(b"data: "))
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        (
            "/groups/billing?at=yesterday",
            400,
            "at: 'yesterday' is not a time; expected a time like 2026-07-01T03:00:00Z",
        ),
        ("/?at=2026-07-01T03:00:00", 400, "has no time zone"),
        (f"/?at={10**30}", 400, "is not a time"),
        ("/?at=2001-01-01T00:00:00Z", 400, f"is before the archived log, which begins at {second(0)}"),
        ("/groups/billing?at=2100-01-01T00:00:00Z", 400, "is after the archived log, which ends at"),
        ("/happened?from=x", 400, "from: 'x' is not a time"),
        (f"/happened?from={second(9)}&to={second(8)}", 400, "it must not be after to"),
        ("/happened?to=2001-01-01T00:00:00Z", 400, "none in this period"),
        ("/happened?page=9", 400, "page is 9; this period has 1"),
        ("/groups/nobody/happened", 404, "no group 'nobody'; the groups are: audit, billing"),
        ("/groups/nobody/why?queue=orders-1", 404, "no group 'nobody'"),
        ("/groups/billing/why?queue=payments-1", 404, "payments-1 never had an owner in billing"),
        ("/groups/billing/why", 400, "queue: '' is not a queue; expected a topic and a number, like orders-3"),
        ("/groups/billing/why?queue=orders-x'--", 400, 'queue: "orders-x\'--" is not a queue'),
        ("/groups/billing/what-if?strategy=BEST", 400, "no strategy 'BEST'"),
        ("/groups/billing/what-if?add=-1", 400, "add is '-1'; it must be a number of members from 0 to 1000"),
        ("/groups/billing/what-if?remove=c9", 400, "no client 'c9' in billing"),
        ("/groups/billing/what-if?queues=orders", 400, "queues is 'orders'; it must be TOPIC=N"),
        ("/groups/billing/what-if?queues=orders%3D99999", 400, "at most 10000 are simulated"),
        ("/groups/billing/what-if?slices=orders", 400, "slices is 'orders'; it must be TOPIC=N, such as orders=8"),
        ("/groups/billing/what-if?slices=orders%3D3", 400, "slices: orders is 3; it must be a power of two from 1 to"),
        ("/groups/billing/what-if?slices=orders%3D2+orders%3D4", 400, "slices names the topic orders twice"),
        ("/groups/billing/what-if?slices=orders%3D8", 400, "slices need feature level 5, and the shard of billing"),
    ],
)
def test_a_question_without_an_answer_gets_its_reason(site, path, status, sentence):
    """The page shows it within its frame, the JSON endpoint as `error`."""
    shown, page = get(site + path)
    coded, text = get(f"{site}/api{path.replace('/?', '/groups?', 1) if path.startswith('/?') else path}")

    assert (shown, coded) == (status, status)
    assert sentence in unescape(page)
    assert '<form class="timebar"' in page
    assert sentence in json.loads(text)["error"]


def test_a_group_that_did_not_exist_yet_is_not_found(site):
    status, page = get(f"{site}/groups/audit?at={second(3)}")

    assert status == 404
    assert f"There was no group of this name at {second(3)}" in page
    assert get(f"{site}/api/groups/audit?at={second(3)}")[0] == 404


# --- what happened ---


def test_events_are_those_decisions_in_their_order(site, story):
    """Per group: era and seq, as the coordinator decided."""
    kinds = {Membership: "member", Rebalance: "rebalance", Handover: "hand-over", Rejected: "rejection"}
    decided = [
        (one.shard, one.seq, kinds[type(one)])
        for one in story.decisions
        if type(one) in kinds and getattr(one, "group_id", None) == "billing"
    ]
    happened = answer_of(site, "/api/groups/billing/happened")["happened"]
    found = [(one["shard"], one["seq"], one["kind"]) for one in happened["events"] if one["kind"] != "reset"]

    assert found == decided
    assert happened["total"] == len(decided) + 1


def test_a_reset_names_the_operator(site):
    events = answer_of(site, "/api/groups/billing/happened")["happened"]["events"]

    assert [one["text"] for one in events if one["kind"] == "reset"] == ["offset of orders-0 reset to 7 by mia"]


def test_both_ends_of_a_period_are_included(site):
    happened = answer_of(site, "/api/happened", **{"from": second(5), "to": second(6)})["happened"]
    times = [one["at_ms"] for one in happened["events"]]

    assert (min(times), max(times)) == (START_MS + 5_000, START_MS + 6_000)
    assert sum(one["number"] for one in happened["counts"]) == happened["total"] == len(times)


def test_the_period_ends_at_the_shown_moment(site):
    assert answer_of(site, "/api/happened", at=second(20))["to_ms"] == START_MS + 20_000


def test_the_page_joins_hand_overs_of_one_cause(site):
    page = get(f"{site}/groups/billing/happened?to={second(6)}")[1]

    assert "4 queues: c1 → c2 (released): orders-4, orders-5, orders-6, orders-7" in page
    assert "<b>12</b> hand-overs" in page


def test_the_pages_of_a_long_period_have_each_event_once(story, tmp_path):
    write_tables(tmp_path, story)
    with duck_ledger(tmp_path) as ledger:
        whole = happenings(ledger, START_MS, story.now_ms, limit=1_000)
        pages = [happenings(ledger, START_MS, story.now_ms, limit=20, skip=skip) for skip in range(0, 80, 20)]

    assert [one for page in pages for one in page.events] == whole.events
    assert {page.total for page in pages} == {len(whole.events)}


def test_a_script_in_a_record_stays_text(site):
    page = get(f"{site}/happened")[1]

    assert HOSTILE not in page
    assert "&lt;script&gt;" in page


# --- why ---


def test_why_names_event_rebalance_release_and_assignment(site):
    """At second 8 c2 has what c1 has released."""
    why = answer_of(site, "/api/groups/billing/why", queue="orders-7", at=second(8))

    assert why["answer"].startswith("orders-7 of billing is owned by c2 since")
    words = " / ".join(one["what"] for one in why["steps"])
    for word in ("heartbeat of c2, c2 joined", "rebalance to epoch 2 by join", "revocation was sent to c1",
                 "c1 released the queue", "the queue was assigned to c2"):  # fmt: skip
        assert word in words
    assert answer_of(site, "/api/groups/billing/why", queue="orders-7")["answer"].startswith(
        "orders-7 of billing is owned by c3 since"
    )


# --- what if ---


def test_a_prediction_starts_from_the_shown_moment(site):
    then = answer_of(site, "/api/groups/billing/what-if", add=1, at=second(8))["predictions"][0]

    assert then["now"]["clients"] == ["c1", "c2"]
    assert then["then"]["clients"] == ["c1", "c2", "new-1"]
    assert sorted(then["then"]["owners"]) == [f"orders-{number}" for number in range(8)]


def test_several_strategies_are_compared(site):
    path = f"/groups/billing/what-if?strategy=SPREAD&strategy=AVG_BY_CIRCLE&remove=c2&at={quote(second(15))}"
    answers = json.loads(get(f"{site}/api{path}")[1])["predictions"]
    page = get(site + path)[1]

    assert [one["change"] for one in answers] == ["strategy SPREAD, without c2", "strategy AVG_BY_CIRCLE, without c2"]
    assert [one["then"]["strategy"] for one in answers] == ["SPREAD", "AVG_BY_CIRCLE"]
    assert "strategy AVG_BY_CIRCLE, without c2" in page
    assert page.count('class="moves"') == sum(
        one["then"]["owners"].get(queue) != owner for one in answers for queue, owner in one["now"]["owners"].items()
    )


def test_a_change_must_be_named(site):
    assert get(f"{site}/api/groups/billing/what-if") == (
        400, '{"error":"no change is named; use at least one of strategy, add, remove, queues, slices"}',
    )  # fmt: skip
    assert get(f"{site}/groups/billing/what-if")[0] == 200


# --- without tables ---


def test_without_tables_the_past_is_not_available_and_what_if_is(story, tmp_path):
    """A page that follows brokers works without `--home`; it must report what is missing, and why."""
    warehouse = tmp_path / "warehouse"
    write_tables(warehouse, story)
    with site_of(warehouse, tmp_path / "nothing") as address:
        reason = f"no table 'events' in {tmp_path / 'nothing'}"
        assert f"Time: not available, because {reason}" in unescape(get(f"{address}/groups/billing")[1])
        for path in ("/?at=" + second(3), "/happened", "/groups/billing/why?queue=orders-1"):
            status, page = get(address + path)
            assert (status, reason in unescape(page)) == (404, True), path
        assert answer_of(address, "/api/groups/billing/what-if", add=1)["predictions"][0]["then"]["clients"]
