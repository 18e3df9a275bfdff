"""The pages and JSON endpoints of the past and of predictions: events, explanations of owners, and what-if."""

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wakeroll.errors import InvalidUsage
from wakeroll.reset import queue_of
from wakeroll_model.queue import Queue
from wakeroll_model.rows import SNAPSHOTS
from wakeroll_model.what_if import NotPlayable, Prediction, predict
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.questions.explain import Explanation, explain_nearby
from wakeroll_pipeline.questions.happening_rows import NOTHING, happening_rows, kind_counts
from wakeroll_pipeline.questions.happenings import Happened, happened, period_of, refuse_if_unknown
from wakeroll_pipeline.questions.what_if_answers import document_of, not_known, notes_of, words_of
from wakeroll_pipeline.serve.access.refusal import NoAnswer
from wakeroll_pipeline.serve.page_builder import PageBuilder, json_answer, moment_of
from wakeroll_pipeline.serve.page_queries import PER_PAGE, Slice, group_query
from wakeroll_pipeline.serve.page_regions import PageRegions
from wakeroll_pipeline.serve.what_if_query import WhatIfQuery, strategy_names, table_of, what_if_query


class HappenedPage(Happened, frozen=True, kw_only=True):
    """A page of the events of a period."""

    page: int


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the chain that led to an owner."""

    at_ms: int
    what: str
    record: str
    """The record of the step, or the record that caused it, as ``topic-partition@offset``; empty if none."""


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of the owner of a queue."""

    group_id: str
    queue: str
    at_ms: int
    answer: str
    steps: list[StepRow]
    """Oldest first by offset."""
    missing: Sequence[str] = ()
    """Phrases about decisions and records that are recorded as lost, and may have been about the queue."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted effects of changes."""

    at_ms: int
    answers: dict[str, Prediction]
    """Title of an alternative -> its prediction."""


