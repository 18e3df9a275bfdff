"""The web application over HTTP, with the views of a story: JSON, errors, headers, metrics and streams."""

import json
import socket
import time
from collections.abc import Iterator
from hashlib import sha256
from http.client import HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.support.ledgers import PARTITIONS, Story, a_day
from tests.support.systems.web_site import answering
from tests.support.waiting import wait_until
from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.events import About, Level
from wakeroll_model.records import Record
from wakeroll_model.signing import OnRecord
from wakeroll_pipeline.live.live_model import LiveModel, ViewSource
from wakeroll_pipeline.live.shard_follower import ShardFollower
from wakeroll_pipeline.metrics.group_choice import GroupChoice
from wakeroll_pipeline.metrics.health import LOOP_TIMEOUT_S, Health
from wakeroll_pipeline.serve import web_app
from wakeroll_pipeline.serve.changes.change_requests import settings_of
from wakeroll_pipeline.serve.live_metrics import LiveMetrics
from wakeroll_pipeline.serve.page_queries import GroupsQuery, groups_query, slice_of
from wakeroll_pipeline.serve.web_app import WebApp

TOPICS = Topics()
_decode = msgspec.json.Decoder(AnyDecision).decode


def model_of(story: Story) -> LiveModel:
    model = LiveModel(TOPICS, PARTITIONS)
    for topic in TOPICS.control:
        for partition in range(PARTITIONS):
            model.put_shard(ShardFollower((topic, partition), PARTITIONS, OnRecord()))
    follow(model, story)
    model.facts = msgspec.structs.replace(model.facts, is_begun=True)
    return model


def follow(model: LiveModel, story: Story, since: int = 0) -> int:
    """Let a model read the rows of a story from a place on; return the place behind them."""
    for topic, partition, offset, at_ms, key, value in story.rows[since:]:
        if topic == TOPICS.decisions:
            model.note_decision(partition, _decode(value or b""), at_ms)
        else:
            model.apply(Record(topic, partition, offset, at_ms, key, value), time.monotonic())
    model.refresh()
    return len(story.rows)


def app_of(model: LiveModel, health: Health | None = None) -> WebApp:
    registry, source = CollectorRegistry(), ViewSource(model)
    LiveMetrics(source, registry, GroupChoice(registry, 100), 1_000)
    return WebApp(source, registry, ["127.0.0.1"], health=health)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with answering(app_of(model_of(a_day()))) as address:
        yield address


def get(address: str, **headers: str) -> tuple[int, HTTPResponse, str]:
    try:
        answer = urlopen(Request(address, headers=headers), timeout=60)
    except HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer, answer.read().decode()


def test_the_list_and_a_group_are_json(site):
    listed = json.loads(get(f"{site}/api/groups?sort=name")[2])
    group = json.loads(get(f"{site}/api/groups/billing")[2])

    assert [one["group_id"] for one in listed["groups"]] == ["audit", "billing"]
    assert listed["total"] == 2
    assert group["summary"] == listed["groups"][1]
    assert len(group["queues"]) == 10
    assert sorted(one["client_id"] for one in group["members"]) == ["c3"]


def test_the_list_is_cut_by_limit_and_offset(site):
    answer = json.loads(get(f"{site}/api/groups?sort=name&limit=1&offset=1")[2])

    assert ([one["group_id"] for one in answer["groups"]], answer["total"]) == (["billing"], 2)


def test_a_topic_shows_the_groups_that_read_it(site):
    """The most urgent one first; other topics stay away from a search."""
    topics = {one["topic"]: one["groups"] for one in json.loads(get(f"{site}/api/topics")[2])["topics"]}
    groups = {one["group_id"]: one for one in json.loads(get(f"{site}/api/groups")[2])["groups"]}
    expected = {topic for one in groups.values() for topic in one["topics"]}
    page = get(f"{site}/topics?q=ORD")[2]

    assert topics.keys() == expected
    assert topics["orders"] == {name: one["verdict"] for name, one in groups.items() if "orders" in one["topics"]}
    assert list(topics["orders"]) == [name for name in groups if "orders" in groups[name]["topics"]]
    assert '<tr id="t-orders">' in page
    assert '<a href="/groups/billing">billing</a>' in page
    assert "No group reads a topic with the text" in get(f"{site}/topics?q=nothing")[2]
    assert "orders" not in json.loads(get(f"{site}/api/topics?q=nothing")[2])["topics"]


