"""The pages in a real browser, while real consumers join, consume and die."""

import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.page_contrast import CONTRAST
from tests.support.systems.coordinator_thread import Coordinator
from wakeroll import Consumer
from wakeroll_model.events import Route, RoutedQueue

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect

CONSUMER = """
import sys
from wakeroll import Consumer
group, topic, client, bootstrap, prefix = sys.argv[1:]
with Consumer(group, [topic], bootstrap, client_id=client, prefix=prefix, consume_from="first") as consumer:
    while True:
        consumer.poll(1.0)
"""


@pytest.fixture
def group_id() -> str:
    return f"billing-{uuid.uuid4().hex[:6]}"


@contextmanager
def consuming(coordinator: Coordinator, group_id: str, topic: str, client_id: str, **options: object) -> Iterator[None]:
    """Run a consumer in a thread, which leaves in good order at the end."""
    stop = threading.Event()
    connection = coordinator.connection

    def consume() -> None:
        with Consumer(
            group_id,
            [topic],
            connection.bootstrap,
            client_id=client_id,
            prefix=connection.topics.prefix,
            consume_from="first",
            **options,
        ) as consumer:
            while not stop.is_set():
                consumer.poll(0.1)

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def cell(page, name: str):
    return page.get_by_role("img", name=name, exact=True)


def row(page, group_id: str):
    return page.locator(f'tr[id="g-{group_id}"]')


def test_a_group_appears_when_its_first_consumer_joins(coordinator, site, open_page, group_id):
    """Nobody loads the page again."""
    topic = coordinator.topic(4)
    page = open_page(f"{site}/")
    expect(row(page, group_id)).to_have_count(0)

    with consuming(coordinator, group_id, topic, "c1"):
        expect(row(page, group_id)).to_contain_text(topic)
        expect(row(page, group_id).locator('[data-label="Queues"]')).to_have_text("4")
        expect(row(page, group_id)).to_contain_text("healthy")

    expect(row(page, group_id)).to_contain_text("no members")


def test_the_matrix_follows_members_that_join_leave_and_die(coordinator, site, open_page, group_id):
    """c2 is killed, and has no last will: its queues go back to c1 when its session has ended."""
    topic = coordinator.topic(2)
    coordinator.configure(group_id, session_timeout_ms=10_000, heartbeat_ms=1_000)
    connection = coordinator.connection
    with consuming(coordinator, group_id, topic, "c1"):
        page = open_page(f"{site}/")
        expect(row(page, group_id).locator('[data-label="Members"]')).to_have_text("1")
        row(page, group_id).get_by_role("link").click()
        expect(cell(page, f"c1 owns {topic}-1")).to_be_visible()

        names = (group_id, topic, "c2", connection.bootstrap, connection.topics.prefix)
        without = {**os.environ, "WAKEROLL_LAST_WILL": "off"}
        killed = subprocess.Popen([sys.executable, "-c", CONSUMER, *names], env=without)
        try:
            expect(cell(page, f"c2 owns {topic}-1")).to_be_visible()
            expect(cell(page, f"c1 owns {topic}-0")).to_be_visible()
        finally:
            killed.kill()
            killed.wait()
        expect(cell(page, f"c1 owns {topic}-1")).to_be_visible()

        expect(page.locator("#rebalances")).to_contain_text("expire")
        expect(page.locator("#lanes title", has_text="c2, ")).to_have_count(1)
        expect(page.locator("#members tbody tr")).to_have_count(1)


def test_the_lag_is_shown_in_messages_and_in_seconds(coordinator, site, open_page, group_id):
    """The consumer holds one message for ever, so everything behind it waits."""
    topic = coordinator.topic(1)
    stop = threading.Event()
    connection = coordinator.connection

    def hold() -> None:
        with Consumer(
            group_id, [topic], connection.bootstrap, client_id="slow", prefix=connection.topics.prefix,
            consume_from="first", commit_interval=None,
        ) as consumer:  # fmt: skip
            while consumer.poll(0.1) is None:
                pass
            consumer.commit(30)
            stop.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        coordinator.produce(topic, 0, 5)
        page = open_page(f"{site}/groups/{group_id}")
        expect(page.locator("#queues tbody tr")).to_have_count(1)
        expect(page.locator("#queues tbody .num").nth(2)).to_have_text(re.compile("[1-9]"))
        expect(page.locator(".fact-lag")).to_contain_text("message")
        expect(page.locator("#queues time.age").first).to_have_text(re.compile(r"^\d+ s$"))
    finally:
        stop.set()
        thread.join()


def test_hostile_names_are_shown_as_text(coordinator, site, open_page, group_id):
    """Anybody may append a record, and a script in it must stay a text on the page."""
    script = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    topic = coordinator.topic(1)
    coordinator.everywhere(Route(topic=topic, queues=[RoutedQueue(topic=topic, broker="", queue_id=0)], version="2"))
    append(coordinator, group_id.encode(), f'{{"type":"heartbeat","group_id":"{group_id}","client_id":"{script}"}}')
    heartbeat = (
        f'{{"type":"heartbeat","group_id":"{group_id}","client_id":"c1","instance_id":"i1","room":"{script}",'
        f'"subscriptions":[{{"topic":"{topic}","expression":"a = \'1\' or \'1\'=\'1\'","expression_type":"SQL92"}}]}}'
    )
    append(coordinator, group_id.encode(), heartbeat)
    page = open_page(f"{site}/")
    row(page, group_id).get_by_role("link").click()

    expect(page.locator("#members")).to_contain_text(f"room {script}")
    expect(page.locator("#members")).to_contain_text("or '1'='1'")
    expect(page.locator("#rejections")).to_contain_text("client_id")
    assert page.locator("main script, main img").count() == 0


