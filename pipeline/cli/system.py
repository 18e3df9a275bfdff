"""Commands that run something until they are asked to stop.

What a command needs is imported when it runs: the observer does without Spark, and so does a help text.
"""

import logging
import os
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
from pipeline.settings import load
from wakeroll.errors import InvalidUsage
from wakeroll.keys import warning_of

log = logging.getLogger("wakeroll")
out = Console()

Only = Annotated[
    str | None, typer.Option("--only", metavar="JOB", help="Run one job: coordinate or record.", show_default=False)
]
TopicNames = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics of messages, not our own.")]


def up(
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    keys: KeyFile = None,
    prefix: Prefix = None,
    home: Home = None,
    checkpoints: Checkpoints = None,
    config: ConfigFile = None,
) -> None:
    """Run the whole system: an embedded broker (unless --bootstrap names one), the observer and both jobs."""
    from pipeline.local.system import Stopped, local_system

    settings = load(
        os.environ,
        config,
        bootstrap=bootstrap,
        kafka_config=kafka_config,
        keys=keys,
        prefix=prefix,
        home=home,
        checkpoints=checkpoints,
    )
    settings.read_keys()  # a mistake in them is better told here than in a log
    if warning := warning_of(settings.keys):
        out.print(warning, style="yellow", markup=False)
    stop = stop_on_signals()
    out.print("starting broker, observer and jobs; about 20 s", style="dim")
    try:
        with local_system(settings, stop) as system:
            out.print(f"wakeroll is up on [bold]{system.settings.bootstrap}[/]; Ctrl-C stops it")
            out.print(
                f"logs in {system.settings.logs}; ask with: wakeroll groups, wakeroll describe GROUP", style="dim"
            )
            while not stop.wait(0.5):
                system.check()
            out.print("stopping: the last batch is finished first", style="dim")
    except Stopped:
        raise typer.Exit(130) from None


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
    from pipeline.jobs.run import JOBS
    from pipeline.jobs.run import run as run_jobs

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
    from pipeline.observer import observe as run_observer

    settings = settings_of(config, bootstrap=bootstrap, kafka_config=kafka_config, keys=keys, prefix=prefix, home=home)
    connection, signing = settings.connection, settings.read_keys()
    if warning := warning_of(settings.keys):
        log.warning("%s", warning)
    run_observer(connection, signing, stop_on_signals(), settings.limits)


def demo(
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    home: Home = None,
    checkpoints: Checkpoints = None,
    config: ConfigFile = None,
) -> None:
    """Tell the story: three consumers join, one is killed, nothing is lost - and SQL answers who owned what."""
    from pipeline.local.demo import run_demo

    settings = load(
        os.environ, config, bootstrap=bootstrap, kafka_config=kafka_config, home=home, checkpoints=checkpoints
    )
    raise typer.Exit(run_demo(settings, stop_on_signals()))


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
