"""The process of `wakeroll serve`: it follows the log or reads the tables, and answers requests."""

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from ipaddress import ip_address
from pathlib import Path

import duckdb
import uvicorn
from deltalake.exceptions import DeltaError
from msgspec import structs
from prometheus_client import CollectorRegistry

from wakeroll.connection import Topics
from wakeroll.epoch_ms import now_ms
from wakeroll.errors import InvalidUsage, WakerollError
from wakeroll_model.rows import EVENTS
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka.refused_login import login_watched
from wakeroll_pipeline.ledger.delta_files import is_delta, open_delta
from wakeroll_pipeline.live.followed_brokers import followed_brokers
from wakeroll_pipeline.live.ledger_reader import read_ledger
from wakeroll_pipeline.live.live_model import LiveModel, ViewSource
from wakeroll_pipeline.metrics.decision_metrics import DecisionMetrics
from wakeroll_pipeline.metrics.group_choice import GroupChoice
from wakeroll_pipeline.metrics.health import Health
from wakeroll_pipeline.metrics.process_metrics import expose_process, new_registry
from wakeroll_pipeline.metrics.systemd_reports import reported_to_systemd
from wakeroll_pipeline.notify.notification_forms import Sender
from wakeroll_pipeline.notify.notify_file import read_rules
from wakeroll_pipeline.notify.notifying import Notifying
from wakeroll_pipeline.serve.access.access_options import AccessOptions
from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.changes.change_work import Work
from wakeroll_pipeline.serve.connection_limits import AT_ONCE, LimitedProtocol
from wakeroll_pipeline.serve.event_stream import Streams
from wakeroll_pipeline.serve.history import MOST_MOMENTS, History
from wakeroll_pipeline.serve.live_metrics import LiveMetrics
from wakeroll_pipeline.serve.site import Site
from wakeroll_pipeline.serve.site_paths import base_of
from wakeroll_pipeline.serve.web_app import WebApp
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage.cause_trees import in_one_line
from wakeroll_pipeline.storage.place import Folder, Place

log = logging.getLogger(__name__)

REREAD_S = 10.0
"""Interval in which the tables are read again if they have changed (s)."""
MEMORY = "notified.json"
"""File in the home in which `serve` stores the sent notifications."""
_GOODBYE_S = 1
"""Time after which requests that are still open at a stop are cut (s)."""


class ReadLedger(threading.Thread):
    """Reads the tables, and reads them again when they have a new version."""

    def __init__(self, source: ViewSource, warehouse: Folder, topics: Topics, partitions: int) -> None:
        """Prepare; the source has no groups until the tables are read."""
        super().__init__(name="ledger-reader", daemon=True)
        self._source = source
        self._warehouse = Place.of(warehouse)
        self._topics = topics
        self._partitions = partitions
        self._version = -1
        self._trouble = Trouble(log, "the tables can be read again")
        self._stop_requested = threading.Event()

    def stop(self) -> None:
        """End the thread after the current reading."""
        self._stop_requested.set()

    def run(self) -> None:
        """Read until `stop`."""
        while not self._stop_requested.is_set():
            trouble = ""
            try:
                self._read_if_new()
            except (WakerollError, ValueError, OSError, duckdb.Error, DeltaError) as problem:
                trouble = in_one_line(problem)
                self._trouble.began(f"cannot read the tables in {self._warehouse}: {trouble}; retrying")
            else:
                self._trouble.ended()
            model = self._source.model
            age_ms = max(now_ms() - model.now_ms, 0)
            model.facts = structs.replace(model.facts, age_ms=age_ms, trouble=trouble)
            self._stop_requested.wait(REREAD_S)

    def _read_if_new(self) -> None:
        version = open_delta(self._warehouse / EVENTS.name).version()
        if version != self._version:
            model = read_ledger(self._warehouse, self._topics, self._partitions)
            self._source.model, self._version = model, version


