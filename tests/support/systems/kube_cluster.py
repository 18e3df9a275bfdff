"""A Kubernetes control plane of real programs, on this machine, with nodes and pods that are simulated.

API server, scheduler and controllers are those of Kubernetes; what a kubelet reports, this module reports: a pod that
has a node runs and is ready, a task succeeds, and a pod that is deleted is gone.
"""

import json
import os
import secrets
import shutil
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.waiting import wait_until
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import HOST, free_ports

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_LOOK_S = 0.2


def program(name: str) -> str | None:
    """Return the path of a program: in the folder WAKEROLL_KUBE_BIN, or on the PATH; None if there is none."""
    folder = os.environ.get("WAKEROLL_KUBE_BIN", "")
    return shutil.which(name, path=os.pathsep.join([folder, os.environ["PATH"]]))


MISSING = [name for name in (*PROGRAMS, "kubectl", "openssl") if program(name) is None]


class KubeCluster:
    """A cluster with two nodes; `kubectl` is its administrator."""

    def __init__(self, folder: Path) -> None:
        """Prepare; the `with` statement starts it."""
        self.folder = folder
        self._stack = ExitStack()
        self._token = secrets.token_hex(16)
        self._etcd, self._peers, self._api, self._manager, self._scheduler = free_ports(5)
        self.config = folder / "kubeconfig"
        self._kubelet = Kubelet(self)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._write_files()
            self._start_api(stack)
            for node in ("node-a", "node-b"):
                self._add_node(node)
            self._start_controllers(stack)
            self._kubelet.start()
            stack.callback(self._kubelet.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def kubectl(self, *words: str, given: str = "", folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl to its end; `given` is its standard input."""
        return subprocess.run(
            [str(program("kubectl")), *words],
            input=given,
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )

    def get(self, *words: str) -> list[dict[str, Any]]:
        """Return the resources that `kubectl get` finds."""
        done = self.kubectl("get", *words, "-o", "json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        return list(found["items"]) if found["kind"] == "List" else [found]

    @property
    def certificate(self) -> str:
        """The certificate of the API server, which signs itself."""
        return (self.folder / "certificates" / "apiserver.crt").read_text()

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which kubectl finds this cluster."""
        return {**os.environ, "KUBECONFIG": str(self.config)}

    def _write_files(self) -> None:
        (self.folder / "tokens.csv").write_text(f"{self._token},admin,admin,system:masters\n")
        openssl = ["openssl", "genrsa", "-out", str(self.folder / "accounts.key"), "2048"]
        subprocess.run(openssl, check=True, capture_output=True)
        cluster = {"server": f"https://{HOST}:{self._api}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }
        self.config.touch(mode=0o600)
        self.config.write_text(json.dumps(config))

    def _start_api(self, stack: ExitStack) -> None:
        client, peer = f"http://{HOST}:{self._etcd}", f"http://{HOST}:{self._peers}"
        self._start(stack, "etcd", "--data-dir", "etcd", "--unsafe-no-fsync", "--listen-client-urls", client,
                    "--advertise-client-urls", client, "--listen-peer-urls", peer,
                    "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}")  # fmt: skip
        key = "accounts.key"
        api = self._start(stack, "kube-apiserver", f"--etcd-servers={client}", "--cert-dir", "certificates",
                          "--bind-address", HOST, "--secure-port", str(self._api), "--token-auth-file", "tokens.csv",
                          "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24",
                          "--service-account-issuer", "https://kubernetes.default.svc",
                          "--service-account-key-file", key, "--service-account-signing-key-file", key,
                          "--endpoint-reconciler-type", "none")  # fmt: skip
        is_up = lambda: self.kubectl("get", "--raw", "/readyz").stdout == "ok"  # noqa: E731
        wait_until(is_up, "the API server is ready", state=api.log_tail)

    def _start_controllers(self, stack: ExitStack) -> None:
        config = str(self.config)
        # Nobody renews the leases of the nodes, so the controller that looks for dead nodes is off.
        self._start(stack, "kube-controller-manager", "--kubeconfig", config, "--leader-elect=false",
                    "--secure-port", str(self._manager), "--cert-dir", "certificates",
                    "--controllers=*,-node-lifecycle-controller")  # fmt: skip
        self._start(stack, "kube-scheduler", "--kubeconfig", config, "--leader-elect=false",
                    "--secure-port", str(self._scheduler), "--cert-dir", "certificates")  # fmt: skip

    def _start(self, stack: ExitStack, name: str, *arguments: str) -> Child:
        words = [str(program(name)), *arguments]
        return stack.enter_context(Child(name, words, log=self.folder / f"{name}.log", folder=self.folder))

    def _add_node(self, name: str) -> None:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        }
        done = self.kubectl("create", "-f", "-", given=json.dumps(node))
        assert done.returncode == 0, done.stderr
        room = {"cpu": "16", "memory": "64Gi", "pods": "100", "ephemeral-storage": "100Gi"}
        ready = [{"type": "Ready", "status": "True", "reason": "Simulated", "message": ""}]
        self.patch_status("node", name, {"capacity": room, "allocatable": room, "conditions": ready})
        self.kubectl("taint", "node", name, "node.kubernetes.io/not-ready:NoSchedule-")

    def patch_status(self, kind: str, name: str, status: dict[str, Any], *words: str) -> None:
        """Replace parts of the status of a resource."""
        patch = json.dumps({"status": status})
        self.kubectl("patch", kind, name, *words, "--subresource=status", "--type=merge", "-p", patch)


class Kubelet(threading.Thread):
    """Reports for the pods of all nodes; pods whose image is `broken` never become ready."""

    def __init__(self, cluster: KubeCluster) -> None:
        super().__init__(name="kubelet", daemon=True)
        self._cluster = cluster
        self._stop_requested = threading.Event()

    def stop(self) -> None:
        """End the thread, and wait for its end."""
        self._stop_requested.set()
        self.join()

    def run(self) -> None:
        """Look at all pods until `stop`."""
        while not self._stop_requested.wait(_LOOK_S):
            for pod in self._cluster.get("pods", "--all-namespaces"):
                self._report(pod)

    def _report(self, pod: dict[str, Any]) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        where = ["-n", namespace]
        if "deletionTimestamp" in pod["metadata"]:
            self._cluster.kubectl("delete", "pod", name, *where, "--grace-period=0", "--force", "--wait=false")
        elif "nodeName" in pod["spec"] and pod["status"]["phase"] == "Pending" and not _is_broken(pod):
            is_task = pod["spec"]["restartPolicy"] == "Never"
            self._cluster.patch_status("pod", name, _status(pod["spec"]["containers"], is_task=is_task), *where)


def _is_broken(pod: dict[str, Any]) -> bool:
    return any(container["image"].endswith(":broken") for container in pod["spec"]["containers"])


def _status(containers: Sequence[dict[str, Any]], *, is_task: bool) -> dict[str, Any]:
    now = "2026-01-01T00:00:00Z"
    state = {"terminated": {"exitCode": 0}} if is_task else {"running": {"startedAt": now}}
    told = {"ready": not is_task, "restartCount": 0, "image": "", "imageID": "", "state": state}
    conditions = [
        {"type": kind, "status": "False" if is_task else "True", "lastTransitionTime": now}
        for kind in ("Ready", "ContainersReady")
    ]
    phase = "Succeeded" if is_task else "Running"
    statuses = [{"name": container["name"], **told} for container in containers]
    return {"phase": phase, "conditions": conditions, "containerStatuses": statuses}
