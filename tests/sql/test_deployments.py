"""Which deployment was it? Members that describe themselves, on record: known answers, in both engines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.ledgers import a_day_of_deployments, write_ledger
from tests.support.statements import statement_of
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.questions import marts

pytestmark = pytest.mark.spark

Ask = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of `a_day_of_deployments`, with the marts of its analyses."""
    home = tmp_path_factory.mktemp("deployed")
    write_ledger(home / "warehouse", a_day_of_deployments(), batches=1)
    models = ("--select", "+storms", "--select", "+rebalance_cost")
    done = marts.build(home / "warehouse", home / "logs", *models, command="run")
    assert [outcome for outcome in done if not outcome.is_good] == []
    return home / "warehouse"


@pytest.fixture(scope="module")
def opened(open_in, deployed: Path) -> Ledger:
    ledger = open_in(deployed)
    if isinstance(ledger, DuckLedger):
        ledger.open_marts()
    else:
        marts.open_marts(ledger.spark, deployed)
    return ledger


@pytest.fixture(scope="module")
def ask(opened: Ledger) -> Ask:
    """Ask a question by the number of its file, for some columns."""

    def ask(number: int, *columns: str) -> list[tuple[Any, ...]]:
        [path] = (marts.PROJECT / "analyses").glob(f"{number}_*.sql")
        statement = statement_of(path.read_text(encoding="utf-8"))
        return [tuple(row[name] for name in columns) for row in opened.rows(statement)]

    return ask


def test_rolling_restarts_are_told_from_flapping_and_scaling(ask: Ask):
    """The first period of each group is its start: members are added to none."""
    found = ask(20, "group_id", "looks_like", "from_version", "to_version", "first_member", "joins", "ends", "hosts")

    assert [row for row in found if row[1] != "members added" or row[0] == "grows"] == [
        ("flaps", "flapping of f2", "7", "7", "f2", 4, 4, 4),
        ("grows", "members added", None, "1", "g1", 1, 0, 1),
        ("grows", "members added", None, "1", "g2", 2, 0, 2),
        ("pods", "rolling restart", "5", "5", "p-b1", 2, 2, 4),
        ("rolled", "rolling restart", "1", "2", "r1", 3, 3, 6),
        ("silent", "restart of one member", "", "", "s1", 1, 1, 0),
    ]


def test_a_deployment_has_its_rebalances(ask: Ask):
    """Each join and each leave is one: no two of them come within the settle interval."""
    found = {row[:2]: row[2:] for row in ask(20, "group_id", "looks_like", "rebalances", "longest_pause_s")}

    assert found["rolled", "rolling restart"] == (6, 0.0)
    assert found["flaps", "flapping of f2"] == (8, 0.0)


def test_a_storm_names_its_deployment(ask: Ask):
    found = ask(15, "group_id", "looks_like", "from_version", "to_version", "first_member", "hosts")

    assert [row for row in found if row[1] != "members added"] == [
        ("flaps", "flapping of f2", "7", "7", "f2", 4),
        ("pods", "rolling restart", "5", "5", "p-b1", 4),
        ("rolled", "rolling restart", "1", "2", "r1", 6),
    ]


def test_a_member_has_its_description_in_the_views(opened: Ledger):
    said = "select app_version, host, labels, detail from memberships where client_id = 'r1' and change = 'joined'"
    rows = opened.rows(f"{said} order by era, seq")
    now = opened.rows(
        "select client_id, app_version, host, sdk, labels from current_members where group_id in ('grows', 'silent') "
        "order by client_id"
    )

    labels = '{"team":"cash"}'
    assert [tuple(row) for row in rows] == [
        ("1", "pod-1", labels, "orders; version 1 on pod-1"),
        ("2", "pod-8", labels, "orders; version 2 on pod-8"),
    ]
    assert [tuple(row) for row in now] == [
        ("g1", "1", "pod-7", None, labels),
        ("g2", "1", "pod-17", None, labels),
        ("g3", "1", "pod-18", None, labels),
        ("s1", None, None, None, None),
    ]
