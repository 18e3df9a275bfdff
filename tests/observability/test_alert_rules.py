"""Alert rules, dashboard, runbook and the page of metrics agree with each other and with what processes expose."""

import json
import re
import runpy
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, Info, Metric
from prometheus_client.metrics import MetricWrapperBase

from tests.support.systems.prometheus_server import (
    FOLDER,
    INSTALLED,
    NOT_INSTALLED,
    RULES,
    alert_rules,
    dashboard_expressions,
)
from wakeroll_pipeline.metrics.decision_metrics import DecisionMetrics
from wakeroll_pipeline.metrics.group_choice import GroupChoice
from wakeroll_pipeline.metrics.observer_metrics import ObserverMetrics
from wakeroll_pipeline.metrics.process_metrics import ProcessMetrics, new_registry
from wakeroll_pipeline.metrics.run_metrics import RunMetrics

ROOT = Path(__file__).parents[2]
STORIES = Path(__file__).with_name("alerts.test.yml")
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")

OF_THE_CLIENT = re.compile(r"(wakeroll_jvm_)?process_\w+")
"""Metrics that prometheus-client has for every process."""
RULE_NAMES = [rule["alert"] for rule in alert_rules()]


def promtool(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


def documented(chapter: str) -> list[tuple[str, ...]]:
    """Return the rows of the tables of a chapter of docs/metrics.md, without their heads."""
    [text] = re.findall(rf"^### {chapter}\n(.*?)(?=^##)", PAGE, flags=re.MULTILINE | re.DOTALL)
    rows = (
        tuple(cell.strip() for cell in re.split(r" \| ", line.strip("| ")))
        for line in text.splitlines()
        if line.startswith("| `")
    )
    return [(name.strip("`"), *rest) for name, *rest in rows]


def exposed(registry: CollectorRegistry) -> list[tuple[str, ...]]:
    """Return the metrics of a registry as the page shows them."""
    endings = {"counter": "_total", "info": "_info"}
    found = [
        (metric.name + endings.get(metric.type, ""), metric.type, metric._labelnames, metric.documentation)
        if isinstance(metric, Metric)
        else (metric._name + endings.get(metric._type, ""), metric._type, metric._labelnames, metric._documentation)
        for collector in registry._collector_to_names
        for metric in ([collector] if isinstance(collector, MetricWrapperBase) else collector.describe())
    ]
    return [(*named, ", ".join(f"`{label}`" for label in labels) or "none", text) for *named, labels, text in found]


def registries() -> dict[str, CollectorRegistry]:
    run, observe, serve = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
    RunMetrics(decides=True, writes=True, registry=run)
    ObserverMetrics(observe, mirrors=True)
    DecisionMetrics(serve, GroupChoice(serve, 1))
    every = CollectorRegistry()
    [build] = [one for one in new_registry()._collector_to_names if isinstance(one, Info)]
    every.register(build)
    ProcessMetrics(every, dict)
    return {
        "Metrics of every process": every,
        "Metrics of run and tap": run,
        "Metrics of observe": observe,
        "Metrics of serve": serve,
    }


def names_in(expression: str) -> set[str]:
    """Return the metrics of an expression; a series of a histogram belongs to the histogram."""
    names = set(re.findall(r"\b(?:wakeroll|kafka|process)_\w+", re.sub(r'"[^"]*"', '""', expression)))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


@pytest.mark.parametrize("chapter", ["Metrics of every process", "Metrics of run and tap", "Metrics of observe"])
def test_the_page_has_every_metric_of_a_process(chapter):
    assert documented(chapter) == exposed(registries()[chapter])


def test_the_page_has_every_metric_of_decisions():
    """It also has the gauges of the live model, which `serve` adds."""
    of_decisions = exposed(registries()["Metrics of serve"])

    assert documented("Metrics of serve")[: len(of_decisions)] == of_decisions


def test_rules_and_dashboard_use_documented_metrics_only():
    """A renamed metric would leave an alert that never fires."""
    known = {row[0] for chapter in registries() for row in documented(chapter)}
    expressions = [rule["expr"] for rule in alert_rules()] + [expression for _, expression in dashboard_expressions()]
    used = {name for expression in expressions for name in names_in(expression) if not OF_THE_CLIENT.fullmatch(name)}

    assert len(used) >= 30
    assert sorted(used - known) == []


def test_every_alert_has_a_chapter_of_the_runbook_and_every_chapter_an_alert():
    alerts, drills, _ = RUNBOOK.partition("\n## Drills\n")
    chapters = re.findall(r"^## (\w+)$", alerts, flags=re.MULTILINE)
    links = [rule["annotations"]["runbook_url"] for rule in alert_rules()]

    assert sorted(chapters) == sorted(RULE_NAMES)
    assert links == [f"docs/runbook.md#{name.lower()}" for name in RULE_NAMES]
    assert drills, "the drills come last"
    for chapter in alerts.split("\n## ")[1:]:
        assert re.findall(r"^\*\*(\w+)\.\*\*", chapter, flags=re.MULTILINE) == ["Meaning", "Look", "Do"], chapter[:40]


def test_every_alert_says_what_is_wrong_and_how_urgent_it_is():
    for rule in alert_rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}