def test_every_table_has_a_caption_and_a_verdict_is_announced_when_it_changes(site):
    """A screen reader speaks the text of a status when it changes."""
    for path, said in (("/", "1 of 2 groups need attention"), ("/groups/billing", "billing: rebalancing too often")):
        page = get(site + path)[2]
        assert page.count("<table") == page.count("<caption") > 0
        assert f'<p class="hidden" role="status">{said}</p>' in page
    for template in (Path(web_app.__file__).parent / "templates").rglob("*.html"):
        text = template.read_text(encoding="utf-8")
        assert text.count("<table") == text.count("<caption"), template.name


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/topics?page=0", "page is '0'; it must be a number from 1"),
        ("/?sort=size", "sort is 'size'; it must be one of: verdict, name"),
        ("/api/groups?verdict=ill", "verdict is 'ill'; it must be one of: attention, abandoned, stalled"),
        ("/?page=0", "page is '0'; it must be a number from 1"),
        ("/groups/billing?page=x", "page is 'x'; it must be a number"),
        ("/api/groups?limit=-1", "limit is '-1'; it must be a number from 0 to 1000"),
    ],
)
def test_a_wrong_parameter_is_refused_with_its_rule(site, path, sentence):
    status, _, text = get(site + path)

    assert status == 400
    assert text.startswith(sentence)


def test_an_unknown_group_is_not_found(site):
    assert get(f"{site}/api/groups/nobody")[::2] == (404, '{"error":"there is no group \'nobody\'"}')
    assert get(f"{site}/groups/nobody")[0] == 404
    assert get(f"{site}/api/nothing")[0] == 404


def test_every_answer_forbids_other_sources_and_inline_scripts(site):
    for path in ("/", "/topics", "/groups/billing", "/api/groups", "/static/live.js", "/nothing"):
        headers = get(site + path)[1].headers
        assert headers["Content-Security-Policy"].startswith("default-src 'self'; ")
        assert headers["X-Content-Type-Options"] == "nosniff"
    page = get(f"{site}/groups/billing")[2]
    assert "style=" not in page
    assert "<script>" not in page


def test_another_name_for_this_address_is_refused(site):
    """A page of another site could point its own name to this machine, and read the answer."""
    assert get(f"{site}/api/groups", Host="evil.example")[0] == 400


def test_the_gauges_have_the_names_of_kafkas_exporters(site):
    families = {one.name: one for one in text_string_to_metric_families(get(f"{site}/metrics")[2])}
    lag = {
        (one.labels["consumergroup"], one.labels["topic"], one.labels["partition"]): one.value
        for one in families["kafka_consumergroup_lag"].samples
    }

    assert lag["billing", "orders", "0"] == 1_700
    members = {one.labels["consumergroup"]: one.value for one in families["kafka_consumergroup_members"].samples}
    assert members == {"audit": 2, "billing": 1}
    assert all(one.documentation for one in families.values())
    waits = {one.labels["group"]: one.value for one in families["kafka_consumergroup_group_max_lag_seconds"].samples}
    assert waits["billing"] > 0


def test_the_checks_give_their_reason(site):
    assert get(f"{site}/healthz")[::2] == (200, "alive: starting or stopping; no loop runs\n")
    assert get(f"{site}/readyz")[2].startswith("ready\n")
    starting = model_of(Story())
    starting.facts = msgspec.structs.replace(starting.facts, is_begun=True, read=3, to_read=9)
    with answering(app_of(starting)) as address:
        assert get(f"{address}/readyz")[::2] == (503, "reading the log: 3 of 9 records\n")
    starting.facts = msgspec.structs.replace(starting.facts, trouble="no Kafka broker answered")
    with answering(app_of(starting)) as address:
        status, _, reason = get(f"{address}/readyz")
        assert (status, "no Kafka broker answered" in reason) == (503, True), "the log is not read to its end"
    starting.facts = msgspec.structs.replace(starting.facts, read=9)
    with answering(app_of(starting)) as address:
        assert get(f"{address}/readyz")[0] == 503, "there is no state to show"


def test_a_page_stays_ready_while_the_brokers_are_away():
    """Kubernetes takes a page that is not ready out of its Service: nobody would see the outage on the page."""
    model = model_of(a_day())
    model.facts = msgspec.structs.replace(model.facts, trouble="no Kafka broker answered")
    with answering(app_of(model)) as address:
        status, _, reason = get(f"{address}/readyz")

    assert status == 200
    assert reason.startswith("ready\nthe brokers cannot be read for ")


def test_a_page_whose_reader_of_the_log_is_stuck_is_not_alive():
    """It would show an old state for ever, and only a restart helps."""
    now_s = 1_000.0
    health = Health("", lambda: now_s)
    health.beat("kafka-follower")
    with answering(app_of(model_of(Story()), health)) as address:
        assert get(f"{address}/healthz")[::2] == (200, "alive: time since the last round of kafka-follower 0.0 s\n")
        now_s += LOOP_TIMEOUT_S + 1
        status, _, reason = get(f"{address}/healthz")

    assert (status, reason) == (503, "not alive: no new round of kafka-follower for 301 s; the limit is 300 s\n")


