"""Command-line options that several commands share, and the settings that they make."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import structs

from wakeroll_pipeline.cli.process_logs import log_as_json
from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import CHECKPOINTS, PREFIX, Settings, load

_DEFAULTS = Settings()

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        help="Addresses of the Kafka brokers; default: the brokers of the `wakeroll run` that is active in --home "
        "(`up` and `demo`: an embedded broker).",
        show_default=False,
    ),
]
LiveBootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        help="Answer from these Kafka brokers, as of now; default: none, the answer comes from the tables in --home.",
        show_default=False,
    ),
]
KafkaConfig = Annotated[
    str | None,
    typer.Option(
        "--kafka-config",
        metavar="FILE",
        help="Properties file with further Kafka client settings, such as a login; default: none.",
    ),
]
KeyFile = Annotated[
    str | None,
    typer.Option(
        "--keys", metavar="FILE", help="File of the keys that sign and verify records; default: the development keys."
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option("--prefix", help=f"Prefix of the names of the control plane's topics; default: {_DEFAULTS.prefix}."),
]
Machines = Annotated[
    str | None,
    typer.Option(
        "--machines",
        metavar="WHICH",
        help="State machines that the deciding query runs: both, groups or queues; "
        f"default: {_DEFAULTS.machines}, in one query.",
        show_default=False,
    ),
]
Replica = Annotated[
    str | None,
    typer.Option(
        "--replica",
        metavar="NAME",
        help="Run a further coordinator, with a checkpoint of its own, beside others with other names; "
        "default: the only coordinator.",
        show_default=False,
    ),
]
Home = Annotated[
    str | None,
    typer.Option(
        "--home",
        metavar="FOLDER",
        help="Folder of the tables, the logs and the embedded broker, or the URI of the tables' folder in an object "
        f"store: s3a://bucket/path; default: {_DEFAULTS.home}.",
    ),
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoints",
        metavar="FOLDER",
        help="Folder of the checkpoints of the queries, or the URI of one in an object store; "
        f"default: {CHECKPOINTS} in home, or in the working folder if home is not set.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file of settings; default: wakeroll.toml in the working folder, if it exists.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="PORT",
        help="Port of /metrics, /healthz and /readyz; each process of a machine needs its own, "
        "and `up` uses the next one too, for the observer; "
        f"default: {_DEFAULTS.metrics_port}, which is none.",
        show_default=False,
    ),
]
MetricsAddress = Annotated[
    str | None,
    typer.Option(
        "--metrics-address",
        metavar="ADDRESS",
        help=f"Address on which metrics are exposed; default: {_DEFAULTS.metrics_address}, this machine only.",
        show_default=False,
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="FORMAT",
        help="Format of the log on standard error: text, or json with one object per line; "
        f"default: {_DEFAULTS.log_format}.",
        show_default=False,
    ),
]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.")]
GroupOption = Annotated[
    str, typer.Option("--group", metavar="GROUP", help="Name of the consumer group.", show_default=False)
]
LogAt = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Show the state at this time of the log: 2026-07-01T03:00:00Z, or epoch ms; default: now.",
    ),
]
"""Moment in the log's time. It can be any moment that the archive still holds."""
TablesAt = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Read the tables as they were at this time: 2026-07-01T03:00:00Z, or epoch ms; "
        "at most keep_versions_ms (one hour) ago; default: now.",
    ),
]
"""Moment in the commit times of the Delta versions. It can be any moment whose versions are still kept."""


EngineName = Annotated[
    Engine | None,
    typer.Option(
        "--engine",
        help="Program that reads the tables: duckdb, in this process, or spark; default: duckdb. Except for check and "
        "replay, the default is spark if the files have more than 8 GiB.",
    ),
]
By = Annotated[
    str | None, typer.Option("--by", help="Name of the operator in the recorded request; default: user@host.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def settings_of(config: Path | None, *, look_for_run: bool = True, **given: Any) -> Settings:
    """Return the settings of a deployment, from options, environment and file.

    Args:
        config: the TOML file; None: `wakeroll.toml` in the working folder, if it exists.
        look_for_run: whether to take the bootstrap of the `run` that is active in this home, if neither options nor
            environment nor file name one.  A user who examines a system on the same machine need not know its port.
        given: values of the options; None: the option is absent.

    Raises:
        InvalidSettings: a file that cannot be read, an unknown name, or a value out of its bounds.
    """
    settings = load(os.environ, config, **given)
    if settings.bootstrap or not look_for_run:
        return settings
    status = read_status(settings.work_folder)
    if status is not None and status.is_alive:
        return structs.replace(settings, bootstrap=status.bootstrap)
    return settings


def next_run(settings: Settings) -> str:
    """Return the command that starts the coordinator with these settings, as far as they belong to its checkpoint."""
    machines = "" if settings.machines == "both" else f" --machines {settings.machines}"
    replica = f" --replica {settings.replica}" if settings.replica else ""
    return f"wakeroll run{machines}{replica}"


def service_settings(config: Path | None, *, log_format: str | None, **given: Any) -> Settings:
    """Return the settings of a process that runs until a signal; from now on, it logs in their format.

    Args:
        config: as for `settings_of`.
        log_format: the option `--log-format`; None: absent. An error in another setting is logged in this format too.
        given: as for `settings_of`.

    Raises:
        InvalidSettings: as for `settings_of`.
    """
    if (log_format or os.environ.get(f"{PREFIX}LOG_FORMAT")) == "json":
        log_as_json()
    settings = settings_of(config, log_format=log_format, **given)
    if settings.log_format == "json":
        log_as_json()
    return settings
