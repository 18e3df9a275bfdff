"""The command that watches Kafka's own consumer groups.  It does not need Spark."""

import logging
from typing import Annotated

import typer

from wakeroll.errors import InvalidUsage
from wakeroll.keys import warning_of
from wakeroll_pipeline.cli.options import ServiceOptions
from wakeroll_pipeline.kafka.refused_login import login_watched
from wakeroll_pipeline.kafka.rights_check import require_rights
from wakeroll_pipeline.runtime.stop_signals import StopSignals

log = logging.getLogger("wakeroll")

Groups = Annotated[
    str | None,
    typer.Option(
        "--groups",
        metavar="REGEX",
        help="Watch Kafka's groups whose whole names match, such as 'orders-.*'; default: the setting watch_groups.",
        show_default=False,
    ),
]
NamePrefix = Annotated[
    str | None,
    typer.Option(
        "--name-prefix",
        metavar="TEXT",
        help="Beginning of the names here: by default, Kafka's group billing is kafka.billing.",
        show_default=False,
    ),
]
Interval = Annotated[
    float | None,
    typer.Option(
        "--interval",
        metavar="SECONDS",
        help="Time between two descriptions of a group, 0.5 to 300 s; default: 5 s.",
        show_default=False,
    ),
]


def watch_kafka(
    deployment: ServiceOptions,
    groups: Groups = None,
    name_prefix: NamePrefix = None,
    interval: Interval = None,
) -> None:
    """Put Kafka's own consumer groups on record: members, assignments, offsets, lag.  Consumers are not affected.

    Runs until it is stopped.  Several processes with the same options share the groups.
    """
    from wakeroll_pipeline.kafka_watch.group_watcher import GroupWatcher, WatchRules

    settings = deployment.settings(
        watch_groups=groups,
        watch_prefix=name_prefix,
        watch_interval_ms=None if interval is None else round(interval * 1_000),
    )
    wanted = settings.watched_groups
    if wanted is None:
        raise InvalidUsage("no group is named; use --groups with a regular expression, such as 'orders-.*'")
    connection, signing = settings.connection, settings.read_keys()
    if warning := warning_of(settings.keys):
        log.warning("%s", warning)
    rules = WatchRules(groups=wanted, prefix=settings.watch_prefix, interval_ms=settings.watch_interval_ms)
    require_rights(connection, ["watcher"], must_answer=False)
    stop = StopSignals().asked
    with login_watched(connection, stop):
        GroupWatcher(connection, signing, rules).run(stop)
