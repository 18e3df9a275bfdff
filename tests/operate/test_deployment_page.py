"""docs/deployment.md: its commands lead from nothing to a deployment that is monitored, asked, and restored."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.support.running_processes import ROOT, run_process
from tests.support.systems.secured_broker import ADMIN, ANSWER_S, SecuredBroker
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll import Consumer, Producer
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import free_ports

pytestmark = [pytest.mark.operate, pytest.mark.spark]

PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
LINES = [line for script in SCRIPTS for line in script.splitlines()]
SETTINGS = dict(re.findall(r"```toml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
USERS = ("jobs", "observer", "ops", "page")
RUN_ELSEWHERE = {
    # both by tests/observability
    "promtool check config deploy/observability/prometheus.yml",
    "prometheus --config.file=deploy/observability/prometheus.yml",
}


class Newcomer:
    """Somebody who follows the page in an empty folder."""

    def __init__(self, folder: Path, broker: SecuredBroker, stack: ExitStack) -> None:
        self.folder = folder
        self.broker = broker
        self.done = set(RUN_ELSEWHERE)
        """Lines of the page that were run."""
        self._stack = stack
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        given = {name: value for name, value in os.environ.items() if not name.startswith("WAKEROLL_")}
        self.environment = {**given, "PATH": path, "COLUMNS": "200"}
        ports = zip(("9464", "9465", "8420"), free_ports(3), strict=True)
        self._here = {"broker:9093": broker.bootstrap} | {of_page: str(port) for of_page, port in ports}

    def localized(self, text: str) -> str:
        """Return a text of the page with the addresses of this test."""
        for of_page, ours in self._here.items():
            text = text.replace(of_page, ours)
        return text

    def write_files(self) -> None:
        """Write the logins and settings that the page describes."""
        for user in USERS:
            shutil.copy(self.broker.properties(user), self.folder / user / "client.properties")
        for name, text in SETTINGS.items():
            (self.folder / name).write_text(self.localized(text), encoding="utf-8")

    def attempt(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line of the page to its end."""
        assert line in LINES
        self.done.add(line)
        return self._shell(line)

    def run(self, line: str) -> str:
        """Run a line of the page; return its output."""
        done = self.attempt(line)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, line: str, *more: str) -> Child:
        """Start a line of the page that runs until it is stopped."""
        assert line in LINES
        self.done.add(line)
        words = [*shlex.split(line), *more]
        log = self.folder / f"{words[1]}.log"
        child = Child(words[1], words, log=log, env=self.environment, folder=self.folder, grace_s=120)
        return self._stack.enter_context(child)

    def allow(self, line: str) -> None:
        """Run a line that prints ACLs; apply the same ACLs as an administrator."""
        self.run(line)
        command, _, file = line.partition(" > ")
        assert (self.folder / file).read_text().startswith("kafka-acls.sh --bootstrap-server ")
        printed = self._shell(f"{command} --json")
        self.broker.allow(printed.stdout)

    def answers(self, line: str) -> bool:
        return self.attempt(line).returncode == 0

    def _shell(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-ec", self.localized(script)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_WITH_SPARK_S,
        )


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    with SecuredBroker(tmp_path / "secured", (*USERS, "billing")) as broker, ExitStack() as stack:
        folder = tmp_path / "deployment"
        folder.mkdir()
        yield Newcomer(folder, broker, stack)


def lines(command: str) -> list[str]:
    """Return the lines of the page that begin with a command."""
    return [line for line in LINES if line.startswith(command)]


def consume(newcomer: Newcomer, count: int, consume_from: str | None = None) -> list[int]:
    """Let a consumer of billing read and commit as many messages of orders; return their offsets."""
    login = {"bootstrap": newcomer.broker.bootstrap, "kafka_config": newcomer.broker.login("billing")}
    seen: list[int] = []
    with Consumer(
        "billing", ["orders"], consume_from=consume_from or "first", connect_timeout=120.0, **login
    ) as consumer:

        def poll() -> None:
            message = consumer.poll(0.2)
            if message is not None:
                seen.append(message.offset())

        wait_until(lambda: len(seen) >= count, "the messages are read", patience_s=PATIENCE_WITH_SPARK_S, between=poll)
        consumer.poll(0.1)
        assert consumer.commit(60.0)
    return seen


def send(newcomer: Newcomer, count: int) -> None:
    login = {"bootstrap": newcomer.broker.bootstrap, "kafka_config": newcomer.broker.login(ADMIN)}
    with Producer(**login) as producer:
        for number in range(count):
            producer.send("orders", f"{number}", partition=0)
        assert producer.flush(60)


def test_the_commands_of_the_page_make_a_deployment_that_can_be_restored(newcomer: Newcomer):
    """A newcomer has nothing but the page."""
    for line in SCRIPTS[0].splitlines():
        newcomer.run(line)
    newcomer.write_files()
    for line in lines("wakeroll acls"):
        newcomer.allow(line)
    admin = newcomer.broker.connection(ADMIN).admin()
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(ANSWER_S)

    [run], [observe], [serve] = lines("wakeroll run"), lines("wakeroll observe"), lines("wakeroll serve")
    jobs = newcomer.start(run)
    newcomer.start(observe)
    newcomer.start(serve, "--port", newcomer.localized("8420"))
    for line in lines("curl"):
        wait_until(
            lambda line=line: newcomer.answers(line), line, patience_s=PATIENCE_WITH_SPARK_S, state=jobs.log_tail
        )
    [doctor] = lines("wakeroll doctor")
    checked = newcomer.attempt(doctor)
    assert "'jobs' by SCRAM-SHA-512 over SASL_SSL" in checked.stdout, checked.stdout + checked.stderr
    assert checked.returncode == 0, checked.stdout

    send(newcomer, 5)
    assert consume(newcomer, 5) == [0, 1, 2, 3, 4]
    wait_until(lambda: "billing" in newcomer.run(lines("wakeroll groups")[0]), "the tables have the group")
    assert "orders-0" in newcomer.run(lines("wakeroll describe")[0])
    assert "billing" in newcomer.run(lines("wakeroll lag")[0])
    assert "orders-0 of billing" in newcomer.run(lines("wakeroll explain")[0])
    newcomer.run(lines("wakeroll check")[0])

    wait_until(lambda: "snapshots of" in jobs.log.read_text(), "there is a snapshot", state=jobs.log_tail)
    backup, checkpoints = lines("wakeroll restore")
    data, ready = newcomer.folder / "data", lines("curl")[0]
    copied = run_process(
        [sys.executable, ROOT / "deploy" / "backup" / "copy_tables.py", data, newcomer.folder / "backup"]
    )
    assert copied.returncode == 0, copied.stderr
    jobs.stop()
    shutil.rmtree(data)
    (newcomer.folder / "backup").rename(data)
    assert "shards continue in their era" in newcomer.run(backup)
    restored = newcomer.start(run)
    wait_until(lambda: newcomer.answers(ready), "it runs", patience_s=PATIENCE_WITH_SPARK_S, state=restored.log_tail)

    restored.stop()
    shutil.rmtree(data / "checkpoints")
    refused = newcomer.attempt(run)
    assert refused.returncode != 0
    assert "wakeroll restore" in refused.stderr
    assert "shards continue in their era" in newcomer.run(checkpoints)
    again = newcomer.start(run)
    wait_until(lambda: newcomer.answers(ready), "it runs again", patience_s=PATIENCE_WITH_SPARK_S, state=again.log_tail)
    send(newcomer, 2)
    assert consume(newcomer, 2) == [5, 6], "offsets continue"

    assert newcomer.done == set(LINES)
