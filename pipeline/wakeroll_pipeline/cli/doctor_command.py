"""The `doctor` command: checks of the machine, the broker and the processes that a deployment needs."""

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import typer
from rich.markup import escape

from wakeroll.client_properties import exposed
from wakeroll.connection import Connection
from wakeroll.epoch_ms import now_ms
from wakeroll.errors import WakerollError
from wakeroll.keys import warning_of
from wakeroll_model import config, feature_levels
from wakeroll_model.signing import Keys
from wakeroll_pipeline.cli.exit_codes import BROKEN, HOLDS
from wakeroll_pipeline.cli.json_answers import CheckRow, DoctorAnswer
from wakeroll_pipeline.cli.options import AsJson, BrokerOptions, Checkpoints
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.cli.start_checks import start_checks
from wakeroll_pipeline.kafka.control_topics import check_topics
from wakeroll_pipeline.kafka.rights_check import missing_rights
from wakeroll_pipeline.kafka.role_rights import ON_CONTROL_TOPICS
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.observer.ticks import NewestTick, newest_tick
from wakeroll_pipeline.prerequisites import Check, checks
from wakeroll_pipeline.runtime.run_status import Status, read_status
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.jar_paths import broker_jars, our_jars, spark_jars
from wakeroll_pipeline.spark.jar_sums import JarsMissing
from wakeroll_pipeline.spark.s3_classes import s3_session_jars
from wakeroll_pipeline.spark.storage_confs import uses_s3
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.write_probes import refuse_unconditional

STALE_TICK_MS = 10_000
"""Age (ms) from which the newest tick is too old.  Ticks are published once a second; no timer fires without them."""

_SLACK_MS = 2_000
"""How far the clock of this machine may be behind that of the brokers (ms)."""

out = Output(highlight=False, soft_wrap=True)


def doctor(
    deployment: BrokerOptions,
    checkpoints: Checkpoints = None,
    as_json: AsJson = False,
) -> None:
    """Check Java, JARs, folders, disks, memory, keys, jobs, broker, topics and clock; exit code 1 if a check fails."""
    settings = deployment.settings(checkpoints=checkpoints)
    if settings.bootstrap:
        assert settings.connection, "a mistake in the settings is refused before anything is printed"
    if as_json:
        rows = [CheckRow(**one._asdict()) for one in _all(settings)]
        code = HOLDS if all(one.ok for one in rows) else BROKEN
        write_document(DoctorAnswer(exit_code=code, checks=rows))
        raise typer.Exit(code)
    wrong = 0
    for check in _all(settings):
        mark = "[green]ok[/]   " if check.ok else "[red]wrong[/]"
        fix = f"; {check.fix}" if check.fix else ""
        out.print(f"{mark} {check.name:8} {escape(check.found + fix)}")
        wrong += not check.ok
    raise typer.Exit(BROKEN if wrong else HOLDS)


def _all(settings: Settings) -> Iterator[Check]:
    yield from checks(Path.cwd())
    yield _jars()
    yield from start_checks(settings)
    yield from _storage(settings)
    yield _ports()
    yield _asked("keys", lambda: _keys(settings))
    yield from _jobs(settings)
    if not settings.bootstrap:
        yield Check("broker", False, "no broker is named", "use --bootstrap host:port, or start `wakeroll up`")
        return
    connection = settings.connection
    broker = _asked("broker", lambda: _broker(connection))
    yield broker
    if broker.ok:
        if connection.has_login:
            yield _asked("login", lambda: _login(connection, settings))
        yield _asked("topics", lambda: _topics(connection, settings))
        yield _asked("clock", lambda: _clock(connection, settings.read_keys()))


def _storage(settings: Settings) -> Iterator[Check]:
    """Yield one check for each remote folder, and one for the JARs that reach it; none if all data is local."""
    for place in dict.fromkeys((settings.warehouse.parent, settings.checkpoints_folder)):
        if not place.is_local:
            yield _writes(place)
    if uses_s3(settings):
        try:
            yield Check("s3 jars", True, f"{len(s3_session_jars())} for Spark", "")
        except JarsMissing as error:
            yield Check("s3 jars", False, str(error), "")


def _writes(place: Place) -> Check:
    try:
        refuse_unconditional(place)
    except WakerollError as error:
        return Check("storage", False, str(error), "")
    return Check("storage", True, f"{place} can be written, and refuses to create a file twice", "")


def _asked(name: str, ask: Callable[[], Check]) -> Check:
    """Run a check; convert a `WakerollError` to a failed check."""
    try:
        return ask()
    except WakerollError as error:
        return Check(name, False, str(error), "")


def _jars() -> Check:
    """Check the JARs of Spark; those of the embedded broker are needed by `up` and `demo` only."""
    try:
        spark = spark_jars()
    except JarsMissing as error:
        return Check("jars", False, str(error), "")
    try:
        broker = f"{len(broker_jars())} for the embedded broker"
    except JarsMissing:
        broker = "not all for the embedded broker, which `wakeroll jars broker` fetches"
    return Check("jars", True, f"{len(spark)} for Spark, {broker}; in {our_jars().folder}", "")


