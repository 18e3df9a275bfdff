"""The login wall: pages, events and JSON are for logged-in users only."""

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.access.login_pages import CALLBACK_PATH, OIDC_PATH, leading_to, login_address
from wakeroll_pipeline.serve.site_paths import own_path

OPEN_PATHS = ("/healthz", "/readyz", "/metrics", "/login", OIDC_PATH, CALLBACK_PATH)
"""Probes and Prometheus do not log in."""


class LoginWall:
    """ASGI middleware that answers requests of unknown users, except for `OPEN_PATHS` and static files."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        """Wrap an application."""
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and not _is_open(scope["path"]):
            connection = HTTPConnection(scope)
            if self._gate.visitor(connection) is None:
                await self._refuse(connection)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refuse(self, connection: HTTPConnection) -> Response:
        path = connection.url.path
        is_page = not own_path(path).startswith(("/api/", "/events/")) and connection.scope["method"] in ("GET", "HEAD")
        if is_page and self._gate.has_form:
            login = login_address(f"{path}?{connection.url.query}".rstrip("?"))
            if connection.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
                # A browser does not send the cookie when a link of another site is followed. It does when this page
                # leads to the login, which knows the user then.
                return leading_to(login)
            return RedirectResponse(login, 303)
        status = 401 if self._gate.has_form else 403
        return PlainTextResponse(f"{self._gate.why_unknown(connection)}\n", status)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith("/static/")
