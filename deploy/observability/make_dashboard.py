"""Makes the Grafana dashboard `wakeroll-dashboard.json` from the list of panels below.

python deploy/observability/make_dashboard.py
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_name("wakeroll-dashboard.json")
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_OF_DEPLOYMENT = 'namespace="$namespace",deployment="$deployment"'
"""Selects the series of one deployment. A label that processes do not have is the same as an empty one."""
_METRIC = re.compile(r"\b((?:wakeroll|kafka|process)_\w+)(?:\{([^}]*)\})?")
_COLUMNS = 24
_HEIGHT = 8


class Panel(NamedTuple):
    """One panel: a series for each expression, by its legend."""

    title: str
    unit: str
    series: dict[str, str]
    help: str = ""
    kind: str = "timeseries"
    width: int = 8


def _stat(title: str, unit: str, expression: str, help: str = "") -> Panel:  # noqa: A002
    return Panel(title, unit, {"": expression}, help, "stat", 4)


def _quantiles(histogram: str, by: str = "") -> dict[str, str]:
    """Return median and 99th percentile of a histogram, for each value of a label if one is named."""
    legend = f"{{{{{by}}}}} " if by else ""
    labels = f"le, {by}" if by else "le"
    rate = f"sum by ({labels}) (rate({histogram}_bucket[$__rate_interval]))"
    return {f"{legend}p50": f"histogram_quantile(0.5, {rate})", f"{legend}p99": f"histogram_quantile(0.99, {rate})"}


ROWS: dict[str, list[Panel]] = {
    "Overview": [
        _stat("Observers", "none", 'sum(wakeroll_ready{role="observer"})', "One is enough; a second one is a reserve."),
        _stat("Coordinators", "none", 'sum(wakeroll_ready{role="coordinator"})', "One is enough; others are replicas."),
        _stat(
            "Age of the oldest tick",
            "s",
            "max(time() - max by (shard) (wakeroll_observer_last_tick_timestamp_seconds))",
            "The clock of a shard stands still without ticks.",
        ),
        _stat("Groups", "none", "max(wakeroll_groups)"),
        _stat("Members", "none", "max(wakeroll_members)"),
        _stat("Queues without an owner", "none", "sum(max by (group) (wakeroll_queues_unowned))"),
    ],
    "Groups": [
        Panel(
            "Lag, the 20 largest",
            "short",
            {"{{group}}": 'topk(20, max by (group) (wakeroll_group_lag_messages{group=~"$group"}))'},
            "Messages between the committed offsets and the ends of the queues.",
        ),
        Panel(
            "Lag in time, the 20 largest",
            "s",
            {"{{group}}": 'topk(20, max by (group) (kafka_consumergroup_group_max_lag_seconds{group=~"$group"}))'},
        ),
        Panel(
            "Members",
            "none",
            {"{{consumergroup}}": 'max by (consumergroup) (kafka_consumergroup_members{consumergroup=~"$group"})'},
        ),
        Panel(
            "Rebalances per minute",
            "none",
            {
                "{{group}} {{trigger}}": "60 * sum by (group, trigger) "
                '(rate(wakeroll_rebalances_total{group=~"$group"}[$__rate_interval]))'
            },
        ),
        Panel(
            "Moved queues per minute",
            "none",
            {"{{group}}": '60 * sum by (group) (rate(wakeroll_queues_moved_total{group=~"$group"}[$__rate_interval]))'},
        ),
        Panel(
            "Duration of hand-overs",
            "s",
            _quantiles("wakeroll_handover_seconds", "how"),
            "From the revocation of a queue, or from its release, to its next assignment.",
        ),
        Panel(
            "Failed messages per minute",
            "none",
            {
                "{{group}} {{outcome}}": "60 * sum by (group, outcome) "
                '(rate(wakeroll_failed_messages_total{group=~"$group"}[$__rate_interval]))'
            },
        ),
        Panel(
            "Lag per queue, the 20 largest",
            "short",
            {
                "{{consumergroup}} {{topic}}-{{partition}}": "topk(20, max by (consumergroup, topic, partition) "
                '(kafka_consumergroup_lag{consumergroup=~"$group"}))'
            },
        ),
        Panel(
            "Lag per slice, the 20 largest",
            "short",
            {
                "{{group}} {{topic}}-{{partition}}/{{slice}}": "topk(20, max by (group, topic, partition, slice) "
                '(wakeroll_slice_lag_messages{group=~"$group"}))'
            },
            "Messages of all slices of a partition above the committed offset of one; only of partitions that are cut.",
        ),
        Panel(
            "Consumed messages per second",
            "none",
            {
                "{{consumergroup}}": "sum by (consumergroup) (max by (consumergroup, topic, partition) "
                '(rate(kafka_consumergroup_current_offset{consumergroup=~"$group"}[$__rate_interval])))'
            },
        ),
    ],
    "Decisions": [
        Panel(
            "Decisions per second",
            "none",
            {"{{kind}}": "sum by (kind) (rate(wakeroll_decisions_total[$__rate_interval]))"},
        ),
        Panel(
            "Delay of decisions",
            "s",
            _quantiles("wakeroll_decision_delay_seconds"),
            "From the append of the cause to the append of the decision.",
        ),
        Panel(
            "Rejected records per minute",
            "none",
            {"{{rule}}": "60 * sum by (rule) (rate(wakeroll_run_rejections_total[$__rate_interval]))"},
        ),
        Panel("Held pulls", "none", {"held": "max(wakeroll_held_pulls)"}),
        Panel(
            "Wakes per second", "none", {"{{reason}}": "sum by (reason) (rate(wakeroll_wakes_total[$__rate_interval]))"}
        ),
        Panel("Delay of wakes", "s", _quantiles("wakeroll_wake_delay_seconds")),
    ],
    "Jobs": [
        Panel("Duration of batches", "s", _quantiles("wakeroll_query_batch_duration_seconds", "query")),
        Panel(
            "Phases of coordinate, mean per batch",
            "s",
            {
                "{{phase}}": 'sum by (phase) (rate(wakeroll_query_phase_seconds_total{query=~"coordinate.*"}'
                "[$__rate_interval])) / on () group_left () "
                'sum(rate(wakeroll_query_batch_duration_seconds_count{query=~"coordinate.*"}[$__rate_interval]))'
            },
        ),
        Panel(
            "Phases of record, mean per batch",
            "s",
            {
                "{{phase}}": 'sum by (phase) (rate(wakeroll_query_phase_seconds_total{query="record"}'
                "[$__rate_interval])) / on () group_left () "
                'sum(rate(wakeroll_query_batch_duration_seconds_count{query="record"}[$__rate_interval]))'
            },
        ),
        Panel(
            "Records per second",
            "none",
            {"{{query}}": "sum by (query) (rate(wakeroll_query_records_total[$__rate_interval]))"},
        ),
        Panel(
            "Unread records",
            "short",
            {"{{query}} {{topic}}": "max by (query, topic) (wakeroll_query_unread_records)"},
        ),
        Panel(
            "Time since the last batch",
            "s",
            {"{{query}}": "time() - max by (query) (wakeroll_query_last_batch_timestamp_seconds)"},
        ),
        Panel("State of the shards", "bytes", {"{{shard}}": "max by (shard) (wakeroll_run_state_bytes)"}),
        Panel(
            "Used share of the limits",
            "percentunit",
            {"{{shard}}": "max by (namespace, deployment, shard) (wakeroll_run_state_used_ratio)"},
            "Of the limit that is nearest. At 1, events are rejected.",
        ),
        Panel("Age of the snapshots", "s", {"age": "time() - max(wakeroll_run_last_snapshot_timestamp_seconds)"}),
        Panel(
            "Internal failures",
            "none",
            {"failures": "sum(increase(wakeroll_run_internal_failures_total[$__rate_interval]))"},
            "Each one is a bug in wakeroll.",
        ),
        Panel(
            "Time for upkeep, share of an hour",
            "percentunit",
            {"{{step}}": "sum by (step) (increase(wakeroll_upkeep_seconds_total[1h])) / 3600"},
        ),
        Panel(
            "Time since upkeep succeeded",
            "s",
            {"age": "time() - max(wakeroll_upkeep_last_success_timestamp_seconds)"},
        ),
        Panel(
            "Lines of the chains",
            "none",
            {"{{table}}": "max by (table) (wakeroll_chain_newest_line)"},
            "The number of lines of a table only grows. If it falls, its history was rewritten, or the table was lost.",
        ),
    ],
    "Observers": [
        Panel(
            "Age of the last tick",
            "s",
            {"{{shard}}": "time() - max by (shard) (wakeroll_observer_last_tick_timestamp_seconds)"},
        ),
        Panel(
            "Appended records per second",
            "none",
            {
                "ticks": "sum(rate(wakeroll_observer_ticks_total[$__rate_interval]))",
                "routes": "sum(rate(wakeroll_observer_routes_total[$__rate_interval]))",
                "arrivals": "sum(rate(wakeroll_observer_arrivals_total[$__rate_interval]))",
            },
        ),
        Panel(
            "Failed deliveries per minute",
            "none",
            {
                "{{record}} {{cause}}": "60 * sum by (record, cause) "
                "(rate(wakeroll_observer_failed_deliveries_total[$__rate_interval]))"
            },
        ),
        Panel(
            "Followed",
            "none",
            {
                "topics": "max(wakeroll_observer_topics)",
                "queues": "max(wakeroll_observer_queues)",
                "queues without a readable end": "max(wakeroll_observer_unreadable_queues)",
            },
        ),
        Panel(
            "Mirror of offsets",
            "short",
            {
                "unread decisions": "max(wakeroll_observer_mirror_unread_records)",
                "groups": "max(wakeroll_observer_mirrored_groups)",
                "refused groups": "max(wakeroll_observer_mirror_refused_groups)",
            },
        ),
        Panel(
            "End offsets read per second",
            "none",
            {"{{instance}}": "sum by (instance) (rate(wakeroll_observer_end_offsets_read_total[$__rate_interval]))"},
        ),
    ],
    "Processes": [
        Panel(
            "Ready processes by role",
            "none",
            {"{{role}}": "sum by (namespace, deployment, role) (wakeroll_ready)"},
        ),
        Panel(
            "Free space, share of the disk",
            "percentunit",
            {"{{instance}} {{folder}}": "wakeroll_disk_free_bytes / wakeroll_disk_size_bytes"},
        ),
        Panel(
            "Heap of the JVMs, used share",
            "percentunit",
            {
                "{{job}} {{instance}}": 'wakeroll_jvm_memory_used_bytes{area="heap"} '
                '/ wakeroll_jvm_memory_max_bytes{area="heap"}'
            },
            "Near 1 after each collection: raise `driver_memory`.",
        ),
        Panel(
            "Garbage collection of the JVMs, share of the time",
            "percentunit",
            {"{{job}} {{instance}} {{gc}}": "rate(wakeroll_jvm_gc_seconds_total[$__rate_interval])"},
        ),
        Panel(
            "Errors of Kafka's clients per minute",
            "none",
            {
                "{{job}} {{cause}}": "60 * sum by (job, cause) "
                "(rate(wakeroll_kafka_client_errors_total[$__rate_interval]))",
                "{{job}} in the JVM": "60 * sum by (job) "
                "(rate(wakeroll_jvm_kafka_client_errors_total[$__rate_interval]))",
            },
            "_TRANSPORT and _ALL_BROKERS_DOWN: a broker is away. _AUTHENTICATION and _SSL: a login is rejected.",
        ),
        Panel(
            "Failed requests to the object store per minute",
            "none",
            {
                "{{job}} {{kind}}": "60 * sum by (job, kind) (rate(wakeroll_store_errors_total[$__rate_interval]))",
                "{{job}} repeated in the JVM": "60 * sum by (job) "
                "(rate(wakeroll_jvm_store_retries_total[$__rate_interval]))",
            },
        ),
        Panel(
            "Memory",
            "bytes",
            {
                "{{job}} {{instance}}": 'process_resident_memory_bytes{job=~"wakeroll-.*"}',
                "{{job}} {{instance}} JVM": "wakeroll_jvm_process_resident_memory_bytes",
            },
        ),
        Panel(
            "CPU, in cores",
            "none",
            {
                "{{job}} {{instance}}": 'rate(process_cpu_seconds_total{job=~"wakeroll-.*"}[$__rate_interval])',
                "{{job}} {{instance}} JVM": "rate(wakeroll_jvm_process_cpu_seconds_total[$__rate_interval])",
            },
        ),
        Panel(
            "Names that are values of labels",
            "none",
            {
                "{{label}}": "max by (label) (wakeroll_metrics_label_values)",
                "{{label}} above the cap": "sum by (label) (increase(wakeroll_metrics_capped_updates_total[1h]))",
            },
        ),
    ],
}


class Limit(NamedTuple):
    """The alert about the series of a panel, which links to its chapter of the runbook."""

    alert: str
    value: float | None = None
    """The limit in the alert's expression, drawn as a line; None: it is not about these figures alone."""
    is_least: bool = False
    """Whether smaller values are wrong, not larger ones."""


