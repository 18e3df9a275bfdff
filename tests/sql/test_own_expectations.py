"""examples/own_expectations.py: what a user expects, judged on all rows, beside the rules of `check`."""

import importlib.util
import json
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_expectations.py"

pytestmark = pytest.mark.spark


def test_own_expectations_are_judged_on_all_rows_beside_our_rules(day: Path, wakeroll, tmp_path: Path, monkeypatch):
    """Their results are stored, and the pages of both are in one site; a later `check` keeps them."""
    spec = importlib.util.spec_from_file_location("own_expectations", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    check = ("check", "--table", "assignments", "--docs", str(tmp_path), "--home", str(day.parent))
    count = ("sql", "select count(*) as number from rebalances", "--format", "csv", "--home", str(day.parent))
    rows = int(wakeroll(*count)[1].split()[1])

    codes = [wakeroll(*check)[0], example.main(day.parent, tmp_path)]
    expected = [example.expect.ExpectColumnMaxToBeBetween(column="moved", max_value=0)]
    monkeypatch.setitem(example.SUITES, "rebalances", expected)
    codes += [example.main(day.parent, tmp_path), wakeroll(*check)[0]]

    assert codes == [0, 0, 1, 0]
    project = tmp_path / "duckdb" / "gx"
    stored = sorted((project / "uncommitted" / "validations" / "own rebalances").rglob("*.json"))
    green, red = (json.loads(path.read_text(encoding="utf-8")) for path in stored)
    assert (green["success"], red["success"]) == (True, False)
    assert green["results"][0]["result"]["element_count"] == rows > 0
    assert (project / "checkpoints" / "own rebalances.json").is_file()
    site = project / "uncommitted" / "data_docs" / "local_site"
    assert {path.stem for path in (site / "expectations").glob("*.html")} == {
        "assignments",
        "history",
        "own rebalances",
    }
    assert len(list((site / "validations" / "own rebalances").rglob("*.html"))) == 2
    index = (site / "index.html").read_text(encoding="utf-8")
    assert "own rebalances" in index
    assert "assignments" in index
