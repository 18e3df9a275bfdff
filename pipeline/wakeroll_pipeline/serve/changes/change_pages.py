"""The pages with which a known user changes a group: the forms, the plan, and the state of the request."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from wakeroll.errors import InvalidUsage, WakerollError
from wakeroll_model.strategies import STRATEGIES
from wakeroll_pipeline.live.view_structs import GroupView, MemberRow
from wakeroll_pipeline.serve.access.gate import Gate, Visitor
from wakeroll_pipeline.serve.access.login_pages import login_address
from wakeroll_pipeline.serve.access.refusal import Refused
from wakeroll_pipeline.serve.access.rights import Role
from wakeroll_pipeline.serve.changes.change_jobs import ChangeJobs, Job, Result
from wakeroll_pipeline.serve.changes.change_requests import (
    CHOICES,
    NUMBERS,
    ResetRequest,
    client_of,
    kick_of,
    reason_of,
    reset_of,
    settings_of,
)
from wakeroll_pipeline.serve.changes.change_work import Work
from wakeroll_pipeline.serve.changes.plan_summary import PlanSummary, summary_of
from wakeroll_pipeline.serve.form_body import fields_of
from wakeroll_pipeline.serve.page_regions import PageRegions, Regions
from wakeroll_pipeline.serve.page_renderer import Renderer
from wakeroll_pipeline.serve.site_paths import base_of
from wakeroll_pipeline.serve.templating import link

JOB_REGIONS = ("status", "outcome")
MOST_LISTED = 500
"""Queues and clients that the forms suggest."""


class ChangePages:
    """The handlers of all changes."""

    def __init__(self, gate: Gate, regions: PageRegions, render: Renderer, work: Work) -> None:
        """Prepare.

        Args:
            gate: knows the users.
            regions: renders the state of the system, and knows the groups.
            render: renders pages.
            work: carries out plans and changes.
        """
        self._gate = gate
        self._regions = regions
        self._render = render
        self._work = work
        self.jobs = ChangeJobs()

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The routes of the pages; `WebApp` has that of the events."""
        group = "/groups/{group_id}/change"
        return (
            Route(group, self.forms, methods=["GET"]),
            Route(f"{group}/reset", self.plan, methods=["GET"]),
            Route(f"{group}/reset", self.reset, methods=["POST"]),
            Route(f"{group}/settings", self.review, methods=["GET"]),
            Route(f"{group}/settings", self.configure, methods=["POST"]),
            Route(f"{group}/rebalance", self.rebalance, methods=["POST"]),
            Route(f"{group}/kick", self.review_kick, methods=["GET"]),
            Route(f"{group}/kick", self.kick, methods=["POST"]),
            Route(f"{group}/inspect", self.review_inspection, methods=["GET"]),
            Route(f"{group}/inspect", self.inspect, methods=["POST"]),
            Route(f"{group}/readmit", self.readmit, methods=["POST"]),
            Route(f"{group}/pause", self.pause, methods=["POST"]),
            Route(f"{group}/resume", self.resume, methods=["POST"]),
            Route(f"{group}/delete", self.review_deletion, methods=["GET"]),
            Route(f"{group}/delete", self.delete, methods=["POST"]),
            Route("/changes/{job_id}", self.job, methods=["GET"]),
        )

    # --- forms and previews ---

    async def forms(self, request: Request) -> Response:
        """Show all forms of a group."""
        visitor = self._visitor(request, "operator")
        if visitor is None:
            return self._unknown(request)
        return self._forms(request, visitor, self._view(request), request.query_params)

    async def plan(self, request: Request) -> Response:
        """Show what a reset would change."""
        visitor = self._visitor(request, "operator")
        if visitor is None:
            return self._unknown(request)
        return await self._plan(request, visitor, request.query_params)

    async def review(self, request: Request) -> Response:
        """Show which settings would change."""
        visitor = self._visitor(request, "administrator")
        if visitor is None:
            return self._unknown(request)
        view = self._view(request)
        try:
            settings = settings_of(request.query_params)
            if not settings:
                raise InvalidUsage("no setting is named; fill in the settings that you want to change")
        except InvalidUsage as problem:
            return self._forms(request, visitor, view, request.query_params, problem, "settings")
        present = {one.name: one.value for one in view.settings}
        changes = [(name, present.get(name, "-"), request.query_params[name].strip()) for name in settings]
        values = {name: request.query_params[name].strip() for name in settings}
        return self._show(request, visitor, view, "change/settings.html", changes=changes, values=values)

    async def review_kick(self, request: Request) -> Response:
        """Show which client would have to leave, and what it has."""
        visitor = self._visitor(request, "operator")
        if visitor is None:
            return self._unknown(request)
        view = self._view(request)
        try:
            asked = kick_of(request.query_params)
            member = _member_of(view, asked.client)
        except InvalidUsage as problem:
            return self._forms(request, visitor, view, request.query_params, problem, "kick")
        return self._show(request, visitor, view, "change/kick.html", wanted=asked.params(), member=member)

    async def review_inspection(self, request: Request) -> Response:
        """Show which member would be asked what it does."""
        visitor = self._visitor(request, "operator")
        if visitor is None:
            return self._unknown(request)
        view = self._view(request)
        try:
            member = _member_of(view, client_of(request.query_params))
        except InvalidUsage as problem:
            return self._forms(request, visitor, view, request.query_params, problem, "kick")
        return self._show(request, visitor, view, "change/inspect.html", member=member)

    async def review_deletion(self, request: Request) -> Response:
        """Show what is lost with the group."""
        visitor = self._visitor(request, "administrator")
        if visitor is None:
            return self._unknown(request)
        view = self._view(request)
        try:
            reason = _deletion_of(view, request.query_params)
        except InvalidUsage as problem:
            return self._forms(request, visitor, view, request.query_params, problem, "delete")
        offsets = sum(1 for one in view.queues if one.committed_offset is not None)
        changed = [one.name for one in view.settings if not one.is_default]
        return self._show(request, visitor, view, "change/delete.html", reason=reason, offsets=offsets, changed=changed)

    # --- changes ---

    async def reset(self, request: Request) -> Response:
        """Carry out a reset, if its plan is still the one that was shown; else show the new plan."""
        visitor, fields = await self._sent_form(request, "operator")
        view = self._view(request)
        try:
            asked = reset_of(fields)
        except InvalidUsage as problem:
            return self._forms(request, visitor, view, fields, problem, "reset")
        shown = fields.get("plan", "")
        return await self._plan(request, visitor, fields, shown, asked)

    async def configure(self, request: Request) -> Response:
        """Change settings."""
        visitor, fields = await self._sent_form(request, "administrator")
        view = self._view(request)
        try:
            settings = settings_of(fields)
            if not settings:
                raise InvalidUsage("no setting is named")
        except InvalidUsage as problem:
            return self._forms(request, visitor, view, fields, problem, "settings")
        named = ", ".join(f"{name} = {fields[name].strip()[:100]}" for name in settings)
        return self._begin(view, visitor, fields, f"change settings: {named}", settings)

    async def rebalance(self, request: Request) -> Response:
        """Request a rebalance."""
        visitor, fields = await self._sent_form(request, "operator")
        return self._begin(self._view(request), visitor, fields, "request a rebalance", {})

    async def kick(self, request: Request) -> Response:
        """Make a client leave."""
        visitor, fields = await self._sent_form(request, "operator")
        view = self._view(request)
        try:
            asked = kick_of(fields)
            _member_of(view, asked.client)
        except InvalidUsage as problem:
            return self._forms(request, visitor, view, fields, problem, "kick")
        group_id, by = view.summary.group_id, by_of(visitor)
        job = Job(group_id, f"kick {asked.client}", by, fields.get("token", ""))
        return self._run(job, partial(self._work.kick, group_id, asked, by))

    async def inspect(self, request: Request) -> Response:
        """Ask a member what it does."""
        visitor, fields = await self._sent_form(request, "operator")
        view = self._view(request)
        try:
            client_id = _member_of(view, client_of(fields)).client_id
        except InvalidUsage as problem:
            return self._forms(request, visitor, view, fields, problem, "kick")
        group_id, by = view.summary.group_id, by_of(visitor)
        job = Job(group_id, f"ask {client_id} what it does", by, fields.get("token", ""))
        return self._run(job, partial(self._work.inspect, group_id, client_id, by))

    async def readmit(self, request: Request) -> Response:
        """Let a client join again that is kept out."""
        visitor, fields = await self._sent_form(request, "operator")
        group_id, by = self._view(request).summary.group_id, by_of(visitor)
        client_id = fields.get("client", "")
        job = Job(group_id, f"let {client_id[:255]} in again", by, fields.get("token", ""))
        return self._run(job, partial(self._work.readmit, group_id, client_id, by))

    async def pause(self, request: Request) -> Response:
        """Pause the group."""
        return await self._pause(request, resume=False)

    async def resume(self, request: Request) -> Response:
        """Let a paused group go on."""
        return await self._pause(request, resume=True)

    async def _pause(self, request: Request, *, resume: bool) -> Response:
        visitor, fields = await self._sent_form(request, "operator")
        view, by = self._view(request), by_of(visitor)
        try:
            reason = reason_of(fields)
        except InvalidUsage as problem:
            return self._forms(request, visitor, view, fields, problem, "pause")
        title = "resume the group" if resume else "pause the group"
        job = Job(view.summary.group_id, title, by, fields.get("token", ""))
        return self._run(job, partial(self._work.pause, view.summary.group_id, reason, by, resume=resume))

    async def delete(self, request: Request) -> Response:
        """Delete the group, which must have no members."""
        visitor, fields = await self._sent_form(request, "administrator")
        view, by = self._view(request), by_of(visitor)
        try:
            reason = _deletion_of(view, fields)
        except InvalidUsage as problem:
            return self._forms(request, visitor, view, fields, problem, "delete")
        job = Job(view.summary.group_id, "delete the group", by, fields.get("token", ""))
        return self._run(job, partial(self._work.delete_group, view.summary.group_id, reason, by))

    def _begin(
        self, view: GroupView, visitor: Visitor, fields: Mapping[str, str], title: str, settings: Mapping[str, Any]
    ) -> Response:
        group_id, by = view.summary.group_id, by_of(visitor)
        job = Job(group_id, title, by, fields.get("token", ""))
        return self._run(job, partial(self._work.configure, group_id, settings, by))

    def _run(self, job: Job, work: Callable[[], Result]) -> Response:
        self.jobs.begin(job, work)
        return RedirectResponse(f"{self._base}/changes/{job.job_id}", 303)

    # --- the state of a change ---

    async def job(self, request: Request) -> Response:
        """Show the state of a change."""
        if self._gate.visitor(request) is None:
            return self._unknown(request)
        job = self.jobs.get(request.path_params["job_id"])
        if job is None:
            raise Refused("this change is not known any more; the group's page shows its effect", 404)
        regions = self._job_regions(job)
        events = f"{self._base}/events/changes/{job.job_id}"
        return self._render(request, "change/job.html", job=job, regions=regions, events=events)

    def job_regions(self, request: Request) -> Callable[[], Regions | None]:
        """Return a function that renders the regions of a change.

        Raises:
            Refused: the user is not known.
        """
        self._gate.known(request)
        job = self.jobs.get(request.path_params["job_id"])
        return lambda: None if job is None or self._gate.visitor(request) is None else self._job_regions(job)

    def _job_regions(self, job: Job) -> Regions:
        return self._regions.parts({"status": "status.html", "outcome": "change/outcome.html"}, job=job)

    # --- helpers ---

    @property
    def _base(self) -> str:
        return base_of(self._regions.deployment)

    def _visitor(self, request: Request, needed: Role) -> Visitor | None:
        """Return the user who asks for a form of a group; None if it is not known.

        Raises:
            Refused: the user lacks a right.
        """
        if self._gate.visitor(request) is None:
            return None
        return self._known_with(request, needed)

    def _known_with(self, request: Request, needed: Role) -> Visitor:
        """Return the user who sent a request, if this user has the rights for a change of its group.

        Raises:
            Refused: the user is not known, or lacks a right.
        """
        return self._gate.known_with(request, needed, request.path_params["group_id"], self._regions.deployment)

    async def _sent_form(self, request: Request, needed: Role) -> tuple[Visitor, Mapping[str, str]]:
        """Return the user and the fields of a form that this page has sent, once.

        Raises:
            Refused: the user is not known, or lacks a right, or the form comes from elsewhere, or was sent before.
        """
        self._gate.check_origin(request)
        visitor = self._known_with(request, needed)
        fields = await fields_of(request)
        token = fields.get("token", "")
        try:
            self._gate.tokens.spend(visitor.session_id, token)
        except Refused as refused:
            job = self.jobs.of_token(token) if refused.status == 409 else None
            if job is None:
                raise
            # As after a double click: the user needs the change that the first form began.
            raise Refused(str(refused), refused.status, f"{self._base}/changes/{job.job_id}") from None
        return visitor, fields

    async def _plan(
        self,
        request: Request,
        visitor: Visitor,
        fields: Mapping[str, str],
        shown: str = "",
        asked: ResetRequest | None = None,
    ) -> Response:
        """Show a plan, or carry it out if it is the one that was shown, by its fingerprint."""
        view = self._view(request)
        group_id = view.summary.group_id
        try:
            wanted = asked or reset_of(fields)
            plan = await asyncio.wrap_future(self.jobs.threads.submit(partial(self._work.plan, group_id, wanted)))
        except InvalidUsage as problem:
            return self._forms(request, visitor, view, fields, problem, "reset")
        except WakerollError as problem:
            raise Refused(f"{problem}; nothing was changed", 503) from None
        summary = summary_of(plan, wanted)
        if shown and shown == summary.fingerprint:
            by = by_of(visitor)
            title = f"reset offsets {plan.asked}, queues: {len(plan.offsets)}"
            job = Job(group_id, title, by, fields.get("token", ""))
            return self._run(job, partial(self._work.reset, plan, by))
        return self._show_plan(request, visitor, view, wanted, summary, has_changed=bool(shown))

    def _show_plan(
        self,
        request: Request,
        visitor: Visitor,
        view: GroupView,
        wanted: ResetRequest,
        plan: PlanSummary,
        has_changed: bool,
    ) -> Response:
        values = {"plan": plan, "wanted": wanted.params(), "has_changed": has_changed}
        return self._show(request, visitor, view, "change/plan.html", 409 if has_changed else 200, **values)

    def _forms(
        self,
        request: Request,
        visitor: Visitor,
        view: GroupView,
        fields: Mapping[str, str],
        problem: InvalidUsage | None = None,
        place: str = "",
    ) -> Response:
        return self._show(
            request,
            visitor,
            view,
            "change/forms.html",
            200 if problem is None else 400,
            fields=dict(fields),
            problem="" if problem is None else str(problem),
            place=place,
            queues=[one.name for one in view.queues[:MOST_LISTED]],
            present={one.name: one.value for one in view.settings},
            choices=CHOICES,
            numbers=NUMBERS,
            strategies=sorted(STRATEGIES),
            clients=[one.client_id for one in view.members[:MOST_LISTED]],
        )

    def _show(
        self, request: Request, visitor: Visitor, view: GroupView, template: str, status: int = 200, **values: object
    ) -> Response:
        """Render a page of a group with a new token for each of its forms."""
        tokens = self._gate.tokens
        return self._render(
            request,
            template,
            status,
            view=view,
            group=view.summary,
            new_token=lambda: tokens.new(visitor.session_id),
            by=by_of(visitor),
            administers=not visitor.rights.lack("administrator"),
            **values,
        )

    def _view(self, request: Request) -> GroupView:
        """Return the group of a request.

        Raises:
            Refused: there is no such group.
        """
        group_id = request.path_params["group_id"]
        view = self._regions.source.group(group_id)
        if view is None:
            raise Refused(f"there is no group {group_id!r}; a group exists from its first member or setting on", 404)
        return view

    def _unknown(self, request: Request) -> Response:
        """Answer a request of an unknown user: show the login form, if there is one."""
        if not self._gate.has_form:
            raise Refused(self._gate.why_unknown(request), 403)
        path = link(request.url.path, **dict(request.query_params))
        return RedirectResponse(login_address(path), 303)


def _member_of(view: GroupView, client_id: str) -> MemberRow:
    """Return a member.

    Raises:
        InvalidUsage: the client is no member, as far as the page knows.
    """
    for one in view.members:
        if one.client_id == client_id:
            return one
    known = ", ".join(one.client_id for one in view.members[:5]) or "none"
    raise InvalidUsage(f"the client {client_id!r} is no member; members: {known}")


def _deletion_of(view: GroupView, fields: Mapping[str, str]) -> str:
    """Return the reason of a deletion.

    Raises:
        InvalidUsage: the reason is too long, or the group has members, as far as the page knows.
    """
    if view.members:
        raise InvalidUsage(f"the group has members, such as {view.members[0].client_id}; it must be empty")
    return reason_of(fields)


def by_of(visitor: Visitor) -> str:
    """Return the name of the operator for the record, like ``mia@10.0.0.7 via page``."""
    return f"{visitor.name}@{visitor.address or 'unknown'} via page"
