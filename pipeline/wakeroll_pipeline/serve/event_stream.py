"""Server-sent events: each open page receives the regions that changed, in their newest state only.

A connection renders only when it can send, so a slow reader has no backlog: it skips states, and does not slow other
readers.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.page_regions import PageRegions, Regions

EVERY_S = 1.0
"""Minimum time between two events of a connection (s)."""
PULSE_S = 5.0
"""Longest time between two events (s), so that a browser detects a lost connection."""
RETRY_MS = 2_000
"""Time after which a browser connects again (ms)."""
MOST_STREAMS = 1_000
"""Maximum number of open streams; more are refused."""


GONE = b"event: gone\ndata: {}\n\n"
"""Event for a page that does not exist any more: the browser loads the page again, which shows the reason."""
_WORKING = b"event: working\ndata: {}\n\n"
"""Event while the state is being rebuilt, so that the connection stays open."""


class Streams:
    """The open streams of all pages of this process."""

    def __init__(self, gate: Gate | None) -> None:
        """Begin without streams; `gate` identifies the users; None: the page has no login."""
        self._gate = gate
        self._open = 0
        self.stopping = asyncio.Event()
        """Ends all streams when it is set."""

    def may_read(self, request: Request) -> bool:
        """Return whether the user of a request may still read, because a session may end while a stream is open."""
        return self._gate is None or not self._gate.options.require_login or self._gate.visitor(request) is not None

    def answer(self, begin: Callable[[], AsyncIterator[bytes]]) -> Response:
        """Return a response that streams events; `begin` is called when its reader can receive them."""
        if self._open >= MOST_STREAMS:
            return PlainTextResponse(f"{MOST_STREAMS} pages are open already\n", status_code=503)

        async def counted() -> AsyncIterator[bytes]:
            self._open += 1
            try:
                async for event in begin():
                    yield event
            finally:
                self._open -= 1

        return StreamingResponse(counted(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one event."""

    now_ms: int
    """Log time of the newest record (epoch ms), from which ages are counted."""
    state: str
    """State of the health, such as ``live``."""
    regions: dict[str, str]
    """Changed regions only."""


async def events_when_ready(
    views: Coroutine[None, None, PageRegions],
    render: Callable[[PageRegions], Regions | None],
    stopping: asyncio.Event,
) -> AsyncIterator[bytes]:
    """Yield the events of one page when its views are ready; a state of the past may have to be rebuilt.

    If the browser closes the connection earlier, the preparation of the views is cancelled.
    """
    preparing = asyncio.ensure_future(views)
    try:
        await asyncio.wait({preparing}, timeout=EVERY_S)
        while not preparing.done() and not stopping.is_set():
            yield _WORKING
            await asyncio.wait({preparing}, timeout=EVERY_S)
        if stopping.is_set():
            return
        try:
            ready = preparing.result()
        except InvalidUsage:
            yield GONE
            return
    finally:
        preparing.cancel()
    async for event in events(lambda: render(ready), ready.now, stopping):
        yield event


async def events(
    regions: Callable[[], Regions | None], now: Callable[[], tuple[int, str]], stopping: asyncio.Event
) -> AsyncIterator[bytes]:
    """Yield the events of one page: first all of its regions, then those that changed.

    Args:
        regions: renders the page's regions; returns None if the page does not exist any more.
        now: returns the log time and the state.
        stopping: ends the stream when it is set.
    """
    yield f"retry: {RETRY_MS}\n\n".encode()
    sent: dict[str, str] = {}
    loop = asyncio.get_running_loop()
    sent_s = -PULSE_S
    while not stopping.is_set():
        found = regions()
        if found is None:
            yield GONE
            return
        changed = {name: html for name, html in found.items() if sent.get(name) != html}
        if changed or loop.time() - sent_s >= PULSE_S:
            now_ms, state = now()
            sent |= changed
            sent_s = loop.time()
            yield (
                b"event: update\ndata: "
                + msgspec.json.encode(Update(now_ms=now_ms, state=state, regions=changed))
                + b"\n\n"
            )
        try:
            await asyncio.wait_for(stopping.wait(), EVERY_S)
        except TimeoutError:
            continue
