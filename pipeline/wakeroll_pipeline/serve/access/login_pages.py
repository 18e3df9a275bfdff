"""The pages of login and logout."""

import asyncio
import logging
import math
from collections.abc import Sequence
from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.access.refusal import Refused
from wakeroll_pipeline.serve.access.user_file import USER_NAME
from wakeroll_pipeline.serve.daemon_threads import DaemonThreads
from wakeroll_pipeline.serve.form_body import fields_of
from wakeroll_pipeline.serve.page_renderer import Renderer

log = logging.getLogger(__name__)

_AT_ONCE, _MOST_WAITING = 2, 20
"""Passwords that are verified at the same time, each with 32 MiB and a core, and logins that may wait for that."""


class LoginPages:
    """The handlers of login and logout."""

    def __init__(self, gate: Gate, render: Renderer) -> None:
        """Prepare."""
        self._gate = gate
        self._render = render
        self._threads = DaemonThreads("password", _AT_ONCE, _MOST_WAITING)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The routes; none if users do not log in here."""
        if self._gate.users is None:
            return ()
        return (
            Route("/login", self.form, methods=["GET"]),
            Route("/login", self.log_in, methods=["POST"]),
            Route("/logout", self.log_out, methods=["POST"]),
        )

    async def form(self, request: Request) -> Response:
        """Show the form; lead a user who is known already to the page that was wanted."""
        following = local_path(request.query_params.get("next", "/"))
        return (
            self._form(request, following) if self._gate.visitor(request) is None else RedirectResponse(following, 303)
        )

    async def log_in(self, request: Request) -> Response:
        """Verify a name and a password, and begin a session."""
        self._gate.check_origin(request)
        if not self._gate.accepts_passwords(request):
            raise Refused("the connection is not encrypted, so passwords are refused; open the page by https", 403)
        fields = await fields_of(request)
        name, following = fields.get("name", ""), local_path(fields.get("next", "/"))
        if not USER_NAME.fullmatch(name):
            return self._form(request, following, "The name or the password is wrong.", 401)
        address = self._gate.proxies.address_of(request)
        wait_s = self._gate.limits.begin(name, address)
        if wait_s:
            log.warning("too many failed logins of %r from %s", name, address)
            minutes = math.ceil(wait_s / 60)
            response = self._form(request, following, f"Too many failed logins; try again in {minutes} min.", 429)
            response.headers["Retry-After"] = str(math.ceil(wait_s))
            return response
        if not await self._verify(name, fields.get("password", "")):
            log.warning("failed login of %r from %s", name, address)
            return self._form(request, following, "The name or the password is wrong.", 401)
        self._gate.limits.succeeded(name, address)
        log.info("%s logged in from %s", name, address)
        assert self._gate.users is not None, "else there is no route"
        response = RedirectResponse(following, 303)
        self._gate.set_session(request, response, self._gate.sessions.begin(name, self._gate.users.seal_of(name)))
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session."""
        self._gate.check_origin(request)
        session = self._gate.session(request)
        if session is not None:
            self._gate.tokens.spend(session.session_id, (await fields_of(request)).get("token", ""))
            self._gate.sessions.end(session)
            log.info("%s logged out", session.name)
        response = RedirectResponse("/", 303)
        self._gate.clear_session(request, response)
        return response

    async def _verify(self, name: str, password: str) -> bool:
        users = self._gate.users
        assert users is not None, "else there is no route"
        return await asyncio.wrap_future(self._threads.submit(partial(users.verify, name, password)))

    def _form(self, request: Request, following: str, problem: str = "", status: int = 200) -> Response:
        refused = not self._gate.accepts_passwords(request)
        return self._render(request, "login.html", status, following=following, problem=problem, refused=refused)


def local_path(text: str) -> str:
    r"""Return an address if it is a path of this site, else the first page: a link must not lead elsewhere.

    >>> local_path("/groups/billing?q=a"), local_path("//evil.example"), local_path("/\\evil.example")
    ('/groups/billing?q=a', '/', '/')
    """
    is_path = text.startswith("/") and not text.startswith("//") and "\\" not in text
    return text if is_path and text.isascii() and text.isprintable() and len(text) <= 2_048 else "/"


def login_address(request_path: str) -> str:
    """Return the address of the login form, from which the user returns to a path of this site."""
    return f"/login?{urlencode({'next': local_path(request_path)})}"
