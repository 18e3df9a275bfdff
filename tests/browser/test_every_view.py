"""Every view in Chromium: wide, on a phone and dark; each leaves a picture in the folder of the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.delta_tables import write_tables
from tests.support.ledgers import Story, a_day
from tests.support.page_contrast import CONTRAST
from tests.support.systems.changing_page import PASSWORD, USER, changing_page
from tests.support.systems.deployments_site import deployments_site
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll_pipeline.serve.access.access_options import AccessOptions
from wakeroll_pipeline.serve.access.user_file import add_user

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.operate]

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect

LONG = "reconciliation-of-invoices-of-all-branches-in-the-northern-hemisphere"
"""Name of a group with many members, whose names are long too."""
BILLING = "/deployments/prod/groups/billing"
VIEWS = {
    "deployments": "/",
    "groups": "/deployments/prod/",
    "groups-attention": "/deployments/prod/?verdict=attention",
    "groups-none": "/deployments/prod/?q=no+such+group",
    "topics": "/deployments/prod/topics",
    "group": BILLING,
    "group-large": f"/deployments/prod/groups/{LONG}",
    "happened": "/deployments/prod/happened",
    "happened-group": f"{BILLING}/happened",
    "why": f"{BILLING}/why?queue=orders-3",
    "what-if": f"{BILLING}/what-if?strategy=SPREAD&add=2",
    "change": f"{BILLING}/change",
    "change-problem": f"{BILLING}/change/settings?session_timeout_ms=soon",
    "settings": f"{BILLING}/change/settings?session_timeout_ms=20000&strategy=SPREAD",
    "kick": f"{BILLING}/change/kick?client=c3&keep_out=10m",
    "inspect": f"{BILLING}/change/inspect?client=c3",
    "missing": "/deployments/prod/groups/nobody",
    "nothing": "/nothing",
    "refused": "/deployments/prod/changes/0",
    "no-answer": "/deployments/prod/?at=yesterday",
    "away": "/deployments/test/",
}
"""Name of a picture -> the address of its view."""
MODES = {"wide": (1280, False), "phone": (390, False), "dark": (1280, True), "dark-phone": (390, True)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("views")
    write_tables(folder / "warehouse", busy_day())
    users, provider = folder / "users.toml", folder / "oidc.toml"
    add_user(users, USER, PASSWORD)
    lines = 'issuer = "https://sso.example"\nclient_id = "page"\ntitle = "Our SSO"\n[roles."*"]\nrole = "viewer"\n'
    provider.write_text(lines)
    with deployments_site(folder, AccessOptions(auth_file=users, oidc=provider, allow_changes=True)) as address:
        yield address


def busy_day() -> Story:
    story = a_day()
    story.route("invoices-of-the-northern-hemisphere", 24, ends=5_000_000)
    for number in range(26):
        story.join(LONG, f"worker-of-branch-{number:02}.eu-north-1.internal", "invoices-of-the-northern-hemisphere")
    story.pass_seconds(10)
    story.commit(LONG, 1_234_567)
    story.pass_seconds(10)
    return story


def log_in(page, site: str) -> None:
    page.goto(f"{site}/login")
    page.get_by_label("Name").fill(USER)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator(".who")).to_have_text(USER)


def look_at(page, width: int, file: Path) -> None:
    """Leave a picture of a view, and check that it can be read."""
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    page.screenshot(path=file, full_page=True)
    assert page.evaluate(CONTRAST) == [], file.stem
    assert page.evaluate("document.documentElement.scrollWidth") == width, f"{file.stem} scrolls sideways"


@pytest.mark.parametrize("mode", MODES)
def test_every_view_can_be_read(site, open_page, tmp_path, mode):
    """Contrast as WCAG AA has it, and no scrolling sideways."""
    width, dark = MODES[mode]
    page = open_page(f"{site}/login", width=width, dark=dark)
    look_at(page, width, tmp_path / f"login-{mode}.png")
    log_in(page, site)
    for name, path in VIEWS.items():
        page.goto(f"{site}{path}")
        look_at(page, width, tmp_path / f"{name}-{mode}.png")


@pytest.mark.parametrize("mode", MODES)
def test_a_plan_and_a_change_can_be_read(broker, open_page, tmp_path, mode):
    width, dark = MODES[mode]
    with changing_page(broker.bootstrap, tmp_path) as plane:
        topic, connection = plane.coordinator.topic(6), plane.coordinator.connection
        plane.coordinator.produce(topic, 0, 20)
        with Consumer(
            "billing", [topic], connection.bootstrap, client_id="c1", prefix=connection.topics.prefix,
            consume_from="first",
        ) as consumer:  # fmt: skip
            wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), "the member has its queues")
            page = open_page(f"{plane.address}/login", width=width, dark=dark)
            log_in(page, plane.address)
            page.goto(f"{plane.address}/groups/billing")
            expect(page.locator("#queues tbody tr")).to_have_count(6)
            look_at(page, width, tmp_path / f"live-group-{mode}.png")
            page.goto(f"{plane.address}/groups/billing/change/reset?to=last")
            look_at(page, width, tmp_path / f"plan-{mode}.png")
            page.get_by_role("button", name="Reset").click()
            expect(page.locator('[data-state="done"]')).to_have_count(1)
            look_at(page, width, tmp_path / f"outcome-{mode}.png")


def test_the_keyboard_alone_leads_from_the_deployments_to_a_change(site, open_page):
    """Nobody needs a mouse, and what has the focus can be seen."""
    page = open_page(f"{site}/login")
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type(USER)
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Deployments")
    tab_to(page, "prod")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Groups")
    expect(page.locator("body")).to_have_attribute("data-connection", "open")  # the script runs
    page.keyboard.press("/")
    page.keyboard.type("billing")
    expect(page.locator("#groups tbody tr")).to_have_count(1)
    tab_to(page, "billing")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("billing")
    tab_to(page, "Change this group")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Change billing")
    tab_to(page, "Review the settings")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").filter(has_text="no setting is named")).to_be_visible()
    tab_to(page, "Deployments")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Deployments")
    tab_to(page, "Log out")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Log in")).to_be_visible()


FOCUSED = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  return [one.textContent.trim(), style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0];
}"""


def tab_to(page, text: str) -> None:
    """Press Tab until the element with a text has the focus; each that has it on the way must show it."""
    seen = []
    for _ in range(120):
        page.keyboard.press("Tab")
        found, is_shown = page.evaluate(FOCUSED)
        seen.append(found)
        if found == text:
            assert is_shown, f"the focus on {text!r} cannot be seen"
            return
    raise AssertionError(f"Tab does not lead to {text!r}, but to {seen}")
