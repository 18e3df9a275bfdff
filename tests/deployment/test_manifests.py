"""The manifests of deploy/kubernetes: valid for three versions of Kubernetes, and safe to run."""

import copy
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.manifests import FOLDER, RULES, Manifests, Pod, restricted, selects
from wakeroll.last_will.executor_link import VARIABLE, path_of

RENDER = runpy.run_path(str(FOLDER / "render.py"))
OVERLAYS = RENDER["OVERLAYS"]
VERSIONS = ("1.31.0", "1.34.0", "1.37.0")
"""The oldest version that the manifests support, and newer ones."""
KUBECTL = shutil.which("kubectl")


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return Manifests.rendered(request.param)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_rendered_files_are_those_of_the_sources(overlay):
    """All other tests read the rendered files."""
    head, _, text = RENDER["rendered_file"](overlay).read_text(encoding="utf-8").partition("\n")

    assert head.endswith(RENDER["digest"](overlay)), "run `make manifests`"
    if KUBECTL:
        made = RENDER["kustomized"](FOLDER / "overlays" / overlay)
        assert list(yaml.safe_load_all(text)) == list(yaml.safe_load_all(made)), "run `make manifests`"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_resource_is_valid(manifests, version):
    """In strict mode, a misspelt field is an error too."""
    for resource in manifests.resources:
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_misspelt_field_is_found():
    """A validator that has no schema of a kind would find nothing."""
    for resource in Manifests.rendered("s3-replicas").resources:
        wrong = {**resource, "speck": {}}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rules_are_kept(manifests, rule):
    """Their docstrings have the reasons."""
    assert list(rule(manifests)) == []


def test_each_process_accepts_its_arguments(manifests, wakeroll):
    """A misspelt option would be a pod that restarts for ever."""
    for pod in manifests.pods:
        code, said, complaint = wakeroll(*pod.command, "--help")
        assert code == 0, complaint
        assert f" {pod.command[0]} [OPTIONS]" in said
    assert wakeroll("run", "--onyl", "record", "--help")[0] == 2


def test_each_replica_has_a_name_of_its_own():
    """Two coordinators with one name would share a checkpoint."""
    manifests = Manifests.rendered("s3-replicas")
    [pod] = [pod for pod in manifests.processes if "coordinate" in pod.command]
    restore = next(pod for pod in manifests.pods if pod.is_task)

    assert (manifests.settings(pod).replica, pod.workload["spec"]["replicas"]) == ("wakeroll-coordinator-0", 2)
    assert manifests.settings(restore).replica == "wakeroll-coordinator-0"


def test_restore_never_starts_by_itself_and_has_the_tables_of_the_jobs():
    manifests = Manifests.rendered("local-volume")
    jobs = manifests.named("StatefulSet", "wakeroll-jobs")
    claim = jobs["spec"]["volumeClaimTemplates"][0]["metadata"]["name"]
    tasks = [pod for pod in manifests.pods if pod.is_task]

    assert [task.command for task in tasks] == [["restore"], ["restore", "--from-snapshots"]]
    for task in tasks:
        [volume] = [one for one in task.spec["volumes"] if "persistentVolumeClaim" in one]
        assert task.workload["spec"]["suspend"] is True
        assert volume["persistentVolumeClaim"]["claimName"] == f"{claim}-wakeroll-jobs-0"


def test_a_changed_setting_restarts_the_processes(manifests):
    """The name of the ConfigMap contains the hash of its content."""
    names = {source["configMapRef"]["name"] for pod in manifests.pods for source in pod.container["envFrom"][:1]}

    assert len(names) == 1
    assert re.fullmatch(r"wakeroll-settings-[0-9a-z]{10}", names.pop())


def test_everything_has_the_recommended_labels_and_one_image(manifests):
    wanted = {"name": "wakeroll", "instance": "wakeroll", "part-of": "wakeroll", "managed-by": "kustomize"}
    for resource in manifests.resources:
        labels = resource["metadata"]["labels"]
        assert {name: labels.get(f"app.kubernetes.io/{name}") for name in wanted} == wanted, resource["metadata"]
    version = re.findall(r'^version = "(.+)"$', (FOLDER.parents[1] / "pyproject.toml").read_text(), re.MULTILINE)

    assert {pod.container["image"] for pod in manifests.pods} == {f"wakeroll:{version[0]}"}


