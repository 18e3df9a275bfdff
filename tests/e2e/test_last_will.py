"""Processes with a member that die, or do not, on a real broker: only a death executes the last will."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import ssl
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tests.support.running_processes import ROOT, lives, run_process
from tests.support.systems.certificates import Authority
from tests.support.systems.coordinator_thread import Coordinator
from tests.support.systems.member_ends import ends_of, next_offset
from tests.support.waiting import PATIENCE_S, wait_until
from wakeroll.keys import key_to_sign, new_signer
from wakeroll.last_will import executor as executor_program
from wakeroll.last_will.executor_link import command
from wakeroll_model import feature_levels
from wakeroll_model.events import Level
from wakeroll_model.signing import DEV_KEYS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the end of a process"),
]

MESSAGES = 20
HANDLED = 10
"""Messages that a program has handled when it is at the point in question; it holds the next one."""

BEGIN = """
import ctypes, multiprocessing, os, signal, sys, time
from wakeroll import Consumer

bootstrap, prefix, group_id, topic, client_id, how = sys.argv[1:]
settings = {"prefix": prefix, "client_id": client_id, "consume_from": "first"}

def say(word):
    print(word, flush=True)

def go_on():
    say("ready")
    sys.stdin.readline()

def consume(**more):
    consumer = Consumer(group_id, [topic], bootstrap, **settings, **more)
    while (message := consumer.poll(120)).offset() < 10:
        pass
    return consumer
"""
POLL = BEGIN + "consumer = consume()\ngo_on()\n"


class Program:
    """A program with a member."""

    def __init__(self, coordinator: Coordinator, folder: Path, **settings: str) -> None:
        self._coordinator, self.folder, self.settings = coordinator, folder, settings
        self.mark = uuid.uuid4().hex
        """Value of a variable in the environment of the program and of all that it starts."""
        self.group_id = f"billing-{self.mark[:6]}"
        self.client_id = f"{self.group_id}-member"
        self.topic = coordinator.topic(1)
        coordinator.produce(self.topic, 0, MESSAGES)
        self.process: Popen[str] | None = None

    def start(self, source: str, how: str = "", *, group: bool = False) -> Popen[str]:
        """Start it, and wait until it is ready; `group`: in a process group of its own."""
        file = self.folder / f"{uuid.uuid4().hex[:6]}.py"
        file.write_text(source)
        connection = self._coordinator.connection
        words = [connection.bootstrap, connection.topics.prefix, self.group_id, self.topic, self.client_id, how]
        self.process = Popen(
            [sys.executable, str(file), *words],
            env={**os.environ, "PYTHONPATH": str(ROOT), "MARK": self.mark, **self.settings},
            stdin=PIPE,
            stdout=PIPE,
            stderr=(self.folder / "stderr").open("a"),
            start_new_session=group,
            text=True,
        )
        assert self.line() == "ready", (self.folder / "stderr").read_text()
        return self.process

    def line(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def changes(self) -> list[tuple[str, str]]:
        """The ends of its members, each with how."""
        return ends_of(self._coordinator, self.client_id)

    def executors(self) -> list[int]:
        """The processes that look after it."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes()
                if b"executor.py" in words and f"MARK={self.mark}".encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return [pid for pid in found if lives(pid)]

    def wait_for_end(self, *expected: tuple[str, str]) -> None:
        wait_until(self.changes, "the coordinator knows of an end")
        assert self.changes() == list(expected)

    def next_offset(self, client_id: str = "") -> int:
        """The offset at which the next member begins."""
        return next_offset(self._coordinator, self.group_id, self.topic, client_id or f"{self.group_id}-next")


@pytest.fixture(scope="module", autouse=True)
def newest_level(coordinator: Coordinator) -> None:
    """An older coordinator would read that the member has left."""
    coordinator.everywhere(Level(level=feature_levels.NEWEST), new_signer(key_to_sign(DEV_KEYS, "operator")))
    wait_until(lambda: set(coordinator.levels.values()) == {feature_levels.NEWEST}, "the newest level is in force")


