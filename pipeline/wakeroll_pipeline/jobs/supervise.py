"""Supervision of Spark by a service: its session, queries that end by themselves, and a stop between two batches."""

import logging
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from subprocess import TimeoutExpired

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wakeroll.errors import WakerollError
from wakeroll_pipeline.runtime.stop_signals import StopSignals
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.session import jvm_process, start_session
from wakeroll_pipeline.storage.cause_trees import in_one_line

log = logging.getLogger("wakeroll.run")

POLL_S = 0.5
"""How often to check whether a query still runs (s)."""
LAST_BATCHES_S = 45.0
"""Longest wait for the last batches of all queries, which take seconds (s)."""
_END_OF_JVM_S = 2.0
"""Longest wait for the end of a JVM that does not answer (s), because its connections close before the process ends."""

_OUR_ERROR = re.compile(r"^\s*wakeroll\w*(?:\.\w+)+: (.+)$", re.MULTILINE)
"""The last line of a traceback whose exception is one of wakeroll's."""
_LOGIN_ERRORS = ("SaslAuthenticationException", "SslAuthenticationException")
"""Exceptions of Kafka's Java client about a rejected password, certificate or user."""
_STORE_ERRORS = ("java.nio.file.AccessDeniedException: s3a:",)
"""Text of Hadoop's file system for S3 after an answer 401 or 403."""
_PLAN = "=== Streaming Query ==="
"""Line of a Spark error after which the query is described."""


class JobFailed(WakerollError):
    """A query ended by itself; the message names the query and the reason."""


@contextmanager
def stoppable_session(settings: Settings, name: str, stop: StopSignals) -> Iterator[Callable[[], SparkSession]]:
    """Provide a session for long-running jobs, and stop it at the end.

    The yielded function starts the session at its first call, and returns it at each call. So a process that waits for
    brokers can start the JVM meanwhile, and a process that must not start has no JVM.

    Systemd and `timeout` send SIGTERM to Spark's JVM too, which then ends without finishing its batch. This is not a
    failure of the service: the next start repeats the batch.

    Raises:
        JarsMissing, SparkFailed: as for `start_session`, by the function.
        JobFailed: the JVM has ended by itself, for example because the kernel has killed it.
        SystemExit: SIGINT arrived while a session had its own handler.
    """
    started: list[SparkSession] = []

    def session() -> SparkSession:
        """Return the session; the first call starts it.

        Raises:
            JarsMissing, SparkFailed: as for `start_session`.
            SystemExit: SIGINT arrived while a session had its own handler.
        """
        if not started:
            try:
                started.append(start_session(settings, name))
            except KeyboardInterrupt:  # raised by a handler that a new session installs instead of ours
                raise SystemExit(0) from None
            finally:
                stop.install()
        return started[0]

    try:
        yield session
    except (JobFailed, PySparkException, Py4JError, OSError) as error:
        if not stop.asked.is_set():
            if started and (ended := _how_the_jvm_ended(started[0], settings)) is not None:
                raise JobFailed(ended) from None
            raise
        log.warning("Spark ended before its last batch was finished; the next start repeats that batch: %s", error)
    finally:
        for spark in started:
            with suppress(Py4JError, OSError):  # without its JVM, a session cannot be stopped
                spark.stop()


def _how_the_jvm_ended(spark: SparkSession, settings: Settings) -> str | None:
    """Return in one sentence how the JVM of a session has ended; None while it runs, or if another process owns it."""
    jvm = jvm_process(spark)
    if jvm is None:
        return None
    try:
        code = jvm.wait(_END_OF_JVM_S)
    except TimeoutExpired:
        return None
    how = f"was ended by {_name_of_signal(-code)}" if code < 0 else f"ended with exit code {code}"
    memory = "; the kernel does so when the limit of memory is reached" if code == -signal.SIGKILL else ""
    return (
        f"the JVM of Spark {how}{memory} (its own messages: {settings.logs / 'jvm.log'}); "
        "the next start repeats the batch that was not finished"
    )


def _name_of_signal(number: int) -> str:
    """Return the name of a signal; signals of real time have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def raise_if_dead(query: StreamingQuery) -> None:
    """Raise `JobFailed` if the query has ended."""
    if query.isActive:
        return
    error = query.exception()
    if error is None:
        raise JobFailed(f"{query.name} ended: it was stopped")
    sentence, cause = _first_sentence(error), _root_cause(query)
    cause = f"; its cause: {cause}" if cause and cause not in sentence else ""
    raise JobFailed(f"{query.name} ended: {sentence}{cause}{_remedy(query, str(error))}")


def _remedy(query: StreamingQuery, error: str) -> str:
    """Return the remedy for rejected credentials, or for a state that Spark cannot read; empty otherwise."""
    if any(name in error for name in _LOGIN_ERRORS):
        return (
            "; the brokers reject the login of this process: check kafka_config; the next start reads its files again"
        )
    if any(name in error for name in _STORE_ERRORS):
        return "; the store rejects the credentials of this process, or lacks a right; the next start reads them again"
    if "CANNOT_LOAD_STATE_STORE" not in error:
        return ""
    checkpoint = str(query._jsq.streamingQuery().resolvedCheckpointRoot()).removeprefix("file:")
    return (
        f"; if files of {checkpoint}/state are damaged or missing, as after a power failure, move {checkpoint} away "
        "and run `wakeroll restore`: the next run then continues from the newest snapshots"
    )


def stop_between_batches(query: StreamingQuery, until_s: float | None = None) -> None:
    """Stop a query at the end of its batch, so that no work is repeated after the next start.

    While the query catches up, its next batch starts at once; then that batch is stopped at its very beginning.

    Args:
        query: a running query.
        until_s: time of the monotonic clock (s) at which the batch is stopped too; None: in 45 s.
    """
    last = _batch_of(query)
    wait_until(lambda: not query.isActive or not query.status["isTriggerActive"] or _batch_of(query) != last, until_s)
    query.stop()


def _batch_of(query: StreamingQuery) -> int:
    """Return the number of the last completed batch, from 0; -1 before the first."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def wait_until(true: Callable[[], bool], until_s: float | None = None) -> None:
    """Wait until the condition is true, but not beyond a time of the monotonic clock (s); None: in 45 s."""
    if until_s is None:
        until_s = time.monotonic() + LAST_BATCHES_S
    while not true() and time.monotonic() < until_s:
        time.sleep(0.05)


def _first_sentence(error: StreamingQueryException) -> str:
    """Return the line of a Spark error that names the cause; write the whole error, with the plan, to the log.

    The message of wakeroll's own errors is written for the reader, so it is returned without the name of its class.
    """
    log.error("%s", error)
    sentences = in_one_line(str(error).partition(_PLAN)[0])
    if ours := _OUR_ERROR.search(sentences):
        return ours.group(1)
    lines = [line.strip() for line in sentences.splitlines() if line.strip()] or ["unknown"]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors[-1] if errors else lines[0])[:500]


def _root_cause(query: StreamingQuery) -> str:
    """Return the message of the innermost exception of a failed query, such as a full disk."""
    error = query._jsq.exception().get()
    while (cause := error.getCause()) is not None:
        error = cause
    return str(error.getMessage() or "").partition("\n")[0][:500]
