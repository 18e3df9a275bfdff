"""The settings of a deployment: types, bounds, defaults and meanings. `cli.settings_sources` reads them."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from wakeroll.client_properties import read_properties
from wakeroll.errors import InvalidUsage
from wakeroll.keys import InvalidKeys, read_keys
from wakeroll_model import config
from wakeroll_model.signing import Keys
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.s3_access import S3Access

if TYPE_CHECKING:
    from wakeroll.connection import Connection

PREFIX = "WAKEROLL_"
"""Prefix of the environment variables: WAKEROLL_BOOTSTRAP sets `bootstrap`."""
HOME = ".wakeroll"
"""Default of `home`, in the working folder."""
CHECKPOINTS = "checkpoints"
"""Default name of the folder of the checkpoints."""


class InvalidSettings(InvalidUsage):
    """An invalid setting; the message names the setting, the value found and the values that are valid."""


class Settings(config.Limits, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False):
    """Settings of one deployment, with the limits that its observer publishes.  Durations are ms."""

    bootstrap: Annotated[str, Meta(description="host:port[,host:port] of the Kafka brokers; empty: none is named")] = ""
    kafka_config: Annotated[
        str | None, Meta(description="properties file with further Kafka client settings, such as a login")
    ] = None
    keys: Annotated[
        str | None, Meta(description="file of the keys that sign and verify records; none: the development keys")
    ] = None
    require_keys: Annotated[
        bool, Meta(description="refuse to work with the development keys, which everybody knows; as in the image")
    ] = False
    prefix: Annotated[
        str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,200}\Z", description="prefix of the names of the control plane's topics")
    ] = "wakeroll"
    partitions: Annotated[
        int, Meta(ge=1, le=1_000, description="partitions of each control topic; `wakeroll reshard` raises it")
    ] = config.CONTROL_PARTITIONS
    inbox_partitions: Annotated[int, Meta(ge=1, le=10_000)] = config.INBOX_PARTITIONS
    replication: Annotated[
        int, Meta(ge=-1, le=32, description="replicas of the control plane's topics; -1: the brokers' default")
    ] = -1
    machines: Annotated[
        Literal["both", "groups", "queues"],
        Meta(
            description="state machines that `coordinate` runs: both in one query, or only those of groups or of queues"
        ),
    ] = "both"
    replica: Annotated[
        str,
        Meta(
            pattern=r"\A[A-Za-z0-9._-]{0,64}\Z",
            description="name of this coordinator, if several run at once; each has a checkpoint of its own; "
            "empty: the only one",
        ),
    ] = ""
    standby: Annotated[
        bool,
        Meta(
            description="whether `record` waits while another process writes the tables; it always does with a replica"
        ),
    ] = False
    locks: Annotated[
        Literal["auto", "file", "lease"],
        Meta(
            description="how a second process is kept from a checkpoint or from the tables: by a locked file, or by a "
            "lease in Kafka; auto: a file on a local disk, else a lease; NFS needs `lease`"
        ),
    ] = "auto"
    lease_ms: Annotated[
        int, Meta(ge=1_000, le=300_000, description="duration of a lease: how long after a crash another process waits")
    ] = config.LEASE_MS
    mirror_offsets: Annotated[
        str,
        Meta(
            description="regular expression: committed offsets of the groups with matching names are copied to Kafka's "
            "own groups; empty: of none"
        ),
    ] = ""
    watch_groups: Annotated[
        str,
        Meta(
            description="regular expression: Kafka's own groups with matching names are watched by `watch-kafka`; "
            "empty: all"
        ),
    ] = ""
    watch_interval_ms: Annotated[
        int,
        Meta(
            ge=500,
            le=300_000,
            description="interval between two descriptions of a watched group, if `__consumer_offsets` cannot be read",
        ),
    ] = 5_000
    home: Annotated[
        str,
        Meta(
            min_length=1,
            description="folder of the tables, the logs and the embedded broker; or the URI of a folder in an object "
            "store, such as s3a://bucket/path, for the tables only",
        ),
    ] = HOME
    checkpoints: Annotated[
        str,
        Meta(
            description="folder of the checkpoints of the queries, or the URI of one in an object store; empty: "
            "`checkpoints` in home, or in the working folder if home is not set either"
        ),
    ] = ""
    work: Annotated[
        str,
        Meta(
            description="local folder of the logs, the status of `run`, its locks and the embedded broker; empty: "
            "home, or if that is remote, a folder of its own in .wakeroll"
        ),
    ] = ""
    s3_endpoint: Annotated[
        str,
        Meta(
            pattern=r"\A(https?://[^/@]+/?)?\Z",
            description="URL of the S3 store, without a bucket; empty: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or AWS",
        ),
    ] = ""
    s3_region: Annotated[
        str,
        Meta(pattern=r"\A[A-Za-z0-9-]*\Z", description="region of the buckets; empty: AWS_REGION, AWS_DEFAULT_REGION"),
    ] = ""
    s3_addressing: Annotated[
        Literal["path", "virtual"],
        Meta(description="where the bucket is in a URL: in its path, or in front of the host's name"),
    ] = "path"
    master: Annotated[str, Meta(description="Spark master; with 2 cores, local[4] was the fastest for both jobs")] = (
        "local[4]"
    )
    state_partitions: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="state partitions: about the number of cores of a cluster; a checkpoint fixes the number",
        ),
    ] = 1
    executor_packages: Annotated[
        Literal["shipped", "installed"],
        Meta(
            description="Python packages of a cluster's executors: shipped by the driver, or installed on the workers"
        ),
    ] = "shipped"
    executor_python: Annotated[
        str,
        Meta(description="Python on the workers of a cluster; empty: python3.N of their PATH, of the driver's version"),
    ] = ""
    spark_properties: Annotated[
        str | None,
        Meta(description="file of further Spark settings, like spark-defaults.conf; they override those of wakeroll"),
    ] = None
    driver_memory: Annotated[str, Meta(pattern=r"\A[0-9]+[mg]\Z")] = "1g"
    batch_interval_ms: Annotated[
        int, Meta(ge=0, le=600_000, description="interval between batches of `coordinate`, or of `tap`; 0: no pause")
    ] = 0
    record_interval_ms: Annotated[int, Meta(ge=0, le=600_000, description="interval between batches of `record`")] = (
        5_000
    )
    snapshot_interval_ms: Annotated[int, Meta(ge=0, description="interval between snapshots of the state in Delta")] = (
        600_000
    )
    snapshot_records: Annotated[
        int,
        Meta(
            ge=1_000,
            le=10_000_000,
            description="records of the control topics after which snapshots are taken before the interval is over, so "
            "that any moment can be shown in seconds; more if the state is large",
        ),
    ] = config.SNAPSHOT_RECORDS
    upkeep_interval_ms: Annotated[
        int,
        Meta(ge=1_000, description="interval between rounds of upkeep, which compact the small files of the tables"),
    ] = config.UPKEEP_MS
    keep_events_ms: Annotated[
        int, Meta(ge=86_400_000, description="minimum retention of events; a replay can begin that long ago")
    ] = config.KEEP_EVENTS_MS
    keep_decisions_ms: Annotated[
        int, Meta(ge=86_400_000, description="minimum retention of decisions, assignments and offsets")
    ] = config.KEEP_DECISIONS_MS
    keep_snapshots_ms: Annotated[
        int,
        Meta(
            ge=3_600_000,
            description="how long every snapshot is kept; of older ones, the last of each day and of each 250,000 "
            "records of a shard",
        ),
    ] = config.KEEP_SNAPSHOTS_MS
    keep_snapshots: Annotated[
        int,
        Meta(
            ge=2,
            le=1_000,
            description="newest snapshots of each shard that are always kept: if one is damaged, the one before it is "
            "used",
        ),
    ] = config.KEEP_SNAPSHOTS
    keep_versions_ms: Annotated[
        int, Meta(ge=60_000, description="how long an earlier version of a table can be read")
    ] = config.KEEP_VERSIONS_MS
    keep_results_ms: Annotated[
        int,
        Meta(
            ge=3_600_000,
            description="how long the stored results of `check` with their Data Docs are kept, and checkpoints that "
            "`restore` or `reshard` has replaced; `check` and `maintain` delete older ones",
        ),
    ] = config.KEEP_RESULTS_MS
    metrics_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65_534,
            description="port of /metrics, /healthz and /readyz; each process of a machine needs its own, and `up` "
            "uses the next one too, for the observer; 0: none",
        ),
    ] = 0
    metrics_address: Annotated[
        str, Meta(min_length=1, description="address on which metrics are exposed; 0.0.0.0: on all of this machine")
    ] = "127.0.0.1"
    metrics_max_groups: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="groups with metrics of their own, in `serve`: those with a problem first, then those with "
            "members and lag; further ones share one value of a label",
        ),
    ] = 1_000
    metrics_max_queues: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="queues with metrics of their own, in `serve`: those of the most important groups",
        ),
    ] = 20_000
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="format of the logs of run, observe, serve, tap and watch-kafka; json: one object per line"),
    ] = "text"
    max_offsets_per_batch: Annotated[
        int, Meta(ge=1_000, description="maximum number of records per batch, while a query catches up")
    ] = 200_000

    @property
    def connection(self) -> "Connection":
        """Address of the brokers, client settings, and names of the control plane's topics.

        Raises:
            InvalidSettings: no broker is named.
            InvalidConfigFile: `kafka_config` cannot be read.
            InvalidKeys: `keys` cannot be read.
        """
        # Most commands ask tables only, and importing the Kafka client takes a third of their start.
        from wakeroll.connection import Connection, Topics

        if not self.bootstrap:
            raise InvalidSettings(
                "no broker is named; use --bootstrap host:port, or start an embedded broker with `wakeroll up`"
            )
        login = read_properties(Path(self.kafka_config)) if self.kafka_config else {}
        clients = self.read_keys().clients if self.keys else ()
        return Connection(self.bootstrap, login, Topics(self.prefix), clients)

    @property
    def limits(self) -> config.Limits:
        """Limits of the state of a shard."""
        return config.Limits(**{name: getattr(self, name) for name in config.Limits.__struct_fields__})

    @property
    def mirrored_groups(self) -> re.Pattern[str] | None:
        """Pattern of the names of the groups whose committed offsets are copied to Kafka's own groups; None: no group.

        Raises:
            InvalidSettings: `mirror_offsets` is not a regular expression.
        """
        return _pattern("mirror_offsets", self.mirror_offsets)

    @property
    def watched_groups(self) -> re.Pattern[str] | None:
        """Pattern of the names of Kafka's own groups that are watched; None: all groups.

        Raises:
            InvalidSettings: `watch_groups` is not a regular expression.
        """
        return _pattern("watch_groups", self.watch_groups)

    @property
    def locks_files(self) -> bool:
        """Whether locked files exclude a second process, which is possible only on the disk of one machine.

        Raises:
            InvalidUsage: a URI cannot be used.
        """
        if self.locks != "auto":
            return self.locks == "file"
        return self.warehouse.is_local and self.checkpoints_folder.is_local

    @property
    def is_standby(self) -> bool:
        """Whether `record` waits while another process writes the tables."""
        return self.standby or bool(self.replica)

    def read_keys(self) -> Keys:
        """Return the keys of this deployment: those of the file, or the development keys if no file is named.

        Raises:
            InvalidKeys: the file cannot be read, or its content is invalid; or no file is named although one is
                required.
        """
        if self.require_keys and not self.keys:
            raise InvalidKeys(
                "no key file is named, and with the development keys anybody could act as operator: make one by "
                "`wakeroll keys ensure --file FILE`, and name it by --keys or WAKEROLL_KEYS; for a trial without keys, "
                "set WAKEROLL_REQUIRE_KEYS=false"
            )
        return read_keys(self.keys)

    @property
    def warehouse(self) -> Place:
        """Folder of the Delta tables; each table is a folder in it.

        Raises:
            InvalidUsage: the URI in `home` cannot be used.
        """
        return self._place(self.home) / "warehouse"

    @property
    def work_folder(self) -> Path:
        """Local folder for files of this machine's processes: logs, status, locks, the embedded broker."""
        return Path(self.work).absolute() if self.work else self._place(self.home).beneath(Path(HOME).absolute())

    @property
    def logs(self) -> Path:
        """Local folder of the log files of the processes."""
        return self.work_folder / "logs"

    def environment(self) -> dict[str, str]:
        """Return these settings as environment variables, for a child process that needs the same settings."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {PREFIX + name.upper(): str(value) for name, value in values.items() if value is not None}

    def checkpoint(self, query: str) -> Place:
        """Return the folder of a query's checkpoint.

        Raises:
            InvalidUsage: the URI in `checkpoints` cannot be used.
        """
        return self.checkpoints_folder / query

    @property
    def checkpoints_folder(self) -> Place:
        """Folder of the checkpoints; each checkpoint is a folder in it.

        Raises:
            InvalidUsage: the URI in `checkpoints` or `home` cannot be used.
        """
        if self.checkpoints:
            return self._place(self.checkpoints)
        return self._place(CHECKPOINTS) if self.home == HOME else self._place(self.home) / CHECKPOINTS

    def lock_file(self, place: Place) -> Path:
        """Return the lock file for a place: the place itself if it is local, else a file in the work folder."""
        return place.beneath(self.work_folder / "locks")

    def _place(self, where: str) -> Place:
        return Place.of(where, S3Access(self.s3_endpoint.rstrip("/"), self.s3_region, self.s3_addressing))


def _pattern(name: str, expression: str) -> re.Pattern[str] | None:
    """Return the pattern of a setting; None if it is empty.

    Raises:
        InvalidSettings: it is not a regular expression.
    """
    try:
        return re.compile(expression) if expression else None
    except re.error as error:
        raise InvalidSettings(f"{name} is {expression!r}; it must be a regular expression ({error})") from None
