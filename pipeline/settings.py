"""What a deployment can be told: read once from `wakeroll.toml` and the environment; all else receives values."""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from model import config
from model.signing import Keys
from wakeroll.connection import Connection, Topics, read_properties
from wakeroll.errors import InvalidUsage
from wakeroll.keys import read_keys

PREFIX = "WAKEROLL_"
"""Of environment variables: WAKEROLL_BOOTSTRAP is `bootstrap`."""


_NOT_ABOVE = (
    ("max_group_bytes", "max_shard_bytes"),
    ("max_holds_per_queue", "max_holds_per_shard"),
    ("max_lives_per_queue", "max_lives_per_shard"),
    ("max_filters_per_queue", "max_filters_per_shard"),
)
"""Pairs of limits of which the first is part of the second."""


class InvalidSettings(InvalidUsage):
    """A setting that cannot be; the message names it, what was found and what would be right."""


class Settings(config.Limits, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False):
    """One deployment of the control plane, with the limits that its observer tells.  Durations are ms."""

    bootstrap: Annotated[str, Meta(description="host:port[,host:port] of the brokers; empty: none was named")] = ""
    kafka_config: Annotated[str | None, Meta(description="properties file with more client settings, for a login")] = (
        None
    )
    keys: Annotated[
        str | None, Meta(description="file of the keys that sign and verify records; none: the development keys")
    ] = None
    prefix: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,200}\Z", description="of the control plane's topics")] = (
        "wakeroll"
    )
    partitions: Annotated[
        int, Meta(ge=1, le=1_000, description="of each control topic; fixed for the life of a checkpoint")
    ] = config.CONTROL_PARTITIONS
    inbox_partitions: Annotated[int, Meta(ge=1, le=10_000)] = config.INBOX_PARTITIONS
    replication: Annotated[
        int, Meta(ge=-1, le=32, description="replicas of the control plane's topics; -1 leaves it to the brokers")
    ] = -1
    machines: Annotated[
        Literal["both", "groups", "queues"],
        Meta(description="that `coordinate` runs: both in one query, or one of them in a query of its own"),
    ] = "both"
    home: Annotated[str, Meta(min_length=1, description="folder of the tables, logs and the embedded broker")] = (
        ".wakeroll"
    )
    checkpoints: Annotated[str, Meta(min_length=1, description="folder of the queries' checkpoints")] = "checkpoints"
    master: Annotated[str, Meta(description="Spark master; on 2 cores local[4] serves both jobs best")] = "local[4]"
    state_partitions: Annotated[
        int, Meta(ge=1, le=1_000, description="about the number of cores of a cluster; frozen into the checkpoint")
    ] = 1
    driver_memory: Annotated[str, Meta(pattern=r"\A[0-9]+[mg]\Z")] = "1g"
    batch_interval_ms: Annotated[
        int, Meta(ge=0, le=600_000, description="between two batches of `coordinate`, or of `tap`; 0: one at once")
    ] = 0
    record_interval_ms: Annotated[int, Meta(ge=0, le=600_000, description="between two batches of `record`")] = 5_000
    snapshot_interval_ms: Annotated[int, Meta(ge=0, description="between two snapshots of the state in Delta")] = (
        600_000
    )
    upkeep_interval_ms: Annotated[
        int, Meta(ge=1_000, description="between two rounds of upkeep, in which the tables' small files are made few")
    ] = config.UPKEEP_MS
    keep_events_ms: Annotated[
        int, Meta(ge=86_400_000, description="how long events are kept at least: how far a replay reaches back")
    ] = config.KEEP_EVENTS_MS
    keep_decisions_ms: Annotated[
        int, Meta(ge=86_400_000, description="how long decisions, assignments and offsets are kept at least")
    ] = config.KEEP_DECISIONS_MS
    keep_versions_ms: Annotated[
        int, Meta(ge=60_000, description="how long a table can be read as it was before its last change")
    ] = config.KEEP_VERSIONS_MS
    max_offsets_per_batch: Annotated[int, Meta(ge=1_000, description="records of one batch, while catching up")] = (
        200_000
    )

    @property
    def connection(self) -> Connection:
        """The broker and the control plane's topics on it.

        Raises:
            InvalidSettings: no broker was named.
            InvalidConfigFile: `kafka_config` cannot be read.
        """
        if not self.bootstrap:
            raise InvalidSettings(
                "no broker is named; give --bootstrap host:port, or start one of your own with `wakeroll up`"
            )
        login = read_properties(Path(self.kafka_config)) if self.kafka_config else {}
        return Connection(self.bootstrap, login, Topics(self.prefix))

    @property
    def limits(self) -> config.Limits:
        """What a shard may hold."""
        return config.Limits(**{name: getattr(self, name) for name in config.Limits.__struct_fields__})

    def read_keys(self) -> Keys:
        """Return the keys of this deployment; the development keys if it names no file.

        Raises:
            InvalidKeys: the file cannot be used.
        """
        return read_keys(self.keys)

    @property
    def warehouse(self) -> Path:
        """The folder of the Delta tables, one folder each."""
        return Path(self.home).absolute() / "warehouse"

    @property
    def logs(self) -> Path:
        """The folder of the processes' logs."""
        return Path(self.home).absolute() / "logs"

    def environment(self) -> dict[str, str]:
        """Return these settings as environment variables, for a process that must have the same."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {PREFIX + name.upper(): str(value) for name, value in values.items() if value is not None}

    def checkpoint(self, query: str) -> Path:
        """Return the folder of a query's checkpoint."""
        return Path(self.checkpoints).absolute() / query


def load(environment: Mapping[str, str], file: Path | None = None, **given: Any) -> Settings:
    """Read the settings of a deployment.

    Args:
        environment: its WAKEROLL_* variables count; usually `os.environ`.
        file: a TOML file; without one, `wakeroll.toml` of the working folder if it is there.
        given: from the command line; these win over the environment, which wins over the file.  None is not given.

    Raises:
        InvalidSettings: a file that cannot be read, an unknown name, or a value out of its bounds.
    """
    values = _from_file(file) | _from_environment(environment)
    values |= {name: value for name, value in given.items() if value is not None}
    for name in values:
        if name not in Settings.__struct_fields__:
            raise InvalidSettings(f"there is no setting {name!r}; {_alternatives(name)}")
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"a setting is wrong: {error}") from error
    for smaller, larger in _NOT_ABOVE:
        if getattr(settings, smaller) > getattr(settings, larger):
            raise InvalidSettings(
                f"{smaller} is {getattr(settings, smaller)}; it must be at most {larger} ({getattr(settings, larger)})"
            )
    return settings


def _from_file(file: Path | None) -> dict[str, Any]:
    path = file or Path("wakeroll.toml")
    if file is None and not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSettings(f"cannot read the settings in {path}: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: environment[PREFIX + name.upper()]
        for name in Settings.__struct_fields__
        if PREFIX + name.upper() in environment
    }


def _alternatives(name: str) -> str:
    """Return what a name that is none may have meant: the nearest one, else all but the limits."""
    names = Settings.__struct_fields__
    if near := difflib.get_close_matches(name, names, n=1):
        return f"did you mean {near[0]!r}?"
    limits = config.Limits.__struct_fields__
    own = ", ".join(known for known in names if known not in limits)
    return f"there are: {own}, and the limits that docs/protocol.md lists"