@pytest.fixture
def program(coordinator: Coordinator, tmp_path: Path) -> Iterator[Program]:
    its = Program(coordinator, tmp_path)
    yield its
    if its.process is not None:
        its.process.kill()
        its.process.wait()
    for pid in its.executors():
        os.kill(pid, signal.SIGKILL)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# --- deaths ---

DEATHS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSEGV": "ctypes.string_at(0)",
    "SIGABRT": "os.abort()",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "exit code 3": "os._exit(3)",
}


@pytest.mark.parametrize("how", DEATHS)
def test_what_a_process_that_died_had_handled_is_not_repeated(program: Program, how: str):
    """Nothing else commits: the commit interval is longer than the test."""
    ended = program.start(BEGIN + f"consumer = consume(commit_interval=3_600)\ngo_on()\n{DEATHS[how]}\n")
    program.go_on()
    ended.wait(PATIENCE_S)
    program.wait_for_end(("died", how))
    assert program.next_offset() == HANDLED


def test_the_same_client_id_comes_back_at_once(program: Program):
    program.start(POLL).kill()
    assert program.next_offset(program.client_id) == HANDLED
    assert program.changes() == [("died", "SIGKILL"), ("left", "")]


def test_a_handler_that_has_returned_is_not_called_again(program: Program):
    source = """
def handle(messages):
    if messages[0].offset() == 10:
        go_on()

consumer = Consumer(group_id, [topic], bootstrap, commit_interval=3_600, **settings)
consumer.run(handle, batch_size=1, workers=1)
"""
    program.start(BEGIN + source).kill()
    program.wait_for_end(("died", "SIGKILL"))
    assert program.next_offset() == HANDLED


def test_nothing_is_committed_for_an_application_that_commits_itself(program: Program):
    source = """
consumer = Consumer(group_id, [topic], bootstrap, commit_interval=None, **settings)
while (message := consumer.poll(120)).offset() < 10:
    if message.offset() == 4:
        assert consumer.commit(60)
go_on()
"""
    program.start(BEGIN + source).kill()
    program.wait_for_end(("died", "SIGKILL"))
    assert program.next_offset() == 5


def test_a_signal_to_the_whole_group_leaves_the_executor_time_for_its_work(program: Program):
    ended = program.start(POLL, group=True)
    os.killpg(ended.pid, signal.SIGKILL)
    program.wait_for_end(("died", "SIGKILL"))


def test_a_child_that_outlives_the_process_does_not_hide_its_death(program: Program):
    """The child has copies of all descriptors."""
    source = "consumer = consume()\nif os.fork() == 0:\n    time.sleep(3_600)\ngo_on()\n"
    ended = program.start(BEGIN + source, group=True)
    ended.kill()
    program.wait_for_end(("died", "SIGKILL"))
    os.killpg(ended.pid, signal.SIGKILL)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_each_process_of_multiprocessing_has_its_own(program: Program, method: str):
    """The parent has a member too, which stays."""
    source = """
def work():
    consume()
    say("consumes")
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    other = Consumer(group_id + "-other", [topic], bootstrap, prefix=prefix, client_id=client_id + "-other")
    other.join()
    go_on()
    process = multiprocessing.get_context(how).Process(target=work)
    process.start()
    process.join()
    go_on()
"""
    parent = program.start(BEGIN + source, method)
    program.go_on()
    assert program.line() == "consumes"
    program.wait_for_end(("died", "SIGKILL"))
    assert program.line() == "ready"
    # The executor of the child ends after what it has sent is known to the coordinator.
    wait_until(lambda: len(program.executors()) == 1, "only the parent has one", state=lambda: str(program.executors()))
    assert parent.poll() is None


# --- what is no death ---

ALIVE = {
    "a child ends": "if os.fork() == 0:\n    os._exit(0)\nos.wait()\n",
    "a child is killed": "if (pid := os.fork()) == 0:\n    time.sleep(3_600)\nos.kill(pid, 9)\nos.wait()\n",
    "a program is started": "import subprocess\nsubprocess.run([sys.executable, '-c', ''], close_fds=False)\n",
    "the interpreter hangs": "ctypes.PyDLL(None).sleep(2)\n",
}


