"""The options that several commands share, and the settings they make."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import structs

from pipeline.runtime.run_status import read_status
from pipeline.settings import Settings, load

Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", help="host:port[,host:port] of the brokers.", show_default=False)
]
KafkaConfig = Annotated[
    str | None,
    typer.Option("--kafka-config", metavar="FILE", help="Properties file with more Kafka client settings (a login)."),
]
KeyFile = Annotated[
    str | None,
    typer.Option(
        "--keys", metavar="FILE", help="The keys that sign and verify records; default: the development keys."
    ),
]
Prefix = Annotated[str | None, typer.Option("--prefix", help="Prefix of the control plane's topics.")]
Machines = Annotated[
    str | None,
    typer.Option(
        "--machines",
        metavar="WHICH",
        help="Those that decide in one query: both, or groups, or queues.",
        show_default=False,
    ),
]
Home = Annotated[str | None, typer.Option("--home", metavar="FOLDER", help="Tables, logs, the embedded broker.")]
Checkpoints = Annotated[str | None, typer.Option("--checkpoints", metavar="FOLDER", help="The queries' checkpoints.")]
LogAt = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="As it was then: 2026-07-01T03:00:00Z, or epoch ms; default: now."),
]
"""By the log's time: of whatever is archived."""
TablesAt = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="TIME", help="As the tables were then, an hour ago at most: 2026-07-01T03:00:00Z, or epoch ms."
    ),
]
"""By the time of their versions: as far back as versions are kept."""
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file; default: wakeroll.toml, if there is one.")
]


def settings_of(config: Path | None, **given: Any) -> Settings:
    """Make the settings of options, environment and file.

    Without a bootstrap from any of them, that of the `run` which lives in this home counts: who asks about a system on
    their own machine need not know its port.
    """
    settings = load(os.environ, config, **given)
    status = read_status(Path(settings.home))
    if not settings.bootstrap and status is not None and status.is_alive:
        return structs.replace(settings, bootstrap=status.bootstrap)
    return settings
