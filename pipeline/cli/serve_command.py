"""The command that serves the web page."""

from typing import Annotated

import typer

from pipeline.cli.options import Bootstrap, ConfigFile, Home, KafkaConfig, KeyFile, Prefix, settings_of
from pipeline.cli.output import Output
from wakeroll.errors import InvalidUsage

out = Output()

PORT = 8420
"""Default port of the page."""

Port = Annotated[
    int, typer.Option("--port", min=0, max=65_535, help="Port of the page; 0: one that the system chooses.")
]
Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Address to listen on. The page has no login: at another address than this machine's own, everybody who "
        "reaches it can read it.",
    ),
]


def serve(
    port: Port = PORT,
    host: Host = "127.0.0.1",
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    keys: KeyFile = None,
    prefix: Prefix = None,
    home: Home = None,
    config: ConfigFile = None,
) -> None:
    """Serve a live web page of all groups, JSON and metrics; without brokers, the end of the archived log.

    Runs until it is stopped.
    """
    try:
        from pipeline.serve.web_server import serve as run_server
    except ModuleNotFoundError as missing:
        raise _needs_serve(missing) from None
    settings = settings_of(config, bootstrap=bootstrap, kafka_config=kafka_config, keys=keys, prefix=prefix, home=home)
    followed = f"following {settings.bootstrap}" if settings.bootstrap else f"the tables in {settings.warehouse}"
    run_server(
        settings, host, port, lambda address, _: out.print(f"{address}  ({followed}; Ctrl-C stops)", soft_wrap=True)
    )


def refuse_unusable_port(port: int) -> None:
    """Check that a page can be served on this port of this machine, before the work that is to be shown.

    Raises:
        InvalidUsage: the port is in use, or a package is missing.
    """
    try:
        from pipeline.serve.web_server import listening
    except ModuleNotFoundError as missing:
        raise _needs_serve(missing) from None
    with listening("127.0.0.1", port):
        pass


def _needs_serve(missing: ModuleNotFoundError) -> InvalidUsage:
    return InvalidUsage(f"the page needs the package {missing.name}; install wakeroll[serve]")
