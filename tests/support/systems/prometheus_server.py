"""A real Prometheus with the deployment's own configuration, alert rules and dashboard, at the pace of a test."""

import json
import os
import shutil
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support.waiting import wait_until
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import HOST, free_ports, is_free

FOLDER = Path(__file__).parents[3] / "deploy" / "observability"
RULES = FOLDER / "wakeroll-alerts.yml"
INSTALLED = all(shutil.which(program) for program in ("prometheus", "promtool"))
NOT_INSTALLED = "prometheus and promtool (Debian package prometheus) are not installed"


def alert_rules() -> list[dict[str, Any]]:
    """Return the alert rules of all groups."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def dashboard_expressions() -> list[tuple[str, str]]:
    """Return title and expression of every series of the dashboard, with values for Grafana's variables."""
    board = json.loads((FOLDER / "wakeroll-dashboard.json").read_text())
    return [
        (panel["title"], with_values(target["expr"]))
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


def with_values(expression: str, deployment: str = "main") -> str:
    """Return an expression of the dashboard with values for Grafana's variables."""
    values = {"$group": ".*", "$__rate_interval": "30s", "$namespace": "", "$deployment": deployment}
    for name, value in values.items():
        expression = expression.replace(name, value)
    return expression


def ports_in_a_row(count: int) -> int:
    """Return the first of so many ports in a row that nobody listens on."""
    while True:
        [first] = free_ports(1)
        if all(is_free(first + further) for further in range(count)):
            return first


class Prometheus:
    """A running server, which scrapes and evaluates every second, for the time of a `with` block."""

    def __init__(
        self, folder: Path, ports: Mapping[str, int | Sequence[int]], windows: Mapping[str, str] | None = None
    ) -> None:
        """Write its configuration.

        Args:
            folder: of its files.
            ports: job -> port, or ports of its processes; other jobs are left out.
            windows: words of the rules' expressions -> shorter ones, such as ``offset 1h`` -> ``offset 1m``.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "prometheus.yml"
        self._name_targets(ports)
        rules = yaml.safe_load(RULES.read_text())
        for group in rules["groups"]:
            for rule in group["rules"]:
                rule["for"] = "0s"  # a test need not wait until somebody may be woken at night
                for window, shorter in (windows or {}).items():
                    rule["expr"] = rule["expr"].replace(window, shorter)
        (folder / RULES.name).write_text(yaml.safe_dump(rules))
        [self._port] = free_ports(1)
        self._child = Child(
            "prometheus",
            [
                "prometheus",
                f"--config.file={self._config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={HOST}:{self._port}",
            ],
            log=folder / "prometheus.log",
        )

    def __enter__(self) -> Self:
        self._child.start()
        wait_until(self._is_ready, "Prometheus is ready", state=self._child.log_tail)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()

    def watch(self, ports: Mapping[str, int | Sequence[int]]) -> None:
        """Scrape these processes from now on, and no others."""
        self._name_targets(ports)
        os.kill(self._child.pid, signal.SIGHUP)  # it reads its configuration again

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate an expression; return the samples."""
        answer = self._get("query", query=expression)
        assert answer["status"] == "success", answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def firing(self, **labels: str) -> set[str]:
        """Return the names of the alerts that fire now, with these labels."""
        alerts = self._get("alerts")["data"]["alerts"]
        found = (alert["labels"] for alert in alerts if alert["state"] == "firing")
        return {its["alertname"] for its in found if labels.items() <= its.items()}

    def _name_targets(self, ports: Mapping[str, int | Sequence[int]]) -> None:
        config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] in ports]
        for job in config["scrape_configs"]:
            its = ports[job["job_name"]]
            job["static_configs"][0]["targets"] = [
                f"{HOST}:{port}" for port in ([its] if isinstance(its, int) else its)
            ]
        self._config.write_text(yaml.safe_dump(config))

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._port}/api/v1/{what}?{query}", timeout=30) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:  # its body says which part of an expression is wrong
            return dict(json.load(error))

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
