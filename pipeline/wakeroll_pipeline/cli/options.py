"""Command-line options that several commands share, and the settings that they make.

A command names its deployment by one parameter, whose class has the options as fields; `declared` makes them options of
the command.
"""

import inspect
import os
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import typer
from msgspec import Struct, structs
from rich.console import Console

from wakeroll.epoch_ms import EpochMs, now_ms
from wakeroll.errors import InvalidUsage
from wakeroll.time_text import ago_ms_of, duration_ms_of, time_of
from wakeroll_pipeline.cli.completed_names import groups_beginning_with
from wakeroll_pipeline.cli.process_logs import log_as_json
from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import CHECKPOINTS, PREFIX, Settings

_DEFAULTS = Settings()


def of_deployment(name: str, metavar: str, text: str) -> Any:
    """Return the option of a setting of the deployment; help texts list these options under a heading of their own.

    Args:
        name: name of the option, such as ``--home``.
        metavar: placeholder of its value in a help text.
        text: meaning of the option, with its default.
    """
    return typer.Option(name, metavar=metavar, help=text, show_default=False, rich_help_panel="Deployment")


def of_brokers(text: str) -> Any:
    """Return the option that names the brokers; `text` contains their use and the default."""
    return of_deployment("--bootstrap", "HOST:PORT,...", text)


Prefix = Annotated[
    str | None,
    of_deployment("--prefix", "TEXT", f"Prefix of the names of the control topics; default: {_DEFAULTS.prefix}."),
]
Checkpoints = Annotated[
    str | None,
    of_deployment(
        "--checkpoints",
        "FOLDER",
        "Folder of the checkpoints of the queries, or the URI of one in an object store; "
        f"default: {CHECKPOINTS} in home, or in the working folder if home is not set.",
    ),
]
Machines = Annotated[
    str | None,
    of_deployment(
        "--machines",
        "WHICH",
        "State machines that the deciding query runs: both, groups or queues; "
        f"default: {_DEFAULTS.machines}, in one query.",
    ),
]
Replica = Annotated[
    str | None,
    of_deployment(
        "--replica",
        "NAME",
        "Run a further coordinator, with a checkpoint of its own, beside others with other names; "
        "default: the only coordinator.",
    ),
]
MetricsPort = Annotated[
    int | None,
    of_deployment(
        "--metrics-port",
        "PORT",
        "Port of /metrics, /healthz and /readyz; each process of a machine needs its own, "
        "and `up` uses the next one too, for the observer; "
        f"default: {_DEFAULTS.metrics_port}, which is none.",
    ),
]
MetricsAddress = Annotated[
    str | None,
    of_deployment(
        "--metrics-address",
        "ADDRESS",
        f"Address on which metrics are exposed; default: {_DEFAULTS.metrics_address}, this machine only.",
    ),
]


class ConfigOptions(Struct, frozen=True, kw_only=True):
    """The option of a command that needs settings only. In a help text, the last field comes first."""

    looks_for_run: ClassVar[bool] = True
    """Whether to take the brokers of the `run` that is active in the home, if neither options nor environment nor file
    name any.  A user who examines a system on the same machine need not know its port."""

    config: Annotated[
        Path | None,
        of_deployment(
            "--config", "FILE", "TOML file of settings; default: wakeroll.toml in the working folder, if it exists."
        ),
    ] = None

    def settings(self, **given: Any) -> Settings:
        """Return the settings of the deployment, from options, environment and file.

        Args:
            given: values of the command's own options that are settings; None: the option is absent.

        Raises:
            InvalidSettings: a file that cannot be read, an unknown name, or a value out of its bounds.
        """
        named = structs.asdict(self) | given
        settings = load(os.environ, named.pop("config"), **named)
        if settings.bootstrap or not self.looks_for_run:
            return settings
        status = read_status(settings.work_folder)
        if status is not None and status.is_alive:
            return structs.replace(settings, bootstrap=status.bootstrap)
        return settings


class TableOptions(ConfigOptions, frozen=True, kw_only=True):
    """The options of a command that reads the tables of a deployment, and no broker."""

    home: Annotated[
        str | None,
        of_deployment(
            "--home",
            "FOLDER",
            "Folder of the tables, the logs and the embedded broker, or the URI of the tables' folder in an object "
            f"store: s3a://bucket/path; default: {_DEFAULTS.home}.",
        ),
    ] = None


class BrokerOptions(TableOptions, frozen=True, kw_only=True):
    """The options of a command that reads or writes the topics of a deployment."""

    prefix: Prefix = None
    keys: Annotated[
        str | None,
        of_deployment(
            "--keys", "FILE", "File of the keys that sign and verify records; default: the development keys."
        ),
    ] = None
    kafka_config: Annotated[
        str | None,
        of_deployment(
            "--kafka-config",
            "FILE",
            "Properties file with further Kafka client settings, such as a login; default: none.",
        ),
    ] = None
    bootstrap: Annotated[
        str | None,
        of_brokers(
            "Addresses of the Kafka brokers; default: the brokers of the `wakeroll run` that is active in --home."
        ),
    ] = None


class NamedBrokerOptions(BrokerOptions, frozen=True, kw_only=True):
    """The same options, for a command that reads brokers only if some are named."""

    looks_for_run: ClassVar[bool] = False

    bootstrap: Annotated[str | None, of_brokers("Addresses of the Kafka brokers; default: none.")] = None


