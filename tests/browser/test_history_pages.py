"""The past in a real browser: the slider, links with a moment, why, and what if."""

import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.support.control_log import START_MS
from tests.support.delta_tables import write_tables
from tests.support.ledgers import a_day
from tests.support.systems.web_site import served
from wakeroll.epoch_ms import EpochMs
from wakeroll_model.events import Reset, ResetOffset
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.queue import Queue
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.browser, pytest.mark.operate]

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page that shows tables; no broker runs."""
    home = tmp_path_factory.mktemp("it's a home")
    story = a_day()
    story.raise_level(NEWEST)
    offsets = [ResetOffset(queue=Queue("orders", "", 0), offset=7)]
    story.append(Reset(request_id="r1", group_id="billing", offsets=offsets, by="<b>mia</b>"))
    story.pass_seconds(3)
    write_tables(home / "warehouse", story)
    with served(Settings(home=str(home))) as address:
        yield address


@pytest.fixture
def page_of(archive, open_page):
    """Opens a path when the tables have been read."""

    def open_path(path: str, **options: object):
        page = open_page(f"{archive}/", **options)
        expect(page.locator('tr[id="g-billing"]')).to_be_visible()
        page.goto(archive + path)
        return page

    return open_path


def second(number: int) -> str:
    return str(EpochMs(START_MS + number * 1_000))


def cell(page, name: str):
    return page.get_by_role("img", name=name, exact=True)


def move(page, number: int) -> None:
    """Move the slider to so many seconds after the start, as a pointer or the keys do."""
    slider = page.get_by_role("slider", name="Moment in the archived log")
    slider.evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', { bubbles: true })); }",
        START_MS + number * 1_000,
    )


def test_the_slider_shows_the_group_as_it_was_without_loading_the_page(page_of):
    page = page_of("/groups/billing")
    expect(cell(page, "c3 owns orders-7")).to_be_visible()
    page.evaluate("window.isSame = true")

    move(page, 8)
    expect(cell(page, "c2 owns orders-7")).to_be_visible()
    expect(page.locator(".lamp")).to_have_text("past")
    expect(page).to_have_url(re.compile(re.escape(quote(second(8), safe=""))))
    expect(page.get_by_role("textbox", name="Time")).to_have_value(second(8))

    move(page, 15)
    expect(cell(page, "c3 owns orders-7")).to_be_visible()
    page.get_by_role("link", name="Now", exact=True).click()
    expect(page.locator(".lamp")).to_have_text("archived log")
    assert "at=" not in page.url
    assert page.evaluate("window.isSame")


def test_the_slider_obeys_the_keyboard(page_of):
    page = page_of("/groups/billing")
    slider = page.get_by_role("slider", name="Moment in the archived log")
    slider.focus()
    page.keyboard.press("Home")
    expect(page.locator(".lamp")).to_have_text("past")
    expect(page.locator("#members tbody tr")).to_have_count(1)
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile(re.escape(quote(second(6), safe=""))))
    expect(page.locator("#members tbody tr")).to_have_count(2)
    expect(slider).to_have_attribute("aria-valuetext", second(6))


def test_a_slider_that_is_dragged_shows_the_last_moment(page_of):
    """Each moment on the way would be a replay; what the page shows at the end is what the slider shows."""
    page = page_of("/groups/billing")
    for number in (90, 60, 40, 20, 12, 8):
        move(page, number)

    expect(page.locator("#members tbody tr")).to_have_count(2)
    expect(cell(page, "c2 owns orders-7")).to_be_visible()
    expect(page.locator("[data-working]")).to_have_count(0)


def test_a_link_with_a_moment_stays_there(page_of):
    """Somebody sends the address of what he sees; from there every link stays in that moment."""
    page = page_of(f"/?at={quote(second(8))}")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("link", name="billing").click()
    expect(cell(page, "c2 owns orders-7")).to_be_visible()
    page.get_by_role("link", name="Groups").click()
    expect(page.locator(".lamp")).to_have_text("past")

    page.get_by_role("textbox", name="Time").fill(second(3))
    page.get_by_role("textbox", name="Time").press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="wakeroll").click()
    expect(page.locator("tbody tr")).to_have_count(1)


def test_links_outside_the_regions_follow_the_slider(page_of):
    page = page_of("/groups/billing")
    move(page, 8)
    expect(page.locator(".lamp")).to_have_text("past")
    page.get_by_role("link", name="What happened").click()

    expect(page.get_by_role("heading", name="What happened to billing")).to_be_visible()
    expect(page.get_by_label("to", exact=True)).to_have_value(second(8))


def test_the_back_button_returns_to_the_present(page_of):
    page = page_of("/groups/billing")
    expect(cell(page, "c3 owns orders-7")).to_be_visible()
    move(page, 8)
    expect(cell(page, "c2 owns orders-7")).to_be_visible()
    page.go_back()

    expect(cell(page, "c3 owns orders-7")).to_be_visible()
    expect(page.locator(".lamp")).to_have_text("archived log")


def test_a_moment_without_the_group_says_so_and_the_slider_leads_back(page_of):
    page = page_of("/groups/audit")
    move(page, 3)
    expect(page.get_by_role("heading", name="No group audit at this time")).to_be_visible()

    move(page, 30)
    expect(page.get_by_role("heading", name="audit", exact=True)).to_be_visible()


def test_a_slider_that_is_moved_before_the_script_runs_counts(page_of):
    """A page can be used as soon as it is drawn; on a slow line its script comes later."""
    page = page_of("/")
    scripts = []
    page.route("**/static/live.js", lambda route: scripts.append(route))
    page.goto(page.url + "groups/billing", wait_until="commit")
    expect(page.get_by_role("heading", name="billing", exact=True)).to_be_visible()
    move(page, 8)
    scripts.pop().continue_()

    expect(page.locator(".lamp")).to_have_text("past")
    expect(cell(page, "c2 owns orders-7")).to_be_visible()


def test_a_moment_between_two_steps_of_the_slider_stays(page_of):
    at = str(EpochMs(START_MS + 8_400))
    page = page_of(f"/groups/billing?at={quote(at)}")
    expect(page.locator("body")).to_have_attribute("data-connection", "open")

    expect(page.get_by_role("textbox", name="Time")).to_have_value(at)
    expect(page).to_have_url(re.compile(re.escape(quote(at))))


def test_a_wrong_time_is_refused_with_a_sentence(page_of):
    page = page_of("/")
    page.get_by_role("textbox", name="Time").fill("yesterday")
    page.get_by_role("button", name="Show").click()

    expect(page.get_by_role("alert").filter(has_text="'yesterday' is not a time")).to_be_visible()


def test_a_cell_leads_to_the_reason(page_of):
    page = page_of(f"/groups/billing?at={quote(second(8))}")
    cell(page, "c2 owns orders-7").click()

    expect(page.locator(".answer")).to_contain_text("orders-7 of billing is owned by c2 since")
    expect(page.locator(".steps li")).to_have_text(
        [re.compile(one) for one in ("c2 joined", "rebalance to epoch 2", "revocation was sent to c1", "c1 released",
                                     "assigned to c2")]
    )  # fmt: skip
    page.locator(".steps a").first.click()
    expect(page.locator(".lamp")).to_have_text("past")
    expect(page.get_by_role("heading", name="billing")).to_be_visible()


def test_what_if_predicts_from_the_form_of_the_group(page_of):
    page = page_of("/groups/billing")
    move(page, 8)
    expect(page.locator("#members tbody tr")).to_have_count(2)
    page.get_by_label("More members").fill("1")
    page.get_by_label("Strategy").select_option("SPREAD")
    page.get_by_role("button", name="Predict").click()

    expect(page.get_by_role("heading", name="Who would own what")).to_be_visible()
    expect(page.locator(".sums")).to_contain_text("strategy SPREAD, 1 more")
    expect(page.locator(".sums tbody tr", has_text="new-1")).to_contain_text("no member")
    assert page.locator("td.moves").count() >= 2
    expect(page.locator(".lamp")).to_have_text("past")
    page.get_by_label("Without members").fill("c9")
    page.get_by_role("button", name="Predict").click()
    expect(page.get_by_role("alert").filter(has_text="no client 'c9' in billing")).to_be_visible()


def test_what_if_predicts_slices_from_the_same_form(page_of):
    """As the command does: who has which part, and how many members read a partition."""
    page = page_of("/groups/billing")
    page.get_by_label("Slices of topics").fill("orders=3")
    page.get_by_role("button", name="Predict").click()
    expect(page.get_by_role("alert").filter(has_text="orders is 3; it must be a power of two")).to_be_visible()
    page.get_by_label("Slices of topics").fill("orders=2")
    page.get_by_label("More members").fill("1")
    page.get_by_role("button", name="Predict").click()

    expect(page.locator(".sums")).to_contain_text("orders in 2 slices, 1 more")
    expect(page.locator(".sums tbody tr", has_text="Readers")).to_contain_text("members read a partition, at most")
    expect(page.locator(".sums tbody tr", has_text="new-1")).to_contain_text("10 queues")
    expect(page.get_by_role("row", name="orders-7/1of2")).to_be_visible()
    expect(page.get_by_label("Slices of topics")).to_have_value("orders=2")


def test_names_in_events_are_text(page_of):
    page = page_of("/groups/billing/happened")

    expect(page.locator(".k-reset")).to_contain_text("offset of orders-0 reset to 7 by <b>mia</b>")
    expect(page.locator(".k-reset b")).to_have_count(0)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_narrow_window_needs_no_sideways_scrolling(page_of, dark):
    page = page_of("/", width=380, dark=dark)
    at = quote(second(8))
    for path in (f"/?at={at}", f"/groups/billing?at={at}", "/happened", f"/groups/billing/why?queue=orders-1&at={at}",
                 f"/groups/billing/what-if?add=2&strategy=SPREAD&at={at}", "/?at=x"):  # fmt: skip
        page.goto(page.url.split("/", 3)[0] + "//" + page.url.split("/")[2] + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, path


def test_without_javascript_the_text_field_leads_to_a_moment(archive, open_page, page_of):
    page_of("/")
    page = open_page(f"{archive}/groups/billing", javascript=False)
    page.get_by_role("textbox", name="Time").fill(second(8))
    page.get_by_role("button", name="Show").click()

    expect(cell(page, "c2 owns orders-7")).to_be_visible()
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(".lamp")).to_have_text("past")