@pytest.mark.parametrize("name", RULE_NAMES)
def test_every_alert_has_a_story_in_which_it_fires_and_one_in_which_it_does_not(name):
    checks = [
        bool(check["exp_alerts"])
        for story in yaml.safe_load(STORIES.read_text())["tests"]
        for check in story["alert_rule_test"]
        if check["alertname"] == name
    ]

    assert set(checks) == {True, False}


def test_the_dashboard_is_what_its_script_makes():
    made = runpy.run_path(str(FOLDER / "make_dashboard.py"))

    assert made["FILE"].read_text(encoding="utf-8") == made["text"](), "run deploy/observability/make_dashboard.py"


def test_each_series_of_the_dashboard_is_of_one_deployment():
    """Two deployments in one Prometheus have groups and shards of the same names; their sums mean nothing."""
    board = json.loads((FOLDER / "wakeroll-dashboard.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    selector = '{namespace="$namespace",deployment="$deployment"'

    assert len(expressions) > 50
    assert [one for one in expressions if len(names_in_order(one)) != one.count(selector)] == []
    assert {"namespace", "deployment"} <= {variable["name"] for variable in board["templating"]["list"]}


def names_in_order(expression: str) -> list[str]:
    return re.findall(r"\b(?:wakeroll|kafka|process)_\w+", re.sub(r'"[^"]*"', '""', expression))


def test_panels_link_to_the_runbook_with_the_limits_of_the_alerts():
    """A line at another limit than that of the alert would mislead a reader of the dashboard."""
    made = runpy.run_path(str(FOLDER / "make_dashboard.py"))
    rules = {rule["alert"]: rule["expr"] for rule in alert_rules()}
    titles = {panel["title"] for panel in made["dashboard"]()["panels"]}

    assert made["LIMITS"].keys() <= titles
    for title, limit in made["LIMITS"].items():
        numbers = [float(number) for number in re.findall(r"[<>] ([0-9.]+)", rules[limit.alert])]
        assert limit.value is None or limit.value in numbers, title


def test_panels_of_the_dashboard_do_not_overlap():
    taken: dict[tuple[int, int], str] = {}
    for panel in runpy.run_path(str(FOLDER / "make_dashboard.py"))["dashboard"]()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


@pytest.mark.prometheus
@pytest.mark.skipif(not INSTALLED, reason=NOT_INSTALLED)
class TestPromtool:
    def test_the_configuration_is_valid(self):
        code, said = promtool("check", "config", str(FOLDER / "prometheus.yml"))
        assert code == 0, said
        assert f"{len(RULE_NAMES)} rules found" in said

    def test_alerts_fire_and_are_silent_as_their_stories_say(self):
        code, said = promtool("test", "rules", str(STORIES))
        assert code == 0, said

    def test_a_story_that_expects_too_much_fails(self, tmp_path):
        """A test of rules that passes whatever stands in it would show nothing."""
        stories = yaml.safe_load(STORIES.read_text())
        stories["rule_files"] = [str(RULES)]
        stories["tests"] = stories["tests"][:1]
        stories["tests"][0]["alert_rule_test"][0]["exp_alerts"] = [{"exp_labels": {"severity": "critical"}}]
        wrong = tmp_path / "wrong.yml"
        wrong.write_text(yaml.safe_dump(stories))

        code, said = promtool("test", "rules", str(wrong))
        assert code == 1, said