LIMITS = {
    "Observers": Limit("WakerollObserverAbsent"),
    "Coordinators": Limit("WakerollCoordinatorAbsent"),
    "Age of the oldest tick": Limit("WakerollNoTick", 15),
    "Queues without an owner": Limit("WakerollQueuesUnowned"),
    "Lag, the 20 largest": Limit("WakerollGroupNotRead"),
    "Lag in time, the 20 largest": Limit("WakerollLagGrowing", 60),
    "Rebalances per minute": Limit("WakerollGroupFlapping"),
    "Failed messages per minute": Limit("WakerollDeadLetters"),
    "Delay of decisions": Limit("WakerollDecisionsLate", 10),
    "Rejected records per minute": Limit("WakerollRejections"),
    "Duration of batches": Limit("WakerollBatchesSlow", 10),
    "Unread records": Limit("WakerollQueryBehind"),
    "Time since the last batch": Limit("WakerollBatchStuck", 120),
    "State of the shards": Limit("WakerollStateNearLimit", 268_435_456),
    "Used share of the limits": Limit("WakerollStateNearLimit", 0.8),
    "Age of the snapshots": Limit("WakerollSnapshotsOld", 1_800),
    "Internal failures": Limit("WakerollInternalFailure"),
    "Time since upkeep succeeded": Limit("WakerollUpkeepStalled", 7_200),
    "Lines of the chains": Limit("WakerollHistoryReplaced"),
    "Age of the last tick": Limit("WakerollNoTick", 15),
    "Mirror of offsets": Limit("WakerollMirrorBehind"),
    "Ready processes by role": Limit("WakerollProcessUnready"),
    "Free space, share of the disk": Limit("WakerollDiskSpace", 0.1, is_least=True),
    "Names that are values of labels": Limit("WakerollLabelCapReached"),
}
"""Title of a panel -> its alert."""


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "title": "wakeroll",
        "uid": "wakeroll",
        "tags": ["kafka", "wakeroll"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _place("namespace", "Namespace", "wakeroll_ready"),
                _place("deployment", "Deployment", 'wakeroll_ready{namespace="$namespace"}'),
                {
                    "name": "runbook",
                    "label": "Runbook",
                    "type": "textbox",
                    "query": "docs/runbook.md",
                    "current": {"text": "docs/runbook.md", "value": "docs/runbook.md"},
                },
                {
                    "name": "group",
                    "label": "Group",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": {
                        "query": f"label_values(kafka_consumergroup_members{{{_OF_DEPLOYMENT}}}, consumergroup)",
                        "refId": "group",
                    },
                    "refresh": 2,
                    "sort": 1,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": list(_panels()),
    }