class HistoryPages:
    """The handlers of these pages and endpoints."""

    def __init__(self, pages: PageBuilder) -> None:
        """Use the pages of this builder."""
        self._pages = pages
        self.routes = [
            Route("/happened", self.happened_page),
            Route("/groups/{group_id}/happened", self.happened_page),
            Route("/groups/{group_id}/why", self.why_page),
            Route("/groups/{group_id}/what-if", self.what_if_page),
            Route("/api/extent", self.extent_json),
            Route("/api/happened", self.happened_json),
            Route("/api/groups/{group_id}/happened", self.happened_json),
            Route("/api/groups/{group_id}/why", self.why_json),
            Route("/api/groups/{group_id}/what-if", self.what_if_json),
        ]

    async def extent_json(self, _request: Request) -> Response:
        """Return the period of the past that can be shown."""
        return json_answer(await self._pages.past().extent())

    # --- what happened ---

    async def happened_page(self, request: Request) -> Response:
        """Return the page of the events between two moments."""
        found = await self._happened(request)
        total = found.happened.total
        shown = Slice(rows=found.happened.events, total=total, page=found.page, pages=max(1, -(-total // PER_PAGE)))
        return await self._pages.page(
            request,
            await self._pages.views(request),
            "happened.html",
            found=found,
            group_id=found.group_id,
            shown=shown,
            rows=list(happening_rows(found.happened.events)),
            counts=list(kind_counts(found.happened.counts)),
            nothing=NOTHING,
        )

    async def happened_json(self, request: Request) -> Response:
        """Return the events between two moments."""
        return json_answer(await self._happened(request))

    async def _happened(self, request: Request) -> HappenedPage:
        history = self._pages.past()
        extent = await history.extent()
        if extent.first_ms is None or extent.last_ms is None:
            raise NoAnswer(extent.reason, 404)
        given = request.query_params
        begin, end = given.get("from", "").strip(), given.get("to", "").strip() or given.get("at", "").strip()
        try:
            from_ms, to_ms = period_of(
                extent.first_ms,
                extent.last_ms,
                int(moment_of(begin, "from")) if begin else None,
                int(moment_of(end, "to")) if end else None,
            )
        except InvalidUsage as error:
            raise NoAnswer(str(error)) from None
        group_id, page = request.path_params.get("group_id", ""), group_query(given).page

        found = await history.ask(lambda ledger: _happened(ledger, from_ms, to_ms, group_id, page), SNAPSHOTS)
        pages = max(1, -(-found.happened.total // PER_PAGE))
        if page > pages:
            raise NoAnswer(f"page is {page}; this period has {pages}")
        return HappenedPage(page=page, **structs.asdict(found))

    # --- why ---

    async def why_page(self, request: Request) -> Response:
        """Return the page that explains the owner of a queue."""
        views = await self._pages.views(request)
        found = await self._why(request, views)
        return await self._pages.page(request, views, "why.html", found=found, group_id=found.group_id)

    async def why_json(self, request: Request) -> Response:
        """Return the explanation of the owner of a queue."""
        return json_answer(await self._why(request, await self._pages.views(request)))

    async def _why(self, request: Request, views: PageRegions) -> Why:
        history = self._pages.past()
        group_id, text = request.path_params["group_id"], request.query_params.get("queue", "")
        queue = _queue_of(views, group_id, text)
        at_ms = int(moment_of(views.at, "at")) if views.at else None

        found = await history.ask(lambda ledger: _explained(ledger, group_id, queue, at_ms), SNAPSHOTS)
        extent = await history.extent()
        return Why(
            group_id=group_id,
            queue=str(queue),
            at_ms=(extent.last_ms or 0) if at_ms is None else at_ms,
            answer=found.answer,
            steps=[StepRow(at_ms=one.at_ms, what=one.what, record=one.where) for one in found.steps],
            missing=found.missing,
        )

    # --- what if ---

    async def what_if_page(self, request: Request) -> Response:
        """Return the page with the prediction of a change, and the form."""
        views = await self._pages.views(request)
        group_id, query = request.path_params["group_id"], _what_if_query(request)
        view = views.model.group_view(group_id)
        if view is None:
            return await self._pages.missing(request, views, group_id)
        values = {
            "group_id": group_id,
            "view": view,
            "group": view.summary,
            "what_if": query,
            "strategies": strategy_names(),
        }
        if query.is_empty:
            return await self._pages.page(request, views, "what_if.html", table=None, problem="", **values)
        try:
            found = await self._what_if(views, group_id, query)
        except NoAnswer as problem:
            return await self._pages.page(
                request, views, "what_if.html", status=problem.status, table=None, problem=str(problem), **values
            )
        notes = {title: notes_of(answer) for title, answer in found.answers.items()}
        return await self._pages.page(
            request, views, "what_if.html", table=table_of(found.answers, notes), problem="", **values
        )

    async def what_if_json(self, request: Request) -> Response:
        """Return the prediction of a change."""
        views, query = await self._pages.views(request), _what_if_query(request)
        if query.is_empty:
            raise NoAnswer("no change is named; use at least one of strategy, add, remove, queues, slices")
        found = await self._what_if(views, request.path_params["group_id"], query)
        return json_answer(document_of(found.at_ms, found.answers))

    async def _what_if(self, views: PageRegions, group_id: str, query: WhatIfQuery) -> WhatIf:
        return await self._pages.workers.run(partial(_predicted, views, group_id, query))


def _predicted(views: PageRegions, group_id: str, query: WhatIfQuery) -> WhatIf:
    """Return the predictions for a group; call it in a thread.

    Raises:
        NoAnswer: there is no such group, its state is not known, or the change cannot be played.
    """
    shard = views.model.shard_of(group_id)
    if shard is None:
        if views.model.group_view(group_id) is None:
            raise NoAnswer(f"there is no group {group_id!r}", 404)
        raise NoAnswer(not_known(group_id), 404 if views.at else 503)
    try:
        answers = {words_of(change): predict(shard, group_id, change) for change in query.changes()}
    except (NotPlayable, InvalidUsage) as error:
        raise NoAnswer(str(error)) from None
    return WhatIf(at_ms=shard.tick_ms, answers=answers)


def _what_if_query(request: Request) -> WhatIfQuery:
    try:
        return what_if_query(request.query_params)
    except InvalidUsage as error:
        raise NoAnswer(str(error)) from None


def _happened(ledger: DuckLedger, from_ms: int, to_ms: int, group_id: str, page: int) -> Happened:
    """Return a page of events.

    Raises:
        NoAnswer: the tables do not have the group.
    """
    found = happened(ledger, from_ms, to_ms, group_id, limit=PER_PAGE, skip=(page - 1) * PER_PAGE)
    try:
        refuse_if_unknown(ledger, found)
    except InvalidUsage as error:
        raise NoAnswer(str(error), 404) from None
    return found


def _explained(ledger: DuckLedger, group_id: str, queue: Queue, at_ms: int | None) -> Explanation:
    """Return the explanation of an owner.

    Raises:
        NoAnswer: the tables do not have the group, or the queue never had an owner in it.
    """
    try:
        return explain_nearby(ledger, group_id, queue, at_ms)
    except InvalidUsage as error:
        raise NoAnswer(str(error), 404) from None


def _queue_of(views: PageRegions, group_id: str, text: str) -> Queue:
    """Return the queue with a name, by the group's queues; the group may not have it any more.

    Raises:
        NoAnswer: the text is not the name of a queue.
    """
    view = views.model.group_view(group_id)
    known = {} if view is None else {one.name: one.queue for one in view.queues}
    if text in known:
        return known[text]
    try:
        return queue_of(text)
    except InvalidUsage as error:
        raise NoAnswer(f"queue: {error}") from None
