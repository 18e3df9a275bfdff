"""The manifests on a real API server, whose namespace enforces the pod security standard `restricted`."""

import copy
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.support.manifests import FOLDER, Manifests, selects
from tests.support.running_processes import run_process
from tests.support.systems.kube_cluster import MISSING, KubeCluster
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.kube,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}; see deploy/kubernetes/README.md#test-it"),
]

OVERLAYS = ("local-volume", "s3-replicas")
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
LINES = [line for script in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in script.splitlines()]
SAFE = "pod-security.kubernetes.io"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    with KubeCluster(tmp_path_factory.mktemp("kube")) as running:
        yield running


@pytest.fixture
def namespace(cluster: KubeCluster, request: pytest.FixtureRequest) -> str:
    """A namespace of one test, which accepts restricted pods only, and warns of each workload that has others."""
    name = f"test-{abs(hash(request.node.name)):x}"[:40]
    assert cluster.kubectl("create", "namespace", name).returncode == 0
    labels = [f"{SAFE}/{mode}=restricted" for mode in ("enforce", "warn", "audit")]
    assert cluster.kubectl("label", "namespace", name, *labels).returncode == 0
    return name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_api_server_accepts_everything_without_a_warning(cluster, namespace, overlay):
    """It knows rules that no schema has, and names deprecated fields."""
    file = str(FOLDER / "rendered" / f"{overlay}.yaml")
    for options in (["--dry-run=server"], []):
        done = cluster.kubectl("apply", "-n", namespace, "-f", file, *options)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert len(done.stdout.splitlines()) == len(Manifests.rendered(overlay).resources)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pods_come_up_and_a_drain_moves_them(cluster, namespace, overlay):
    """A budget without room would block the drain of a node for ever."""
    manifests = Manifests.rendered(overlay)
    _provide_volumes(cluster, namespace, manifests)
    cluster.kubectl("apply", "-n", namespace, "-f", str(FOLDER / "rendered" / f"{overlay}.yaml"))
    expected = sum(workload["spec"]["replicas"] for workload in manifests.workloads)

    def running() -> dict[str, str]:
        return running_in(cluster, namespace)

    wait_until(lambda: len(running()) == expected, "all pods run", state=running)
    if overlay == "s3-replicas":
        coordinators = {node for name, node in running().items() if "coordinator" in name}
        assert len(coordinators) == 2, "the replicas are on different nodes"
    drained = cluster.kubectl("drain", "node-a", "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=300s")
    try:
        assert drained.returncode == 0, drained.stderr
        wait_until(lambda: list(running().values()) == ["node-b"] * expected, "they run elsewhere", state=running)
    finally:
        cluster.kubectl("uncordon", "node-a")
        cluster.kubectl("delete", "namespace", namespace)


def test_an_update_that_does_not_start_leaves_the_other_replica_alone(cluster, namespace):
    """With a Deployment, or two updates at once, a wrong image could end both coordinators."""
    cluster.kubectl("apply", "-n", namespace, "-f", str(FOLDER / "rendered" / "s3-replicas.yaml"))
    replicas = {"wakeroll-coordinator-0", "wakeroll-coordinator-1"}

    def running() -> set[str]:
        return replicas & set(running_in(cluster, namespace))

    def image_of(pod: str) -> str:
        pods = {one["metadata"]["name"]: one for one in cluster.get("pods", "-n", namespace)}
        return str(pods[pod]["spec"]["containers"][0]["image"]) if pod in pods else ""

    wait_until(lambda: running() == replicas, "both run", state=running)
    image = "wakeroll=wakeroll:broken"
    assert cluster.kubectl("set", "image", "statefulset/wakeroll-coordinator", image, "-n", namespace).returncode == 0
    wait_until(lambda: image_of("wakeroll-coordinator-1") == "wakeroll:broken", "the second one is updated")
    left, image_left = running(), image_of("wakeroll-coordinator-0")
    undone = cluster.kubectl("rollout", "undo", "statefulset/wakeroll-coordinator", "-n", namespace)
    assert undone.returncode == 0, undone.stderr
    cluster.kubectl("delete", "pod", "wakeroll-coordinator-1", "-n", namespace)
    wait_until(lambda: running() == replicas, "both run again", state=running)
    cluster.kubectl("delete", "namespace", namespace)

    assert left == {"wakeroll-coordinator-0"}
    assert image_left != "wakeroll:broken"


