"""Commands that run something until they are asked to stop.

What a command needs is imported when it runs: the observer does without Spark, and so does a help text.
"""

import logging
import signal
import threading
from typing import Annotated

import typer
from rich.console import Console

from pipeline.cli.options import (
    Bootstrap,
    Checkpoints,
    ConfigFile,
    Home,
    KafkaConfig,
    KeyFile,
    Machines,
    Prefix,
    settings_of,
)
from wakeroll.errors import InvalidUsage
from wakeroll.keys import warning_of

log = logging.getLogger("wakeroll")
out = Console()

Only = Annotated[
    str | None, typer.Option("--only", metavar="JOB", help="Run one job: coordinate or record.", show_default=False)
]
TopicNames = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics of messages, not our own.")]


def run(
    only: Only = None,
    machines: Machines = None,
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    keys: KeyFile = None,
    prefix: Prefix = None,
    home: Home = None,
    checkpoints: Checkpoints = None,
    config: ConfigFile = None,
) -> None:
    """Run the jobs: `coordinate` decides, `record` writes the tables."""
    from pipeline.jobs.run_jobs import JOBS
    from pipeline.jobs.run_jobs import run as run_jobs

    if only is not None and only not in JOBS:
        raise InvalidUsage(f"no job {only!r}; there are: {', '.join(JOBS)}")
    settings = settings_of(
        config,
        bootstrap=bootstrap,
        kafka_config=kafka_config,
        keys=keys,
        prefix=prefix,
        machines=machines,
        home=home,
        checkpoints=checkpoints,
    )
    run_jobs(settings, [only] if only else list(JOBS))


def tap(
    topics: TopicNames,
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    prefix: Prefix = None,
    home: Home = None,
    checkpoints: Checkpoints = None,
    config: ConfigFile = None,
) -> None:
    """Tell of the messages of some topics, with their tags and properties, for producers that do not tell."""
    from pipeline.jobs.tap import run_tap

    settings = settings_of(
        config, bootstrap=bootstrap, kafka_config=kafka_config, prefix=prefix, home=home, checkpoints=checkpoints
    )
    run_tap(settings, topics)


def observe(
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    keys: KeyFile = None,
    prefix: Prefix = None,
    home: Home = None,
    config: ConfigFile = None,
) -> None:
    """Run the observer: the clock's ticks, the routes of subscribed topics, and which queues have grown."""
    from pipeline.observer.observer_loop import observe as run_observer

    settings = settings_of(config, bootstrap=bootstrap, kafka_config=kafka_config, keys=keys, prefix=prefix, home=home)
    connection, signing = settings.connection, settings.read_keys()
    if warning := warning_of(settings.keys):
        log.warning("%s", warning)
    run_observer(connection, signing, stop_on_signals(), settings.limits)


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and Ctrl-C set; a second Ctrl-C interrupts at once."""
    stop = threading.Event()

    def ask(number: int, _frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    return stop