def test_the_monitors_scrape_every_process_under_the_job_of_its_alerts(manifests):
    """An alert about a job that nobody scrapes would never end, or never fire."""
    monitors = list(yaml.safe_load_all((FOLDER / "components/monitoring/pod-monitors.yaml").read_text()))
    jobs = {"run": "wakeroll-run", "observe": "wakeroll-observe", "serve": "wakeroll-serve"}
    for pod in manifests.processes:
        found = [one["spec"] for one in monitors if selects(one["spec"]["selector"], pod.labels)]
        ports = {port["name"] for port in pod.container["ports"]}
        [endpoint] = [one for spec in found for one in spec["podMetricsEndpoints"] if one["port"] in ports]
        job, deployment = endpoint["relabelings"]
        assert job == {"targetLabel": "job", "replacement": jobs[pod.command[0]]}
        assert deployment["targetLabel"] == "deployment"
        assert deployment["sourceLabels"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_instance"]
        assert pod.labels["app.kubernetes.io/instance"]


def test_the_alert_rules_are_those_of_prometheus():
    assert RENDER["ALERTS"].read_text(encoding="utf-8") == RENDER["alerts"](), "run `make manifests`"


# --- a consumer with last wills ---

CONSUMER = yaml.safe_load((FOLDER / "consumer" / "billing.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_consumer_is_valid(version):
    kubernetes_validate.validate(CONSUMER, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**CONSUMER, "speck": {}}, version, strict=True)


def test_the_executor_of_last_wills_is_a_native_sidecar_that_sees_what_the_consumer_sees():
    """It starts before the consumer and ends after it; the files of the login have one path in both."""
    spec = CONSUMER["spec"]["template"]["spec"]
    [executor], [consumer] = spec["initContainers"], spec["containers"]
    [address] = [one["value"] for one in consumer["env"] if one["name"] == VARIABLE]
    path = path_of(VARIABLE, address)
    folders = {mount["name"] for mount in executor["volumeMounts"] if Path(path).is_relative_to(mount["mountPath"])}

    assert executor["restartPolicy"] == "Always"
    assert executor["command"] == ["wakeroll", "last-will", "--listen", address]
    assert executor["startupProbe"]["exec"]["command"] == ["test", "-S", path]
    assert executor["image"] == consumer["image"], "one release"
    assert executor["volumeMounts"] == consumer["volumeMounts"]
    assert [one for one in spec["volumes"] if one["name"] in folders and "emptyDir" in one]
    scaler = yaml.safe_load((FOLDER / "autoscaling" / "hpa.yaml").read_text(encoding="utf-8"))
    assert scaler["spec"]["scaleTargetRef"]["name"] == CONSUMER["metadata"]["name"]
    for container in (executor, consumer):
        resources = container["resources"]
        assert resources["requests"]["memory"] == resources["limits"]["memory"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


# --- components ---

COMPONENTS = {
    name: [
        one
        for file in sorted((FOLDER / "components" / name).glob("*.yaml"))
        if file.name != "kustomization.yaml"
        for one in yaml.safe_load_all(file.read_text(encoding="utf-8"))
    ]
    for name in ("cloud-identity", "volume-snapshots")
}
"""Component without resources of other operators -> its resources."""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", COMPONENTS)
def test_the_resources_of_a_component_are_valid(name, version):
    for resource in COMPONENTS[name]:
        kubernetes_validate.validate(resource, version, strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**resource, "speck": {}}, version, strict=True)


@pytest.mark.skipif(KUBECTL is None, reason="needs kubectl")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_accepts_the_components(overlay, tmp_path):
    """Together they keep the rules, and a user replaces the image in one place."""
    folder = copy_of_sources(tmp_path, f"overlays/{overlay}", [f"components/{name}" for name in COMPONENTS])
    manifests = Manifests(list(yaml.safe_load_all(RENDER["kustomized"](folder))))
    ours = Manifests([one for one in manifests.resources if one["metadata"]["name"] != "wakeroll-backup"])
    backup = manifests.named("CronJob", "wakeroll-backup")
    template = backup["spec"]["jobTemplate"]["spec"]["template"]

    assert [fault for rule in RULES for fault in rule(ours)] == []
    assert {one["spec"]["containers"][0]["image"] for one in [template]} == {"registry.example.org/wakeroll:1"}
    assert {pod.container["image"] for pod in ours.pods} == {"registry.example.org/wakeroll:1"}
    volume = template["spec"]["volumes"][0]["configMap"]["name"]
    assert "volumesnapshots" in manifests.named("ConfigMap", volume)["data"]["snapshots.py"]


def copy_of_sources(tmp_path: Path, overlay: str, components: list[str]) -> Path:
    """Return a folder as `example`, beside a copy of all others."""
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes" / "mine"
    folder.mkdir()
    content = {
        "resources": [f"../{overlay}"],
        "components": [f"../{component}" for component in components],
        "images": [{"name": "wakeroll", "newName": "registry.example.org/wakeroll", "newTag": "1"}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return folder


def test_the_pods_may_ask_each_cloud_for_the_credentials_of_their_role():
    """Not the observer, which needs none: the address gives out the rights of a node, too."""
    [policy] = COMPONENTS["cloud-identity"]
    open_to = {
        (peer["ipBlock"]["cidr"], port["port"])
        for rule in policy["spec"]["egress"]
        for peer in rule["to"]
        for port in rule["ports"]
    }

    assert {
        ("169.254.169.254/32", 80),
        ("169.254.170.2/32", 80),
        ("169.254.170.23/32", 80),
        ("169.254.169.252/32", 988),
    } <= open_to
    labels = {"app.kubernetes.io/name": "wakeroll"}
    for component, is_selected in (("jobs", True), ("coordinator", True), ("page", True), ("observer", False)):
        assert (
            selects(policy["spec"]["podSelector"], labels | {"app.kubernetes.io/component": component}) is is_selected
        )


def test_a_restored_volume_is_the_one_that_the_jobs_expect():
    restored = yaml.safe_load((FOLDER / "example" / "restored-claim.yaml").read_text(encoding="utf-8"))
    jobs = Manifests.rendered("local-volume").named("StatefulSet", "wakeroll-jobs")
    [claim] = jobs["spec"]["volumeClaimTemplates"]

    kubernetes_validate.validate(restored, VERSIONS[-1], strict=True)
    assert restored["metadata"]["name"] == f"{claim['metadata']['name']}-wakeroll-jobs-0"
    assert restored["spec"].pop("dataSource")["kind"] == "VolumeSnapshot"
    assert restored["spec"] == claim["spec"]


def test_only_the_backup_has_a_token_and_may_do_little_with_it():
    resources = Manifests(COMPONENTS["volume-snapshots"])
    [role] = resources.of_kind("Role")
    [pod] = resources.pods
    jobs = Manifests.rendered("local-volume").named("StatefulSet", "wakeroll-jobs")
    claim = jobs["spec"]["volumeClaimTemplates"][0]["metadata"]["name"]

    assert role["rules"] == [
        {
            "apiGroups": ["snapshot.storage.k8s.io"],
            "resources": ["volumesnapshots"],
            "verbs": ["create", "get", "list", "delete"],
        }
    ]
    assert pod.spec["serviceAccountName"] == "wakeroll-backup"
    assert pod.command[:2] == ["--claim", f"{claim}-wakeroll-jobs-0"]
    assert list(restricted(resources)) == ["wakeroll-backup: has a token"]


# --- that the rules would find what they look for ---

MUTANTS: list[tuple[str, str, str, Any, str]] = [
    ("local-volume", "run", "spec.replicas", 2, "a volume has one process"),
    ("local-volume", "run", "spec.volumeClaimTemplates.0.spec.accessModes", ["ReadWriteOnce"], "a second pod"),
    ("local-volume", "run", "pod.terminationGracePeriodSeconds", 30, "a stop takes up to 65 s"),
    ("local-volume", "run", "container.env", [{"name": "WAKEROLL_HOME", "value": "/tmp/home"}], "is not in the volume"),
    ("s3-replicas", "run", "container.env", [], "several coordinators would share a checkpoint"),
    ("s3-replicas", "run", "container.args", ["run", "--only", "record"], "does not stand by"),
    ("s3-replicas", "run", "container.env", [{"name": "WAKEROLL_LOCKS", "value": "auto"}], "locks are 'auto'"),
    ("s3-replicas", "observe", "container.livenessProbe.httpGet.path", "/readyz", "the liveness probe does not ask"),
    ("s3-replicas", "observe", "container.startupProbe.failureThreshold", 3, "a start of 300 s is ended"),
    ("s3-replicas", "serve", "container.readinessProbe", {}, "the readiness probe does not ask"),
    ("s3-replicas", "serve", "pod.securityContext.runAsUser", 0, "runs as root"),
    ("s3-replicas", "serve", "container.securityContext", {}, "has capabilities"),
    ("s3-replicas", "serve", "pod.automountServiceAccountToken", True, "has a token"),
    ("s3-replicas", "serve", "pod.enableServiceLinks", True, "reads variables of Services"),
    ("s3-replicas", "serve", "pod.volumes.0", {"name": "login", "hostPath": {"path": "/etc"}}, "forbidden volume"),
    ("s3-replicas", "serve", "pod.volumes.0.secret.defaultMode", 0o444, "everybody can read its Secret"),
    ("s3-replicas", "serve", "pod.volumes.0.secret.secretName", "wakeroll-jobs", "only verifies can sign"),
    ("s3-replicas", "restore", "container.volumeMounts.0.mountPath", "/elsewhere", "is not in a Secret"),
    ("s3-replicas", "restore", "container.resources.limits.memory", "4Gi", "another process may take its memory"),
    ("s3-replicas", "serve", "container.resources.limits.cpu", "1", "the CPU must be requested, and not limited"),
    ("s3-replicas", "serve", "labels", {"app.kubernetes.io/name": "other"}, "no policy for its network"),
    ("s3-replicas", "serve", "labels", {"app.kubernetes.io/name": "other"}, "0 budgets"),
    ("s3-replicas", "serve", "container.env", [{"name": "WAKEROLL_HOME", "value": "/tmp/home"}], "has no history"),
    ("s3-replicas", "serve", "container.terminationMessagePolicy", "File", "the reason of its end"),
    ("s3-replicas", "serve", "container.env", [{"name": "WAKEROLL_LOG_FORMAT", "value": "text"}], "is not JSON"),
    ("s3-replicas", "serve", "spec.strategy.rollingUpdate.maxUnavailable", 1, "before the new one is ready"),
    ("s3-replicas", "run", "spec.minReadySeconds", 0, "ready for a moment counts"),
    ("local-volume", "serve", "container.volumeMounts.1.name", "page-scratch", "the page has no history"),
    ("local-volume", "serve", "container.volumeMounts.1.readOnly", False, "the page may write the tables"),
    ("local-volume", "serve", "container.env", [], "the page cannot write to /var/lib/wakeroll"),
    ("local-volume", "serve", "container.securityContext", {}, "has capabilities"),
    ("local-volume", "serve", "container.readinessProbe", {}, "the readiness probe does not ask"),
]  # fmt: skip


@pytest.mark.parametrize(("overlay", "command", "path", "value", "expected"), MUTANTS)
def test_a_mistake_is_found(overlay, command, path, value, expected):
    manifests = Manifests(copy.deepcopy(Manifests.rendered(overlay).resources))
    pod = next(pod for pod in manifests.pods if pod.command[0] == command)
    _set(pod, path, value)

    assert expected in "\n".join(fault for rule in RULES for fault in rule(manifests))


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        ("PodDisruptionBudget", {"maxUnavailable": 0}, "a drain is blocked"),
        ("PodDisruptionBudget", {"minAvailable": 1}, "a drain is blocked"),
        ("PodDisruptionBudget", {"unhealthyPodEvictionPolicy": "IfHealthyBudget"}, "while a pod is not ready"),
        ("NetworkPolicy", {"egress": []}, "may not reach [53, 5353, 9093]"),
        ("Service", {"selector": {"app.kubernetes.io/component": "pages"}}, "has no pods"),
    ],
)
def test_a_mistake_beside_the_pods_is_found(kind, spec, expected):
    manifests = Manifests(copy.deepcopy(Manifests.rendered("local-volume").resources))
    for resource in manifests.of_kind(kind):
        resource["spec"] |= spec

    assert expected in "\n".join(fault for rule in RULES for fault in rule(manifests))


def _set(pod: Pod, path: str, value: Any) -> None:
    """Replace a part of a workload; `pod`, `container` and `labels` are short for the parts of its template."""
    first, *names = path.split(".")
    container = pod.spec["containers"][pod.number]
    places: dict[str, Any] = {"spec": pod.workload["spec"], "pod": pod.spec, "container": container}
    if first == "labels":
        assert isinstance(pod.labels, dict)
        pod.labels.clear()
        pod.labels.update(value)
        return
    place = places[first]
    for name in names[:-1]:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[int(names[-1]) if isinstance(place, list) else names[-1]] = value
