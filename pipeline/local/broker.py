"""An embedded Kafka broker: one node, a child process, reachable only on 127.0.0.1."""

import base64
import fcntl
import os
import random
import re
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from pipeline.local.child_process import Child, ChildFailed
from pipeline.prerequisites import check_java, java_path
from pipeline.spark.jars import broker_jars
from wakeroll.errors import WakerollError

HOST = "127.0.0.1"
PORTS = range(21_000, 31_000)
"""Ports below those that systems assign to outgoing connections: a client that waits for its broker to restart must
never get the broker's own port."""

READY_S = 60.0
"""Longest wait for the start (s); it takes about 2 s on an idle machine, and longer on a busy one."""

_ATTEMPTS = 5
_HANDED_ON_S = 10.0
_RECORDS = "records"
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
        login: Mapping[str, str] | None = None,
        format_options: Sequence[str] = (),
    ) -> None:
        """Describe a broker without starting it.

        Args:
            folder: its data, settings and log (`broker.log`); created if missing. One running broker per folder.
            port: port for clients; None means the port of the last start if it is free, else any free port.
            heap: Java heap, in the format of -Xmx.
            fast_start: use only the JVM's fast compiler: ready in 2 s, but not suitable for measuring throughput.
            settings: more of Kafka's broker settings; they override those of this module.
            login: client settings for the check that the broker is ready.
            format_options: more options of Kafka's StorageTool, which prepares the folder of a new cluster.
        """
        self.folder = folder.absolute()
        self._port = port
        self._heap = heap
        self._fast_start = fast_start
        self._settings = dict(settings or {})
        self._login = dict(login or {})
        self._format_options = tuple(format_options)
        self._child: Child | None = None
        self._lock: BinaryIO | None = None

    def start(self) -> None:
        """Start the broker and wait until it answers.

        Raises:
            BrokerFailed: the folder or the port is in use, Java is missing, or Kafka did not start.
            JarsMissing: the broker's JARs are missing; `pipeline.spark.jars` fetches them.
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
        """Whether this object has started the broker, and it has not ended."""
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
            properties = _properties(port, _free_port(but=port)) | self._settings
            text = "".join(f"{name}={value}\n" for name, value in properties.items())
            (self.folder / _PROPERTIES).write_text(text, encoding="ascii")
            cluster_id = _cluster_id(self.folder) or self._format(command)
            self._child = self._jvm([*command, "kafka.Kafka", _PROPERTIES])
            try:
                self._child.start()
                self._child.wait_until(_answers(port, cluster_id, self._login), READY_S)
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
            if not _is_free(self._port):
                raise BrokerFailed(f"port {self._port} of {HOST} is in use; end its process, or choose another port")
            return self._port
        last = _last_port(self.folder)
        return last if last is not None and _is_free(last) else _free_port()

    def _command(self) -> list[str]:
        """Return the JVM with its options, without the class to run."""
        java = java_path()
        if java is None:
            check = check_java()
            raise BrokerFailed(f"{check.found}; {check.fix}.")
        options = ["-XX:+UseSerialGC", f"-Xmx{self._heap}", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
        options += ["-XX:TieredStopAtLevel=1"] if self._fast_start else []
        logger = {"showDateTime": "true", "dateTimeFormat": "yyyy-MM-dd'T'HH:mm:ss.SSS", "showShortLogName": "true"}
        options += [f"-Dorg.slf4j.simpleLogger.{name}={value}" for name, value in logger.items()]
        return [java, *options, "-cp", os.pathsep.join(str(jar) for jar in broker_jars())]

    def _format(self, command: list[str]) -> str:
        """Prepare the folder of a new cluster; return the cluster's id."""
        # Kafka requires 16 bytes in URL-safe base64, and its argument parser rejects a leading "-".
        cluster_id = "w" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
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
            raise BrokerFailed(f"Kafka cannot prepare {self.folder / _RECORDS}:\n{answer.stdout[-2000:]}")
        return _cluster_id(self.folder) or cluster_id

    def _release(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None


def _properties(port: int, controller_port: int) -> dict[str, str | int]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CLIENTS://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        # Relative to the working folder: Kafka splits this value at commas, and reads the file as Latin-1.
        "log.dirs": _RECORDS,
        # A single node cannot replicate.
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        # The default of 50 partitions each is for a cluster; here they only cost files, and time at the first use.
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.num.partitions": 4,
        # After a crash the node cannot register again before its last session has ended (9 s by default).
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 500,
        # A mistyped name is an error, not a topic.
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        # Control topics allow records of 8 MiB, and a batch is larger than its records.
        "message.max.bytes": 10 * 1024 * 1024,
        "replica.fetch.max.bytes": 10 * 1024 * 1024,
        "log.retention.hours": 7 * 24,
        "log.segment.bytes": 256 * 1024 * 1024,
        # By default these files take 128 MiB, and 10 MiB per segment, whatever they contain.
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        "log.index.size.max.bytes": 1024 * 1024,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }


def _answers(port: int, cluster_id: str, login: Mapping[str, str]) -> Callable[[], bool]:
    """Return a function that checks whether a broker of this cluster answers at `port` and is ready to serve."""
    # No log: failures are expected until the broker is ready.
    quiet = {"reconnect.backoff.max.ms": 200, "log_level": 0}
    client = AdminClient({"bootstrap.servers": f"{HOST}:{port}", **quiet, **login})

    def answers() -> bool:
        try:
            cluster = client.list_topics(timeout=1)
        except KafkaException:
            return False
        return cluster.cluster_id == cluster_id and 1 in cluster.brokers

    return answers


def _cluster_id(folder: Path) -> str | None:
    """Return the cluster id of a formatted folder, else None."""
    return _found(folder / _RECORDS / "meta.properties", r"^cluster\.id=(.+)$")


def _last_port(folder: Path) -> int | None:
    port = _found(folder / _PROPERTIES, r"^listeners=CLIENTS://[^:]+:(\d+),")
    return int(port) if port else None


def _found(file: Path, pattern: str) -> str | None:
    if not file.exists():
        return None
    found = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else None


def _free_port(but: int | None = None) -> int:
    for port in random.sample(PORTS, len(PORTS)):
        if port != but and _is_free(port):
            return port
    raise BrokerFailed(f"no port of {HOST} from {PORTS.start} to {PORTS.stop - 1} is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Java sets this option too: closing connections of the last broker then do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


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