class Reader:
    """A browser's event stream, read by hand."""

    def __init__(self, site: str, path: str) -> None:
        host, port = site.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        self._lines = self._socket.makefile("rb")

    def update(self) -> dict:
        """Return the next event."""
        for line in self._lines:
            if line.startswith(b"data: "):
                return json.loads(line.removeprefix(b"data: "))
        raise AssertionError("the stream ended")

    def rest(self) -> bytes:
        """Return everything until the end of the stream."""
        return self._lines.read()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def test_an_event_has_the_changed_regions_only():
    story = a_day()
    model = model_of(story)
    place = len(story.rows)
    with answering(app_of(model)) as site:
        reader = Reader(site, "/events/groups")
        first = reader.update()
        story.join("mailing", "m1", "orders")
        story.pass_seconds(3)
        follow(model, story, place)
        second = wait_until(lambda: (found := reader.update())["regions"] and found, "a region changes")
        reader.close()

    assert set(first["regions"]) == {"status", "filters", "groups"}
    assert "mailing" not in first["regions"]["groups"]
    assert "mailing" in second["regions"]["groups"]


def test_a_reader_that_does_not_read_does_not_slow_the_others():
    """Its events are dropped where they are made; when it reads again, it gets the newest state."""
    story = a_day()
    model = model_of(story)
    with answering(app_of(model)) as site:
        stuck = [Reader(site, "/events/groups/billing") for _ in range(5)]
        reader = Reader(site, "/events/groups/billing")
        assert "settings" in reader.update()["regions"]
        place = len(story.rows)
        for offset in (301, 302, 303):
            story.commit("billing", offset)
            story.pass_seconds(1)
            place = follow(model, story, place)
            wait_until(lambda: f">{offset}<" in reader.update()["regions"].get("queues", ""), "the commit is shown")  # noqa: B023
        for one in (*stuck, reader):
            one.close()


def test_a_stop_ends_open_streams():
    """A deployment must not wait for browsers."""
    with answering(app_of(model_of(a_day()))) as site:
        reader = Reader(site, "/events/groups")
        reader.update()

    assert reader.rest().endswith(b"0\r\n\r\n")
    reader.close()


def test_vendored_files_are_those_of_their_release():
    """A page that loads nothing from elsewhere must be able to prove what it brings."""
    folder = Path(web_app.__file__).parent / "static" / "vendor"
    listed = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
    scripts = {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.js")}

    assert scripts
    assert scripts == listed


def test_a_member_is_shown_by_its_own_words_which_are_text():
    """Version, host and labels come from strangers."""
    story = Story()
    for _ in range(2):
        story.append(Level(level=4))
    story.route("orders", 1)
    story.join("billing", "c", "orders", about=About(host="<b>pod</b>", app_version="1&2", labels={"team": '">x'}))
    story.pass_seconds(2)

    with answering(app_of(model_of(story))) as address:
        page = get(f"{address}/groups/billing")[2]
        [member] = json.loads(get(f"{address}/api/groups/billing")[2])["members"]

    assert "version 1&amp;2 on &lt;b&gt;pod&lt;/b&gt;" in page
    assert "<b>pod" not in page
    assert '">x' not in page
    assert (member["host"], member["app_version"], member["labels"]) == ("<b>pod</b>", "1&2", {"team": '">x'})


def test_a_page_number_beyond_the_last_one_shows_the_last_one():
    """The list shrinks while somebody reads its last page."""
    found = slice_of(list(range(250)), 9)

    assert (found.page, found.pages, found.first, found.last, found.rows[0]) == (3, 3, 201, 250, 200)


def test_the_query_of_a_page_is_the_query_of_its_address():
    query = GroupsQuery(q="a b", verdict="stalled", sort="lag", reverse=True, page=2)

    assert groups_query(query.params()) == query
    with pytest.raises(InvalidUsage, match="must be one of"):
        groups_query({"sort": "lag'; drop table"})


@pytest.mark.parametrize("text", ['{"a":' * 3_000 + "1" + "}" * 3_000, "[" * 3_000, "[1]", "{"])
def test_parameters_that_are_no_object_or_nested_too_deeply_are_named(text):
    with pytest.raises(InvalidUsage, match=r"strategy_params is .*it must be a JSON object"):
        settings_of({"strategy_params": text})


def test_a_page_whose_requests_are_not_answered_is_not_alive():
    """The threads that follow the brokers may go on meanwhile."""
    rounds: list[str] = []
    with answering(app_of(model_of(Story())), rounds.append):
        wait_until(lambda: len(rounds) > 2, "the loop that answers requests runs", state=lambda: rounds)

    assert set(rounds) == {"page"}
