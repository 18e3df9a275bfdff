"""Commands that run until a signal stops them.

A command imports its modules when it runs: the observer and the help texts need no Spark.
"""

import logging
from typing import Annotated

import typer

from wakeroll.errors import InvalidUsage
from wakeroll.keys import warning_of
from wakeroll.last_will.executor_link import LISTEN, VARIABLE
from wakeroll.last_will.executor_link import listen as listen_at
from wakeroll_pipeline.cli.options import (
    Checkpoints,
    Machines,
    MeasuredOptions,
    Replica,
)
from wakeroll_pipeline.runtime.stop_signals import StopSignals

log = logging.getLogger("wakeroll")

Only = Annotated[
    str | None,
    typer.Option(
        "--only", metavar="JOB", help="Run one job only: coordinate or record; default: both.", show_default=False
    ),
]
Standby = Annotated[
    bool,
    typer.Option(
        "--standby",
        help="Let `record` wait while another process writes the tables, and take over when that one ends; "
        "--replica implies it.",
        show_default=False,
    ),
]
MirrorOffsets = Annotated[
    str | None,
    typer.Option(
        "--mirror-offsets",
        metavar="REGEX",
        help="Copy the committed offsets of the groups with matching names to Kafka's own groups; default: of none.",
    ),
]
TopicNames = Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topics of messages; not the control topics.")]


def run(
    deployment: MeasuredOptions,
    only: Only = None,
    machines: Machines = None,
    replica: Replica = None,
    standby: Standby = False,
    checkpoints: Checkpoints = None,
) -> None:
    """Run the Spark jobs: `coordinate` decides, `record` writes the Delta tables."""
    from wakeroll_pipeline.jobs.run_jobs import JOBS
    from wakeroll_pipeline.jobs.run_jobs import run as run_jobs

    if only is not None and only not in JOBS:
        raise InvalidUsage(f"--only is {only!r}; it must be one of: {', '.join(JOBS)}")
    if standby and only == "coordinate":
        raise InvalidUsage("--standby excludes --only coordinate: only `record` stands by; use --replica instead")
    settings = deployment.settings(machines=machines, replica=replica, standby=standby or None, checkpoints=checkpoints)
    run_jobs(settings, [only] if only else list(JOBS))


def tap(
    deployment: MeasuredOptions,
    topics: TopicNames,
    checkpoints: Checkpoints = None,
) -> None:
    """Publish arrival events, with tags and properties, for topics whose producers do not use wakeroll.Producer."""
    from wakeroll_pipeline.jobs.tap import run_tap

    settings = deployment.settings(checkpoints=checkpoints)
    run_tap(settings, topics)


def observe(
    deployment: MeasuredOptions,
    mirror_offsets: MirrorOffsets = None,
) -> None:
    """Run the observer: it publishes ticks, the routes of subscribed topics, and the end offsets of pulled queues."""
    from wakeroll_pipeline.metrics.metrics_server import metrics_served
    from wakeroll_pipeline.metrics.observer_metrics import ObserverMetrics
    from wakeroll_pipeline.metrics.process_metrics import expose_process
    from wakeroll_pipeline.metrics.systemd_reports import reported_to_systemd
    from wakeroll_pipeline.observer.observer_loop import observe as run_observer

    settings = deployment.settings(mirror_offsets=mirror_offsets)
    connection, signing, mirrored = settings.connection, settings.read_keys(), settings.mirrored_groups
    if warning := warning_of(settings.keys):
        log.warning("%s", warning)
    stop, metrics = StopSignals().asked, ObserverMetrics(mirrors=mirrored is not None)
    roles = ["observer"] if mirrored is None else ["observer", "mirror"]
    expose_process(metrics.registry, settings, lambda: dict.fromkeys(roles, metrics.health.is_ready()))
    with (
        metrics_served(metrics.registry, metrics.health, settings.metrics_address, settings.metrics_port),
        reported_to_systemd(metrics.health),
    ):
        run_observer(connection, signing, stop, settings.limits, mirrored, metrics)


Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="unix:PATH",
        help=f"Where consumers connect, which find it by the environment variable {VARIABLE}, or by `last_will=`.",
    ),
]


def last_will(listen: Listen = LISTEN) -> None:
    """Act for consumers whose process has ended: commit their processed messages, and free their queues at once.

    Usually a consumer starts such a process itself. It cannot if it is process 1 of a container, because all other
    processes of a container end with it. Then run this command in a second container, with a folder that both
    containers share. See docs/last-will.md. In an image with only the SDK, the command is `python -m
    wakeroll.last_will`.
    """
    listen_at("--listen", listen)
