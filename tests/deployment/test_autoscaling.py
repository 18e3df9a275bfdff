"""The examples for autoscalers of consumers: valid, and about metrics that exist."""

import re
import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.manifests import FOLDER
from wakeroll_model.config import FORGET_MS

EXAMPLES = FOLDER / "autoscaling"
GROUP = {"deployment": "wakeroll", "group": "billing"}
TABLES = (FOLDER.parents[1] / "docs" / "metrics.md").read_text(encoding="utf-8")
"""Its tables of metrics are compared with the code by another test."""


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))
    return found


def labels_of(metric: str) -> set[str]:
    """Return the labels that wakeroll gives a metric, and those of every scrape configuration of deploy/."""
    [row] = re.findall(rf"^\| `{metric}` \| gauge \| (.*?) \|", TABLES, flags=re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row)) | {"deployment", "namespace"}


@pytest.mark.parametrize("version", ["1.31.0", "1.34.0", "1.37.0"])
def test_the_horizontal_pod_autoscaler_is_valid(version):
    scaler = read("hpa.yaml")
    kubernetes_validate.validate(scaler, version, strict=True)

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**scaler, "spec": {**scaler["spec"], "maxReplicaz": 8}}, version, strict=True)


def test_the_horizontal_pod_autoscaler_asks_for_a_metric_that_the_adapter_has():
    [metric] = [one["external"]["metric"] for one in read("hpa.yaml")["spec"]["metrics"]]
    [rule] = read("adapter-rule.yaml")["externalRules"]

    assert metric == {"name": rule["seriesQuery"], "selector": {"matchLabels": GROUP}}
    assert set(GROUP) <= labels_of(metric["name"])
    assert rule["metricsQuery"].endswith(f" by ({', '.join(GROUP)})")


def test_keda_asks_prometheus_for_a_metric_that_exists():
    """KEDA's resource has no schema here, so its structure is compared with what its documentation names."""
    scaled = read("keda.yaml")
    spec = scaled["spec"]
    [trigger] = spec["triggers"]
    query = trigger["metadata"]["query"]
    [(metric, selector)] = re.findall(r"^max\((\w+)\{(.*)\}\)$", query)

    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert spec.keys() == {
        "scaleTargetRef",
        "minReplicaCount",
        "maxReplicaCount",
        "pollingInterval",
        "cooldownPeriod",
        "fallback",
        "advanced",
        "triggers",
    }
    assert trigger.keys() == {"type", "metricType", "metadata"}
    assert trigger["type"] == "prometheus"
    assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA's metadata are strings"
    assert dict(re.findall(r'(\w+)="(.*?)"', selector)) == GROUP
    assert set(GROUP) <= labels_of(metric)
    assert trigger["metadata"]["ignoreNullValues"] == "false", "a page that is away would scale the group to zero"
    assert spec["fallback"]["replicas"] >= 1
    assert spec["cooldownPeriod"] * 1_000 < FORGET_MS, "the coordinator would forget the group before"


def test_both_scale_the_same_group_in_the_same_way():
    pods, keda = read("hpa.yaml")["spec"], read("keda.yaml")["spec"]

    assert pods["scaleTargetRef"]["name"] == keda["scaleTargetRef"]["name"] == GROUP["group"]
    assert pods["maxReplicas"] == keda["maxReplicaCount"]
    assert pods["behavior"] == keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    [external] = [one["external"] for one in pods["metrics"]]
    assert external["target"]["averageValue"] == keda["triggers"][0]["metadata"]["threshold"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_prometheus_understands_the_query(tmp_path):
    query = read("keda.yaml")["spec"]["triggers"][0]["metadata"]["query"]
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "keda", "rules": [{"record": "lag", "expr": query}]}]}))
    done = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
