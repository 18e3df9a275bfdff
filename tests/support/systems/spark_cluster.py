"""A Spark standalone cluster on this machine, whose workers do not see the checkout: a master and two workers."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import pyspark

from tests.support.running_processes import ROOT
from tests.support.waiting import wait_until
from wakeroll_pipeline.local.child_process import Child

HOST = "127.0.0.1"
SPARK = Path(pyspark.__file__).parent
CORES = 2
MEMORY = "1536m"


def can_hide() -> bool:
    """Return whether processes of this user may have mounts of their own."""
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


class SparkCluster:
    """A master that survives its own death, and two workers, for the time of a `with` block.

    The workers have the files of Spark and a Python without packages. The checkout and its environment are an empty
    folder for them, if this user may mount one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hides = can_hide()
        self._port = 0
        self._master: Child | None = None
        self.workers = [self._worker(number) for number in (1, 2)]

    @property
    def url(self) -> str:
        """The `master` of applications."""
        return f"spark://{HOST}:{self._port}"

    def start_master(self) -> None:
        """Start the master, on the port of its last start."""
        recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self.folder / 'recovery'}"
        command = [SPARK / "bin" / "spark-class", "org.apache.spark.deploy.master.Master", "--host", HOST]
        self._master = Child(
            "the Spark master",
            [*map(str, command), "--port", str(self._port), "--webui-port", "0"],
            log=self.folder / "master.log",
            env=self._environment(SPARK_DAEMON_JAVA_OPTS=recovery),
        )
        self._master.start()
        found = wait_until(
            lambda: re.search(r"Starting Spark master at spark://[^:]+:(\d+)", self.master.log_tail(200)),
            "the master listens",
            state=self.master.log_tail,
        )
        self._port = int(found[1])
        wait_until(
            lambda: re.search("New state: ALIVE|Recovery complete", self.master.log_tail(200)),
            "the master leads",
            state=self.master.log_tail,
        )

    @property
    def master(self) -> Child:
        assert self._master is not None, "the master was not started"
        return self._master

    def start_worker(self, number: int) -> None:
        """Start worker 0 or 1, and wait until the master knows it."""
        worker = self.workers[number] = self._worker(number + 1)
        worker.start()
        wait_until(
            lambda: "Successfully registered with master" in worker.log_tail(200),
            f"{worker.name} is registered",
            state=worker.log_tail,
        )

    def kill_executor(self, number: int) -> None:
        """Kill the executor of worker 0 or 1; the worker starts another one."""
        [pid] = self.executors(number)
        os.kill(pid, signal.SIGKILL)

    def executors(self, number: int) -> list[int]:
        """Return the process ids of the executors of worker 0 or 1."""
        listed = subprocess.run(
            ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(self.workers[number].pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(line.split()[0]) for line in listed.stdout.splitlines() if "CoarseGrainedExecutorBackend" in line]

    def __enter__(self) -> Self:
        try:
            self.start_master()
            for number in range(len(self.workers)):
                self.start_worker(number)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop all; the executors of a worker end with it."""
        for child in (*self.workers, self._master):
            if child is not None:
                child.kill()

    def _worker(self, number: int) -> Child:
        work, spark = self.folder / f"worker-{number}", self.folder / "spark"
        for folder in (work, spark):
            folder.mkdir(parents=True, exist_ok=True)
        home = spark if self.hides else SPARK
        options = ["--host", HOST, "--cores", str(CORES), "--memory", MEMORY, "--webui-port", "0", "--work-dir", work]
        command = [home / "bin" / "spark-class", "org.apache.spark.deploy.worker.Worker", *options, self.url]
        argv = [str(word) for word in command]
        if self.hides:
            mounts = [["mount", "--bind", SPARK, spark], ["mount", "-t", "tmpfs", "tmpfs", ROOT]]
            lines = [shlex.join(map(str, mount)) for mount in mounts]
            argv = ["unshare", "-m", "sh", "-c", f"{' && '.join(lines)} && exec {shlex.join(argv)}"]
        return Child(
            f"Spark worker {number}",
            argv,
            log=self.folder / f"worker-{number}.log",
            env=self._environment(SPARK_HOME=str(home)),
            folder=work,
        )

    def _environment(self, **more: str) -> dict[str, str]:
        """Return an environment without traces of the checkout's."""
        path = [sys.base_prefix + "/bin", *os.environ["PATH"].split(os.pathsep)]
        path = [entry for entry in path if not entry.startswith(str(ROOT))]
        kept = {name: value for name, value in os.environ.items() if name in ("HOME", "JAVA_HOME", "LANG", "TMPDIR")}
        spark = {
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
        }
        return {**kept, **spark, "PATH": os.pathsep.join(path), **more}
