"""The web application: pages, their events, JSON endpoints, health checks and metrics."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.live.live_model import ViewSource
from wakeroll_pipeline.live.verdicts import Kind
from wakeroll_pipeline.live.view_structs import GroupSummary, Health
from wakeroll_pipeline.metrics import health as process_health
from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.access.login_pages import LoginPages
from wakeroll_pipeline.serve.access.page_frame import frame_of
from wakeroll_pipeline.serve.access.refusal import NoAnswer, Refused
from wakeroll_pipeline.serve.changes.change_pages import ChangePages
from wakeroll_pipeline.serve.changes.change_work import Work
from wakeroll_pipeline.serve.event_stream import Streams, events_when_ready
from wakeroll_pipeline.serve.history import History
from wakeroll_pipeline.serve.history_pages import HistoryPages
from wakeroll_pipeline.serve.page_builder import PageBuilder, json_answer
from wakeroll_pipeline.serve.page_queries import (
    GroupQuery,
    GroupsQuery,
    TopicsQuery,
    group_query,
    groups_query,
    topics_query,
)
from wakeroll_pipeline.serve.page_regions import PageRegions, Regions
from wakeroll_pipeline.serve.site import process_routes, site_app
from wakeroll_pipeline.serve.site_paths import base_of, own_path
from wakeroll_pipeline.serve.templating import link

_MOST_ROWS = 1_000
"""Maximum number of groups in one answer of the JSON endpoint."""


class TopicAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in the answer of ``/api/topics``."""

    topic: str
    groups: dict[str, Kind]
    """Group that subscribes it -> its verdict, the most urgent one first."""


class TopicsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/api/topics``."""

    health: Health
    total: int
    """Number of topics that match."""
    topics: Sequence[TopicAnswer]


class GroupsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/api/groups``."""

    health: Health
    total: int
    """Number of groups that match."""
    groups: Sequence[GroupSummary]


