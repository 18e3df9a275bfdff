"""Wrong usage, and a machine that lacks something: one sentence on standard error and a code, never a traceback.

Code 2 is a mistake of the user's, which the same command makes again; code 1 is a failure, which may pass.
"""

import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.running_processes import run_process
from wakeroll import Consumer, InvalidUsage
from wakeroll.connection import Connection, Topics
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.runtime.process_lock import only_one

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
NOWHERE = "127.0.0.1:1"
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def wakeroll(wakeroll, monkeypatch, tmp_path) -> Command:
    """The command, run in this process, in an empty folder; it returns the exit code and what stood on standard error.

    Starting a process for each mistake would cost a second each.
    """
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("WAKEROLL_"):
            monkeypatch.delenv(name)

    def run(*arguments: str) -> tuple[int, str]:
        code, _, complaint = wakeroll(*arguments)
        return code, complaint

    return run


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("run", 2, "no broker is named; use --bootstrap host:port, or start an embedded broker with `wakeroll up`"),
        ("run --bootstrap localhost", 2, "bootstrap is 'localhost'; it must be host:port[,host:port]"),
        ("observe --bootstrap a:1;b:2", 2, "bootstrap is 'a:1;b:2'; it must be host:port[,host:port]"),
        (f"restore --bootstrap {NOWHERE}", 2, "no tables in"),
        ("run --only dance --bootstrap x:1", 2, "--only is 'dance'; it must be one of: coordinate, record"),
        (f"run --bootstrap {NOWHERE} --prefix %", 2, "invalid setting: prefix is '%'; it must be 1 to 200 characters"),
        (
            f"configure g --settle-ms -1 --bootstrap {NOWHERE}",
            2,
            "settle_ms is -1; it must be a whole number from 0 to",
        ),
        (f"configure g --handover no --bootstrap {NOWHERE}", 2, "handover is 'no'; it must be cooperative or eager"),
        ("run --dance", 2, "No such option: --dance"),
        ("dance", 2, "No such command 'dance'"),
        ("describe", 2, "Missing argument 'GROUP'"),
        ("groups --home nowhere", 2, "no tables in"),
        ("describe billing --home nowhere", 2, "no tables in"),
        ("up --config nowhere.toml", 2, "cannot read the settings in nowhere.toml: [Errno 2] No such file"),
        ("up --config .", 2, "cannot read the settings in .: [Errno 21] Is a directory"),
        ("doctor --bootstrap x:1 --kafka-config nowhere", 2, "cannot read the Kafka settings in nowhere"),
    ],
)
def test_a_mistake_on_the_command_line_gets_one_sentence(wakeroll: Command, arguments: str, code: int, sentence: str):
    told, said = wakeroll(*arguments.split())

    assert (told, sentence in said) == (code, True), said
    assert len(said.splitlines()) == 1 or "Usage: " in said, said


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("bootstrap = ", "cannot read the settings in wakeroll.toml: Invalid value (at end of document)"),
        ('boostrap = "host:9092"', "unknown setting 'boostrap'; did you mean 'bootstrap'?"),
        ("colour = 1", "unknown setting 'colour'; the settings are: bootstrap, kafka_config, "),
        ('partitions = "four"', "partitions is 'four'; it must be a whole number from 1 to"),
        ("partitions = 0", "partitions is 0; it must be a whole number from 1 to"),
        ('driver_memory = "much"', "driver_memory is 'much'; it must be text that matches [0-9]+[mg]"),
    ],
)
def test_a_mistake_in_the_settings_file_gets_one_sentence(wakeroll: Command, file: str, sentence: str):
    """A typo is a mistake, not a default."""
    Path("wakeroll.toml").write_text(file, encoding="utf-8")

    code, said = wakeroll("run")

    assert (code, sentence in said) == (2, True), said


def test_a_mistake_in_the_environment_gets_one_sentence(wakeroll: Command, monkeypatch):
    monkeypatch.setenv("WAKEROLL_RECORD_INTERVAL_MS", "soon")

    code, said = wakeroll("run", "--bootstrap", NOWHERE)

    assert (code, "it must be a whole number from" in said) == (2, True), said


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ("security.protocol", "kafka.properties line 1 is not a setting; it must be name=value"),
        (
            "mistyped=1",
            "these settings of Kafka's clients cannot be set: mistyped (not among the settings that wakeroll passes "
            "on); docs/sdk.md lists those that can",
        ),
    ],
)
def test_a_mistake_in_kafka_s_settings_gets_one_sentence(wakeroll: Command, properties: str, sentence: str):
    """The settings are checked before anything else."""
    Path("kafka.properties").write_text(properties, encoding="utf-8")

    answers = [
        wakeroll(command, "--bootstrap", NOWHERE, "--kafka-config", "kafka.properties")
        for command in ("run", "observe")
    ]

    assert answers == [(2, f"wakeroll: {sentence}\n")] * 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"bootstrap": "localhost"}, r"bootstrap is 'localhost'; it must be host:port\[,host:port\]"),
        ({"bootstrap": "a:1,b"}, r"bootstrap is 'a:1,b'; it must be host:port"),
        ({"bootstrap": "a:65536"}, r"bootstrap is 'a:65536'; it must be host:port"),
        ({"topics": 5}, r"topics is 5; it must be a list of names, like \['5'\]"),
        ({"commit_interval": "often"}, r"commit_interval is 'often'; it must be a number"),
    ],
)
def test_an_application_s_mistake_gets_one_sentence(arguments: dict[str, object], sentence: str):
    """The SDK's own usage; what else it checks stands in tests/unit/test_consumer_usage.py."""
    with pytest.raises(InvalidUsage, match=sentence):
        Consumer(**{"group_id": "billing", "topics": ["orders"], "bootstrap": NOWHERE, **arguments})


