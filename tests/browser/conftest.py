"""A browser, and a control plane whose page it opens."""

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.systems.coordinator_thread import Coordinator, coordinating
from tests.support.systems.decision_sink import Sink
from tests.support.systems.web_site import served
from wakeroll.connection import Connection, Topics
from wakeroll_pipeline.settings import Settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A running Chromium for one module's tests.

    Playwright runs an event loop in this thread until it is stopped; tests of other modules call `asyncio.run`.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium fonts-liberation")
    sync_api.expect.set_options(timeout=PATIENCE_MS)
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: "Browser") -> Iterator[Callable[..., "Page"]]:
    """Opens an address in a window of its own; at the end no window may have reported an error."""
    contexts, problems = [], []

    def open_one(address: str, *, width: int = 1280, dark: bool = False, javascript: bool = True) -> "Page":
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=javascript,
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"a dialog appeared: {dialog.message}"))
        page.on(
            "console",
            lambda message: problems.append(message.text) if "Content Security Policy" in message.text else None,
        )
        page.goto(address)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="module")
def coordinator(broker) -> Iterator[Coordinator]:
    """The control plane of one module's tests, with topics of its own; its decisions are published."""
    with coordinating(Connection(broker.bootstrap, topics=Topics(f"page-{uuid.uuid4().hex[:6]}"))) as coordinator:
        sink = Sink(coordinator)
        sink.start()
        yield coordinator
        sink.stop()


@pytest.fixture(scope="module")
def site(coordinator: Coordinator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page that follows this control plane."""
    with served(settings_of(coordinator, tmp_path_factory.mktemp("home"))) as address:
        yield address


def settings_of(coordinator: Coordinator, home: Path) -> Settings:
    """Return the settings with which the page follows a control plane."""
    connection = coordinator.connection
    return Settings(bootstrap=connection.bootstrap, prefix=connection.topics.prefix, home=str(home))
