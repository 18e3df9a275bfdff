"""The programs of docs/processes.md on real platforms: servers that fork, notebooks, and processes that freeze."""

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from jupyter_client.manager import KernelManager

from tests.support.running_processes import ROOT
from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.operate]

PAGE = (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")
MESSAGES = 20


class Site:
    """A folder with programs of the page, for a topic and a group of one test."""

    def __init__(self, coordinator: Coordinator, folder: Path, group_id: str) -> None:
        self.coordinator, self.folder, self.group_id = coordinator, folder, group_id
        self.topic = coordinator.topic(4)
        for partition in range(4):
            coordinator.produce(self.topic, partition, MESSAGES // 4)

    def write(self, name: str, source: str) -> Path:
        file = self.folder / name
        file.write_text(source)
        return file

    def program(self, heading: str) -> str:
        """Return the program below a heading of the page, for this test's group; what it prints is in `lines`."""
        section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        [source] = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
        plane = self.coordinator.connection
        return (
            source.replace('"billing"', repr(self.group_id))
            .replace('["orders"]', repr([self.topic]))
            .replace('"localhost:9092"', f"{plane.bootstrap!r}, prefix={plane.topics.prefix!r}")
            .replace("print(", f"print(file=open({str(self.folder / 'lines')!r}, 'a'), *")
            .replace("*[", "*[os.getpid()] + [")
            .replace("import threading\n", "import os\nimport threading\n")
        )

    @contextlib.contextmanager
    def running(self, *words: str) -> Iterator[Popen[str]]:
        """Run a command; it is terminated at the end, and must end by itself then."""
        log = (self.folder / "log").open("a")
        env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{self.folder}"}
        process = Popen(
            [sys.executable, *words], cwd=self.folder, env=env, stdin=PIPE, stdout=PIPE, stderr=log, text=True
        )
        try:
            yield process
            process.terminate()
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
            log.close()

    def is_consumed(self) -> bool:
        return sum(self.coordinator.offsets(self.group_id, self.topic).values()) == MESSAGES

    def workers(self) -> set[str]:
        """Return the processes that have handled messages."""
        file = self.folder / "lines"
        return {line.split()[0] for line in file.read_text().splitlines()} if file.exists() else set()

    def wait_for(self, members: int, what: str) -> None:
        members_now = self.coordinator.members
        wait_until(
            lambda: len(members_now(self.group_id)) == members,
            what,
            state=lambda: (members_now(self.group_id), (self.folder / "log").read_text()[-2_000:]),
        )


@pytest.fixture
def site(coordinator: Coordinator, tmp_path: Path, group_id: str) -> Site:
    return Site(coordinator, tmp_path, group_id)


@pytest.mark.parametrize("preload", [[], ["--preload"]], ids=["not preloaded", "preloaded"])
def test_each_worker_of_gunicorn_is_a_member(site: Site, preload: list[str]):
    """The master is none, also if it has imported the application."""
    site.write("gunicorn.conf.py", site.program("gunicorn"))
    site.write("site_app.py", "def app(environ, start):\n    start('200 OK', [])\n    return [b'']\n")
    words = ["-m", "gunicorn", "--workers", "2", "--bind", "127.0.0.1:0", *preload, "site_app:app"]
    with site.running(*words) as master:
        site.wait_for(2, "both workers are members")
        wait_until(site.is_consumed, "all messages are handled")
        assert str(master.pid) not in site.workers()
    site.wait_for(0, "they have left")


def test_a_worker_of_gunicorn_is_told_that_the_consumer_is_of_the_master(site: Site):
    """With --preload, an object at the top of the application's module is created before the fork."""
    plane = site.coordinator.connection
    made = f"Consumer({site.group_id!r}, [{site.topic!r}], {plane.bootstrap!r}, prefix={plane.topics.prefix!r})"
    site.write("site_app.py", f"from wakeroll import Consumer\nconsumer = {made}\ndef app(*_):\n    return []\n")
    site.write(
        "gunicorn.conf.py",
        "def post_worker_init(worker):\n    import site_app\n    try:\n        site_app.consumer.poll()\n"
        "    except Exception as problem:\n        open('told', 'w').write(f'{problem}')\n",
    )
    with site.running(
        "-m", "gunicorn", "--workers", "1", "--bind", "127.0.0.1:0", "--preload", "site_app:app"
    ) as master:
        told = site.folder / "told"
        wait_until(lambda: told.exists() and told.read_text(), "the worker is told")
        assert re.fullmatch(
            rf"this Consumer was created in process {master.pid}; process \d+ is a fork: create a new one",
            told.read_text(),
        )
    assert site.coordinator.members(site.group_id) == []


def test_each_process_of_a_celery_worker_is_a_member(site: Site):
    for name in ("queue", "control"):
        (site.folder / name).mkdir()
    settings = {
        "data_folder_in": str(site.folder / "queue"),
        "data_folder_out": str(site.folder / "queue"),
        "control_folder": str(site.folder / "control"),
    }
    source = site.program("Celery").replace("from celery.signals", "from celery import Celery\nfrom celery.signals")
    source += f"\napp = Celery('site_app', broker='filesystem://')\napp.conf.broker_transport_options = {settings!r}\n"
    site.write("site_app.py", source)
    words = ["-m", "celery", "-A", "site_app", "worker", "--pool", "prefork", "--concurrency", "2", "--without-mingle"]
    with site.running(*words) as worker:
        site.wait_for(2, "both processes are members")
        wait_until(site.is_consumed, "all messages are handled")
        assert str(worker.pid) not in site.workers()
    site.wait_for(0, "they have left")


def test_a_cell_that_runs_twice_leaves_one_member(site: Site):
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=str(site.folder))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(PATIENCE_S)
        cell = "import os\n" + site.program("Jupyter")
        for _ in range(2):
            answer = client.execute(cell, reply=True, timeout=PATIENCE_S)
            assert answer["content"]["status"] == "ok", answer["content"]
            site.wait_for(1, "the kernel is one member")
        for _ in range(2):
            client.execute("consumer.consume(100, timeout=5.0)", reply=True, timeout=PATIENCE_S)
        [member] = site.coordinator.members(site.group_id)
        wait_until(lambda: set(site.coordinator.owners(site.group_id).values()) == {member}, "it has all queues")
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    site.wait_for(0, "the kernel has left")


FROZEN = """
import sys

{program}
for line in sys.stdin:
    print(len(invoke({{}}, None)), flush=True)
"""
KEPT = """
import sys
from wakeroll import Consumer

consumer = Consumer({group_id!r}, [{topic!r}], {bootstrap!r}, prefix={prefix!r}, consume_from="first")
for line in sys.stdin:
    count = 0
    while (message := consumer.poll(timeout=5.0)) is not None:
        count += 1
    consumer.commit()
    print(count, flush=True)
"""


@pytest.mark.parametrize("kind", ["a consumer per invocation", "one consumer"])
def test_a_process_that_freezes_between_invocations_repeats_and_loses_nothing(site: Site, kind: str):
    """As on AWS Lambda; it is frozen for longer than its session lasts."""
    site.coordinator.configure(site.group_id, session_timeout_ms=10_000, heartbeat_ms=500)
    plane = site.coordinator.connection
    where = {"bootstrap": plane.bootstrap, "prefix": plane.topics.prefix}
    source = (
        FROZEN.format(program=site.program("Functions that freeze"))
        if kind == "a consumer per invocation"
        else KEPT.format(group_id=site.group_id, topic=site.topic, **where)
    )
    file = site.write("function.py", source)
    with site.running(str(file)) as function:
        assert function.stdin is not None
        assert function.stdout is not None

        def invoke() -> int:
            function.stdin.write("now\n")
            function.stdin.flush()
            return int(function.stdout.readline())

        assert invoke() == MESSAGES
        os.kill(function.pid, signal.SIGSTOP)
        site.wait_for(0, "its session has ended, or it has left")
        for partition in range(4):
            site.coordinator.produce(site.topic, partition, 1)
        os.kill(function.pid, signal.SIGCONT)

        assert invoke() == 4
        assert invoke() == 0
