"""The manifests of deploy/kubernetes: valid for three versions of Kubernetes, and safe to run."""

import copy
import re
import runpy
import shutil
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.manifests import FOLDER, RULES, Manifests, Pod, selects

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
    task = next(pod for pod in manifests.pods if pod.is_task)
    [volume] = [one for one in task.spec["volumes"] if "persistentVolumeClaim" in one]

    assert task.workload["spec"]["suspend"] is True
    claim = jobs["spec"]["volumeClaimTemplates"][0]["metadata"]["name"]
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
        [endpoint] = [endpoint for spec in found for endpoint in spec["podMetricsEndpoints"]]
        assert endpoint["port"] in {port["name"] for port in pod.container["ports"]}
        job, deployment = endpoint["relabelings"]
        assert job == {"targetLabel": "job", "replacement": jobs[pod.command[0]]}
        assert deployment["targetLabel"] == "deployment"
        assert deployment["sourceLabels"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_instance"]
        assert pod.labels["app.kubernetes.io/instance"]


def test_the_alert_rules_are_those_of_prometheus():
    assert RENDER["ALERTS"].read_text(encoding="utf-8") == RENDER["alerts"](), "run `make manifests`"


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
    ("s3-replicas", "restore", "container.volumeMounts.0.mountPath", "/elsewhere", "is not in a Secret"),
    ("s3-replicas", "restore", "container.resources.limits.memory", "4Gi", "another process may take its memory"),
    ("s3-replicas", "serve", "container.resources.limits.cpu", "1", "the CPU must be requested, and not limited"),
    ("s3-replicas", "serve", "labels", {"app.kubernetes.io/name": "other"}, "no policy for its network"),
    ("s3-replicas", "serve", "labels", {"app.kubernetes.io/name": "other"}, "0 budgets"),
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
        ("NetworkPolicy", {"egress": []}, "may not reach [53, 9093]"),
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
    places: dict[str, Any] = {"spec": pod.workload["spec"], "pod": pod.spec, "container": pod.spec["containers"][0]}
    if first == "labels":
        assert isinstance(pod.labels, dict)
        pod.labels.clear()
        pod.labels.update(value)
        return
    place = places[first]
    for name in names[:-1]:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[int(names[-1]) if isinstance(place, list) else names[-1]] = value
