"""Commands that run the whole system on this machine.  Only this one imports `wakeroll_pipeline.local`."""

import signal
from contextlib import ExitStack, suppress
from typing import Annotated

import typer

from wakeroll.keys import warning_of
from wakeroll_pipeline.cli.options import Checkpoints, MetricsAddress, MetricsPort, NamedBrokerOptions, of_brokers
from wakeroll_pipeline.cli.output import Output
from wakeroll_pipeline.cli.serve_command import PORT, refuse_unusable_port
from wakeroll_pipeline.runtime.stop_signals import StopSignals
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.jar_paths import LOCAL, SPARK, jar_paths

out = Output()

ServePort = Annotated[
    int, typer.Option("--serve-port", min=0, max=65_535, help="Port of the page; 0: one that the system chooses.")
]


class LocalOptions(NamedBrokerOptions, frozen=True, kw_only=True):
    """The options of a system on this machine."""

    bootstrap: Annotated[
        str | None, of_brokers("Addresses of the Kafka brokers; default: an embedded broker is started.")
    ] = None


def up(
    deployment: LocalOptions,
    checkpoints: Checkpoints = None,
    metrics_port: MetricsPort = None,
    metrics_address: MetricsAddress = None,
    serve: Annotated[bool, typer.Option("--serve", help="Also serve the web page, on this machine only.")] = False,
    serve_port: ServePort = PORT,
) -> None:
    """Run the whole system: an embedded broker (unless --bootstrap names one), the observer and both jobs.

    SIGTERM or Ctrl-C, at any moment, stops it cleanly, with exit code 0; a second one stops it at once.
    """
    from wakeroll_pipeline.local.local_page import local_page
    from wakeroll_pipeline.local.local_system import Stopped, local_system

    if serve:
        refuse_unusable_port(serve_port)
    settings = deployment.settings(checkpoints=checkpoints, metrics_port=metrics_port, metrics_address=metrics_address)
    _require_jars(settings)
    settings.read_keys()  # report an invalid key file here, not in the log of a process that `up` starts
    if warning := warning_of(settings.keys):
        out.print(warning, style="yellow", markup=False)
    stop = StopSignals().asked
    out.print("starting broker, observer and jobs; about 20 s", style="dim")
    with suppress(Stopped), ExitStack() as stack:
        system = stack.enter_context(local_system(settings, stop))
        page = stack.enter_context(local_page(system.settings, serve_port)) if serve else None
        out.print(f"wakeroll is up on [bold]{system.settings.bootstrap}[/]; Ctrl-C stops it")
        out.print(f"logs in {system.settings.logs}; ask with: wakeroll groups, wakeroll describe GROUP", style="dim")
        if page is not None:
            out.print(f"the page: [bold]{page.address}[/]")
        while not stop.wait(0.5):
            system.check()
            if page is not None:
                page.check()
        out.print("stopping: the last batch is finished first", style="dim")


def demo(
    deployment: LocalOptions,
    checkpoints: Checkpoints = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="At the end, serve the web page of the demo's tables until Ctrl-C.")
    ] = False,
    serve_port: ServePort = PORT,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Show groups of Kafka's own instead, and the record of watch-kafka.")
    ] = False,
) -> None:
    """Show a hand-over: three consumers join, one is killed, no message is lost, and SQL shows who owned what.

    Ctrl-C stops everything; the exit code is then 130, because the demo did not reach its end. After SIGTERM it is 0.
    """
    from wakeroll_pipeline.local.demo import STOPPED, run_demo
    from wakeroll_pipeline.local.kafka_demo import Page, run_kafka_demo

    if serve:
        refuse_unusable_port(serve_port)
    settings = deployment.settings(checkpoints=checkpoints)
    _require_jars(settings)
    stop = StopSignals()
    if kafka:
        code = run_kafka_demo(settings, stop.asked, Page(serve_port if serve else 0, stays=serve))
    else:
        code = run_demo(settings, stop.asked, serve_port if serve else None)
    raise typer.Exit(0 if code == STOPPED and stop.number == signal.SIGTERM else code)


def _require_jars(settings: Settings) -> None:
    """Report all missing JARs here at once, instead of in the log of a process that is started.

    Raises:
        JarsMissing: at least one JAR is missing.
    """
    jar_paths(*((SPARK,) if settings.bootstrap else LOCAL))