@pytest.mark.parametrize("event", ALIVE)
def test_a_process_that_lives_is_not_spoken_for(program: Program, event: str):
    ended = program.start(BEGIN + f"consumer = consume()\ngo_on()\n{ALIVE[event]}go_on()\nconsumer.close()\n")
    program.go_on()
    assert program.line() == "ready"
    assert program.changes() == []
    program.go_on()
    ended.wait(PATIENCE_S)
    program.wait_for_end(("left", ""))


def test_a_stopped_process_is_not_spoken_for(program: Program):
    stopped = program.start(POLL + "consumer.close()\n")
    stopped.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(stopped.pid) == "T", "it is stopped")
    stopped.send_signal(signal.SIGCONT)
    program.go_on()
    stopped.wait(PATIENCE_S)
    program.wait_for_end(("left", ""))


def test_a_process_that_is_killed_while_it_is_stopped_is_spoken_for(program: Program):
    stopped = program.start(POLL)
    stopped.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(stopped.pid) == "T", "it is stopped")
    assert program.changes() == []
    stopped.kill()
    program.wait_for_end(("died", "SIGKILL"))
    assert program.next_offset() == HANDLED


def test_a_process_in_a_debugger_is_not_spoken_for(program: Program):
    debugged = program.start(POLL + "consumer.close()\n")
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    attach, detach = 16, 17
    if ptrace(attach, debugged.pid, None, None):
        pytest.skip(f"this system denies a debugger: {os.strerror(ctypes.get_errno())}")
    wait_until(lambda: state_of(debugged.pid) == "t", "the debugger holds it")
    os.waitpid(debugged.pid, os.WUNTRACED)
    assert ptrace(detach, debugged.pid, None, None) == 0
    program.go_on()
    debugged.wait(PATIENCE_S)
    program.wait_for_end(("left", ""))


def test_a_process_that_becomes_another_program_is_not_spoken_for_until_it_ends(program: Program):
    other = "print('ready', flush=True); import sys; sys.stdin.readline()"
    ended = program.start(POLL + f"os.execv(sys.executable, [sys.executable, '-c', {other!r}])\n")
    program.go_on()
    assert program.line() == "ready"
    assert program.changes() == []
    program.go_on()
    assert ended.wait(PATIENCE_S) == 0
    program.wait_for_end(("died", "exit code 0"))


# --- the executor ---


def test_an_executor_sleeps_is_small_and_ends_with_its_last_member(program: Program):
    reading = "for _ in range(9):\n    consumer.poll(30)\n"
    ended = program.start(POLL + reading + "go_on()\nconsumer.close()\ngo_on()\n")
    [executor] = wait_until(program.executors, "the executor has started")
    status = Path(f"/proc/{executor}/status")

    def wakings() -> int:
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["voluntary_ctxt_switches"])

    wait_until(lambda: state_of(executor) == "S", "it sleeps")
    before = wakings()
    program.go_on()
    assert program.line() == "ready"
    assert wakings() == before
    sizes = dict(line.split(":", 1) for line in Path(f"/proc/{executor}/smaps_rollup").read_text().splitlines()[1:])
    own_kib = sum(int(sizes[name].split()[0]) for name in ("Private_Clean", "Private_Dirty"))
    assert own_kib <= 15 * 1024
    assert "cimpl" in Path(f"/proc/{executor}/maps").read_text()  # it need not find any file when it has work

    program.go_on()
    assert program.line() == "ready"
    wait_until(lambda: not program.executors(), "it has ended")
    assert Path(f"/proc/{ended.pid}/task/{ended.pid}/children").read_text() == ""


def test_an_executor_that_was_killed_is_replaced(program: Program):
    ended = program.start(POLL)
    [executor] = wait_until(program.executors, "the executor has started")
    os.kill(executor, signal.SIGKILL)
    wait_until(lambda: not lives(executor), "it is gone")
    wait_until(lambda: any(is_connected(ended.pid, pid) for pid in program.executors()), "there is another one")
    assert "the executor of last wills of this process does not work: " in program.errors()
    ended.kill()
    program.wait_for_end(("died", "SIGKILL"))