class LiveOptions(NamedBrokerOptions, frozen=True, kw_only=True):
    """The same options, for a command that answers from the brokers, or else from the tables."""

    bootstrap: Annotated[
        str | None,
        of_brokers(
            "Answer from these Kafka brokers, as of now; default: none, the answer comes from the tables in --home."
        ),
    ] = None


class ServiceOptions(BrokerOptions, frozen=True, kw_only=True):
    """The options of a process that runs until a signal."""

    log_format: Annotated[
        str | None,
        of_deployment(
            "--log-format",
            "FORMAT",
            "Format of the log on standard error: text, or json with one object per line; "
            f"default: {_DEFAULTS.log_format}.",
        ),
    ] = None

    def settings(self, **given: Any) -> Settings:
        """Return the settings as `ConfigOptions.settings` does; from now on, this process logs in their format.

        An error in another setting is logged in the format of the option or the environment.
        """
        self.begin_log()
        settings = super().settings(**given)
        if settings.log_format == "json":
            log_as_json()
        return settings

    def begin_log(self) -> None:
        """Log in the format of the option or the environment."""
        if (self.log_format or os.environ.get(f"{PREFIX}LOG_FORMAT")) == "json":
            log_as_json()


class MeasuredOptions(ServiceOptions, frozen=True, kw_only=True):
    """The options of a process that exposes metrics."""

    metrics_address: MetricsAddress = None
    metrics_port: MetricsPort = None


def declared(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for Typer: its parameter with a class of options is replaced by one option per field."""
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())
    place = next(
        (one for one in own if isinstance(one.annotation, type) and issubclass(one.annotation, ConfigOptions)), None
    )
    if place is None:
        return command
    options: type[ConfigOptions] = place.annotation
    types = get_type_hints(options, include_extras=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=types[name])
        for name in reversed(options.__struct_fields__)
    ]
    parameters = [*(one for one in own if one is not place), *added]

    @wraps(command)
    def with_options(**given: Any) -> None:
        named = {one.name: given.pop(one.name) for one in added}
        command(**given, **{place.name: options(**named)})

    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    vars(with_options)["__signature__"] = signature.replace(parameters=parameters)
    return with_options


GroupName = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="Name of the consumer group.", autocompletion=groups_beginning_with),
]
GroupOption = Annotated[
    str,
    typer.Option(
        "--group",
        metavar="GROUP",
        help="Name of the consumer group.",
        show_default=False,
        autocompletion=groups_beginning_with,
    ),
]


def moment(text: str) -> int:
    """Return the time of an option (epoch ms); if it counts back from now, print the resulting moment with its zone.

    Raises:
        InvalidUsage: the text is not a time.
    """
    at = time_of(text, now_ms())
    if ago_ms_of(text) is not None:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"{text} is {at}", markup=False)
    return int(at)


def time_before(text: str) -> int:
    """Return the present time minus a duration (epoch ms); the text is like 2h, or PT2H as in Kafka's tools.

    Raises:
        InvalidUsage: the text is not a duration.
    """
    iso = _ISO_DURATION.fullmatch(text.strip().upper())
    units = "" if iso is None else " ".join(f"{n}{unit}" for n, unit in zip(iso.groups(), "dhms", strict=True) if n)
    duration_ms = duration_ms_of(units or text)
    if duration_ms is None:
        raise InvalidUsage(f"{text!r} is not a duration; write one like 90s, 10m, 2h or PT2H")
    at = EpochMs(max(now_ms() - duration_ms, 0))
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"{text} ago is {at}", markup=False)
    return int(at)


_ISO_DURATION = re.compile(r"P(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)S)?)?")


def time_option(name: str, text: str) -> Any:
    """Return an option with a time, which the command receives in epoch ms.

    Args:
        name: name of the option, such as ``--at``.
        text: meaning of the time, with its default, if any.
    """
    forms = "TIME is 20m ago (or -20m), 2026-07-01T03:00:00Z, another zone such as +02:00, or epoch ms."
    return typer.Option(name, metavar="TIME", parser=moment, help=f"{text} {forms}", show_default=False)


LogAt = Annotated[int | None, time_option("--at", "Show the state at this time of the log; default: now.")]
"""Moment in the log's time. It can be any moment that the archive still holds."""
TablesAt = Annotated[
    int | None,
    time_option(
        "--at",
        "Read the tables as they were at this time, at most keep_versions_ms (one hour) ago; default: now.",
    ),
]
"""Moment in the commit times of the Delta versions. It can be any moment whose versions still exist."""


EngineName = Annotated[
    Engine | None,
    typer.Option(
        "--engine",
        help="Program that reads the tables: duckdb, in this process, or spark; default: duckdb. Of sql and marts, "
        "the default is spark if the files have more than 8 GiB.",
    ),
]
By = Annotated[
    str | None, typer.Option("--by", help="Name of the operator in the recorded request; default: user@host.")
]
Reason = Annotated[
    str, typer.Option("--reason", help="Why, for the record, in at most 255 characters (default: none).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def next_run(settings: Settings) -> str:
    """Return the command that starts the coordinator with these settings, as far as they belong to its checkpoint."""
    machines = "" if settings.machines == "both" else f" --machines {settings.machines}"
    replica = f" --replica {settings.replica}" if settings.replica else ""
    return f"wakeroll run{machines}{replica}"