@pytest.mark.parametrize("command", ["up", "sql --engine spark groups"])
def test_no_java_is_named(tmp_path: Path, command: str):
    """Both for what starts a broker and for what starts Spark; in a process that has no Spark from another test."""
    (tmp_path / ".wakeroll/warehouse").mkdir(parents=True)

    program = [sys.executable, "-m", "wakeroll_pipeline.cli", *command.split()]
    ended = run_process(program, folder=tmp_path, JAVA_HOME="/nowhere", PYTHONPATH=str(ROOT))

    assert (ended.returncode, ended.stderr.rstrip(".\n")) == (
        1,
        "wakeroll: JAVA_HOME is /nowhere, but there is no bin/java in it; set JAVA_HOME to a Java 17 or newer, "
        "or unset it",
    )


@pytest.mark.parametrize(
    ("command", "lacks"), [("up", "spark broker"), ("demo", "spark broker"), ("sql --engine spark groups", "spark")]
)
def test_no_jars_are_named(tmp_path: Path, command: str, lacks: str):
    """An installed package, or a checkout that nobody ran `make setup` in: one command fetches all that are missing."""
    (tmp_path / ".wakeroll/warehouse").mkdir(parents=True)

    program = [sys.executable, "-m", "wakeroll_pipeline.cli", *command.split()]
    ended = run_process(program, folder=tmp_path, WAKEROLL_JARS=str(tmp_path / "jars"), PYTHONPATH=str(ROOT))

    assert ended.returncode == 1
    assert ended.stderr.startswith(f"wakeroll: {tmp_path}/jars lacks "), ended.stderr
    assert ended.stderr.endswith(f"; run `wakeroll jars {lacks}`.\n")


def test_a_folder_that_cannot_be_made_is_named(wakeroll: Command):
    Path("taken").touch()

    assert wakeroll("up", "--home", "taken") == (1, f"wakeroll: {Path('taken/broker').absolute()}: Not a directory\n")


@pytest.mark.operate
def test_a_spark_that_does_not_start_is_one_sentence(tmp_path: Path):
    """As a process, to its very end; what Spark itself says about it, at length, is in a log that is named."""
    (tmp_path / ".wakeroll/warehouse").mkdir(parents=True)

    program = [sys.executable, "-m", "wakeroll_pipeline.cli", "sql", "select 1", "--engine", "spark"]
    ended = run_process(program, folder=tmp_path, WAKEROLL_MASTER="nonsense", PYTHONPATH=str(ROOT))

    log = tmp_path / ".wakeroll/logs/ask.log"
    assert ended.returncode == 1
    assert ended.stderr.endswith(f"; its log is {log}\n"), ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Master" in log.read_text(encoding="utf-8")


@pytest.fixture
def plane(broker) -> Connection:
    """Control topics of the test's own."""
    connection = Connection(broker.bootstrap, topics=Topics(f"mistakes-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection)
    return connection


def test_another_number_of_partitions_is_refused(wakeroll: Command, monkeypatch, plane: Connection):
    """A group's shard follows from that number."""
    monkeypatch.setenv("WAKEROLL_PARTITIONS", "6")

    code, said = wakeroll("run", "--bootstrap", plane.bootstrap, "--prefix", plane.topics.prefix)

    assert code == 2
    assert said.startswith(
        f"wakeroll: {plane.topics.groups} has 4 partitions, `partitions` is 6; if the deployment has 4 shards, "
    )


@pytest.mark.parametrize(
    ("job", "lock", "sentence"),
    [
        ("coordinate", "checkpoints/coordinate.groups.lock", "already decides from this checkpoint; stop it first"),
        ("record", ".wakeroll/warehouse/record.lock", "already writes these tables; stop it first"),
    ],
)
def test_a_second_process_for_the_same_work_is_refused(
    wakeroll: Command, plane: Connection, job: str, lock: str, sentence: str
):
    """Two coordinators on one checkpoint, or two writers of one Delta table, would lose each other's work."""
    with only_one(Path(lock), "is the first"):
        answer = wakeroll("run", "--only", job, "--bootstrap", plane.bootstrap, "--prefix", plane.topics.prefix)

    assert answer == (2, f"wakeroll: another process ({os.getpid()}) {sentence}\n")


def test_of_the_libraries_only_warnings_are_heard():
    """Great Expectations would say at length what it keeps where, by a logger that has a file's name."""
    speak = (
        "import logging\n"
        "from wakeroll_pipeline.cli.app import run_app\n"
        "try:\n    run_app(['--help'])\nexcept SystemExit:\n    pass\n"
        "for name in ('wakeroll.run', 'wakeroll_pipeline.observer.observer_loop', '/lib/python/some_library.py'):\n"
        "    logging.getLogger(name).info('from %s', name)\n"
        "    logging.getLogger(name).warning('warned by %s', name)\n"
    )

    done = run_process([sys.executable, "-c", speak])

    assert done.returncode == 0, done.stderr
    assert [line.partition(": ")[2] for line in done.stderr.splitlines()] == [
        *("from wakeroll.run", "warned by wakeroll.run"),
        *("from wakeroll_pipeline.observer.observer_loop", "warned by wakeroll_pipeline.observer.observer_loop"),
        "warned by /lib/python/some_library.py",
    ]