def test_a_pod_that_is_not_restricted_is_refused(cluster, namespace):
    """Else the tests above would accept anything."""
    manifests = Manifests(copy.deepcopy(Manifests.rendered("local-volume").resources))
    [observer] = [pod for pod in manifests.pods if pod.command == ["observe"]]
    cluster.kubectl("create", "serviceaccount", "wakeroll", "-n", namespace)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "observer"}, "spec": observer.spec}
    assert (
        cluster.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", given=json.dumps(pod)).returncode == 0
    )

    del observer.spec["containers"][0]["securityContext"]["capabilities"]
    done = cluster.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", given=json.dumps(pod))
    assert done.returncode != 0
    assert "unrestricted capabilities" in done.stderr


def test_the_commands_of_the_page_install_change_and_restore(cluster, tmp_path):
    """In their order, in a copy of the folder."""
    folder = tmp_path / "kubernetes"
    shutil.copytree(FOLDER, folder)
    _provide_volumes(cluster, "wakeroll", Manifests.rendered("local-volume"))
    for line in LINES:
        done = subprocess.run(
            ["sh", "-ec", line], cwd=folder, env=cluster.environment, capture_output=True, text=True, check=False,
            timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert "Warning" not in done.stderr
        if line.startswith("cp "):
            _write_secrets(folder / "production")
        if line.startswith("kubectl -n wakeroll delete pvc"):  # a CSI driver would make the volume of the next claim
            cluster.kubectl("delete", "pv", "wakeroll-home")
            _provide_volumes(cluster, "wakeroll", Manifests.rendered("local-volume"))
        if line.startswith("kubectl -n wakeroll create secret"):
            _change_a_setting(folder / "production")

    [jobs] = cluster.get("statefulset", "wakeroll-jobs", "-n", "wakeroll")
    source = jobs["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"]
    [settings] = cluster.get("configmap", source, "-n", "wakeroll")
    assert settings["data"]["WAKEROLL_LEASE_MS"] == "20000", "the changed setting reached the pods"


def definition(group: str, version: str, kind: str) -> str:
    """Return the definition of a resource of an operator, without the schema of its fields."""
    plural = f"{kind.lower()}s"
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": names,
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    return json.dumps(definition)


def define(cluster: KubeCluster, group: str, version: str, kind: str) -> None:
    """Let the API server know a resource of an operator."""
    assert cluster.kubectl("apply", "-f", "-", given=definition(group, version, kind)).returncode == 0
    established = ("--for=condition=Established", f"crd/{kind.lower()}s.{group}", "--timeout=60s")
    assert cluster.kubectl("wait", *established).returncode == 0


def test_a_consumer_with_a_sidecar_for_last_wills_runs_and_has_an_autoscaler(cluster, namespace):
    """In a namespace for restricted pods, the native sidecar included."""
    define(cluster, "keda.sh", "v1alpha1", "ScaledObject")
    for file in ("consumer/billing.yaml", "autoscaling/hpa.yaml", "autoscaling/keda.yaml"):
        done = cluster.kubectl("apply", "-n", namespace, "-f", str(FOLDER / file))
        assert (done.returncode, done.stderr) == (0, ""), done.stderr

    def pods() -> list[str]:
        return list(running_in(cluster, namespace))

    wait_until(lambda: len(pods()) == 1, "the consumer runs", state=pods)
    [pod] = cluster.get("pods", "-n", namespace)
    assert [one["restartPolicy"] for one in pod["spec"]["initContainers"]] == ["Always"]
    [scaler] = cluster.get("horizontalpodautoscalers", "-n", namespace)
    assert scaler["spec"]["scaleTargetRef"]["name"] == "billing"
    cluster.kubectl("delete", "namespace", namespace)


def test_the_rules_of_the_prometheus_operator_are_accepted(cluster, namespace):
    """They select the pods of both overlays by their labels."""
    for kind in ("PodMonitor", "PrometheusRule"):
        define(cluster, "monitoring.coreos.com", "v1", kind)
    done = cluster.kubectl("apply", "-n", namespace, "-k", str(FOLDER / "components" / "monitoring"))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    monitors = cluster.get("podmonitors", "-n", namespace)
    for overlay in OVERLAYS:
        pods = Manifests.rendered(overlay).processes
        found = [pod.name for pod in pods if any(selects(one["spec"]["selector"], pod.labels) for one in monitors)]
        assert found == [pod.name for pod in pods]


def test_snapshots_of_the_volume_are_made_and_the_oldest_are_deleted(cluster, namespace, tmp_path):
    """By the script and the rights of the component; this test does what the driver of the volume would do."""
    define(cluster, "snapshot.storage.k8s.io", "v1", "VolumeSnapshot")
    component = FOLDER / "components" / "volume-snapshots"
    done = cluster.kubectl("apply", "-n", namespace, "-k", str(component))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    token = cluster.kubectl("create", "token", "wakeroll-backup", "-n", namespace).stdout.strip()
    server = cluster.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}").stdout
    for name, content in (("token", token), ("namespace", namespace), ("ca.crt", cluster.certificate)):
        (tmp_path / name).write_text(content)
    claim = "home-wakeroll-jobs-0"
    script = [sys.executable, "-I", "-S", component / "snapshots.py", "--claim", claim, "--account", tmp_path]

    def snapshots() -> list[str]:
        found = cluster.get("volumesnapshots", "-n", namespace)
        return [one["metadata"]["name"] for one in found if one["spec"]["source"]["persistentVolumeClaimName"] == claim]

    def backup(*options: str) -> subprocess.CompletedProcess[str]:
        words = [*script, "--poll", "0.1", *options]
        return run_process(words, KUBERNETES_SERVER=server)

    def ready_soon() -> None:
        """Report each snapshot as ready, as the driver does."""
        for name in snapshots():
            status = json.dumps({"status": {"readyToUse": True}})
            cluster.kubectl(
                "patch", "volumesnapshot", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", status
            )

    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            running = pool.submit(backup, "--keep", "2", "--patience", "120")
            wait_until(running.done, "the script ends", between=ready_soon)
            assert running.result().returncode == 0, running.result().stderr
    kept = snapshots()
    failed = backup("--keep", "1", "--patience", "0")

    assert len(kept) == 2, "the oldest of three is gone"
    assert failed.returncode == 1
    assert "is not ready to use after 0 s" in failed.stderr
    assert set(kept) < set(snapshots()), "no snapshot is deleted for one that cannot be used"


