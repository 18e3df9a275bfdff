"""The command that watches Kafka's own consumer groups.  It does not need Spark."""

import logging
import re
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from wakeroll.errors import missing_extra
from wakeroll_pipeline.cli.open_ledger import reading
from wakeroll_pipeline.cli.options import ServiceOptions
from wakeroll_pipeline.cli.serve_command import PORT, refuse_unusable_port
from wakeroll_pipeline.kafka.refused_login import login_watched
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.runtime.deciding_queries import record_lock
from wakeroll_pipeline.runtime.process_lock import only_one
from wakeroll_pipeline.runtime.stop_signals import StopSignals
from wakeroll_pipeline.settings import Settings

if TYPE_CHECKING:
    from wakeroll_pipeline.kafka_watch.group_watcher import GroupWatcher

log = logging.getLogger("wakeroll")

Groups = Annotated[
    str | None,
    typer.Option(
        "--groups",
        metavar="REGEX",
        help="Watch Kafka's groups whose whole names match, such as 'orders-.*'; default: all.",
        show_default=False,
    ),
]
Interval = Annotated[
    float | None,
    typer.Option(
        "--interval",
        metavar="SECONDS",
        help="Time between two descriptions of a group where the topic cannot be read, 0.5 to 300 s; default: 5 s.",
        show_default=False,
    ),
]


Serve = Annotated[bool, typer.Option("--serve", help="Serve the web page of the groups too.")]
Port = Annotated[
    int,
    typer.Option("--port", metavar="PORT", min=0, max=65_535, help="With --serve: port of the page; 0: a free one."),
]


def watch_kafka(
    deployment: ServiceOptions,
    groups: Groups = None,
    interval: Interval = None,
    serve: Serve = False,
    port: Port = PORT,
) -> None:
    """Record Kafka's own consumer groups: the owners of partitions, with times and reasons, from the past too.

    It reads Kafka's topic __consumer_offsets, and writes tables in --home. No other process is needed, and consumers
    are not affected. It runs until it is stopped, and continues there at the next start.
    """
    try:
        from wakeroll_pipeline.kafka_watch.group_watcher import GroupWatcher, WatchRules
        from wakeroll_pipeline.kafka_watch.watched_ledger import WatchedLedger
    except ModuleNotFoundError as missing:
        raise missing_extra("watching Kafka's groups", "ask", missing) from None
    if serve:
        refuse_unusable_port(port)
    settings = deployment.settings(
        watch_groups=groups, watch_interval_ms=None if interval is None else round(interval * 1_000)
    )
    rules = WatchRules(
        groups=settings.watched_groups or re.compile(".*", re.DOTALL), interval_s=settings.watch_interval_ms / 1_000
    )
    connection = settings.connection
    stop = StopSignals().asked
    with only_one(record_lock(settings), "writes these tables"), login_watched(connection, stop):
        try:
            with reading(settings.warehouse):
                ledger = WatchedLedger(settings)
        except UnreadableTable as error:
            if not error.damage:
                raise
            raise UnreadableTable(
                f"{error.damage}; put it back from a copy of the tables, or move {settings.warehouse} away and start "
                "`wakeroll watch-kafka` again: it reads what Kafka's own record still has, from the beginning"
            ) from error
        watcher = GroupWatcher(connection, ledger, rules)
        if serve:
            _serve(settings, port, watcher, stop)
        else:
            watcher.run(stop)


def _serve(settings: Settings, port: int, watcher: "GroupWatcher", stop: threading.Event) -> None:
    """Watch in a thread, and serve the page of the tables meanwhile."""
    from wakeroll_pipeline.serve.web_server import serve as run_server

    failures: list[BaseException] = []
    servers: list[Any] = []

    def watch() -> None:
        try:
            watcher.run(stop)
        except BaseException as error:  # the main thread raises it
            failures.append(error)
        for server in servers:
            server.should_exit = True

    def ready(address: str, server: object) -> None:
        servers.append(server)
        log.info("serving %s", address)

    thread = threading.Thread(target=watch, name="watcher")
    thread.start()
    try:
        run_server(structs.replace(settings, bootstrap=""), "127.0.0.1", port, ready)
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]
