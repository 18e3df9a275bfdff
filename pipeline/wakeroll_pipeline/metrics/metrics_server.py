"""The HTTP server of a process: /metrics for Prometheus, /healthz and /readyz for probes.

It works in threads of its own, and only reads figures that other threads have counted, so no request delays a job.
"""

import logging
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOBase
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.metrics.health import Health

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("wakeroll.metrics")

_AT_ONCE = 8
"""Maximum number of connections at the same time. For a further one, the connection that has waited longest for a
request is closed."""
_SCRAPES = 4
"""Maximum number of answers of /metrics at the same time; only these are so large that a slow client delays them."""
_SLOWEST_S = 5.0
"""Longest wait for a request, or for the client to receive the answer (s)."""
_PATHS = "/metrics, /healthz, /readyz"


@contextmanager
def metrics_served(registry: CollectorRegistry, health: Health, address: str, port: int) -> Iterator[None]:
    """Answer requests during a `with` block; do nothing if `port` is 0.

    Raises:
        InvalidUsage: the address does not exist on this machine, or the port is in use or not permitted.
    """
    if not port:
        yield
        return
    server = _bind(registry, health, address, port)
    thread = Thread(target=server.serve_forever, name="metrics", kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    log.info("metrics on http://%s/metrics", _shown(address, port))
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _bind(registry: CollectorRegistry, health: Health, address: str, port: int) -> "_Server":
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]

        class OfFamily(_Server):
            """A server for IPv4 or IPv6, as the address needs."""

            address_family = family

        return make_server(address, port, _application(registry, health), OfFamily, _Handler)
    except OSError as error:
        raise InvalidUsage(
            f"cannot expose metrics on {_shown(address, port)}: {error.strerror}; choose another metrics_port "
            "(each process of a machine needs its own) or metrics_address, or metrics_port 0 for none"
        ) from None


def _shown(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _application(registry: CollectorRegistry, health: Health) -> "WSGIApplication":
    expose = make_wsgi_app(registry)

    def application(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                answer: Iterable[bytes] = expose(environ, start_response)
                return answer
            case "/healthz":
                ok, reason = health.liveness()
                status = "200 OK" if ok else "503 Service Unavailable"
            case "/readyz":
                ok, reason = health.readiness()
                status = "200 OK" if ok else "503 Service Unavailable"
            case path:
                status, reason = "404 Not Found", f"there is no {path[:100]!r}; there are: {_PATHS}"
        body = f"{reason}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        start_response(status, [*headers, ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")])
        return [body]

    return application


class _Server(ThreadingWSGIServer):
    """A server with a limit of threads, so that clients that send slowly exhaust neither the process nor its probes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._lock = Lock()
        self._open = 0
        """Connections that have a thread."""
        self._waiting: dict[socket.socket, float] = {}
        """Connection whose request has not arrived -> when it was accepted (s), the oldest first."""
        self._scrapes: set[socket.socket] = set()
        """Connections that are sent all metrics."""
        super().__init__(*arguments, **options)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002
        """Accept a connection, if necessary in place of one that waits; the thread of a closed one ends at once."""
        with self._lock:
            if self._open >= 2 * _AT_ONCE:
                return False
            if self._open >= _AT_ONCE and self._waiting:
                self._give_up(next(iter(self._waiting)))
            self._open += 1
            self._waiting[request] = time.monotonic()
            return True

    def service_actions(self) -> None:
        """Close the connections whose requests have not arrived in time; called ten times a second."""
        with self._lock:
            for request, since_s in list(self._waiting.items()):
                if time.monotonic() - since_s > _SLOWEST_S:
                    self._give_up(request)

    def may_answer(self, request: socket.socket, path: str) -> bool:
        """Report that the head of a request has arrived; return whether it may be answered now."""
        with self._lock:
            self._waiting.pop(request, None)
            if not path.startswith("/metrics"):
                return True
            if len(self._scrapes) >= _SCRAPES:
                return False
            self._scrapes.add(request)
            return True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open -= 1
                self._waiting.pop(request, None)
                self._scrapes.discard(request)

    def _give_up(self, request: socket.socket) -> None:
        """Close a connection, so that its thread ends."""
        del self._waiting[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log the error on one line: a client that closes its connection too early is not a problem of this process."""
        log.debug("a request from %s failed", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    """A request; it is not logged, because there are several per minute."""

    timeout = _SLOWEST_S
    server: _Server

    def parse_request(self) -> bool:
        """Read the head of the request; refuse a scrape if too many others are being sent."""
        if not super().parse_request():
            return False
        if not self.server.may_answer(self.connection, self.path):
            self.send_error(503, "too many scrapes at once")
            return False
        return True

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        log.debug(format, *arguments)

    def get_stderr(self) -> Any:
        """Return the log for errors, such as a client that does not receive its answer in time."""
        return _DebugLog()


class _DebugLog(TextIOBase):
    """A text file whose lines are log messages of the level DEBUG."""

    def write(self, text: str) -> int:
        if text.strip():
            log.debug("%s", text.rstrip())
        return len(text)