def _ports() -> Check:
    """Check that this process can listen on loopback, as the embedded broker and Spark's driver must."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return Check("ports", True, f"can listen on 127.0.0.1, such as on port {probe.getsockname()[1]}", "")
    except OSError as error:
        return Check("ports", False, f"cannot listen on 127.0.0.1: {error}", "allow programs to listen on loopback")


def _keys(settings: Settings) -> Check:
    """Check that the key file can be read; development keys pass, with a warning."""
    keys, warning = settings.read_keys(), warning_of(settings.keys)
    found = ", ".join(f"{key_id} ({role})" for key_id, role in keys.roles())
    return Check("keys", True, found, warning)


def _jobs(settings: Settings) -> Iterator[Check]:
    status = read_status(settings.work_folder)
    if status is None or not status.is_alive:
        yield Check(
            "jobs", False, f"no `wakeroll run` is active in {settings.home}", "start `wakeroll up` or `wakeroll run`"
        )
        return
    summary = ", ".join(
        f"{name} batch {query.batch} ({query.records} records in {query.batch_ms} ms)"
        for name, query in sorted(status.queries.items())
    )
    age_s = (now_ms() - status.written_ms) / 1000
    if age_s > 30:
        yield Check(
            "jobs",
            False,
            f"process {status.pid} wrote its status {age_s:.0f} s ago; expected: at most 30 s",
            "read its log",
        )
    else:
        yield Check("jobs", True, f"process {status.pid}: {summary}", "")
    yield _decisions(status)
    if status.decides:
        yield level_check(status.shard_levels, status.newest_level)
    if status.states:
        yield state_check(status.states)


def level_check(found: Mapping[str, int], newest: int) -> Check:
    """Check that the shards are at the newest feature level of the running process.

    Args:
        found: shard -> its level.
        newest: the newest level that the process supports.
    """
    if not found:
        return Check("levels", True, f"no shard had a batch yet; the process knows levels up to {newest}", "")
    lowest = min(found.values())
    spread = str(lowest) if lowest == max(found.values()) else f"{lowest} to {max(found.values())}"
    summary = f"{len(found)} shards are at feature level {spread}; the process knows levels up to {newest}"
    if newest < feature_levels.NEWEST:
        return Check("levels", False, summary, f"restart it with this release, which knows {feature_levels.NEWEST}")
    fix = "run `wakeroll upgrade` when all processes have this release" if lowest < newest else ""
    return Check("levels", True, summary, fix)


def state_check(states: Mapping[str, int]) -> Check:
    """Check the size of the largest shard state: each is one value of Spark's state store, written in every batch."""
    name, size = max(states.items(), key=lambda item: item[1])
    found = f"the largest state of {len(states)} shards is {name} with {size / 2**20:.1f} MiB"
    if size < config.LARGE_STATE_BYTES:
        return Check("state", True, found, "")
    fix = (
        f"more than {config.LARGE_STATE_BYTES >> 20} MiB makes each batch slow, and Spark stores less than 2 GiB; "
        "`wakeroll state` shows its groups; move some of them to another deployment, with another --prefix"
    )
    return Check("state", False, found, fix)


def _decisions(status: Status) -> Check:
    """Check that no event made a state machine fail.  Such an event is rejected, and is a bug of wakeroll."""
    found = f"{status.failures} events failed since process {status.pid} started"
    fix = "run `select * from rejections where rule = 'internal'`, and please report `detail`"
    return Check("decisions", not status.failures, found, fix if status.failures else "")


def _broker(connection: Connection) -> Check:
    Cluster(connection).racks(connection.topics.all)
    return Check("broker", True, f"{connection.bootstrap} answers", "")


def _login(connection: Connection, settings: Settings) -> Check:
    """Show the user and its roles, by its rights on the control topics; a missing role may be intended."""
    cluster = Cluster(connection)
    roles = [role for role in ON_CONTROL_TOPICS if not missing_rights(cluster, connection, role)]
    its = f"it has the rights of {', '.join(roles)}" if roles else "it has the rights of no role"
    return Check("login", True, f"{connection.login}; {its}", exposed(settings.kafka_config))


def _topics(connection: Connection, settings: Settings) -> Check:
    findings = check_topics(
        connection,
        partitions=settings.partitions,
        inbox_partitions=settings.inbox_partitions,
    )
    if findings:
        return Check("topics", False, "; ".join(str(finding) for finding in findings), "")
    return Check("topics", True, ", ".join(connection.topics.all), "")


def _clock(connection: Connection, keys: Keys) -> Check:
    tick = newest_tick(connection, keys)
    if tick is None:
        return Check("clock", False, "the control topics hold no tick", "start the observer: wakeroll observe")
    if tick.problem:
        return Check(
            "clock", False, f"ticks are ignored: {tick.problem}", "docs/security.md lists which process needs which key"
        )
    age_ms = now_ms() - tick.at_ms
    if age_ms < -_SLACK_MS:
        return _wrong_clock("behind", -age_ms)
    if age_ms > STALE_TICK_MS and (newer := _newer_tick(connection, keys, tick)) is not None:
        return _wrong_clock("ahead of", now_ms() - newer.at_ms)
    if age_ms > STALE_TICK_MS:
        return Check(
            "clock",
            False,
            f"the newest tick is {age_ms / 1000:.0f} s old; expected: at most {STALE_TICK_MS / 1000:.0f} s",
            "read the observer's log",
        )
    return Check("clock", True, f"the newest tick is {age_ms / 1000:.1f} s old", "")


def _newer_tick(connection: Connection, keys: Keys, than: NewestTick) -> NewestTick | None:
    """Return a tick that is appended now; None if there is none within three seconds: no observer runs."""
    until_s = time.monotonic() + 3
    while time.monotonic() < until_s:
        tick = newest_tick(connection, keys)
        if tick is not None and tick.at_ms > than.at_ms:
            return tick
        time.sleep(0.1)
    return None


def _wrong_clock(direction: str, offset_ms: int) -> Check:
    """Return the failure of a clock that differs from that of the brokers, which set the times of records."""
    return Check(
        "clock",
        False,
        f"the clock of this machine is about {offset_ms / 1000:.0f} s {direction} that of the brokers",
        "synchronize both (NTP): TLS and S3 reject wrong times, and ages on the page are wrong",
    )
