"""Changes in a real browser: login, a reset with its plan, settings, and logout."""

import uuid
from collections.abc import Iterator

import msgspec
import pytest

from tests.support.systems.changing_page import PASSWORD, USER, ChangingPage, changing_page
from tests.support.systems.web_site import served
from tests.support.waiting import wait_until
from wakeroll import Consumer, ConsumerFenced

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.operate]

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


@pytest.fixture(scope="module")
def plane(broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChangingPage]:
    with changing_page(broker.bootstrap, tmp_path_factory.mktemp("changes")) as running:
        yield running


@pytest.fixture(scope="module")
def topic(plane: ChangingPage) -> Iterator[str]:
    """The topic of the group billing, all of whose messages are committed."""
    topic = plane.coordinator.topic(2)
    for partition in range(2):
        plane.coordinator.produce(topic, partition, 20)
    connection = plane.coordinator.connection
    with Consumer(
        "billing", [topic], connection.bootstrap, client_id="c1", prefix=connection.topics.prefix, consume_from="first"
    ) as consumer:

        def is_read() -> bool:
            consumer.poll(0.1)
            consumer.commit(10)
            return plane.coordinator.offsets("billing", topic) == {0: 20, 1: 20}

        wait_until(is_read, "all messages are committed")
        yield topic


def log_in(page) -> None:
    page.get_by_label("Name").fill(USER)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()


def test_a_user_logs_in_resets_a_group_and_logs_out(plane, topic, open_page):
    page = open_page(f"{plane.address}/groups/billing")
    expect(page.locator("#queues")).to_contain_text(f"{topic}-1")
    page.get_by_role("link", name="Change this group").click()
    log_in(page)

    expect(page.get_by_role("heading", name="Change billing")).to_be_visible()
    page.get_by_label("Offset", exact=True).last.fill("5")
    expect(page.get_by_role("radio", name="Offset")).to_be_checked()
    page.get_by_label("Queue").fill(f"{topic}-1")
    page.get_by_role("button", name="Show the plan").click()

    expect(page.locator(".facts")).to_contain_text("15")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Reset 1 offset").click()

    expect(page.locator("#outcome")).to_contain_text("Done: the offsets are reset")
    page.get_by_role("link", name="Show billing").click()
    expect(page.locator("#rebalances")).to_contain_text(f"by {USER}@127.0.0.1 via page")

    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("link", name="Log in")).to_be_visible()
    page.go_back()
    page.reload()
    expect(page.get_by_role("button", name="Log out")).to_have_count(0)


@pytest.mark.usefixtures("topic")
def test_a_field_that_is_filled_in_before_the_script_runs_selects_its_target(plane, open_page):
    """On a slow line people type before the page is complete."""
    page = open_page(f"{plane.address}/login?next=/groups/billing/change")
    held = []
    page.route("**/forms.js", lambda route: held.append(route))
    log_in(page)
    page.get_by_label("Offset", exact=True).last.fill("5")
    expect(page.get_by_role("radio", name="Offset")).not_to_be_checked()

    held[0].continue_()

    expect(page.get_by_role("radio", name="Offset")).to_be_checked()


@pytest.mark.usefixtures("topic")
def test_settings_are_changed_with_the_keyboard_and_without_javascript(plane, open_page):
    """The forms are plain HTML."""
    page = open_page(f"{plane.address}/login?next=/groups/billing/change", javascript=False)
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type(USER)
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.get_by_label("max_members").fill("7")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Change 1 setting").press("Enter")

    expect(page.locator("#outcome")).to_contain_text("Done: the settings are changed")
    page.goto(f"{plane.address}/groups/billing")
    expect(page.locator("#settings")).to_contain_text("7")


def test_a_member_is_kicked_with_the_keyboard_where_the_members_are_listed(plane, open_page):
    """A visitor is asked who it is; the focus stays on the row while the live page changes."""
    group_id, connection = f"kicked-{uuid.uuid4().hex[:6]}", plane.coordinator.connection
    names = {"client_id": "c1", "prefix": connection.topics.prefix, "consume_from": "first"}
    with Consumer(group_id, [plane.coordinator.topic(1)], connection.bootstrap, **names) as consumer:
        page = open_page(f"{plane.address}/groups/{group_id}")
        kick = page.get_by_role("link", name="Kick c1")
        kick.focus()
        plane.coordinator.configure(group_id, max_members=7)
        expect(page.locator("#settings")).to_contain_text("7")
        expect(kick).to_be_focused()
        page.keyboard.press("Enter")
        log_in(page)

        expect(page.get_by_role("heading", name="Kick c1")).to_be_visible()
        page.get_by_role("link", name="Keep it out").press("Enter")
        expect(page.get_by_role("combobox", name="Client")).to_have_value("c1")
        page.get_by_label("Keep out for").fill("10m")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Kick c1").press("Enter")

        expect(page.locator("#outcome")).to_contain_text("Done: c1 must leave")
        with pytest.raises(ConsumerFenced) as fenced:
            wait_until(lambda: False, "it is fenced", between=lambda: consumer.poll(0.1))
        assert fenced.value.reason == "kicked"
        page.get_by_role("link", name=f"Show {group_id}").press("Enter")
        expect(page.locator("#members")).to_contain_text("c1 is kept out until")
        expect(kick).to_have_count(0)


def test_a_wrong_password_is_told_and_keeps_nothing(plane, open_page):
    page = open_page(f"{plane.address}/login")
    page.get_by_label("Name").fill(USER)
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()

    expect(page.get_by_role("alert").filter(has_text="The name or the password is wrong")).to_be_visible()
    expect(page.get_by_label("Password")).to_have_value("")
    assert page.context.cookies() == []


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("width", [380, 1280])
def test_no_page_of_a_change_is_wider_than_the_window(plane, open_page, width):
    page = open_page(f"{plane.address}/login?next=/groups/billing/change", width=width)
    log_in(page)
    for path in (
        "",
        "/change",
        "/change/kick?client=c1",
        "/change/inspect?client=c1",
        "/change/reset?to=first",
        "/change/settings?settle_ms=0",
        "/change/reset?to=x",
    ):
        page.goto(f"{plane.address}/groups/billing{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_a_link_of_another_site_leads_a_user_who_is_logged_in_to_the_page(plane, open_page):
    """The strict cookie is not sent then; the page asks for it again. To a browser, localhost is another site."""
    with served(plane.settings, msgspec.structs.replace(plane.access, require_login=True)) as address:
        page = open_page(f"{address}/")
        log_in(page)
        expect(page.get_by_role("heading", name="Groups")).to_be_visible()
        page.goto(f"{address.replace('127.0.0.1', 'localhost')}/login")
        page.evaluate("address => { location.href = address }", f"{address}/?sort=name")

        expect(page.get_by_role("heading", name="Groups")).to_be_visible()
        expect(page.locator(".who")).to_have_text(USER)
