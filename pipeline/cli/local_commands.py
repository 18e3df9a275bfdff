"""The commands that run the whole system on this machine; the only module outside `pipeline.local` that imports it."""

import os

import typer
from rich.console import Console

from pipeline.cli.options import Bootstrap, Checkpoints, ConfigFile, Home, KafkaConfig, KeyFile, Prefix
from pipeline.cli.run_commands import stop_on_signals
from pipeline.settings import load
from wakeroll.keys import warning_of

out = Console()


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
    from pipeline.local.local_system import Stopped, local_system

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
