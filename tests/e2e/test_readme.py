"""README and tutorials are the front door: every command in them is run here, as it stands, in this checkout."""

import base64
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.running_processes import run_process
from tests.support.systems.fleet import make_topic
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until
from wakeroll import Consumer, EpochMs
from wakeroll.connection import Connection
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("tutorial*.md")))
README, TUTORIAL = ROOT / "README.md", DOCS / "tutorial.md"
WORDS = 900
"""Most words of the README."""
WAKEROLL = Path(sys.executable).with_name("wakeroll")
PATIENCE_S = 900.0

QUESTION = "select trigger, count(*) as times, sum(moved) as moved from rebalances group by trigger"
RUN_BY_A_TEST = {
    "make run",
    'make run ARGS="--kafka"',  # in test_kafka_demo.py, by `make test-operate`
    "make test",  # which is what runs this
    # in the order of docs/tutorial.md, by the test that follows it
    "wakeroll up --serve",
    "python orders.py 127.0.0.1:9092 &",
    "python billing.py 127.0.0.1:9092 c1 > c1.log &",
    "python billing.py 127.0.0.1:9092 c2 > c2.log &",
    "wakeroll describe billing",
    "kill -9 $!",
    "tail -n 3 c1.log",
    "wakeroll happened billing --since 5m",
    "wakeroll explain billing orders-3",
    "wakeroll what-if --group billing --add 2 --strategy SPREAD --strategy BALANCED",
    "kill $(jobs -p)",
    # these four in test_outages.py, by `make test-operate`
    "wakeroll observe --bootstrap host:9092",
    "wakeroll run --bootstrap host:9092",
    "wakeroll restore --bootstrap host:9092",
    "wakeroll tap orders --bootstrap host:9092",
    # these four in test_admin.py
    "wakeroll reset-offsets billing --to-time 2026-07-01T03:00:00Z --topic orders --bootstrap host:9092",
    "wakeroll reset-offsets billing --to-first --bootstrap host:9092 --execute",
    "wakeroll configure billing --profile rocketmq --bootstrap host:9092",
    "wakeroll import-offsets billing --bootstrap host:9092",
    # in test_migration.py
    "wakeroll observe --mirror-offsets billing --bootstrap host:9092",
    # in test_watch_kafka.py
    "wakeroll watch-kafka --bootstrap host:9092 --home .wakeroll/kafka --serve",
    "wakeroll watch --home .wakeroll/demo",
    "wakeroll groups --home .wakeroll/demo",
    "wakeroll describe billing --home .wakeroll/demo",
    "wakeroll lag --home .wakeroll/demo",
    "wakeroll state --home .wakeroll/demo",
    "wakeroll happened billing --home .wakeroll/demo",
    "wakeroll explain billing orders-3 --home .wakeroll/demo",
    # the one that `make run` prints
    "wakeroll explain billing orders-3 --home .wakeroll/demo --at 2026-11-30T13:09:05.936Z",
    "wakeroll replay --home .wakeroll/demo",
    "wakeroll what-if --group billing --strategy SPREAD --strategy BALANCED --home .wakeroll/demo",
    "wakeroll check --home .wakeroll/demo",
    "wakeroll marts --home .wakeroll/demo",
    f'wakeroll sql "{QUESTION}" --home .wakeroll/demo',
    "wakeroll doctor",
    "python -m wakeroll_model.replay --partitions 4 < events.jsonl > decisions.jsonl",
}


def blocks(language: str, page: Path) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # What `make test` was given is not for a `make run` inside it.
    given = ("MAKEFLAGS", "MFLAGS", "ARGS")
    return run_process(arguments, without=given, patience_s=PATIENCE_S, **{"COLUMNS": "120", **environment})


