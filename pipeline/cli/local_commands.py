"""Commands that run the whole system on this machine.  No other module outside `pipeline.local` imports that."""

import typer

from pipeline.cli.options import (
    Bootstrap,
    Checkpoints,
    ConfigFile,
    Home,
    KafkaConfig,
    KeyFile,
    MetricsAddress,
    MetricsPort,
    Prefix,
    settings_of,
)
from pipeline.cli.output import Output
from pipeline.cli.run_commands import stop_on_signals
from wakeroll.keys import warning_of

out = Output()


def up(
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    keys: KeyFile = None,
    prefix: Prefix = None,
    home: Home = None,
    checkpoints: Checkpoints = None,
    metrics_port: MetricsPort = None,
    metrics_address: MetricsAddress = None,
    config: ConfigFile = None,
) -> None:
    """Run the whole system: an embedded broker (unless --bootstrap names one), the observer and both jobs."""
    from pipeline.local.local_system import Stopped, local_system

    settings = settings_of(
        config,
        look_for_run=False,
        bootstrap=bootstrap,
        kafka_config=kafka_config,
        keys=keys,
        prefix=prefix,
        home=home,
        checkpoints=checkpoints,
        metrics_port=metrics_port,
        metrics_address=metrics_address,
    )
    settings.read_keys()  # report an invalid key file here, not in the log of a process that `up` starts
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
    """Show a hand-over: three consumers join, one is killed, no message is lost, and SQL shows who owned what."""
    from pipeline.local.demo import run_demo

    settings = settings_of(
        config,
        look_for_run=False,
        bootstrap=bootstrap,
        kafka_config=kafka_config,
        home=home,
        checkpoints=checkpoints,
    )
    raise typer.Exit(run_demo(settings, stop_on_signals()))