def running_in(cluster: KubeCluster, namespace: str) -> dict[str, str]:
    """Return the pods of a namespace that run, and their nodes."""
    pods = cluster.get("pods", "-n", namespace)
    return {
        one["metadata"]["name"]: one["spec"]["nodeName"]
        for one in pods
        if one["status"]["phase"] == "Running" and "deletionTimestamp" not in one["metadata"]
    }


def _write_secrets(folder: Path) -> None:
    for name in ("jobs", "observer", "page"):
        (folder / name).mkdir()
        for file in ("client.properties", "keys.toml"):
            (folder / name / file).write_text(f"# {name}\n")
    (folder / "ca.pem").write_text("")


def _change_a_setting(folder: Path) -> None:
    file = folder / "kustomization.yaml"
    content = yaml.safe_load(file.read_text())
    content["configMapGenerator"][0]["literals"].append("WAKEROLL_LEASE_MS=20000")
    file.write_text(yaml.safe_dump(content))


def _provide_volumes(cluster: KubeCluster, namespace: str, manifests: Manifests) -> None:
    """Create a volume for each claim: the cluster has no storage class."""
    for workload in manifests.workloads:
        for claim in workload["spec"].get("volumeClaimTemplates", ()):
            volume = {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{namespace}-{claim['metadata']['name']}"},
                "spec": {
                    "accessModes": claim["spec"]["accessModes"],
                    "capacity": claim["spec"]["resources"]["requests"],
                    "csi": {"driver": "simulated.example.org", "volumeHandle": namespace},
                    "claimRef": {
                        "namespace": namespace,
                        "name": f"{claim['metadata']['name']}-{workload['metadata']['name']}-0",
                    },
                },
            }
            done = cluster.kubectl("create", "-f", "-", given=json.dumps(volume))
            assert done.returncode == 0, done.stderr
