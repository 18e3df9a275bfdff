"""Kubernetes manifests of a deployment, read from a rendered file, and the rules that they must keep."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.jobs.supervise import LAST_BATCHES_S
from wakeroll_pipeline.settings import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"

Resource = dict[str, Any]

START_S = 300
"""Time that a process must have to start (s): Spark's start took 200 s on a busy machine."""
STABLE_S = 15
"""Time for which a new pod must be ready before a rollout goes on (s)."""
END_OF_SPARK_S = 20
"""Time from the end of the last batch to the end of the process (s)."""
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
"""Kinds of volumes that the pod security standard `restricted` allows."""


class Pod(NamedTuple):
    """The pods of one workload, and one of their containers."""

    workload: Resource
    spec: dict[str, Any]
    labels: Mapping[str, str]
    number: int = 0
    """Of the container, from 0."""

    @property
    def name(self) -> str:
        return str(self.workload["metadata"]["name"])

    @property
    def is_task(self) -> bool:
        return self.workload["kind"] == "CronJob"

    @property
    def container(self) -> dict[str, Any]:
        return dict(self.spec["containers"][self.number])

    @property
    def command(self) -> Sequence[str]:
        return list(self.container["args"])


class Manifests:
    """The resources of one deployment."""

    def __init__(self, resources: Sequence[Resource]) -> None:
        self.resources = list(resources)

    @classmethod
    def rendered(cls, overlay: str) -> "Manifests":
        text = (FOLDER / "rendered" / f"{overlay}.yaml").read_text(encoding="utf-8")
        return cls(list(yaml.safe_load_all(text)))

    def of_kind(self, *kinds: str) -> list[Resource]:
        return [one for one in self.resources if one["kind"] in kinds]

    def named(self, kind: str, name: str) -> Resource:
        [found] = [one for one in self.of_kind(kind) if one["metadata"]["name"] == name]
        return found

    @property
    def pods(self) -> list[Pod]:
        """Return the containers of the pods of all workloads, tasks too."""
        found = []
        for workload in self.of_kind("Deployment", "StatefulSet", "CronJob"):
            task = workload["kind"] == "CronJob"
            template = (workload["spec"]["jobTemplate"] if task else workload)["spec"]["template"]
            spec, labels = template["spec"], template["metadata"]["labels"]
            found += [Pod(workload, spec, labels, number) for number in range(len(spec["containers"]))]
        return found

    @property
    def processes(self) -> list[Pod]:
        """Return the containers that run until they are stopped."""
        return [pod for pod in self.pods if not pod.is_task]

    @property
    def workloads(self) -> list[Resource]:
        """Return the workloads whose pods run until they are stopped."""
        return self.of_kind("Deployment", "StatefulSet")

    def environment(self, pod: Pod) -> dict[str, str]:
        """Return the environment variables of a pod's container, without those of Secrets."""
        found: dict[str, str] = {}
        for source in pod.container["envFrom"]:
            if "configMapRef" in source:
                found |= self.named("ConfigMap", source["configMapRef"]["name"])["data"]
        for variable in pod.container.get("env", ()):
            is_name = variable.get("valueFrom") == {"fieldRef": {"fieldPath": "metadata.name"}}
            found[variable["name"]] = f"{pod.name}-0" if is_name else variable["value"]
        return found

    def settings(self, pod: Pod) -> Settings:
        """Return the settings that the process of a pod reads."""
        return load(self.environment(pod), Path("/dev/null"))


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a selector matches the labels of a pod; only what the manifests use."""
    for expression in selector.get("matchExpressions", ()):
        is_in = labels.get(expression["key"]) in expression["values"]
        if is_in != {"In": True, "NotIn": False}[expression["operator"]]:
            return False
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


# --- the rules: each yields what is wrong ---


def one_writer(manifests: Manifests) -> Iterator[str]:
    """Only one process decides from a checkpoint, and only one writes the tables."""
    runs = [pod for pod in manifests.processes if pod.command[0] == "run"]
    if not runs:
        yield "no process decides"
    for pod in runs:
        settings, spec = manifests.settings(pod), pod.workload["spec"]
        if pod.workload["kind"] != "StatefulSet":
            yield f"{pod.name}: a {pod.workload['kind']} may have two pods during an update"
        if settings.locks == "file":
            yield from _fenced_by_volume(pod, settings)
            if spec["replicas"] != 1 or len(runs) != 1:
                yield f"{pod.name}: a volume has one process"
        elif settings.locks == "lease" and not (settings.warehouse.is_local or settings.checkpoints_folder.is_local):
            if "record" not in pod.command and not settings.replica:
                yield f"{pod.name}: several coordinators would share a checkpoint"
            if "record" in pod.command and "--standby" not in pod.command and spec["replicas"] > 1:
                yield f"{pod.name}: the second recorder does not stand by"
        else:
            yield f"{pod.name}: locks are {settings.locks!r}, home is {settings.home}"


def history(manifests: Manifests) -> Iterator[str]:
    """Each page reads the tables that the jobs write: for the past, and to begin with their snapshots."""
    written = {
        (str(manifests.settings(pod).warehouse), _volume_of(pod, manifests.settings(pod).home))
        for pod in manifests.processes
        if pod.command[0] == "run" and "coordinate" not in pod.command
    }
    pages = [pod for pod in manifests.processes if pod.command[0] == "serve"]
    if not pages:
        yield "there is no page"
    for pod in pages:
        settings = manifests.settings(pod)
        if {(str(settings.warehouse), _volume_of(pod, settings.home))} != written:
            yield f"{pod.name}: the page has no history"
        if settings.warehouse.is_local:
            mount = next(one for one in pod.container["volumeMounts"] if one["name"] == _volume_of(pod, settings.home))
            if not mount.get("readOnly"):
                yield f"{pod.name}: the page may write the tables"
            if Path(str(settings.work_folder)).is_relative_to(mount["mountPath"]):
                yield f"{pod.name}: the page cannot write to {settings.work_folder}"


def _volume_of(pod: Pod, folder: str) -> str:
    """Return the name of the volume that has a local folder; empty if none has it."""
    found = [one for one in pod.container["volumeMounts"] if Path(folder).is_relative_to(one["mountPath"])]
    return str(found[0]["name"]) if found else ""


def _fenced_by_volume(pod: Pod, settings: Settings) -> Iterator[str]:
    [claim] = pod.workload["spec"].get("volumeClaimTemplates", [None])
    if claim is None:
        yield f"{pod.name}: the tables have no volume"
        return
    if claim["spec"]["accessModes"] != ["ReadWriteOncePod"]:
        yield f"{pod.name}: a second pod could have the volume"
    [mount] = [one for one in pod.container["volumeMounts"] if one["name"] == claim["metadata"]["name"]]
    for folder in (settings.home, settings.checkpoints):
        if not Path(folder).is_relative_to(mount["mountPath"]):
            yield f"{pod.name}: {folder} is not in the volume"


def probes(manifests: Manifests) -> Iterator[str]:
    """Each process has time to start, and is restarted only if its own loops are stuck."""
    for pod in manifests.processes:
        ports = {port["name"] for port in pod.container["ports"]}
        for name, path in (("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")):
            probe = pod.container.get(f"{name}Probe", {})
            request = probe.get("httpGet", {})
            if request.get("path") != path or request.get("port") not in ports:
                yield f"{pod.name}: the {name} probe does not ask {path}"
        start = pod.container.get("startupProbe", {})
        if start.get("periodSeconds", 10) * start.get("failureThreshold", 3) < START_S:
            yield f"{pod.name}: a start of {START_S} s is ended"


def restricted(manifests: Manifests) -> Iterator[str]:
    """Keep the pod security standard `restricted`; the root file system is read-only, and no token is mounted."""
    for pod in manifests.pods:
        spec, context = pod.spec, pod.spec.get("securityContext", {})
        own = pod.container.get("securityContext", {})
        wanted = {
            "runs as root": context.get("runAsNonRoot") is True and context.get("runAsUser", 0) > 0,
            "no seccomp profile": context.get("seccompProfile") == {"type": "RuntimeDefault"},
            "may gain privileges": own.get("allowPrivilegeEscalation") is False,
            "has capabilities": own.get("capabilities") == {"drop": ["ALL"]},
            "writes to its root": own.get("readOnlyRootFilesystem") is True,
            "is privileged": not own.get("privileged"),
            "shares the node": not any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")),
            "has a token": spec.get("automountServiceAccountToken") is False,
            "has a forbidden volume": all(len(set(one) - {"name"} - _VOLUMES) == 0 for one in spec["volumes"]),
            "reads variables of Services": spec.get("enableServiceLinks") is False,
        }
        yield from (f"{pod.name}: {fault}" for fault, is_kept in wanted.items() if not is_kept)


def rolled(manifests: Manifests) -> Iterator[str]:
    """A rollout goes on only when the new pod has worked for a while, and never stops the last one that works."""
    for workload in manifests.workloads:
        name, spec = workload["metadata"]["name"], workload["spec"]
        if spec.get("minReadySeconds", 0) < STABLE_S:
            yield f"{name}: a pod that is ready for a moment counts"
        if workload["kind"] == "Deployment" and spec["strategy"].get("rollingUpdate", {}).get("maxUnavailable") != 0:
            yield f"{name}: a rollout stops a pod before the new one is ready"
        if workload["kind"] == "StatefulSet" and spec.get("updateStrategy", {}).get("type", "") == "OnDelete":
            yield f"{name}: a rollout changes nothing"


def explained(manifests: Manifests) -> Iterator[str]:
    """The reason of an end is shown with the pod, and logs are JSON, as collectors of logs read them."""
    for pod in manifests.pods:
        if pod.container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            yield f"{pod.name}: the reason of its end is in its log only"
        if manifests.settings(pod).log_format != "json":
            yield f"{pod.name}: its log is not JSON"


def graceful(manifests: Manifests) -> Iterator[str]:
    """Each process has time to stop."""
    for pod in manifests.processes:
        if pod.command[0] != "run":
            continue
        needed_s = LAST_BATCHES_S + END_OF_SPARK_S
        if pod.spec["terminationGracePeriodSeconds"] < needed_s:
            yield f"{pod.name}: a stop takes up to {needed_s:.0f} s"


def drainable(manifests: Manifests) -> Iterator[str]:
    """A budget covers each process, and lets one pod be evicted in any case."""
    budgets = manifests.of_kind("PodDisruptionBudget")
    for pod in manifests.processes:
        covering = [one["spec"] for one in budgets if selects(one["spec"]["selector"], pod.labels)]
        if len(covering) != 1:
            yield f"{pod.name}: {len(covering)} budgets"  # Kubernetes evicts no pod with two
        for spec in covering:
            if "minAvailable" in spec or spec["maxUnavailable"] < 1:
                yield f"{pod.name}: a drain is blocked"
            if spec.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
                yield f"{pod.name}: a drain is blocked while a pod is not ready"


def bounded(manifests: Manifests) -> Iterator[str]:
    """Memory is reserved and limited; the CPU is not limited."""
    for pod in manifests.pods:
        resources = pod.container["resources"]
        if resources["requests"]["memory"] != resources["limits"]["memory"]:
            yield f"{pod.name}: another process may take its memory"
        if "cpu" not in resources["requests"] or "cpu" in resources["limits"]:
            yield f"{pod.name}: the CPU must be requested, and not limited"


def secret(manifests: Manifests) -> Iterator[str]:
    """Logins and keys are files of Secrets that the process can only read; the manifests contain none."""
    yield from (f"{one['metadata']['name']} is a Secret" for one in manifests.of_kind("Secret"))
    for pod in manifests.pods:
        settings = manifests.settings(pod)
        volumes = {one["name"]: one for one in pod.spec["volumes"]}
        mounts = [one for one in pod.container["volumeMounts"] if "secret" in volumes.get(one["name"], ())]
        for file in (settings.kafka_config, settings.keys):
            if not any(Path(str(file)).is_relative_to(one["mountPath"]) and one.get("readOnly") for one in mounts):
                yield f"{pod.name}: {file} is not in a Secret"
        if any(volumes[one["name"]]["secret"]["defaultMode"] & 0o007 for one in mounts):
            yield f"{pod.name}: everybody can read its Secret"


def unsigning(manifests: Manifests) -> Iterator[str]:
    """Processes that only verify share no Secret with those that sign."""
    secrets: dict[bool, set[str]] = {True: set(), False: set()}
    for pod in manifests.pods:
        signs = pod.command[0] != "serve" and pod.command[:3] != ["run", "--only", "record"]
        mounted = {one["name"] for one in pod.container["volumeMounts"]}
        volumes = [one for one in pod.spec["volumes"] if one["name"] in mounted and "secret" in one]
        secrets[signs] |= {one["secret"]["secretName"] for one in volumes}
    yield from (f"{name}: a process that only verifies can sign" for name in sorted(secrets[True] & secrets[False]))


def connected(manifests: Manifests) -> Iterator[str]:
    """Services find pods; policies cover all pods, and let each reach the brokers."""
    for service in manifests.of_kind("Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        if [pod for pod in manifests.processes if selects(selector, pod.labels)] == []:
            yield f"the Service {service['metadata']['name']} has no pods"
    for pod in manifests.pods:
        policies = [
            one["spec"] for one in manifests.of_kind("NetworkPolicy") if selects(one["spec"]["podSelector"], pod.labels)
        ]
        if {kind for one in policies for kind in one["policyTypes"]} != {"Ingress", "Egress"}:
            yield f"{pod.name}: no policy for its network"
        open_to = {port["port"] for one in policies for rule in one.get("egress", ()) for port in rule.get("ports", ())}
        settings = manifests.settings(pod)
        needed = {int(address.rpartition(":")[2]) for address in settings.bootstrap.split(",")} | {53, 5353}
        if not needed <= open_to:
            yield f"{pod.name}: may not reach {sorted(needed - open_to)}"


RULES: Sequence[Callable[[Manifests], Iterator[str]]] = (
    one_writer, history, probes, restricted, rolled, explained, graceful, drainable, bounded, secret, unsigning,
    connected,
)  # fmt: skip
