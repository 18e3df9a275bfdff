"""Whole pages: the views of the moment in a request, the time bar, and the texts of errors."""

from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll.time_text import time_of
from wakeroll_pipeline.serve.access.page_frame import Frame
from wakeroll_pipeline.serve.access.refusal import NoAnswer
from wakeroll_pipeline.serve.history import Extent, History
from wakeroll_pipeline.serve.page_regions import PageRegions
from wakeroll_pipeline.serve.page_threads import WorkerThreads
from wakeroll_pipeline.serve.site_paths import own_path

_STEPS = 3_600
"""Maximum number of steps of the slider, if the archived log has more seconds."""
_NO_TABLES = "this server reads no tables"


class TimeBar(msgspec.Struct, frozen=True, kw_only=True):
    """The bar by which a reader chooses a moment."""

    extent: Extent
    at: str
    """The shown moment, in the form of the address; empty for the present."""
    path: str
    """Address of the page, without parameters."""
    others: Sequence[tuple[str, str]]
    """The other parameters of the address."""

    @property
    def value_ms(self) -> int:
        """Position of the slider (epoch ms)."""
        return int(time_of(self.at)) if self.at else self.extent.last_ms or 0

    @property
    def step_ms(self) -> int:
        """Step of the slider: a second, or more in a long log (ms)."""
        length_ms = (self.extent.last_ms or 0) - (self.extent.first_ms or 0)
        return max(1, round(length_ms / 1_000 / _STEPS)) * 1_000


class PageBuilder:
    """Builds pages for requests."""

    def __init__(self, present: PageRegions, history: History | None, frame: Callable[[Request], Frame]) -> None:
        """Show the present, and the past if there is a history; `frame` returns the parts that depend on the reader."""
        self.present = present
        self._frame = frame
        self.history = history
        self.workers = WorkerThreads() if history is None else history.workers

    async def views(self, request: Request) -> PageRegions:
        """Return the views of the moment in the parameter `at` of a request, or of the present.

        Raises:
            NoAnswer: the moment is not a time, or not in the archived log; or there are no tables.
        """
        text = request.query_params.get("at", "").strip()
        if not text:
            return self.present
        return (await self.past().moment(moment_of(text, "at"))).regions

    def past(self) -> History:
        """Return the history.

        Raises:
            NoAnswer: there are no tables.
        """
        if self.history is None:
            raise NoAnswer(_NO_TABLES, 404)
        return self.history

    async def page(
        self, request: Request, views: PageRegions, template: str, *, status: int = 200, **values: object
    ) -> HTMLResponse:
        """Return a page by the name of its template."""
        extent = Extent(reason=_NO_TABLES) if self.history is None else await self.history.extent()
        others = [(name, value) for name, value in request.query_params.multi_items() if name not in ("at", "page")]
        bar = TimeBar(extent=extent, at=views.at, path=request.url.path, others=others)
        html = views.page(template, health=views.model.health(), bar=bar, frame=self._frame(request), **values)
        return HTMLResponse(html, status_code=status)

    def plain_page(self, request: Request, template: str, status: int = 200, /, **values: object) -> HTMLResponse:
        """Return a page of the present without the bar, such as a form."""
        health = self.present.model.health()
        return HTMLResponse(self.present.page(template, health=health, frame=self._frame(request), **values), status)

    async def missing(self, request: Request, views: PageRegions, group_id: str) -> Response:
        """Return the page that reports that a group, or the page itself, does not exist."""
        return await self.page(
            request, views, "missing.html", status=404, group_id=group_id, shown_path=request.url.path
        )

    async def no_answer(self, request: Request, error: Exception) -> Response:
        """Return the reason why there is no answer: as a page, or as JSON."""
        status = error.status if isinstance(error, NoAnswer) else 400
        path = own_path(request.url.path)
        if path.startswith("/api/"):
            return json_answer({"error": str(error)}, status)
        if path.startswith("/events/"):
            return PlainTextResponse(f"{error}\n", status_code=status)
        return await self.page(request, self.present, "no_answer.html", status=status, reason=str(error))


def moment_of(text: str, name: str) -> EpochMs:
    """Parse a moment.

    Args:
        text: ISO 8601 with a zone, or epoch ms.
        name: name of the parameter, for the error.

    Raises:
        NoAnswer: the text is not a time.
    """
    try:
        return time_of(text[:64])
    except (InvalidUsage, ValueError, OverflowError) as error:
        raise NoAnswer(f"{name}: {error}") from None


def json_answer(answer: object, status: int = 200) -> Response:
    """Return an answer as JSON."""
    return Response(msgspec.json.encode(answer), status_code=status, media_type="application/json")
