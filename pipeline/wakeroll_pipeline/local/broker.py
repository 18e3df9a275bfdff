"""An embedded Kafka broker: one node, a child process, reachable only on 127.0.0.1."""

import fcntl
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from wakeroll.errors import WakerollError
from wakeroll_pipeline.local.broker_settings import ALONE, RECORDS, Node, broker_properties, new_cluster_id
from wakeroll_pipeline.local.child_process import Child, ChildFailed
from wakeroll_pipeline.local.ports import HOST, PORTS, free_ports, is_free
from wakeroll_pipeline.prerequisites import check_java, java_path
from wakeroll_pipeline.spark.jar_paths import BROKER, broker_jars, class_options

READY_S = 180.0
"""Longest wait for the start (s); it takes about 2 s on an idle machine, and a minute or more on a very busy one."""

_ATTEMPTS = 5
_HANDED_ON_S = 10.0
_PROPERTIES = "server.properties"


class BrokerFailed(WakerollError):
    """The embedded broker cannot be started; the message has the reason, and the end of the log if that helps."""


class EmbeddedBroker:
    """A Kafka broker and its data folder. A `with` statement starts and stops it.

    Topics and records stay in the folder. After a restart, with this object or another one, they are available on the
    same port, unless another process has taken the port meanwhile. The broker ends at the latest with this process.
    Topics are not created automatically.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        heap: str = "256m",
        fast_start: bool = True,
        settings: Mapping[str, str | int] | None = None,
        node: Node = ALONE,
        version: str = "",
        login: Mapping[str, str] | None = None,
        format_options: Sequence[str] = (),
        java: Sequence[str] = (),
    ) -> None:
        """Describe a broker without starting it.

        Args:
            folder: its data, settings and log (`broker.log`); created if missing. A folder can have one running broker.
            port: port for clients; None means the port of the last start if it is free, else any free port.
            heap: Java heap, in the format of -Xmx.
            fast_start: use only the JVM's fast compiler: ready in 2 s, but not suitable for measuring throughput.
            settings: more of Kafka's broker settings; they override those of `broker_settings`.
            node: its part in a cluster; each other node of the cluster is another object.
            version: version of Kafka, such as 3.9.2, of the JARs that `wakeroll jars kafka-3.9.2` fetches; empty: the
                version that wakeroll uses otherwise.
            login: client settings for the check that the broker is ready.
            format_options: more options of Kafka's StorageTool, which prepares the folder of a new cluster.
            java: more options of the broker's JVM.
        """
        self.folder = folder.absolute()
        self._port = port
        self._heap = heap
        self._fast_start = fast_start
        self._settings = dict(settings or {})
        self._node = node
        self._version = version
        self._login = dict(login or {})
        self._format_options = tuple(format_options)
        self._java = tuple(java)
        self._child: Child | None = None
        self._lock: BinaryIO | None = None

    def start(self) -> None:
        """Start the broker and wait until it answers.

        Raises:
            BrokerFailed: the folder or the port is in use, Java is missing, or Kafka did not start.
            JarsMissing: the broker's JARs are missing; `wakeroll jars broker` fetches them.
        """
        if self.is_running:
            return
        self._release()
        command = self._command()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        try:
            self._start(command)
        except BaseException:
            self.kill()
            raise

    def stop(self, timeout_s: float = 20.0) -> None:
        """Stop the broker with SIGTERM; after `timeout_s` seconds, kill it."""
        if self._child:
            self._child.stop(timeout_s)
        self._release()

    def kill(self) -> None:
        """Kill the broker, like a crash. Acknowledged records are available after the next start."""
        if self._child:
            self._child.kill()
        self._release()

    @property
    def bootstrap(self) -> str:
        """The `bootstrap.servers` of its clients: host:port of the last start."""
        port = _last_port(self.folder)
        assert port is not None, f"the broker of {self.folder} was never started"
        return f"{HOST}:{port}"

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        assert self._child is not None, "the broker was not started"
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether this object has started the broker and the broker has not ended."""
        return self._child is not None and self._child.is_running

    @property
    def log(self) -> Path:
        """Kafka's log file; each start appends to it."""
        return self.folder / "broker.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, command: list[str]) -> None:
        # Another process may take a free port before Kafka binds it; then another port is tried.
        for _ in range(_ATTEMPTS):
            port = self._choose_port()
            node = self._node
            if not node.controllers:
                node = node._replace(controllers={node.number: _free_port(but=port)})
            properties = broker_properties(port, node) | self._settings
            text = "".join(f"{name}={value}\n" for name, value in properties.items())
            (self.folder / _PROPERTIES).write_text(text, encoding="ascii")
            cluster_id = _cluster_id(self.folder) or self._format(command)
            self._child = self._jvm([command[0], *self._java, *command[1:], "kafka.Kafka", _PROPERTIES])
            try:
                self._child.start()
                self._child.wait_until(_answers(port, cluster_id, node.number, self._login), READY_S)
            except ChildFailed as error:
                self._child.kill()
                if "Address already in use" in self._child.log_tail(200):
                    continue
                raise BrokerFailed(str(error)) from error
            return
        raise BrokerFailed(f"all of {_ATTEMPTS} ports were taken before the broker could bind them; start again")

    def _jvm(self, command: list[str]) -> Child:
        assert self._lock is not None
        # The JVM inherits the lock and holds it until it ends, even if this process is killed before.
        held = (self._lock.fileno(),)
        return Child("the broker", command, log=self.log, folder=self.folder, pass_fds=held)

    def _choose_port(self) -> int:
        if self._port is not None:
            if not is_free(self._port):
                raise BrokerFailed(f"port {self._port} of {HOST} is in use; end its process, or choose another port")
            return self._port
        last = _last_port(self.folder)
        return last if last is not None and is_free(last) else _free_port()

    def _command(self) -> list[str]:
        """Return the JVM with its options, without the class to run."""
        java = java_path()
        if java is None:
            check = check_java()
            raise BrokerFailed(f"{check.found}; {check.fix}.")
        options = ["-XX:+UseSerialGC", f"-Xmx{self._heap}", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
        options += ["-XX:TieredStopAtLevel=1"] if self._fast_start else []
        options += [] if self._version else class_options(BROKER)
        logger = {"showDateTime": "true", "dateTimeFormat": "yyyy-MM-dd'T'HH:mm:ss.SSS", "showShortLogName": "true"}
        options += [f"-Dorg.slf4j.simpleLogger.{name}={value}" for name, value in logger.items()]
        return [java, *options, "-cp", os.pathsep.join(str(jar) for jar in broker_jars(self._version))]

    def _format(self, command: list[str]) -> str:
        """Prepare the folder of a new cluster; return the cluster's id."""
        cluster_id = self._node.cluster_id or new_cluster_id()
        arguments = ["format", "--cluster-id", cluster_id, "--config", _PROPERTIES, "--ignore-formatted"]
        arguments += self._format_options
        answer = subprocess.run(
            [*command, "kafka.tools.StorageTool", *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise BrokerFailed(f"Kafka cannot prepare {self.folder / RECORDS}:\n{answer.stdout[-2000:]}")
        return _cluster_id(self.folder) or cluster_id

    def _release(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None


def _answers(port: int, cluster_id: str, number: int, login: Mapping[str, str]) -> Callable[[], bool]:
    """Return a function that checks whether this node of a cluster answers at `port` and is ready to serve."""
    # No log: failures are expected until the broker is ready.
    quiet = {"reconnect.backoff.max.ms": 200, "log_level": 0}
    client = AdminClient({"bootstrap.servers": f"{HOST}:{port}", **quiet, **login})

    def answers() -> bool:
        try:
            cluster = client.list_topics(timeout=1)
        except KafkaException:
            return False
        return cluster.cluster_id == cluster_id and number in cluster.brokers

    return answers


def _cluster_id(folder: Path) -> str | None:
    """Return the cluster id of a formatted folder, else None."""
    return _found(folder / RECORDS / "meta.properties", r"^cluster\.id=(.+)$")


def _last_port(folder: Path) -> int | None:
    port = _found(folder / _PROPERTIES, r"^listeners=CLIENTS://[^:]+:(\d+),")
    return int(port) if port else None


def _found(file: Path, pattern: str) -> str | None:
    if not file.exists():
        return None
    found = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else None


def _free_port(but: int | None = None) -> int:
    for port in free_ports(1, but):
        return port
    raise BrokerFailed(f"no port of {HOST} from {PORTS.start} to {PORTS.stop - 1} is free")


def _lock(folder: Path) -> BinaryIO:
    """Lock the folder for one broker; wait only for a broker that is ending because its parent process has ended."""
    file = (folder / "lock").open("a+b")
    deadline = time.monotonic() + _HANDED_ON_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            file.seek(0)
            owner = int(file.read() or 0)
            if _lives(owner) or time.monotonic() > deadline:
                file.close()
                raise BrokerFailed(f"process {owner} already runs a broker on {folder}; stop that one first") from None
            time.sleep(0.05)
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    file.flush()
    return file


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != 0
