"""The Spark session, with all of wakeroll's Spark settings in one place, each with its reason."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from wakeroll.errors import WakerollError
from wakeroll_pipeline.prerequisites import check_java
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.executors import executor_confs, is_local
from wakeroll_pipeline.spark.jar_paths import SPARK, class_options, spark_jars
from wakeroll_pipeline.spark.made_jars import hadoop_defaults_jar
from wakeroll_pipeline.spark.s3_classes import s3_session_jars
from wakeroll_pipeline.spark.spark_properties import read_spark_properties
from wakeroll_pipeline.spark.storage_confs import storage_confs, uses_s3

_LOG4J = Path(__file__).with_name("log4j2.properties")
_LOG4J_JSON = Path(__file__).with_name("log4j2_json.properties")
"""Second configuration of log4j, which is read after the first one if logs are JSON."""


class SparkFailed(WakerollError):
    """A Spark session cannot be started; the message has the reason."""


def start_session(settings: Settings, name: str) -> SparkSession:
    """Start (or return) this process's Spark session, for long-running jobs.

    Spark's log goes to standard error; messages of the JVM itself and of Python workers go to ``jvm.log``.

    Raises:
        JarsMissing: the JARs of the Kafka source or of Delta are missing, or those for S3.
        SparkFailed: Java is missing, or Spark did not start with these settings.
        InvalidSparkProperties: the file of further Spark settings is not valid.
        PackagesMissing: the archive of the executors' packages cannot be made.
    """
    log = settings.logs / "jvm.log"
    log4j = [_LOG4J, _LOG4J_JSON] if settings.log_format == "json" else [_LOG4J]
    with _lend_output(log, log4j_to_stderr=True):
        return _session(settings, name, _ENGINE | _LATENCY | _DELTA | _LONG_RUNS, "", log, log4j)


def jvm_process(spark: SparkSession) -> "Popen[bytes] | None":
    """Return the process of a session's JVM; None if this process did not start it."""
    return getattr(spark.sparkContext._gateway, "proc", None)


def jvm_of(spark: SparkSession) -> int | None:
    """Return the process id of a session's JVM; None if this process did not start it."""
    launched = jvm_process(spark)
    return launched.pid if launched is not None else None


def start_brief_session(settings: Settings, name: str, *, for_minutes: bool = False, java: str = "") -> SparkSession:
    """Start a session for ledger queries. It starts quickly and prints nothing: the JVM logs to ``ask.log``.

    Args:
        settings: folders, and the memory of the driver.
        name: name of the application.
        for_minutes: whether many queries follow. Then the JVM's optimizing compiler is used: with it, `marts` takes 124
            s instead of 162, but a single query of thousands of rows takes 18 s instead of 13.
        java: further options of the JVM.

    Raises:
        JarsMissing: the JARs of the Kafka source or of Delta are missing, or those for S3.
        SparkFailed: Java is missing, or Spark did not start with these settings.
    """
    compiler = "" if for_minutes else " -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m"
    log = settings.logs / "ask.log"
    with _lend_output(log, log4j_to_stderr=False):
        return _session(
            settings, name, _ENGINE | _LATENCY | _DELTA, f"-XX:+UseSerialGC{compiler} {java}", log, [_LOG4J]
        )


def _session(
    settings: Settings, name: str, confs: Mapping[str, str], java: str, log: Path, log4j: Sequence[Path]
) -> SparkSession:
    further = read_spark_properties(Path(settings.spark_properties)) if settings.spark_properties else {}
    found = check_java()
    if not found.ok:
        raise SparkFailed(f"{found.found}; {found.fix}")
    _prepare_environment()
    # The path may contain a space.
    java = " ".join([java, *(f'"{option}"' for option in class_options(SPARK))])
    logging_files = ",".join(file.as_uri() for file in log4j)
    jars = [*hadoop_defaults_jar(), *(s3_session_jars() if uses_s3(settings) else spark_jars())]
    confs = {
        **confs,
        **storage_confs(settings),
        **executor_confs(settings, jars),
        "spark.driver.memory": settings.driver_memory,
        # On the class path, not in spark.jars: the session's file system class is needed before Spark adds any JAR.
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars),
        "spark.sql.shuffle.partitions": str(settings.state_partitions),
        "spark.sql.warehouse.dir": settings.warehouse.beneath(settings.work_folder).as_uri(),
        "spark.driver.extraJavaOptions": f'-Dlog4j2.configurationFile="{logging_files}" {java}',
        **further,
    }
    builder = SparkSession.builder.appName(name).master(settings.master)
    for conf, value in confs.items():
        builder = builder.config(conf, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, Py4JJavaError) as error:
        where = "" if is_local(settings.master) else f" with the master {settings.master}"
        raise SparkFailed(f"Spark did not start{where} ({_reason(str(error))}); its log is {log}") from error
    _leave_broken_connections_to_callers(session)
    return session


def _leave_broken_connections_to_callers(session: SparkSession) -> None:
    """Suppress tracebacks of two libraries, as when the JVM has ended, because callers receive an error too."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
    for name in (None, "py4j.clientserver"):
        logging.getLogger(name).addFilter(_is_news)
    accumulators = getattr(session.sparkContext, "_accumulatorServer", None)
    if accumulators is not None:
        accumulators.handle_error = lambda *_: None


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a log record is new: not about an error that Py4J raises, or that Spark reports of a query."""
    known = ("Exception while sending command.", "There was an exception while executing")
    return not str(record.msg).startswith(known)


def _reason(report: str) -> str:
    """Return the line of a Java exception that names the cause; for other texts, the first line."""
    lines = report.splitlines()
    return next((line.lstrip(": ") for line in lines if line.startswith(": ")), lines[0])


@contextmanager
def _lend_output(log: Path, *, log4j_to_stderr: bool) -> Iterator[None]:
    """Replace file descriptors 1 and 2 for the JVM that starts meanwhile; the JVM keeps them until it ends.

    Its standard error is the file `log`: each start of Java prints a warning about Spark's incubator module there, and
    no option prevents that. Spark's log4j writes to standard output, which is this process's standard error, or the
    file.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    ours = os.dup(1), os.dup(2)
    with log.open("ab") as file:
        os.dup2(2 if log4j_to_stderr else file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        for number, copy in enumerate(ours, 1):
            os.dup2(copy, number)
            os.close(copy)


def _prepare_environment() -> None:
    """Remove variables that would replace parts of this Spark, before the JVM starts."""
    for name in ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"):
        os.environ.pop(name, None)


_ENGINE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
}

_LATENCY = {
    "spark.sql.codegen.wholeStage": "false",
    # Expressions are interpreted: those with other literals in every query would be compiled again each time.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "10",
    # Large batches are passed to Python in chunks of this size (or of one record).
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    # JVM and Python exchange a batch in small pieces, which are slower over loopback TCP: 191 ms become 166.
    "spark.python.unix.domain.socket.enabled": "true",
}

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    # A file has the rows of a few seconds: statistics of its values would save a reader little.
    "spark.databricks.delta.stats.collect": "false",
}

_LONG_RUNS = {
    # Without it, `query.stop()` may wait forever.
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "100",
}