def test_every_command_of_the_readme_and_the_tutorials_is_one_that_a_test_runs():
    """A command that is added to one of them must be added here too, with a test that runs it."""
    lines = [
        line.partition(" #")[0].strip() for page in PAGES for block in blocks("sh", page) for line in block.splitlines()
    ]

    assert {line.removeprefix(".venv/bin/") for line in lines if line} == RUN_BY_A_TEST


def test_the_readme_is_short():
    """A visitor decides within minutes; what takes longer stands in the docs."""
    assert len(README.read_text(encoding="utf-8").split()) <= WORDS


@pytest.fixture(scope="module")
def story() -> str:
    """What `make run` prints; its tables stay for the questions."""
    done = run("make", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def owners_in(story: str) -> list[dict[str, list[str]]]:
    """Return owner -> queues for each table of owners, in order."""
    found: list[dict[str, list[str]]] = []
    for table in re.findall(r"┃ owner ┃ queues .+?└", story, flags=re.DOTALL):
        owned: dict[str, list[str]] = {}
        owner = ""
        for first, queues in re.findall(r"^│ (\S*) +│ ([^│]*) │", table, flags=re.MULTILINE):
            owner = first or owner
            owned.setdefault(owner, []).extend(queues.replace(",", " ").split())
        found.append(owned)
    return found


def test_make_run_tells_the_whole_story_and_loses_nothing(story: str):
    """The first thing that anybody does with wakeroll."""
    steps = owners_in(story)
    everything = [f"orders-{number}" for number in range(8)]
    assert [sorted(name for names in owned.values() for name in names) for owned in steps] == [everything] * 5
    assert [owned.keys() for owned in steps] == [
        {"c1", "c2", "c3"},
        {"c1", "c3"},
        {"c1"},
        {"c1", "c4", "c5"},
        {"c1", "c5"},
    ]
    assert [sorted(map(len, owned.values())) for owned in steps] == [[2, 3, 3], [4, 4], [8], [2, 3, 3], [4, 4]]
    for before, after in pairwise(steps):
        for owner in before.keys() & after.keys():  # SPREAD moves as little as it can
            assert set(before[owner]) <= set(after[owner]) or set(after[owner]) <= set(before[owner]), owner
    counts = re.findall(r"│ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │", story)[0]
    produced, consumed, lost, double, _, repeated = map(int, counts)
    assert produced == consumed > 1_000
    assert (lost, double, repeated) == (0, 0, 0)
    firsts = re.findall(r"^first message after its process was started: (.+)$", story, flags=re.MULTILINE)
    assert [re.findall(r"(c\d) \d+\.\d s", line) for line in firsts] == [["c1", "c2", "c3"], ["c4", "c5"]], firsts
    kills = re.findall(r"messages of its queues \S+ to (\S+) s after the kill; repeated: (\d+)", story)
    (with_will, repeated_with), (without, _) = kills
    assert float(with_will) < float(without)
    assert int(repeated_with) <= 1, "at most the message that was in its hands"
    assert "rejected, rule bounds: heartbeat" in story
    assert re.search(r"p50 \d+ ms, p99 \d+ ms \(\d+ pairs", story)
    assert "expire" in story


def test_groups_answers_from_what_the_story_left(story: str):
    """As anybody asks it: a process of its own."""
    assert story
    groups = run(WAKEROLL, "groups", "--home", ".wakeroll/demo")

    assert groups.returncode == 0, groups.stderr
    assert re.search(r"^billing +empty +0 +8 ", groups.stdout, re.MULTILINE), groups.stdout
    assert "Exception" not in groups.stderr


@pytest.fixture
def ask(wakeroll, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A command of the README, in this process; returns what it prints."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "200")

    def ask(*words: str) -> str:
        code, said, complaint = wakeroll(*words, "--home", ".wakeroll/demo")
        assert code == 0, said + complaint
        assert "Traceback" not in complaint
        return said

    return ask


def test_describe_and_state_tell_of_the_storys_group(story: str, ask: Callable[..., str]):
    """What the tables say and what the coordinator itself knows is the same."""
    assert story
    described = ask("describe", "billing")

    assert re.search(r"^billing +empty ", ask("watch"), flags=re.MULTILINE)
    assert "orders-3" in described
    assert "leave" in described
    assert re.search(r"^billing +\d+ +groups-\d+$", ask("state"), flags=re.MULTILINE)


def test_what_the_story_decided_is_explained_and_decided_again(story: str, ask: Callable[..., str]):
    """To the byte, from what the tables hold alone; and its end could have been shared otherwise."""
    assert story
    assert "rebalance to epoch" in ask("happened", "billing")
    assert "left the group" in ask("explain", "billing", "orders-3")
    assert re.search(r"8 shards, \d+ events, \d+ decisions compared: equal", ask("replay"))
    asked = ask("what-if", "--group", "billing", "--strategy", "SPREAD", "--strategy", "BALANCED")
    assert re.search(r"strategy +│.*│ SPREAD +│ BALANCED", asked)


def test_the_story_ends_with_a_command_that_explains_a_death(story: str):
    """A newcomer copies it from the terminal, where it must be one line."""
    [(queue, owner, command)] = re.findall(
        r"^why did (orders-\d) go to (c\d)\?  (\S*wakeroll explain .+)$", story, re.MULTILINE
    )

    explained = run(*shlex.split(command))

    assert explained.stdout.startswith(f"{queue} of billing is owned by {owner} since "), explained.stderr
    assert "c2 died (SIGKILL)" in explained.stdout


def test_what_the_story_left_passes_the_quality_gate(story: str, ask: Callable[..., str]):
    """Great Expectations finds no rule broken in tables that a real broker and real jobs have made."""
    assert story
    assert re.search(r"^\d+ rules: all hold; Data Docs: \S*\.wakeroll/demo/quality/\S+", ask("check"), re.MULTILINE)


def test_marts_are_made_of_the_storys_tables(story: str, ask: Callable[..., str]):
    """And every rule that SQL can ask holds for what a real broker and real processes left."""
    assert story
    models = len(list((ROOT / "dbt_like_sql" / "models").rglob("*.sql")))
    assert re.search(rf"^{models} models and \d+ tests passed", ask("marts"), flags=re.MULTILINE)


def test_a_question_of_ones_own_is_answered(story: str, ask: Callable[..., str]):
    """One consumer was killed that had no last will, and it had four queues."""
    assert story
    assert re.search(r"^│ expire +│ +1 │ +4 │$", ask("sql", QUESTION), flags=re.MULTILINE)


def rows(home: Path, sql: str) -> list[tuple]:
    """Return the rows of a query of the tables that a system has written by now."""
    with duck_ledger(Settings(home=str(home)).warehouse) as ledger:
        return list(ledger.stream(sql))


def test_the_tutorials_sql_says_who_owned_a_queue(story: str):
    """The question that no other coordinator can answer."""
    assert story
    home = ROOT / ".wakeroll/demo"
    [(of_killed,)] = rows(home, "select min(queue_id) from assignments where client_id = 'c2'")
    # Which queues c2 gets depends on who joins first.
    question = blocks("sql", DOCS / "tutorial-data.md")[0].replace("queue_id = 3", f"queue_id = {of_killed}")
    owners = [(client_id, how) for client_id, _, _, how in rows(home, question) if client_id is not None]
    events = rows(home, 'select topic, partition, "offset", at_ms, key, value from events order by all')
    decisions = [json for (json,) in rows(home, "select json from decisions")]

    # Who came first had everything for a moment; c2 had this queue until it was killed.
    assert owners[0][1] == "first"
    last = max(i for i, (client_id, _) in enumerate(owners) if client_id == "c2")
    assert owners[last + 1][1] == "died"

    lines = [
        json.dumps(
            {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "timestamp_ms": at_ms,
                "key": None if key is None else bytes(key).decode(),
                "value_base64": base64.b64encode(value).decode(),
            }
        )
        for topic, partition, offset, at_ms, key, value in events
    ]
    replayed = subprocess.run(
        [sys.executable, "-m", "wakeroll_model.replay", "--partitions", "4"],
        input="\n".join(lines),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    # The last ticks were archived when nobody decided any more.
    newest: dict[str, int] = {}
    for decision in map(json.loads, decisions):
        newest[decision["shard"]] = max(newest.get(decision["shard"], 0), decision["seq"])
    recorded = [
        line for line in replayed.stdout.splitlines() if (one := json.loads(line))["seq"] <= newest[one["shard"]]
    ]

    assert sorted(recorded) == sorted(decisions)


def test_ctrl_c_stops_the_story_and_leaves_no_process(tmp_path: Path):
    """At any moment: here, while Spark is starting."""
    home, checkpoints = tmp_path / "home", tmp_path / "checkpoints"
    command = [str(WAKEROLL), "demo", "--home", str(home), "--checkpoints", str(checkpoints)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        wait_until((home / "demo" / "logs" / "run.log").exists, "the demo starts its jobs", patience_s=PATIENCE_S)
        demo.send_signal(signal.SIGINT)
        said, _ = demo.communicate(timeout=PATIENCE_S)

    assert demo.returncode == 130, said
    assert "Traceback" not in said
    assert running_with(str(tmp_path)) == []


def running_with(text: str) -> list[str]:
    """Return the command lines of living processes that name something."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if text in line and not line.startswith("ps ")]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A system of one's own: `wakeroll up`, in a folder with a space in its name; its home."""
    folder = tmp_path_factory.mktemp("my system")
    home = folder / "home"
    child = Child(
        "wakeroll up",
        [
            *(str(WAKEROLL), "up", "--serve", "--serve-port", "0"),
            *("--home", str(home), "--checkpoints", str(folder / "checkpoints")),
        ],
        log=folder / "up.log",
        # Other tests need this machine too.
        env={**os.environ, "COLUMNS": "200", "WAKEROLL_BATCH_INTERVAL_MS": "1000"},
        folder=ROOT,
        grace_s=120,
    )
    child.start()
    child.wait_until(lambda: "the page: http://" in child.log_tail(), PATIENCE_S)
    assert "wakeroll is up on" in child.log_tail()
    yield home
    assert child.stop() == 0, child.log_tail()
    assert running_with(str(folder)) == []


def test_doctor_finds_a_running_system_well(up: Path):
    """Who asks about a system on their own machine need not know its port."""
    done = run(WAKEROLL, "doctor", "--home", up)

    assert done.returncode == 0, done.stdout
    found = re.findall(r"^ok +(\w+)", done.stdout, flags=re.MULTILINE)
    assert [name for name in found if name != "state"] == [  # that is known after the first batch
        *("python", "java", "disk", "memory", "jars", "folders", "temp", "space", "limit", "ports", "keys"),
        *("jobs", "decisions", "levels", "broker", "topics", "clock"),
    ]


@pytest.fixture(scope="module")
def orders(up: Path) -> Connection:
    """The topic of the examples, on the broker of `wakeroll up`."""
    status = read_status(up)
    assert status is not None
    connection = Connection(status.bootstrap)
    make_topic(connection, "orders", 2)
    return connection


def example(page: Path, words: str, connection: Connection) -> str:
    """Return the only program of a page with these words as it stands, with the address of this broker."""
    [program] = [program for program in blocks("python", page) if words in program]
    return program.replace("localhost:9092", connection.bootstrap)


def test_the_tutorials_fetch_returns_what_its_producer_sent(orders: Connection):
    program = example(TUTORIAL, ".fetch(", orders) + "print([message.value() for message in messages], next_offset)"

    said = run(sys.executable, "-c", program)

    assert said.stdout == "[b'...'] 1\n", said.stderr


def test_the_tutorials_handler_is_called(up: Path, orders: Connection):
    producer = orders.producer()
    producer.produce("orders", b"an order for the handler")
    producer.flush(30)
    application = Child(
        "handler",
        [sys.executable, "-u", "-c", example(TUTORIAL, "handle, workers=8", orders).replace('"billing"', '"handling"')],
        log=up / "handler.log",
        folder=ROOT,
    )
    with application:
        application.wait_until(lambda: "an order for the handler" in application.log_tail(), PATIENCE_S)


FAILING = """
from wakeroll import Consumer, DeadLetter, Retry, origin_of

def handle(messages):
    [message] = messages
    attempt = origin_of(message).attempt
    print("attempt", attempt, message.topic(), flush=True)
    return Retry(level=1, reason="no such customer") if attempt == 1 else DeadLetter(reason="still none")

with Consumer("failing", ["orders"], "localhost:9092", consume_from="first") as consumer:
    consumer.run(handle, batch_size=1)
"""


@pytest.mark.operate
def test_a_failed_message_comes_again_is_a_dead_letter_and_is_in_the_tables(up: Path, orders: Connection):
    """With the real observer, which must find the retry topic, and the real coordinator."""
    producer = orders.producer()
    producer.produce("orders", b"an order of nobody")
    producer.flush(30)
    program = FAILING.replace("localhost:9092", orders.bootstrap)
    application = Child("failing", [sys.executable, "-u", "-c", program], log=up / "failing.log", folder=ROOT)
    with application:
        application.wait_until(lambda: "attempt 2 retry.failing" in application.log_tail(), PATIENCE_S)
        # The tables have it somewhat later.
        failures = "select outcome, error from failed_messages where group_id = 'failing'"
        expected = {("retry", "no such customer"), ("dead", "still none")}
        application.wait_until(lambda: set(rows(up, failures)) == expected, PATIENCE_S)
    listed = run(WAKEROLL, "dlq", "failing", "--home", up)
    assert "still none" in listed.stdout, listed.stderr


def test_the_readmes_application_consumes(up: Path, orders: Connection):
    producer = orders.producer()
    producer.produce("orders", b"the first order")
    producer.flush(30)
    application = Child(
        "example",
        [sys.executable, "-u", "-c", example(README, "for message in consumer", orders)],
        log=up / "example.log",
        folder=ROOT,
    )
    with application:
        application.wait_until(lambda: "the first order" in application.log_tail(), PATIENCE_S)


ANSWERS = {
    "describe": r"parcels-\d +c1\b(?s:.*)parcels-\d +c2\b(?s:.*)c1 +3 (?s:.*)c2 +3 ",
    "happened": r"c2: died \(SIGKILL\)",
    "explain": r"parcels-3 of tutorial is owned by c1",
    "what-if": r"strategy +│.*│ SPREAD +│ BALANCED",
}
"""What the commands of the tutorial answer in the end: the tables have it a few seconds later."""


def test_the_tutorial_is_followed_to_its_end(up: Path, tmp_path: Path):
    """In one terminal, in the page's order; its topic and group have other names than those of other tests here."""
    status = read_status(up)
    assert status is not None
    text = TUTORIAL.read_text(encoding="utf-8").partition("\n## 3. ")[2].partition("\n## Handlers")[0]
    names = {'"orders"': '"parcels"', "orders-3": "parcels-3", '"billing"': '"tutorial"', "billing ": "tutorial "}
    for old, new in (names | {"127.0.0.1:9092": status.bootstrap}).items():
        text = text.replace(old, new)
    text = text.replace("--group billing", "--group tutorial").replace("explain billing", "explain tutorial")
    text = re.sub(r"describe billing$", "describe tutorial", text, flags=re.MULTILINE)
    text = text.replace(".venv/bin/python", sys.executable).replace(".venv/bin/wakeroll", str(WAKEROLL))
    programs = re.findall(r"`(\w+\.py)`[^`]*?```python\n(.*?)```", text, flags=re.DOTALL)
    assert [name for name, _ in programs] == ["orders.py", "billing.py"]
    for name, program in programs:
        (tmp_path / name).write_text(program, encoding="utf-8")
    answered = set()
    with Terminal(tmp_path, COLUMNS="200", WAKEROLL_HOME=str(up)) as terminal:
        for line in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
            for command in line.splitlines():
                if not command.startswith(str(WAKEROLL)):
                    if command.startswith("tail"):  # as soon as c1 has handled messages of all six queues
                        everything = "sed -n 's/^c1 \\([0-9]\\).*/\\1/p' c1.log | sort -u | tr -d '\\n'"
                        wait_until(
                            lambda everything=everything: terminal.run(everything) == "012345", "c1 has all queues"
                        )
                    said = terminal.run(command)
                    assert said.startswith("c1 ") or not command.startswith("tail"), said
                    continue
                name = command.split()[1]
                answered.add(name)
                wait_until(
                    lambda command=command, name=name: re.search(ANSWERS[name], terminal.run(command), re.MULTILINE),
                    command,
                    patience_s=PATIENCE_S,
                    state=lambda command=command: terminal.run(command),
                )
    assert answered == ANSWERS.keys()
    page = re.findall(r"the page: (http://\S+?)/?\s", (up.parent / "up.log").read_text())[0]
    assert status_of(f"{page}/groups/tutorial")[0] == 200


def status_of(url: str) -> tuple[int, str]:
    """Return the status of a page and, if it is an error, its text."""
    try:
        with urllib.request.urlopen(url, timeout=60) as found:
            return found.status, ""
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


@pytest.mark.operate
def test_each_question_of_the_night_has_one_command_and_one_page(up: Path, orders: Connection, wakeroll):
    """Each command of the table in docs/operations.md runs on a real system; only names and the time are replaced."""
    table = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("## Three in the morning")[2]
    rows = re.findall(r"^\| (.+?) \| `wakeroll (.+?)` \| `(/.*?)` \|$", table, flags=re.MULTILINE)
    assert len(rows) >= 11
    page = re.findall(r"the page: (http://\S+?)/?\s", (up.parent / "up.log").read_text())[0]
    producer = orders.producer()
    for queue in (0, 1):
        producer.produce("orders", b"a message that no handler can process", partition=queue)
    producer.flush(30)
    changes = ("inspect", "skip", "reset-offsets", "kick", "delete-group")
    with Consumer("dead", ["orders"], orders.bootstrap, consume_from="first") as dead:
        wait_until(lambda: dead.poll(0.1), "a message")
    with Consumer("night", ["orders"], orders.bootstrap, client_id="c2", consume_from="first") as consumer:
        wait_until(lambda: consumer.poll(0.1), "a message")
        consumer.commit(30)
        for question, command, path in rows:
            moment = EpochMs.of(datetime.now(UTC) - timedelta(seconds=1))
            names = {"billing": "night", "orders-3": "orders-1", "2026-07-01T02:55:00Z": str(moment)}

            def named(text: str, names: dict[str, str] = names) -> str:
                return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)

            words = shlex.split(named(command))
            where = ("--bootstrap", orders.bootstrap) if words[0] in changes else ("--home", str(up))
            answers = []

            def answered(
                words: list[str] = words, where: tuple[str, str] = where, answers: list[tuple[int, str, str]] = answers
            ) -> bool:
                answers.append(wakeroll(*words, *where))
                return answers[-1][0] == 0 and bool(answers[-1][1].strip())

            url = f"{page}{named(path)}"
            wait_until(
                lambda url=url: status_of(url)[0] == 200,
                f"{question} {url}",
                patience_s=PATIENCE_S,
                state=lambda url=url: status_of(url),
            )
            wait_until(  # the tables have it somewhat later
                answered, question, patience_s=PATIENCE_S, state=lambda answers=answers: str(answers[-1])
            )