@pytest.mark.parametrize("text", ["' or '1'='1", '"><script>alert(1)</script>', "%00", "{{7*7}}"])
def test_a_search_for_code_finds_nothing_and_is_shown_as_text(site, open_page, text):
    page = open_page(f"{site}/")
    page.get_by_role("searchbox").fill(text)

    expect(page.get_by_text("No group")).to_be_visible()
    assert page.locator("main script").count() == 0
    assert page.get_by_role("searchbox").input_value() == text


def append(coordinator: Coordinator, key: bytes, value: str) -> None:
    """Append a record about a group as anybody may."""
    producer = coordinator.connection.producer()
    producer.produce(coordinator.connection.topics.groups, value.encode(), key=key)
    assert producer.flush(30) == 0


def test_search_order_and_filter_are_in_the_address(coordinator, site, open_page, group_id):
    """A colleague who opens the same address sees the same list."""
    topic = coordinator.topic(1)
    with consuming(coordinator, group_id, topic, "c1"):
        page = open_page(f"{site}/")
        expect(row(page, group_id)).to_have_count(1)
        page.keyboard.press("/")
        page.keyboard.type(group_id)
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("link", name="Members").click()
        expect(page.locator('th[aria-sort="descending"]')).to_contain_text("Members")
        page.get_by_role("navigation", name="Verdict").get_by_role("link", name="healthy").click()
        expect(page.locator('.chips [aria-current="true"]')).to_contain_text("healthy")
        query = f"?q={group_id}&verdict=healthy&sort=members"
        assert page.url == f"{site}/{query}"

        other = open_page(page.url, javascript=False)
        expect(other.locator("tbody tr")).to_have_count(1)
        expect(other.locator('th[aria-sort="descending"]')).to_contain_text("Members")

        page.go_back()
        expect(page.locator('.chips [aria-current="true"]')).to_contain_text("All")
        assert page.get_by_role("searchbox").input_value() == group_id


def test_the_page_is_used_by_keyboard(coordinator, site, open_page, group_id):
    topic = coordinator.topic(1)
    with consuming(coordinator, group_id, topic, "c1"):
        page = open_page(f"{site}/?q={group_id}")
        expect(row(page, group_id)).to_have_count(1)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        row(page, group_id).get_by_role("link").focus()
        page.keyboard.press("Enter")

        expect(page.get_by_role("heading", level=1)).to_have_text(group_id)


def test_an_opened_rebalance_stays_open_while_the_page_changes(coordinator, site, open_page, group_id):
    topic = coordinator.topic(2)
    with consuming(coordinator, group_id, topic, "c1"):
        page = open_page(f"{site}/")
        row(page, group_id).get_by_role("link").click()
        page.locator("#rebalances summary").first.click()
        opened = page.locator("#rebalances li:has(details[open])").get_attribute("id")
        with consuming(coordinator, group_id, topic, "c2"):
            expect(page.locator("#members tbody tr")).to_have_count(2)

        expect(page.locator(f'[id="{opened}"] details')).to_have_attribute("open", "")


def test_an_unknown_group_and_an_unknown_page_are_explained(site, open_page):
    expect(open_page(f"{site}/groups/nobody-has-this").get_by_role("heading", level=1)).to_have_text(
        "No group nobody-has-this"
    )
    expect(open_page(f"{site}/nothing").get_by_role("heading", level=1)).to_have_text("Nothing here")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [380, 1280])
def test_every_text_has_enough_contrast_and_no_page_scrolls_sideways(
    coordinator, site, open_page, group_id, width, dark
):
    """WCAG AA: 4.5 to 1."""
    topic = coordinator.topic(3)
    with consuming(coordinator, group_id, topic, "c1"):
        page = open_page(f"{site}/", width=width, dark=dark)
        expect(row(page, group_id).locator('[data-label="Queues"]')).to_have_text("3")
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width

        row(page, group_id).get_by_role("link").click()
        expect(cell(page, f"c1 owns {topic}-2")).to_be_visible()
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_page_that_receives_no_events_does_not_call_its_connection_lost(site, open_page):
    """It would fade, and request its own address as a stream every few seconds."""
    page = open_page(f"{site}/")
    page.clock.install()
    page.goto(f"{site}/nothing")
    page.clock.run_for(40_000)
    assert page.locator("body").get_attribute("data-connection") is None

    page.goto(f"{site}/")
    expect(page.locator("body")).to_have_attribute("data-connection", "open")


def test_the_fixture_reports_a_blocked_script(site, browser):
    """Otherwise a page whose script is blocked would count as one that has none."""
    page = browser.new_page()
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text))
    page.goto(f"{site}/")
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p onclick=\"alert(1)\" style=\"color:red\">x</p>')")
    page.locator("p", has_text="x").last.click()
    page.close()

    assert any("Content Security Policy" in text for text in found)


def test_what_if_answers_from_the_live_state_without_tables(coordinator, site, open_page, group_id):
    """The past needs tables, a prediction does not; the page reports which of them is missing."""
    topic = coordinator.topic(2)
    with consuming(coordinator, group_id, topic, "c1"):
        page = open_page(f"{site}/")
        expect(row(page, group_id).locator('[data-label="Queues"]')).to_have_text("2")
        row(page, group_id).get_by_role("link").click()
        expect(cell(page, f"c1 owns {topic}-1")).to_be_visible()
        expect(page.get_by_role("form", name="Moment")).to_contain_text("not available, because no table 'events'")

        page.get_by_label("More members").fill("1")
        page.get_by_role("button", name="Predict").click()
        expect(page.locator(".sums tbody tr", has_text="new-1")).to_contain_text("1 queue")