def test_an_executor_that_has_nothing_to_report_is_not_lost(program: Program):
    """Members look every few seconds, for as long as they live."""
    source = """
from wakeroll.last_will.executor_link import ExecutorLink
from wakeroll.last_will.will_file import Sending, WillFile

link, will = ExecutorLink(""), WillFile(Sending({}, "groups", None))
link.register(will)
go_on()
for _ in range(3):
    link.look()
go_on()
"""
    program.start(BEGIN + source)
    [first] = wait_until(program.executors, "an executor has started")
    wait_until(lambda: state_of(first) == "S", "it sleeps")
    program.go_on()
    assert program.line() == "ready"
    assert program.errors() == ""
    assert program.executors() == [first]


def test_an_executor_has_room_for_the_members_of_a_large_process(program: Program):
    """Their wills come all at once when an executor that was killed is replaced."""
    source = """
import resource
from wakeroll.last_will.executor_link import ExecutorLink
from wakeroll.last_will.will_file import Sending, WillFile

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
link = ExecutorLink("")
wills = [WillFile(Sending({}, "groups", None)) for _ in range(600)]
for will in wills:
    link.register(will)
go_on()
link.look()  # it receives what the executor had sent before
link.look()
go_on()
"""
    program.start(BEGIN + source)
    [first] = wait_until(program.executors, "an executor has started")
    wait_until(lambda: wills_of(first) == 600, "it has all wills", state=lambda: (wills_of(first), program.errors()))
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not lives(first), "it is gone")
    program.go_on()
    assert program.line() == "ready"
    [second] = program.executors()
    wait_until(lambda: wills_of(second) == 600, "the next one has all wills", state=program.errors)


def wills_of(executor: int) -> int:
    """The number of wills that an executor has."""
    return sum("wakeroll-will" in str(fd.readlink()) for fd in Path(f"/proc/{executor}/fd").iterdir())


# --- what an application does to the process ---


def test_files_of_the_application_that_have_the_descriptors_of_a_will_stay_as_they_are(program: Program):
    """Daemons close all descriptors at their start, and a consumer may be older. The second member changes the will."""
    source = """
consumer = consume()
ours = [fd for fd in range(3, 256) if os.path.exists(f"/proc/self/fd/{fd}")]
ours = [fd for fd in ours if "memfd:wakeroll" in os.readlink(f"/proc/self/fd/{fd}")]
from wakeroll.last_will import executor_link
ours.append(executor_link.link_to("")._link.fileno())
for fd in ours:
    os.close(fd)
files = {fd: open(f"{how}/{fd}", "w+b", buffering=0) for fd in ours}
assert {file.fileno() for file in files.values()} == set(ours)
other = Consumer(group_id, [topic], bootstrap, **{**settings, "client_id": client_id + "-other"})
other.join()
go_on()
consumer.close()
other.close()
sizes = [(fd, os.fstat(fd).st_size) for fd in ours]
assert sizes == [(fd, 0) for fd in ours], sizes
go_on()
"""
    folder = program.folder / "files"
    folder.mkdir()
    program.start(BEGIN + source, str(folder))
    lost = f"the last will of client {program.client_id!r} of group {program.group_id!r} cannot be written: "
    wait_until(lambda: lost in program.errors(), "it is noticed", state=program.errors)
    program.go_on()
    assert program.line() == "ready", program.errors()


def test_a_process_without_standard_streams_has_a_will(program: Program):
    """It may print nevertheless, also into what has the descriptors 0 to 2 then."""
    source = """
from wakeroll.last_will.executor_link import ExecutorLink
from wakeroll.last_will.will_file import Sending, WillFile

answers = os.dup(1)
for fd in (0, 1, 2):
    os.close(fd)
link, will = ExecutorLink(""), WillFile(Sending({}, "groups", None))
link.register(will)
numbers = (will.will_fd, will.progress_fd, link._link.fileno())
os.write(answers, b"ready\\n" if min(numbers) > 2 else str(numbers).encode())
time.sleep(3_600)
"""
    program.start(BEGIN + source)
    wait_until(lambda: [wills_of(pid) for pid in program.executors()] == [1], "an executor has the will")


