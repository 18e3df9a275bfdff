"""The command that starts workers of a sleeping group.  It does not need Spark."""

from typing import Annotated

import typer

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.options import BrokerOptions, GroupName
from wakeroll_pipeline.kafka.refused_login import login_watched
from wakeroll_pipeline.runtime.stop_signals import StopSignals

Exec = Annotated[
    str | None,
    typer.Option(
        "--exec",
        metavar="COMMAND",
        help="Start this command as a worker; WOKEN_GROUP and WOKEN_QUEUES are in its environment.",
    ),
]
Http = Annotated[
    str | None, typer.Option("--http", metavar="URL", help="Send a POST request to this address for each worker.")
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        help="A topic of the group; repeatable. Default: the topics that it has offsets for, "
        "and those that match a pattern of its last members.",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers", min=1, max=1_000, help="Maximum workers at a time; as many are started as queues have messages."
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=1, metavar="SECONDS", help="Stop a command after this time; default: never."),
]
Lease = Annotated[
    float,
    typer.Option("--lease", min=1, metavar="SECONDS", help="Time in which a member must join after a request."),
]
Backoff = Annotated[
    float,
    typer.Option("--longest-backoff", min=1, metavar="SECONDS", help="Longest pause after a worker that failed."),
]


def wake(
    deployment: BrokerOptions,
    group: GroupName,
    command: Exec = None,
    http: Http = None,
    topic: Topics = None,
    workers: Workers = 1,
    timeout: Timeout = None,
    lease: Lease = 60.0,
    longest_backoff: Backoff = 300.0,
) -> None:
    """Start a worker when a group without members has messages to read.  Runs until it is stopped."""
    from wakeroll.wake.group_waker import GroupWaker
    from wakeroll.wake.worker_starters import CommandStarter, HttpStarter
    from wakeroll_model.sleeping_group import WakeRules
    from wakeroll_pipeline.observer.pattern_book import matching_topics

    if (command is None) == (http is None):
        raise InvalidUsage("name either --exec or --http: how a worker is started")
    if http is not None and timeout is not None:
        raise InvalidUsage("--timeout is for --exec")
    starter = CommandStarter(command, timeout) if command is not None else HttpStarter(http or "", lease)
    settings = deployment.settings()
    rules = WakeRules(
        most_workers=workers,
        longest_backoff_ms=round(longest_backoff * 1_000),
        longest_sleep_ms=settings.forget_after_ms // 2,
    )
    connection, stop = settings.connection, StopSignals().asked
    waker = GroupWaker(connection, group, starter, matching=matching_topics, topics=topic or (), rules=rules)
    with login_watched(connection, stop):
        waker.run(stop)
