"""The pages while a part of the system is dead: each state is told, and the page continues by itself."""

import re
import uuid
from pathlib import Path

import msgspec
import pytest

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.systems.decision_sink import Sink
from tests.support.systems.web_site import served
from wakeroll.connection import Connection, Topics
from wakeroll_model.events import Heartbeat, Subscription
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


@pytest.fixture
def topics(broker: EmbeddedBroker) -> Connection:
    """The topics of a control plane in which nothing runs."""
    connection = Connection(broker.bootstrap, topics=Topics(f"page-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection)
    return connection


def settings_of(connection: Connection, home: Path) -> Settings:
    return Settings(bootstrap=connection.bootstrap, prefix=connection.topics.prefix, home=str(home))


def join(coordinator: Coordinator, group_id: str, topic: str) -> None:
    """Append one heartbeat of a client that is not heard of again."""
    beat = Heartbeat(group_id=group_id, client_id="c1", instance_id="i1", subscriptions=[Subscription(topic=topic)])
    producer = coordinator.connection.producer()
    producer.produce(coordinator.connection.topics.groups, msgspec.json.encode(beat), key=group_id.encode())
    assert producer.flush(30) == 0


def test_without_an_observer_the_page_says_that_the_clock_stands_still(topics, tmp_path, open_page):
    coordinator = Coordinator(topics)
    sink = Sink(coordinator)
    coordinator.start()
    sink.start()
    try:
        with served(settings_of(topics, tmp_path)) as site:
            page = open_page(f"{site}/")
            expect(page.locator(".lamp")).to_have_text("live")

            coordinator.stop()  # it appends the ticks too

            expect(page.locator('[data-notice="no-ticks"]')).to_contain_text("no ticks for")
            expect(page.locator(".lamp")).to_have_text("not current")
    finally:
        sink.stop()


def test_a_system_that_never_ran_shows_that_no_ticks_came(topics, tmp_path, open_page):
    with served(settings_of(topics, tmp_path)) as site:
        page = open_page(f"{site}/")

        expect(page.locator('[data-notice="no-ticks"]')).to_contain_text("no ticks have been received")
        expect(page.get_by_role("heading", name="No groups yet")).to_be_visible()


def test_decisions_that_are_not_published_are_told(topics, tmp_path, open_page):
    """The observer lives, and the coordinator is dead: the log requires decisions, and nobody makes them."""
    coordinator = Coordinator(topics)  # it ticks; without a sink none of its decisions is published
    coordinator.start()
    try:
        topic = coordinator.topic(2, is_pulled=False)
        with served(settings_of(topics, tmp_path)) as site:
            page = open_page(f"{site}/")
            join(coordinator, "billing", topic)
            expect(page.locator('tr[id="g-billing"]')).to_have_count(1)

            expect(page.locator('[data-notice="decisions-behind"]')).to_contain_text(
                re.compile(r"has not published \d+ that the log requires")
            )
    finally:
        coordinator.stop()


def test_the_page_survives_the_loss_of_the_broker(tmp_path, open_page):
    """It shows the last known state meanwhile, and continues when the broker is back."""
    with EmbeddedBroker(tmp_path / "broker") as broker:
        connection = Connection(broker.bootstrap)
        ensure_topics(connection)
        coordinator = Coordinator(connection)
        sink = Sink(coordinator)
        coordinator.start()
        sink.start()
        topic = coordinator.topic(2, is_pulled=False)
        join(coordinator, "billing", topic)
        with served(settings_of(connection, tmp_path)) as site:
            page = open_page(f"{site}/")
            expect(page.locator('tr[id="g-billing"]')).to_have_count(1)

            broker.kill()
            expect(page.locator('[data-notice="broker-gone"]')).to_contain_text("cannot be read")
            expect(page.locator('tr[id="g-billing"]')).to_have_count(1)

            broker.start()
            expect(page.locator('[data-notice="broker-gone"]')).to_have_count(0)
            join(coordinator, "audit", topic)
            expect(page.locator('tr[id="g-audit"]')).to_have_count(1)
        sink.stop()
        coordinator.stop()


def test_the_browser_shows_that_the_page_itself_is_gone(topics, tmp_path, open_page):
    with served(settings_of(topics, tmp_path)) as site:
        page = open_page(f"{site}/")
        expect(page.locator(".notice.error")).to_be_visible()

    expect(page.get_by_role("alert")).to_be_visible()
