"""The frame of the whole site: its paths, its static files, its checks and metrics, and its middleware."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wakeroll_pipeline.metrics.health import Answer, Health
from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.access.login_wall import LoginWall
from wakeroll_pipeline.serve.event_stream import Streams

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # With no-referrer, a browser would send the origin "null" with a form, and the page would refuse its own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers against scripts in names of groups and clients, which come from records that any client may append."""


class SecurityHeaders:
    """ASGI middleware that adds `HEADERS` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-cache" if scope["path"].startswith("/static/") else "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


_STATIC = Path(__file__).parent / "static"


class Site(Protocol):
    """A whole application: the page of one deployment, or of several."""

    app: Starlette
    streams: Streams

    def readiness(self) -> Answer:
        """Return whether the page can show a state, and the reason."""


def site_app(
    routes: Sequence[BaseRoute],
    hosts: Sequence[str],
    gate: Gate | None,
    handlers: Mapping[Any, Callable[..., Any]],
) -> Starlette:
    """Return an application with static files, security headers, checked names of hosts and, if required, a login.

    Args:
        routes: routes of the pages.
        hosts: accepted names in the header `Host`; ``*`` for any. Otherwise a page on another site could read this one
            through a host name that resolves to this address.
        gate: identifies the users; None: the page has no login.
        handlers: exception or status -> its handler.
    """
    return Starlette(
        routes=[*routes, Mount("/static", StaticFiles(directory=_STATIC), name="static")],
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)),
            *([Middleware(LoginWall, gate=gate)] if gate is not None and gate.options.require_login else []),
        ],
        exception_handlers=dict(handlers),
    )


def process_routes(registry: CollectorRegistry, health: Health, readiness: Callable[[], Answer]) -> list[BaseRoute]:
    """Return the routes of the metrics and checks of this process.

    Args:
        registry: the metrics.
        health: reports of the threads that follow the brokers.
        readiness: returns whether the page can show a state.
    """

    def answered(answer: Answer) -> Response:
        return PlainTextResponse(f"{answer.reason}\n", 200 if answer.ok else 503)

    async def healthz(_request: Request) -> Response:
        """Return 200 while the threads that follow the brokers run; it does not depend on the brokers."""
        return answered(health.liveness())

    async def readyz(_request: Request) -> Response:
        """Return 200 when the log was read to its end, else 503; with the reason and the warnings of the page."""
        return answered(readiness())

    def metrics(_request: Request) -> Response:
        """Return all metrics in Prometheus' format; in a thread of its own, because there may be many."""
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return [Route("/metrics", metrics), Route("/healthz", healthz), Route("/readyz", readyz)]
