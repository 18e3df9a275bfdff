"""The page of several deployments: the list of them with their states, and below it the page of each."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.live.live_model import LiveModel
from wakeroll_pipeline.live.verdicts import KINDS, Kind
from wakeroll_pipeline.live.view_structs import Health
from wakeroll_pipeline.metrics import health as process_health
from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.access.login_pages import LoginPages
from wakeroll_pipeline.serve.access.page_frame import frame_of
from wakeroll_pipeline.serve.access.refusal import Refused
from wakeroll_pipeline.serve.event_stream import Streams, events
from wakeroll_pipeline.serve.page_builder import json_answer
from wakeroll_pipeline.serve.page_queries import GroupsQuery
from wakeroll_pipeline.serve.page_regions import Regions, Stamp, stamp_of
from wakeroll_pipeline.serve.site import process_routes, site_app
from wakeroll_pipeline.serve.site_paths import base_of
from wakeroll_pipeline.serve.templating import environment
from wakeroll_pipeline.serve.web_app import WebApp


class DeploymentRow(Struct, frozen=True, kw_only=True):
    """One deployment in the list."""

    name: str
    health: Health
    groups: int
    members: int
    attention: int
    """Number of groups whose verdict is neither healthy nor empty."""
    verdicts: dict[Kind, int]
    """Verdict -> number of groups with it; the most urgent verdict first."""


class DeploymentsAnswer(Struct, frozen=True, kw_only=True):
    """The answer of ``/api/deployments``."""

    deployments: Sequence[DeploymentRow]


class DeploymentsPage:
    """The application, with the pages of all deployments in it."""

    def __init__(
        self,
        pages: Mapping[str, WebApp],
        registry: CollectorRegistry,
        hosts: Sequence[str],
        gate: Gate | None,
        health: process_health.Health,
        streams: Streams,
    ) -> None:
        """Prepare.

        Args:
            pages: name of a deployment -> its page, which uses the same `gate` and `streams`.
            registry: the metrics of ``/metrics``.
            hosts: names in the header `Host` that are answered; see `site_app`.
            gate: identifies the users; None: the page has no login.
            health: reports of the threads of all deployments.
            streams: the open streams of all pages.
        """
        self._pages = pages
        self._gate = gate
        self.streams = streams
        self._rows: dict[str, tuple[Stamp, DeploymentRow]] = {}
        self.app = site_app(
            [
                Route("/", self.list_page),
                Route("/events/deployments", self.list_events),
                Route("/api/deployments", self.list_json),
                *(Mount(base_of(name), page.app) for name, page in pages.items()),
                *(() if gate is None else LoginPages(gate, self._render).routes),
                *process_routes(registry, health, self.readiness),
            ],
            hosts,
            gate,
            {Refused: self._refused, InvalidUsage: self._refused, 404: self._missing},
        )

    async def list_page(self, request: Request) -> Response:
        """Return the list of deployments."""
        return self._render(request, "deployments.html", regions=self._regions(), events="/events/deployments")

    async def list_events(self, request: Request) -> Response:
        """Stream the changes of the list."""

        def regions() -> Regions | None:
            return self._regions() if self.streams.may_read(request) else None

        def now() -> tuple[int, str]:
            health = self._health()
            return health.as_of_ms, health.state

        return self.streams.answer(lambda: events(regions, now, self.streams.stopping))

    async def list_json(self, _request: Request) -> Response:
        """Return the list of deployments as JSON."""
        return json_answer(DeploymentsAnswer(deployments=[_row(name, self._model(name)) for name in self._pages]))

    def readiness(self) -> process_health.Answer:
        """Return whether any deployment can be shown, and the state of each; an unreachable one hides no other."""
        answers = {name: page.readiness() for name, page in self._pages.items()}
        is_ready = any(one.ok for one in answers.values())
        states = [f"{name}: {'; '.join(one.reason.splitlines())}" for name, one in answers.items()]
        return process_health.Answer(is_ready, "\n".join(["ready" if is_ready else "no deployment is ready", *states]))

    def _model(self, name: str) -> LiveModel:
        return self._pages[name].source.model

    def _list(self) -> list[DeploymentRow]:
        """Return the rows; a row is reused if its deployment has not changed."""
        for name in self._pages:
            model = self._model(name)
            stamp = stamp_of(model)
            if name not in self._rows or self._rows[name][0] != stamp:
                self._rows[name] = stamp, _row(name, model)
        return [row for _, row in self._rows.values()]

    def _health(self) -> Health:
        """Return the health of all deployments together."""
        every = [self._model(name).health() for name in self._pages]
        worst = max(every, key=lambda one: (one.state == "stale", one.state == "starting"))
        return Health(source="live", state=worst.state, as_of_ms=max(one.as_of_ms for one in every))

    def _regions(self) -> Regions:
        values, template = self._status(), environment().get_template
        return {
            "status": template("deployments/status.html").render(values),
            "deployments": template("deployments/deployments.html").render(values),
        }

    def _status(self) -> dict[str, object]:
        """Return the values of the list, and of the status in the frame of each page."""
        return {"deployments": self._list(), "state": self._health().state}

    def _render(self, request: Request, template: str, status: int = 200, /, **values: object) -> Response:
        values |= self._status() | {"at": "", "listed": "deployments", "health": self._health()}
        values["frame"] = frame_of(self._gate, request, may_change=False)
        return HTMLResponse(environment().get_template(template).render(values), status)

    async def _missing(self, request: Request, _error: Exception) -> Response:
        if request.url.path.startswith("/api/"):
            return PlainTextResponse(f"there is nothing at {request.url.path}\n", status_code=404)
        return self._render(request, "missing.html", 404, group_id="", shown_path=request.url.path)

    async def _refused(self, request: Request, error: Exception) -> Response:
        status = error.status if isinstance(error, Refused) else 400
        return self._render(request, "refused.html", status, reason=str(error), further="")


def _row(name: str, model: LiveModel) -> DeploymentRow:
    view = model.groups_view()
    counts = Counter(one.verdict for one in view.groups)
    return DeploymentRow(
        name=name,
        health=view.health,
        groups=len(view.groups),
        members=sum(one.members for one in view.groups),
        attention=len(GroupsQuery(verdict="attention").of_verdict(view.groups)),
        verdicts={kind: counts[kind] for kind in KINDS if counts[kind]},
    )