def test_a_will_that_cannot_be_written_costs_the_will_alone(program: Program):
    source = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1_500, 1_500))
consumer = consume()
go_on()
consumer.poll(0)
consumer.close()
go_on()
"""
    program.start(BEGIN + source)
    program.go_on()
    assert program.line() == "ready", program.errors()
    assert "the last will of" in program.errors()
    program.wait_for_end(("left", ""))


@pytest.mark.parametrize("how", ["setting", "environment"])
def test_it_can_be_turned_off(program: Program, how: str):
    if how == "environment":
        program.settings["WAKEROLL_LAST_WILL"] = "off"
    program.start(BEGIN + f"consumer = consume({'last_will=False' if how == 'setting' else ''})\ngo_on()\n")
    assert program.executors() == []


def test_a_listening_executor_speaks_for_the_processes_that_connect(program: Program, tmp_path: Path):
    """It may start later than they do, as in containers, and end before they do."""
    address = f"unix:{tmp_path}/will.sock"
    program.settings["WAKEROLL_LAST_WILL"] = address
    ended = program.start(POLL)
    wait_until(lambda: "the executor of last wills at unix:" in program.errors(), "it is missed")

    first = listening(address)
    first.kill()
    first.wait()
    second = listening(address)
    try:
        wait_until(lambda: is_connected(ended.pid, second.pid), "the process has connected")
        ended.kill()
        program.wait_for_end(("died", "SIGKILL"))
        assert program.next_offset() == HANDLED
    finally:
        second.terminate()
        assert second.wait(PATIENCE_S) == 0
    assert not (tmp_path / "will.sock").exists()


def test_a_listening_executor_that_is_stopped_executes_first_what_is_due(program: Program, tmp_path: Path):
    """A supervisor stops the application and the executor in one moment, and the signal may come first."""
    address = f"unix:{tmp_path}/will.sock"
    program.settings["WAKEROLL_LAST_WILL"] = address
    executor = listening(address)
    ended = program.start(POLL)
    wait_until(lambda: is_connected(ended.pid, executor.pid), "the process has connected")
    executor.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(executor.pid) == "T", "it is stopped")
    executor.terminate()
    ended.kill()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # all of its threads; its exit status is kept
    executor.send_signal(signal.SIGCONT)
    assert executor.wait(PATIENCE_S) == 0
    assert executor.stderr is not None
    whose = f"last will of the client {program.client_id!r} of the group {program.group_id!r}"
    assert executor.stderr.read() == f"executes the {whose}, whose process has ended: SIGKILL\n"
    program.wait_for_end(("died", "SIGKILL"))


STRANGER = """
import json, os, signal, socket, sys
from wakeroll.last_will import executor
from wakeroll.last_will.will_file import Sending, WillFile
from wakeroll_model.last_will import LastWill

path, settings, files, flags = json.loads(sys.argv[1])
will = WillFile(Sending(settings, "wakeroll.groups", None, tuple(files)))
will.write(LastWill(group_id="billing", client_id="c1", instance_id="c1#1", secret="", epoch=1,
                    commits_itself=True, queues=()))
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect(path)
passed = [os.pidfd_open(os.getpid()), will.will_fd, will.progress_fd]
passed += [os.open(file, getattr(os, flags)) for file in files.values()]
socket.send_fds(link, [executor.REGISTER + bytes(8)], passed)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""A process that sends a will of its own to a listening executor, and dies."""


@contextlib.contextmanager
def sent_by_a_stranger(
    folder: Path, settings: Mapping[str, object], files: Mapping[str, object] | None = None, flags: str = "O_RDONLY"
) -> Iterator[Callable[[], str]]:
    """Send a will to a listening executor; yield a function that returns the next line of the executor's log."""
    executor = listening(f"unix:{folder}/will.sock")
    try:
        given = [f"{folder}/will.sock", settings, {name: str(file) for name, file in (files or {}).items()}, flags]
        done = run_process([sys.executable, "-c", STRANGER, json.dumps(given)])
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert executor.stderr is not None
        yield executor.stderr.readline
    finally:
        executor.kill()
        executor.wait()


