"""docs/security.md: its commands make a secured deployment out of nothing, in their order."""

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.support.systems.secured_broker import ADMIN, ANSWER_S, SecuredBroker
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll.failure_topics import ensure_failure_topics
from wakeroll_pipeline.local.child_process import Child

pytestmark = [pytest.mark.operate, pytest.mark.spark]

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
CHAPTER = PAGE.partition("## From nothing to a secured deployment\n")[2].partition("\n## ")[0]
SCRIPTS = [
    re.sub(r"^ {3}", "", script, flags=re.MULTILINE) for script in re.findall(r"```sh\n(.*?)```", CHAPTER, re.DOTALL)
]
PROGRAM = re.sub(r"^ {3}", "", re.findall(r"```python\n(.*?)```", CHAPTER, re.DOTALL)[0], flags=re.MULTILINE)
USERS = ("observer", "jobs", "ops", "page", "billing")


UNTIL_ASSIGNED = """
while not consumer.assignment():
    consumer.poll(0.2)
print(*consumer.assignment())
consumer.close()
"""


class Follower:
    """A reader of the page, in a folder of its own."""

    def __init__(self, folder: Path, broker: SecuredBroker, stack: ExitStack) -> None:
        """Write the files of client settings that the page describes."""
        self.folder = folder
        self.broker = broker
        self._stack = stack
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "WAKEROLL_HOME": str(folder / "home")}
        for user in USERS:
            (folder / f"{user}.properties").write_bytes(broker.properties(user).read_bytes())

    def run(self, script: str) -> str:
        """Run a script of the page; return its output."""
        done = subprocess.run(
            ["sh", "-ec", self._here(script)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, command: str, *more: str) -> Child:
        """Start a command of the page that runs until it is stopped."""
        words = [*shlex.split(self._here(command)), *more]
        log = self.folder / f"{words[1]}.log"
        child = Child(words[1], words, log=log, env=self.environment, folder=self.folder, grace_s=90)
        return self._stack.enter_context(child)

    def allow(self, script: str) -> None:
        """Run the commands that print ACLs; apply the same ACLs as an administrator."""
        self.run(script)
        for line in script.splitlines():
            command, _, file = line.partition(" > ")
            printed = (self.folder / file).read_text()
            assert printed.startswith("kafka-acls.sh --bootstrap-server localhost:9092 ")
            self.broker.allow(self.run(f"{command} --json"))

    def _here(self, text: str) -> str:
        return text.replace("broker:9093", self.broker.bootstrap)


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    with SecuredBroker(tmp_path / "secured", USERS) as broker, ExitStack() as stack:
        folder = tmp_path / "work"
        folder.mkdir()
        yield Follower(folder, broker, stack)


def lines(scripts: Sequence[str], command: str) -> str:
    """Return the only line that begins with a command."""
    [found] = [line for script in scripts for line in script.splitlines() if line.startswith(command)]
    return found


def test_the_commands_of_the_page_make_a_secured_deployment(follower: Follower):
    make_keys, print_acls = SCRIPTS[:2]
    follower.run(make_keys)
    follower.allow(print_acls)
    root = follower.broker.connection(ADMIN)
    admin = root.admin()
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(ANSWER_S)
    ensure_failure_topics(root, "tenant.billing", ANSWER_S)

    jobs = follower.start(lines(SCRIPTS, "wakeroll run"))
    wait_until(lambda: "running coordinate, record" in jobs.log.read_text(), "the jobs run",
               patience_s=PATIENCE_WITH_SPARK_S, state=jobs.log_tail)  # fmt: skip
    follower.start(lines(SCRIPTS, "wakeroll observe"))
    page = follower.start(lines(SCRIPTS, "wakeroll serve"), "--port", "0")
    checked = wait_until(lambda: doctor(follower), "doctor finds everything in order", state=lambda: doctor(follower))
    owned = owners(follower)
    address = wait_until(lambda: re.search(r"http://\S+", page.log.read_text()), "the page is served")[0]
    with urllib.request.urlopen(f"{address.rstrip('/.')}/api/groups", timeout=60) as answer:
        shown = answer.read().decode()

    assert "'jobs' by SCRAM-SHA-512 over SASL_SSL; it has the rights of " in checked
    assert owned == "orders-0"
    assert "tenant.billing" in shown


def doctor(follower: Follower) -> str:
    """Return what doctor prints if all is in order; else nothing."""
    command = lines(SCRIPTS, "wakeroll doctor").replace("broker:9093", follower.broker.bootstrap)
    done = subprocess.run(
        shlex.split(command), cwd=follower.folder, env=follower.environment, capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else ""


def owners(follower: Follower) -> str:
    """Run the program of the page until its consumer is assigned a queue; return the queue."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("broker:9093", follower.broker.bootstrap) + UNTIL_ASSIGNED],
        cwd=follower.folder,
        env=follower.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_WITH_SPARK_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