class PageServer(uvicorn.Server):
    """Answers the requests of an application, and ends its open streams first when it is stopped."""

    def __init__(
        self,
        web: Site,
        stop: threading.Event | None = None,
        beat: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            web: the application.
            stop: ends the server when it is set; it is checked ten times a second. None: only signals end the server.
            beat: receives a name equally often, as a sign that the loop that answers requests runs.
        """
        super().__init__(
            uvicorn.Config(
                web.app,
                http=LimitedProtocol,
                backlog=AT_ONCE,
                log_level="warning",
                log_config=None,  # its records go where those of this process go
                access_log=False,
                server_header=False,
                # The gate itself reads the headers of proxies, of trusted ones only.
                proxy_headers=False,
                timeout_graceful_shutdown=_GOODBYE_S,
                lifespan="off",
            )
        )
        self._web = web
        self._stop = stop or threading.Event()
        self._beat = beat

    async def on_tick(self, counter: int) -> bool:
        """Return whether the server should stop."""
        self._beat("page")
        return await super().on_tick(counter) or self._stop.is_set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGTERM and Ctrl-C; uvicorn itself raises the signal again at the end, so the exit code is not 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then the connections."""
        self._web.streams.stopping.set()
        await super().shutdown(sockets)


@contextmanager
def following(
    settings: Settings, registry: CollectorRegistry, choice: GroupChoice, health: Health
) -> Iterator[ViewSource]:
    """Provide the views of a deployment: live if a broker is named, else those of the tables.

    Raises:
        InvalidUsage: neither a broker nor tables are named, or Kafka's client rejects the settings.
    """
    with ExitStack() as stack:
        if settings.bootstrap:
            decisions = DecisionMetrics(registry, choice)
            brokers = stack.enter_context(followed_brokers(settings, decisions.count, health.beat))
            yield ViewSource(brokers.model)
            return
        if not is_delta(settings.warehouse / EVENTS.name):
            raise InvalidUsage(
                f"nothing to show: no broker is named, and there are no tables in {settings.warehouse}; use "
                "--bootstrap host:port or --home"
            )
        topics = Topics(settings.prefix)
        model = LiveModel(topics, settings.partitions, "ledger")
        model.facts = structs.replace(model.facts, is_begun=False)
        source = ViewSource(model)
        reader = ReadLedger(source, settings.warehouse, topics, settings.partitions)
        reader.start()
        # DuckDB reports leaks if a thread that has used it is alive when the process ends.
        stack.callback(reader.join, _GOODBYE_S)
        stack.callback(reader.stop)
        yield source


def serve(
    settings: Settings,
    host: str,
    port: int,
    ready: Callable[[str, PageServer], None],
    access: AccessOptions | None = None,
    notify: Path | None = None,
) -> None:
    """Answer requests until a signal stops the process.

    Args:
        settings: settings of the deployment.
        host: address to listen on.
        port: port to listen on; 0: one that the system chooses.
        ready: called with the address of the page when it can be opened, and with the server, which ends when its
            `should_exit` is set.
        access: rights to read and to change; None: everybody may read, and changes are not possible.
        notify: file with the rules of notifications; None: no notifications.

    Raises:
        InvalidUsage: the address cannot be used, there is nothing to show, or the rules of access or of notifications
            are not valid.
        LoginFailed: the brokers have rejected the login for 15 s.
    """
    access = access or AccessOptions()
    access.check(host, settings)
    if notify is not None and not settings.bootstrap:
        raise InvalidUsage("--notify needs brokers: use --bootstrap; the tables show no verdicts of now")
    if notify is not None:
        read_rules(notify)  # before anything is connected
    gate = Gate(access) if access.has_login else None
    registry, health = new_registry(), Health("the log is not read")
    choice = GroupChoice(registry, settings.metrics_max_groups)
    stop = threading.Event()
    watched = login_watched(settings.connection, stop) if settings.bootstrap else nullcontext()
    with listening(host, port) as listener, following(settings, registry, choice, health) as source, watched:
        LiveMetrics(source, registry, choice, settings.metrics_max_queues)
        with ExitStack() as stack:
            if notify is not None:
                stack.callback(begin_notifying(notify, settings, source, registry, health.beat, access).stop)
            hosts = hosts_of(host, access.public_host)
            web = page_of(source, registry, settings, access, stack, hosts=hosts, gate=gate, health=health)
            answer_requests(web, listener, host, health, ready, stop)


def page_of(
    source: ViewSource,
    registry: CollectorRegistry,
    settings: Settings,
    access: AccessOptions,
    stack: ExitStack,
    *,
    hosts: Sequence[str] = (),
    gate: Gate | None = None,
    health: Health | None = None,
    deployment: str = "",
    streams: Streams | None = None,
    most_moments: int = MOST_MOMENTS,
) -> WebApp:
    """Return the page of a deployment; its history is closed with the stack.

    Args:
        source: the views of the present.
        registry: receives the metrics.
        settings: settings of the deployment.
        access: rights to change.
        stack: exit stack of the process.
        hosts: see `WebApp`.
        gate: identifies the users.
        health: reports of the threads that follow the brokers.
        deployment: name of the deployment, if the site shows several.
        streams: the open streams of that site.
        most_moments: see `History`.
    """
    topics, warehouse = Topics(settings.prefix), settings.warehouse
    history = History(warehouse, topics, settings.partitions, deployment=deployment, most_moments=most_moments)
    stack.callback(history.close)
    work = Work(settings) if access.allow_changes else None
    web = WebApp(source, registry, hosts, history, gate, work, health, deployment=deployment, streams=streams)
    expose_process(registry, settings, lambda: {"page": web.readiness().ok}, has_errors=not deployment)
    return web


def begin_notifying(
    rules: Path,
    settings: Settings,
    source: ViewSource,
    registry: CollectorRegistry,
    beat: Callable[[str], object],
    access: AccessOptions,
    deployment: str = "",
) -> Notifying:
    """Begin to notify webhooks about verdicts; `deployment`: name of the deployment, if the site shows several."""
    page = access.public_url.rstrip("/")
    sender = Sender(deployment or settings.prefix, page and page + base_of(deployment))
    memory = f"notified-{deployment}.json" if deployment else MEMORY
    thread = Notifying(rules, Path(settings.home) / memory, sender, lambda: source.model.groups_view(), registry, beat)
    thread.start()
    return thread


def answer_requests(
    web: Site,
    listener: socket.socket,
    host: str,
    health: Health,
    ready: Callable[[str, PageServer], None],
    stop: threading.Event | None = None,
) -> None:
    """Answer requests until a signal, or until `stop` is set; for the other arguments, see `serve`."""
    server = PageServer(web, stop, health.beat)
    ready(address_of(host, listener.getsockname()[1]), server)
    with reported_to_systemd(health, web.readiness):
        server.run(sockets=[listener])


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Provide a socket that listens.

    Raises:
        InvalidUsage: the address cannot be used; the message gives the reason.
    """
    if not host:
        raise InvalidUsage("the address to listen on is empty; it must be a name or an IP address, like 127.0.0.1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        reason = str(error.strerror or error).partition(" (while attempting")[0]  # the rest repeats the address
        raise InvalidUsage(f"cannot listen on {address_of(host, port)}: {reason}") from None
    with listener:
        yield listener


def address_of(host: str, port: int) -> str:
    """Return the address of the page."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def hosts_of(host: str, public_host: str = "") -> list[str]:
    """Return the host names that requests may use: any name, unless the page listens on this machine only."""
    if host == "localhost" or (_is_address(host) and ip_address(host).is_loopback):
        return ["localhost", "127.0.0.1", "[::1]", host, *([public_host] if public_host else [])]
    return ["*"]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