def _place(name: str, label: str, series: str) -> dict[str, Any]:
    """Return a menu of one of the labels that tell deployments apart; empty where Prometheus does not set it."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({series}, {name})", "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": False,
        "includeAll": False,
    }


def of_deployment(expression: str) -> str:
    """Return an expression whose series are those of one deployment.

    >>> of_deployment('sum(wakeroll_ready{role="tap"})')
    'sum(wakeroll_ready{namespace="$namespace",deployment="$deployment",role="tap"})'
    """

    def select(found: re.Match[str]) -> str:
        return f"{found[1]}{{{','.join(filter(None, (_OF_DEPLOYMENT, found[2])))}}}"

    return _METRIC.sub(select, expression)


def _panels() -> Iterator[dict[str, Any]]:
    """Yield rows and panels, placed from left to right."""
    number, top = 0, 0
    for title, panels in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": _at(0, top, 24, 1),
        }
        top, left, height = top + 1, 0, _HEIGHT
        for panel in panels:
            if left + panel.width > _COLUMNS:
                top, left = top + height, 0
            height = _HEIGHT if panel.kind == "timeseries" else _HEIGHT // 2
            number += 1
            yield _panel(number, panel, _at(left, top, panel.width, height))
            left += panel.width
        top += height


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + at),
            "datasource": _SOURCE,
            "expr": of_deployment(expression),
            "legendFormat": legend or "__auto",
        }
        for at, (legend, expression) in enumerate(panel.series.items())
    ]
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    links = []
    if (limit := LIMITS.get(panel.title)) is not None:
        links = [{"title": limit.alert, "url": f"${{runbook}}#{limit.alert.lower()}", "targetBlank": True}]
        if limit.value is not None:
            right, wrong = ("red", "green") if limit.is_least else ("green", "red")
            steps = [{"color": right, "value": None}, {"color": wrong, "value": limit.value}]
            defaults |= {"thresholds": {"mode": "absolute", "steps": steps}}
            defaults |= {"custom": {"thresholdsStyle": {"mode": "line"}}} if panel.kind == "timeseries" else {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": place,
        "links": links,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }


def text() -> str:
    """Return the content of the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