class WebApp:
    """The handlers of all routes."""

    def __init__(
        self,
        source: ViewSource,
        registry: CollectorRegistry,
        hosts: Sequence[str],
        history: History | None = None,
        gate: Gate | None = None,
        work: Work | None = None,
        health: process_health.Health | None = None,
        *,
        deployment: str = "",
        streams: Streams | None = None,
    ) -> None:
        """Prepare.

        Args:
            source: the views of the present.
            registry: the metrics of ``/metrics``.
            hosts: accepted names in the header `Host`; see `site_app`.
            history: answers queries about the past; None if there are no tables.
            gate: identifies the users; None: the page has no login.
            work: carries out changes; None: the page offers no changes.
            health: reports of the threads that follow the brokers; None: there are none.
            deployment: name of the deployment, if a site shows several; that site then has the login, the checks and
                the metrics.
            streams: the open streams of that site.
        """
        self.source = source
        self._base = base_of(deployment)
        may_change = gate is not None and work is not None
        self._pages = PageBuilder(
            PageRegions(source, may_change=may_change, deployment=deployment),
            history,
            lambda request: frame_of(gate, request, may_change),
        )
        self._changes = (
            None
            if gate is None or work is None
            else ChangePages(gate, self._pages.present, self._pages.plain_page, work)
        )
        self.streams = streams or Streams(gate)
        routes = [
            Route("/", self.groups_page, name="groups"),
            Route("/topics", self.topics_page),
            Route("/groups", lambda _: RedirectResponse(f"{self._base}/")),
            Route("/groups/{group_id}", self.group_page),
            *HistoryPages(self._pages).routes,
            Route("/events/groups", self.groups_events),
            Route("/events/topics", self.topics_events),
            Route("/events/groups/{group_id}", self.group_events),
            Route("/api/groups", self.groups_json),
            Route("/api/topics", self.topics_json),
            Route("/api/groups/{group_id}", self.group_json),
            *(() if self._changes is None else self._changes.routes),
            Route("/events/changes/{job_id}", self.change_events),
        ]
        handlers = {
            InvalidUsage: _refuse,
            NoAnswer: self._pages.no_answer,
            Refused: self._refused,
            404: self._missing,
        }
        if deployment:
            self.app = Starlette(routes=routes, exception_handlers=handlers)
            return
        logins = () if gate is None else LoginPages(gate, self._pages.plain_page).routes
        checks = process_routes(registry, health or process_health.Health("the log is not read"), self.readiness)
        self.app = site_app([*routes, *logins, *checks], hosts, gate, handlers)

    # --- pages ---

    async def groups_page(self, request: Request) -> Response:
        """Return the list of groups."""
        query, views = groups_query(request.query_params), await self._pages.views(request)
        regions, events = views.groups(query), self._events("/events/groups", request)
        return await self._pages.page(request, views, "groups.html", query=query, regions=regions, events=events)

    async def topics_page(self, request: Request) -> Response:
        """Return the list of topics with the groups that read them."""
        query, views = topics_query(request.query_params), await self._pages.views(request)
        regions, events = views.topics(query), self._events("/events/topics", request)
        return await self._pages.page(request, views, "topics.html", query=query, regions=regions, events=events)

    async def group_page(self, request: Request) -> Response:
        """Return the page of one group."""
        group_id, query = request.path_params["group_id"], group_query(request.query_params)
        views = await self._pages.views(request)
        regions = views.group(group_id, query)
        if regions is None:
            return await self._pages.missing(request, views, group_id)
        events = self._events(link(f"/events/groups/{group_id}"), request)
        return await self._pages.page(
            request, views, "group.html", query=query, regions=regions, events=events, group_id=group_id
        )

    async def _missing(self, request: Request, _error: Exception) -> Response:
        if own_path(request.url.path).startswith("/api/"):
            return PlainTextResponse(f"there is nothing at {request.url.path}\n", status_code=404)
        return await self._pages.missing(request, self._pages.present, "")

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused), "the application calls this for no other exception"
        if own_path(request.url.path).startswith(("/api/", "/events/")):
            return PlainTextResponse(f"{error}\n", error.status)
        return self._pages.plain_page(request, "refused.html", error.status, reason=str(error), further=error.link)

    # --- events ---

    def _events(self, path: str, request: Request) -> str:
        """Return the address of the events of a page, with its query."""
        query = request.url.query
        return f"{self._base}{path}?{query}" if query else f"{self._base}{path}"

    async def groups_events(self, request: Request) -> Response:
        """Stream the changes of the list of groups."""
        query: GroupsQuery = groups_query(request.query_params)
        return self._stream(request, lambda views: views.groups(query))

    async def topics_events(self, request: Request) -> Response:
        """Stream the changes of the list of topics."""
        query: TopicsQuery = topics_query(request.query_params)
        return self._stream(request, lambda views: views.topics(query))

    async def group_events(self, request: Request) -> Response:
        """Stream the changes of the page of one group."""
        query: GroupQuery = group_query(request.query_params)
        group_id = request.path_params["group_id"]
        return self._stream(request, lambda views: views.group(group_id, query))

    async def change_events(self, request: Request) -> Response:
        """Stream the state of a change."""
        if self._changes is None:
            return PlainTextResponse("this page changes nothing\n", status_code=404)
        regions = self._changes.job_regions(request)
        return self._stream(request, lambda _: regions())

    def _stream(self, request: Request, render: Callable[[PageRegions], Regions | None]) -> Response:
        def readable(views: PageRegions) -> Regions | None:
            return render(views) if self.streams.may_read(request) else None

        return self.streams.answer(
            lambda: events_when_ready(self._pages.views(request), readable, self.streams.stopping)
        )

    # --- JSON, and whether there is a state to show ---

    async def groups_json(self, request: Request) -> Response:
        """Return the list of groups as JSON, by the parameters of the page; `limit` and `offset` select rows."""
        query, view = groups_query(request.query_params), (await self._pages.views(request)).model.groups_view()
        found = query.ordered(query.of_verdict(query.matching(view.groups)))
        limit = _whole(request.query_params, "limit", 100, _MOST_ROWS)
        offset = _whole(request.query_params, "offset", 0, 10_000_000)
        return json_answer(GroupsAnswer(health=view.health, total=len(found), groups=found[offset : offset + limit]))

    async def topics_json(self, request: Request) -> Response:
        """Return the topics whose names contain a text, with the names and verdicts of their groups."""
        query, view = topics_query(request.query_params), (await self._pages.views(request)).model.groups_view()
        topics = [
            TopicAnswer(topic=row.topic, groups={one.group_id: one.verdict for one in row.groups})
            for row in query.rows(view.groups)
        ]
        return json_answer(TopicsAnswer(health=view.health, topics=topics[:_MOST_ROWS], total=len(topics)))

    async def group_json(self, request: Request) -> Response:
        """Return one group as JSON."""
        group_id = request.path_params["group_id"]
        view = (await self._pages.views(request)).model.group_view(group_id)
        if view is None:
            return json_answer({"error": f"there is no group {group_id!r}"}, 404)
        return json_answer(view)

    def readiness(self) -> process_health.Answer:
        """Return whether the log was read to its end, and the reason.

        A page with a state stays ready while the brokers cannot be reached, because it shows the state and the outage.
        """
        health = self.source.model.health()
        if health.state == "starting" or health.read < health.to_read:
            reading = f"reading the log: {health.read} of {health.to_read} records"
            return process_health.Answer(False, "\n".join([reading, *(one.text for one in health.notices)]))
        broken = [one.text for one in health.notices if one.kind == "broker-gone"]
        if broken and not health.as_of_ms:
            return process_health.Answer(False, broken[0])
        return process_health.Answer(True, "\n".join(["ready", *(one.text for one in health.notices)]))


def _whole(params: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= most):
        raise InvalidUsage(f"{name} is {text[:64]!r}; it must be a number from 0 to {most}")
    return int(text)


async def _refuse(_request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", status_code=400)