@pytest.mark.parametrize(
    "settings",
    [
        {"plugin.library.paths": "/usr/lib/secret.so"},
        {"ssl.engine.location": "/usr/lib/secret.so"},
        {"ssl.providers": "secret"},
        {"ssl.ca.location": "{folder}/secret"},
        {"ssl.keystore.location": "{folder}/secret", "ssl.key.location": "{folder}/secret"},
        {"https.ca.location": "{folder}/secret"},
        {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1"},
        {"sasl.kerberos.keytab": "{folder}/secret", "sasl.kerberos.kinit.cmd": "touch {folder}/was-here"},
        {"sasl.mechanism": "GSSAPI", "security.protocol": "sasl_plaintext"},
        {"sasl.mechanism": None, "security.protocol": "SASL_SSL"},
        {"ssl.certificate.verify_cb": 1},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_listening_executor_uses_no_file_or_library_that_a_will_names(tmp_path: Path, settings: dict[str, object]):
    """It may have rights that the process which connects does not have."""
    (tmp_path / "secret").touch()
    wrong = ", ".join(sorted(settings.keys() - {"security.protocol"}))
    given = {
        name: str(value).format(folder=tmp_path) if isinstance(value, str) else value
        for name, value in settings.items()
        if value is not None
    }
    with sent_by_a_stranger(tmp_path, {"bootstrap.servers": "127.0.0.1:1", **given}) as line:
        assert line() == (
            "cannot execute the last will of the client 'c1' of the group 'billing': a listening executor does not "
            f"accept {wrong}; its session will end\n"
        )
    assert not (tmp_path / "was-here").exists()


@pytest.mark.parametrize(
    ("flags", "why"),
    [("O_PATH", "Bad file descriptor"), ("O_WRONLY", "Bad file descriptor"), ("O_RDWR", "it is no regular file")],
)
def test_a_descriptor_gives_a_stranger_no_right_to_read(tmp_path: Path, flags: str, why: str):
    """Without the right to read a file, a process can still have a descriptor of it."""
    secret = tmp_path / "secret"
    if flags == "O_RDWR":
        os.mkfifo(secret)  # the executor would wait for somebody who writes
    else:
        secret.touch()
    settings = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", "ssl.ca.location": str(secret)}
    with sent_by_a_stranger(tmp_path, settings, {"ssl.ca.location": secret}, flags) as line:
        refusal = line()
    assert "cannot read the file of ssl.ca.location: " in refusal
    assert why in refusal


def test_the_log_of_a_listening_executor_is_its_own(tmp_path: Path):
    """The settings of an application must not fill it."""
    with sent_by_a_stranger(tmp_path, {"bootstrap.servers": "127.0.0.1:1", "debug": "all", "log_level": 7}) as line:
        lines: list[str] = []
        wait_until(lambda: lines and "executes the last will" in lines[-1], "it", between=lambda: lines.append(line()))
    assert any(one.startswith("executes the last will of the client 'c1'") for one in lines)
    assert [one for one in lines if one.startswith("%7")] == []  # what Kafka's client writes to debug


@pytest.mark.parametrize("is_listening", [False, True], ids=["own", "listening"])
def test_the_executor_logs_in_with_files_that_only_the_process_can_read(tmp_path: Path, is_listening: bool):
    """They may lie in another container, and be renewed or deleted while the process lives."""
    authority = Authority(tmp_path / "authority")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.certify("broker", ["IP:127.0.0.1"]))
    server.load_verify_locations(authority.certificate)
    server.verify_mode = ssl.CERT_REQUIRED
    first, second = authority.certify("first"), authority.certify("second")
    for name, file in (("ca.pem", authority.certificate), ("client.pem", first), ("renewed.pem", second)):
        (tmp_path / name).write_bytes(file.read_bytes())
    source = """
import os, signal, sys
from wakeroll.last_will.executor_link import ExecutorLink
from wakeroll.last_will.login_settings import named_files
from wakeroll.last_will.will_file import Sending, WillFile
from wakeroll_model.last_will import LastWill

port, path = sys.argv[1:]
settings = {
    "bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": "ssl", "ssl.ca.location": "ca.pem",
    "ssl.certificate.location": "client.pem", "ssl.key.location": "client.pem",
}
files = named_files(settings)
link, will = ExecutorLink(path), WillFile(Sending(settings, "wakeroll.groups", None, tuple(files)))
will.write(LastWill(group_id="billing", client_id="c1", instance_id="c1#1", secret="", epoch=1,
                    commits_itself=True, queues=()))
link.register(will, list(files.values()))
os.replace("renewed.pem", "client.pem")
link.renew(will)
os.remove("client.pem")
link.renew(will)
os.remove("ca.pem")
link.look()
os.kill(os.getpid(), signal.SIGKILL)
"""
    executor = listening(f"unix:{tmp_path}/will.sock") if is_listening else None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        words = [str(listener.getsockname()[1]), f"{tmp_path}/will.sock" if is_listening else ""]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        program = Popen([sys.executable, "-c", source, *words], cwd=tmp_path, env=environment)
        assert program.wait(PATIENCE_S) == -signal.SIGKILL
        connected, _ = listener.accept()
        with server.wrap_socket(connected, server_side=True) as link:
            about = link.getpeercert()
    if executor is not None:
        executor.kill()
        executor.wait()
    assert about is not None
    assert about["subject"] == ((("commonName", "second"),),)


def test_an_executor_of_another_release_is_not_used(program: Program, tmp_path: Path):
    """It would not understand the wills."""
    address = f"unix:{tmp_path}/will.sock"
    program.settings["WAKEROLL_LAST_WILL"] = address
    other = tmp_path / "other.py"
    source = Path(executor_program.__file__).read_text()
    other.write_text(source.replace(executor_program.READY.decode(), "ready 0"))
    process = listening(
        address, [word.replace(executor_program.__file__, str(other)) for word in command("--listen", address[5:])]
    )
    try:
        program.start(POLL)
        wait_until(lambda: "it is of another release of wakeroll" in program.errors(), "it is noticed")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("{folder}/no/will.sock", "there is no folder {folder}/no; mount one that the applications have, too"),
        ("{folder}/taken.sock", "another executor listens there"),
        ("/sys/will.sock", f"user {os.geteuid()} must be able to write to the folder /sys"),
    ],
)
def test_an_executor_that_cannot_listen_names_the_reason(tmp_path: Path, path: str, why: str):
    first = listening(f"unix:{tmp_path}/taken.sock")
    try:
        given = f"unix:{path.format(folder=tmp_path)}"
        done = run_process([sys.executable, "-m", "wakeroll.last_will", "--listen", given])
    finally:
        first.terminate()
        first.wait(PATIENCE_S)
    assert done.returncode == 2
    assert done.stderr.startswith(f"cannot listen at {given}: ")
    assert done.stderr.endswith(f"{why.format(folder=tmp_path)}\n")


def test_a_consumer_names_what_is_missing(program: Program, tmp_path: Path):
    program.settings["WAKEROLL_LAST_WILL"] = f"unix:{tmp_path}/no/will.sock"
    program.start(POLL)
    assert f"does not work: there is no {tmp_path}/no/will.sock; `wakeroll last-will` must listen" in program.errors()


def listening(address: str, words: Sequence[str] = ()) -> Popen[str]:
    """Start an executor that listens."""
    words = words or [sys.executable, "-m", "wakeroll_pipeline.cli", "last-will", "--listen", address]
    executor = Popen(words, stderr=PIPE, text=True)
    assert executor.stderr is not None
    assert executor.stderr.readline() == f"last wills are accepted at {address}\n"
    return executor


def is_connected(pid: int, executor: int) -> bool:
    """Whether the executor has a descriptor of the process."""
    with contextlib.suppress(OSError):
        return any(f"\nPid:\t{pid}\n" in file.read_text() for file in Path(f"/proc/{executor}/fdinfo").iterdir())
    return False
