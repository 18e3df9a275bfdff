"""The pages of login and logout."""

import asyncio
import logging
import math
from collections.abc import Sequence
from functools import partial
from html import escape
from typing import Protocol
from urllib.parse import urlencode

from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from wakeroll_pipeline.serve.access.form_tokens import fields_of
from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.access.oidc_file import claim_of
from wakeroll_pipeline.serve.access.refusal import Refused
from wakeroll_pipeline.serve.access.user_file import USER_NAME
from wakeroll_pipeline.serve.page_threads import DaemonThreads

log = logging.getLogger(__name__)

OIDC_PATH, CALLBACK_PATH = "/login/oidc", "/login/callback"
"""Paths at which a login at the identity provider begins, and to which the provider redirects the browser back."""
_UNDER_WAY, _UNDER_WAY_S = "wakeroll-login", 600
"""Cookie of a login in progress at the provider, and the longest time for it (s)."""
_AT_ONCE, _MOST_WAITING = 2, 20
"""Maximum number of passwords that are verified at the same time, each with 32 MiB and a core, and of waiting
logins."""


class Renderer(Protocol):
    """Renders a template within the frame of all pages."""

    def __call__(self, request: Request, template: str, status: int = 200, /, **values: object) -> Response:
        """Return a page with an HTTP status."""


class LoginPages:
    """The handlers of login and logout."""

    def __init__(self, gate: Gate, render: Renderer) -> None:
        """Prepare."""
        self._gate = gate
        self._render = render
        self._threads = DaemonThreads("password", _AT_ONCE, _MOST_WAITING)
        self._oidc = gate.oidc

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The routes; none if users do not log in here."""
        if not self._gate.has_form:
            return ()
        routes = [Route("/login", self.form, methods=["GET"]), Route("/logout", self.log_out, methods=["POST"])]
        if self._gate.users is not None:
            routes.append(Route("/login", self.log_in, methods=["POST"]))
        if self._oidc is not None:
            secure = self._gate.options.public_url.startswith("https:")
            under_way = Middleware(
                SessionMiddleware,
                secret_key=self._gate.secret,
                session_cookie=_UNDER_WAY,
                max_age=_UNDER_WAY_S,
                path="/login",
                same_site="lax",  # the provider is another site, from which the browser comes back
                https_only=secure,
            )
            routes.append(Route(OIDC_PATH, self.begin_oidc, methods=["GET"], middleware=[under_way]))
            routes.append(Route(CALLBACK_PATH, self.finish_oidc, methods=["GET"], middleware=[under_way]))
        return routes

    async def form(self, request: Request) -> Response:
        """Show the form; redirect a user who is logged in already to the requested page."""
        following = local_path(request.query_params.get("next", "/"))
        return (
            self._form(request, following) if self._gate.visitor(request) is None else RedirectResponse(following, 303)
        )

    async def log_in(self, request: Request) -> Response:
        """Verify a name and a password, and begin a session."""
        self._gate.check_origin(request)
        if not self._gate.accepts_logins(request):
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

    async def begin_oidc(self, request: Request) -> Response:
        """Redirect the browser to the identity provider."""
        assert self._oidc is not None, "else there is no route"
        if not self._gate.accepts_logins(request):
            raise Refused("the connection is not encrypted, so logins are refused; open the page by https", 403)
        request.session.clear()
        answer = await self._oidc.begin(request, f"{self._gate.own_address(request)}{CALLBACK_PATH}")
        request.session["next"] = local_path(request.query_params.get("next", "/"))
        return answer

    async def finish_oidc(self, request: Request) -> Response:
        """Begin a session for a user who returns from the identity provider."""
        assert self._oidc is not None, "else there is no route"
        address, following = self._gate.proxies.address_of(request), str(request.session.get("next", "/"))
        rules = self._oidc.rules
        try:
            claims = await self._oidc.finish(request)
            request.session.clear()
            name, role = claim_of(claims, rules.provider.user_claim), rules.role_of(claims)
            if not isinstance(name, str) or not USER_NAME.fullmatch(name):
                found = f"the claim {rules.provider.user_claim} is {str(name)[:64]!r}"
                raise Refused(f"{found}; it must be a name with 1 to 64 letters, digits and . _ @ + -", 403)
            if not role:
                lack = f"the claim {rules.provider.roles_claim} has none of those that may log in"
                raise Refused(f"{name} has no role on this page: {lack}", 403)
        except Refused as refused:
            log.warning("failed login by the identity provider from %s: %s", address, refused)
            raise
        log.info("%s logged in by the identity provider from %s, with the role %s", name, address, role)
        length_s = rules.provider.session_minutes * 60
        # A redirect would still count as a request of the provider's site, with which no browser sends the cookie.
        response = leading_to(following)
        cookie = self._gate.sessions.begin(name, role=role, length_s=length_s)
        self._gate.set_session(request, response, cookie, length_s)
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session."""
        self._gate.check_origin(request)
        session = self._gate.session(request)
        if session is not None:
            self._gate.tokens.spend(session.session_id, (await fields_of(request)).get("token", ""))
            self._gate.sessions.end(session)
            log.info("%s logged out", session.name)
        response: Response = RedirectResponse("/", 303)
        if session is not None and session.role and self._oidc is not None:
            end = await self._oidc.logout_address(f"{self._gate.own_address(request)}/")
            # The policy of the page lets no form lead to another site, not even by a redirect.
            response = leading_to(end) if end else response
        self._gate.clear_session(request, response)
        return response

    async def _verify(self, name: str, password: str) -> bool:
        users = self._gate.users
        assert users is not None, "else there is no route"
        return await asyncio.wrap_future(self._threads.submit(partial(users.verify, name, password)))

    def _form(self, request: Request, following: str, problem: str = "", status: int = 200) -> Response:
        values: dict[str, object] = {"following": following, "problem": problem}
        values["refused"] = not self._gate.accepts_logins(request)
        values["has_passwords"] = self._gate.users is not None
        values["provider"] = "" if self._oidc is None else self._oidc.rules.provider.title
        values["oidc"] = f"{OIDC_PATH}?{urlencode({'next': following})}"
        return self._render(request, "login.html", status, **values)


def local_path(text: str) -> str:
    r"""Return an address if it is a path of this site, else the first page: no link may lead to another site.

    >>> local_path("/groups/billing?q=a"), local_path("//evil.example"), local_path("/\\evil.example")
    ('/groups/billing?q=a', '/', '/')
    """
    is_path = text.startswith("/") and not text.startswith("//") and "\\" not in text
    return text if is_path and text.isascii() and text.isprintable() and len(text) <= 2_048 else "/"


def leading_to(address: str) -> Response:
    """Return a page that leads a browser to an address at once, as a request of this site."""
    refresh = f'<meta http-equiv="refresh" content="0;url={escape(address)}">'
    return HTMLResponse(f"<!doctype html><title>wakeroll</title>{refresh}")


def login_address(request_path: str) -> str:
    """Return the address of the login form, from which the user returns to a path of this site."""
    return f"/login?{urlencode({'next': local_path(request_path)})}"
