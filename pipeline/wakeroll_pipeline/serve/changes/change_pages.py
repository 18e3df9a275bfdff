"""The pages by which a logged-in user changes a group: the forms, the plan, and the state of the request."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from wakeroll.errors import InvalidUsage, WakerollError
from wakeroll_model.strategies import STRATEGIES
from wakeroll_pipeline.live.view_structs import GroupView, MemberRow
from wakeroll_pipeline.serve.access.form_tokens import fields_of
from wakeroll_pipeline.serve.access.gate import Gate, Visitor
from wakeroll_pipeline.serve.access.login_pages import Renderer, login_address
from wakeroll_pipeline.serve.access.refusal import Refused
from wakeroll_pipeline.serve.access.rights import Role
from wakeroll_pipeline.serve.changes.change_jobs import ChangeJobs, Job, Result
from wakeroll_pipeline.serve.changes.change_requests import (
    CHOICES,
    NUMBERS,
    client_of,
    kick_of,
    reason_of,
    reset_of,
    settings_of,
)
from wakeroll_pipeline.serve.changes.change_work import Work
from wakeroll_pipeline.serve.changes.plan_summary import summary_of
from wakeroll_pipeline.serve.page_regions import PageRegions, Regions
from wakeroll_pipeline.serve.site_paths import base_of
from wakeroll_pipeline.serve.templating import link

MOST_LISTED = 500
"""Maximum number of queues and clients that the forms suggest."""


class _Asked(NamedTuple):
    """A request about a group, by a user who has the rights for it."""

    request: Request
    visitor: Visitor
    view: GroupView
    fields: Mapping[str, str]

    @property
    def group_id(self) -> str:
        """Name of the group."""
        return self.view.summary.group_id

    @property
    def by(self) -> str:
        """The operator for the record, like ``mia@10.0.0.7 via page``."""
        return f"{self.visitor.name}@{self.visitor.address or 'unknown'} via page"


_Begun = tuple[str, Callable[[], Result]]
"""Title of a change, and its work."""
_Handler = Callable[["ChangePages", Request], Awaitable[Response]]


def _preview(needed: Role, place: str = "") -> Callable[[Callable[["ChangePages", _Asked], Response]], _Handler]:
    """Return a decorator for a page that a user with a role may see; if a field is wrong, the forms are shown again."""

    def decorated(page: Callable[["ChangePages", _Asked], Response]) -> _Handler:
        @wraps(page)
        async def handle(self: "ChangePages", request: Request) -> Response:
            visitor = self._visitor(request, needed)
            if visitor is None:
                return self._unknown(request)
            asked = _Asked(request, visitor, self._view(request), request.query_params)
            try:
                return page(self, asked)
            except InvalidUsage as problem:
                return self._forms(asked, problem, place)

        return handle

    return decorated


def _change(needed: Role, place: str = "") -> Callable[[Callable[["ChangePages", _Asked], _Begun]], _Handler]:
    """Return a decorator for a change that a user with a role may begin; if a field is wrong, the forms are shown."""

    def decorated(change: Callable[["ChangePages", _Asked], _Begun]) -> _Handler:
        @wraps(change)
        async def handle(self: "ChangePages", request: Request) -> Response:
            asked = await self._sent_form(request, needed)
            try:
                title, work = change(self, asked)
            except InvalidUsage as problem:
                return self._forms(asked, problem, place)
            return self._run(asked, title, work)

        return handle

    return decorated


class ChangePages:
    """The handlers of all changes."""

    def __init__(self, gate: Gate, regions: PageRegions, render: Renderer, work: Work) -> None:
        """Prepare.

        Args:
            gate: identifies the users.
            regions: renders the state of the system, and finds the groups.
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

    @_preview("operator")
    def forms(self, asked: _Asked) -> Response:
        """Show all forms of a group."""
        return self._forms(asked)

    async def plan(self, request: Request) -> Response:
        """Show the effect of a reset."""
        visitor = self._visitor(request, "operator")
        if visitor is None:
            return self._unknown(request)
        return await self._plan(_Asked(request, visitor, self._view(request), request.query_params))

    @_preview("administrator", "settings")
    def review(self, asked: _Asked) -> Response:
        """Show the settings that would change."""
        settings = _settings_in(asked.fields)
        present = {one.name: one.value for one in asked.view.settings}
        values = {name: asked.fields[name].strip() for name in settings}
        changes = [(name, present.get(name, "-"), value) for name, value in values.items()]
        return self._show(asked, "change/settings.html", changes=changes, values=values)

    @_preview("operator", "kick")
    def review_kick(self, asked: _Asked) -> Response:
        """Show the client that would have to leave, with its queues."""
        wanted = kick_of(asked.fields)
        member = _member_of(asked.view, wanted.client)
        return self._show(asked, "change/kick.html", wanted=wanted.params(), member=member)

    @_preview("operator", "kick")
    def review_inspection(self, asked: _Asked) -> Response:
        """Show the member that would be inspected."""
        return self._show(asked, "change/inspect.html", member=_member_of(asked.view, client_of(asked.fields)))

    @_preview("administrator", "delete")
    def review_deletion(self, asked: _Asked) -> Response:
        """Show the state that would be lost with the group."""
        reason, view = _deletion_of(asked.view, asked.fields), asked.view
        offsets = sum(1 for one in view.queues if one.committed_offset is not None)
        changed = [one.name for one in view.settings if not one.is_default]
        return self._show(asked, "change/delete.html", reason=reason, offsets=offsets, changed=changed)

    # --- changes ---

    async def reset(self, request: Request) -> Response:
        """Carry out a reset if its plan has not changed since it was shown; otherwise show the new plan."""
        asked = await self._sent_form(request, "operator")
        return await self._plan(asked, asked.fields.get("plan", ""))

    @_change("administrator", "settings")
    def configure(self, asked: _Asked) -> _Begun:
        """Change settings."""
        settings = _settings_in(asked.fields)
        named = ", ".join(f"{name} = {asked.fields[name].strip()[:100]}" for name in settings)
        return f"change settings: {named}", partial(self._work.configure, asked.group_id, settings, asked.by)

    @_change("operator")
    def rebalance(self, asked: _Asked) -> _Begun:
        """Request a rebalance."""
        return "request a rebalance", partial(self._work.configure, asked.group_id, {}, asked.by)

    @_change("operator", "kick")
    def kick(self, asked: _Asked) -> _Begun:
        """Make a client leave."""
        wanted = kick_of(asked.fields)
        _member_of(asked.view, wanted.client)
        return f"kick {wanted.client}", partial(self._work.kick, asked.group_id, wanted, asked.by)

    @_change("operator", "kick")
    def inspect(self, asked: _Asked) -> _Begun:
        """Request a report from a member."""
        client_id = _member_of(asked.view, client_of(asked.fields)).client_id
        return f"ask {client_id} what it does", partial(self._work.inspect, asked.group_id, client_id, asked.by)

    @_change("operator")
    def readmit(self, asked: _Asked) -> _Begun:
        """Let a client that is kept out join again."""
        client_id = asked.fields.get("client", "")
        return f"let {client_id[:255]} in again", partial(self._work.readmit, asked.group_id, client_id, asked.by)

    @_change("operator", "pause")
    def pause(self, asked: _Asked) -> _Begun:
        """Pause the group."""
        reason = reason_of(asked.fields)
        return "pause the group", partial(self._work.pause, asked.group_id, reason, asked.by, resume=False)

    @_change("operator", "pause")
    def resume(self, asked: _Asked) -> _Begun:
        """Resume a paused group."""
        reason = reason_of(asked.fields)
        return "resume the group", partial(self._work.pause, asked.group_id, reason, asked.by, resume=True)

    @_change("administrator", "delete")
    def delete(self, asked: _Asked) -> _Begun:
        """Delete the group, which must have no members."""
        reason = _deletion_of(asked.view, asked.fields)
        return "delete the group", partial(self._work.delete_group, asked.group_id, reason, asked.by)

    def _run(self, asked: _Asked, title: str, work: Callable[[], Result]) -> Response:
        job = Job(asked.group_id, title, asked.by, asked.fields.get("token", ""))
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
        """Return the user who requests a form of a group; None if the user is not known.

        Raises:
            Refused: the user lacks a right.
        """
        if self._gate.visitor(request) is None:
            return None
        return self._known_with(request, needed)

    def _known_with(self, request: Request, needed: Role) -> Visitor:
        """Return the user of a request, if this user has the rights for a change of its group.

        Raises:
            Refused: the user is not known, or lacks a right.
        """
        return self._gate.known_with(request, needed, request.path_params["group_id"], self._regions.deployment)

    async def _sent_form(self, request: Request, needed: Role) -> _Asked:
        """Return the user and the fields of a form that this page has sent, once, and the group.

        Raises:
            Refused: the user is not known, or lacks a right, or the form comes from another site, or was sent before;
                or there is no such group.
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
        return _Asked(request, visitor, self._view(request), fields)

    async def _plan(self, asked: _Asked, shown: str = "") -> Response:
        """Show a plan; or carry it out if its fingerprint is that of the plan that was shown."""
        try:
            wanted = reset_of(asked.fields)
            work = partial(self._work.plan, asked.group_id, wanted)
            plan = await asyncio.wrap_future(self.jobs.threads.submit(work))
        except InvalidUsage as problem:
            return self._forms(asked, problem, "reset")
        except WakerollError as problem:
            raise Refused(f"{problem}; nothing was changed", 503) from None
        summary = summary_of(plan, wanted)
        if shown and shown == summary.fingerprint:
            title = f"reset offsets {plan.asked}, queues: {len(plan.offsets)}"
            return self._run(asked, title, partial(self._work.reset, plan, asked.by))
        values = {"plan": summary, "wanted": wanted.params(), "has_changed": bool(shown)}
        return self._show(asked, "change/plan.html", 409 if shown else 200, **values)

    def _forms(self, asked: _Asked, problem: InvalidUsage | None = None, place: str = "") -> Response:
        view = asked.view
        return self._show(
            asked,
            "change/forms.html",
            200 if problem is None else 400,
            fields=dict(asked.fields),
            problem="" if problem is None else str(problem),
            place=place,
            queues=[one.name for one in view.queues[:MOST_LISTED]],
            present={one.name: one.value for one in view.settings},
            choices=CHOICES,
            numbers=NUMBERS,
            strategies=sorted(STRATEGIES),
            clients=[one.client_id for one in view.members[:MOST_LISTED]],
        )

    def _show(self, asked: _Asked, template: str, status: int = 200, **values: object) -> Response:
        """Render a page of a group with a new token for each of its forms."""
        tokens, visitor = self._gate.tokens, asked.visitor
        return self._render(
            asked.request,
            template,
            status,
            view=asked.view,
            group=asked.view.summary,
            new_token=lambda: tokens.new(visitor.session_id),
            by=asked.by,
            administers=not visitor.rights.lack("administrator"),
            **values,
        )

    def _view(self, request: Request) -> GroupView:
        """Return the group of a request.

        Raises:
            Refused: there is no such group.
        """
        group_id = request.path_params["group_id"]
        view = self._regions.model.group_view(group_id)
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
        InvalidUsage: the client is not a member in the state of the page.
    """
    for one in view.members:
        if one.client_id == client_id:
            return one
    known = ", ".join(one.client_id for one in view.members[:5]) or "none"
    raise InvalidUsage(f"the client {client_id!r} is no member; members: {known}")


def _settings_in(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in a form.

    Raises:
        InvalidUsage: the form has no setting.
    """
    if settings := settings_of(fields):
        return settings
    raise InvalidUsage("no setting is named; fill in the settings that you want to change")


def _deletion_of(view: GroupView, fields: Mapping[str, str]) -> str:
    """Return the reason of a deletion.

    Raises:
        InvalidUsage: the reason is too long, or the group has members in the state of the page.
    """
    if view.members:
        raise InvalidUsage(f"the group has members, such as {view.members[0].client_id}; it must be empty")
    return reason_of(fields)
