"""Results for CI: stable JSON fields, and JUnit XML that the usual readers accept."""

import json
import re
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.damaged_tables import lose_a_file
from tests.support.dbt_here import NEEDS_DBT
from tests.support.delta_tables import write_assignments, write_tables
from tests.support.ledgers import a_day
from wakeroll_pipeline.cli.answer_schemas import answer_schemas
from wakeroll_pipeline.cli.ci_reports import Case, RunClock, write_junit
from wakeroll_pipeline.questions.tables_looked_at import StreamSpan, TableLookedAt

_SUITES = {"name", "time", "tests", "failures", "errors", "disabled"}
_SUITE = {
    "name",
    "tests",
    "failures",
    "errors",
    "time",
    "skipped",
    "timestamp",
    "hostname",
    "id",
    "package",
    "disabled",
}
_CASE = {"name", "classname", "time", "assertions", "status"}
_RESULTS = {"failure", "error", "skipped"}
"""Attributes and elements of the JUnit schema that Jenkins publishes; GitLab and GitHub actions read the same."""


@pytest.fixture
def home(tmp_path) -> Path:
    write_tables(tmp_path / "warehouse", a_day())
    write_assignments(tmp_path / "warehouse", a_day())
    return tmp_path


def lose_a_row(home: Path, table: str) -> None:
    """Delete one row in the middle."""
    path = str(home / "warehouse" / table)
    rows = DeltaTable(path).to_pyarrow_table().sort_by([("topic", "ascending"), ("offset", "ascending")])
    write_deltalake(path, pa.concat_tables([rows[:50], rows[51:]]), mode="overwrite")


def read_junit(path: Path) -> ElementTree.Element:
    """Return the root of a valid file: attributes, order of elements and counts are those of the schema."""
    root = ElementTree.parse(path).getroot()
    assert root.tag == "testsuites"
    assert set(root.attrib) <= _SUITES
    for suite in root:
        assert suite.tag == "testsuite"
        assert set(suite.attrib) <= _SUITE
        tags = [child.tag for child in suite]
        order = ["properties", "testcase", "system-out", "system-err"]
        assert sorted(tags, key=order.index) == tags
        cases = suite.findall("testcase")
        assert len({case.get("name") for case in cases}) == len(cases), "a reader would merge cases of one name"
        for case in cases:
            assert set(case.attrib) <= _CASE
            assert {child.tag for child in case} <= _RESULTS
            assert len(case) <= 1
        counts = {name: len(suite.findall(f"testcase/{tag}")) for name, tag in _COUNTED.items()}
        assert {name: int(suite.attrib[name]) for name in counts} == counts
        assert int(suite.attrib["tests"]) == len(cases)
    for name in ("tests", "failures", "errors"):
        assert int(root.attrib[name]) == sum(int(suite.attrib[name]) for suite in root)
    return root


_COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def test_a_check_proves_what_it_looked_at(wakeroll, home):
    """A green run without rows, versions and positions could have looked at an empty folder."""
    junit = home / "reports" / "check.xml"

    code, said, _ = wakeroll("check", "--json", "--junit", str(junit), "--run-name", "build 7", "--home", str(home))

    document = json.loads(said)
    jsonschema.validate(document, answer_schemas()["check.json"])
    assert (code, document["exit_code"]) == (0, 0)
    assert (document["run"]["name"], document["run"]["command"], document["run"]["engine"]) == (
        "build 7", "check", "duckdb",
    )  # fmt: skip
    counts = document["counts"]
    skipped = [rule for rule in document["rules"] if rule["status"] == "skipped"]
    assert counts == {
        "rules": counts["ok"] + len(skipped), "ok": counts["ok"], "skipped": len(skipped), "broken": 0,
        "not_checked": 0,
    }  # fmt: skip
    assert {rule["reason"] for rule in skipped} == {"the rows have no chain: an earlier release has written them"}
    [events] = [one for one in document["tables"] if one["table"] == "events"]
    stored = DeltaTable(str(home / "warehouse" / "events"))
    assert (events["table"], events["version"], events["rows"]) == (
        "events", stored.version(), len(stored.to_pyarrow_table()),
    )  # fmt: skip
    [span] = [one for one in events["streams"] if one["stream"] == "wakeroll.groups/1"]
    assert (span["first"], span["last"], span["rows"]) == (0, span["rows"] - 1, span["rows"])
    assert Path(document["data_docs"]).is_file()

    root = read_junit(junit)
    assert int(root.attrib["tests"]) == counts["rules"]
    properties = {one.get("name"): one.get("value") for one in root.findall("testsuite[1]/properties/property")}
    assert properties["run.name"] == "build 7"
    assert properties["table.events"].startswith(
        f"version {stored.version()}, {events['rows']} rows: wakeroll.groups/0 0"
    )


def test_data_docs_prove_what_was_looked_at(wakeroll, home):
    """A green page shows the run, the versions, the positions and figures of the true tables."""
    docs = home / "docs"
    for name in ("build/7", "build/8"):
        assert wakeroll("check", "--docs", str(docs), "--run-name", name, "--home", str(home))[0] == 0

    rows = len(DeltaTable(str(home / "warehouse" / "events")).to_pyarrow_table())
    [page] = docs.rglob("local_site/validations/events/build-7/**/*.html")
    text = " ".join(re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8")).split())
    assert "Run Name build-7" in text
    assert re.search(rf"events, version 0: {rows} rows \(wakeroll\.groups/0: 0 to \d+, \d+ rows;.*?\) {rows} ", text)
    assert "events.topic.null: topic is never null 100% not null" in text
    assert "events.offset.bounds: offset is at least 0 0% unexpected" in text
    [result] = docs.rglob("uncommitted/validations/events/build-8/**/*.json")
    by_rule = {one["expectation_config"]["meta"]["rule"]: one for one in json.loads(result.read_text())["results"]}
    assert by_rule["events.rows"]["result"]["observed_value"] == rows
    assert by_rule["events.key"]["result"]["element_count"] == rows
    index = (docs / "duckdb/gx/uncommitted/data_docs/local_site/index.html").read_text(encoding="utf-8")
    assert "build-7" in index, "the pages of earlier runs stay"
    assert "build-8" in index


def test_without_data_docs_great_expectations_is_not_needed(wakeroll, home, monkeypatch):
    """An hourly job needs the verdict; the import of Great Expectations takes longer than the check."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "great_expectations"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "wakeroll_pipeline.questions.quality.expectation_suites", raising=False)
    monkeypatch.setitem(sys.modules, "great_expectations", None)

    code, said, complaint = wakeroll("check", "--no-docs", "--json", "--home", str(home))

    assert (code, json.loads(said)["data_docs"]) == (0, None), complaint
    assert not (home / "quality").exists()


def test_broken_and_unchecked_rules_are_told_apart(wakeroll, home):
    """The first is a finding, the second a fault of the storage: CI shows them as failure and error."""
    lose_a_row(home, "events")
    lose_a_file(home / "warehouse" / "offsets")
    junit = home / "check.xml"

    code, said, complaint = wakeroll("check", "--json", "--junit", str(junit), "--home", str(home))

    document = json.loads(said)
    rules = {rule["name"]: rule for rule in document["rules"]}
    assert (code, document["exit_code"]) == (1, 1)
    assert (rules["events.offsets"]["status"], rules["events.offsets"]["broken"]) == ("broken", 1)
    assert set(rules["events.offsets"]["rows"][0]) == {"at", "found", "expected"}
    assert rules["offsets.decided"]["status"] == "not_checked"
    assert "the file" in rules["offsets.decided"]["reason"]
    assert rules["offsets.decided"]["reason"] in complaint
    [page] = home.rglob("local_site/validations/offsets/**/*.html")
    assert "the file" in page.read_text(encoding="utf-8"), "the Data Docs do not show why"
    assert (
        rules["events.topic.null"] | {"status": "ok", "broken": 0, "rows": [], "reason": ""}
        == rules["events.topic.null"]
    )
    [problem] = [one["problem"] for one in document["tables"] if one["table"] == "offsets"]
    assert problem == rules["offsets.decided"]["reason"]

    root = read_junit(junit)
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert cases["events.offsets"].find("failure").get("message") == rules["events.offsets"]["sentence"]
    assert cases["offsets.decided"].find("error").text == rules["offsets.decided"]["reason"]


def test_a_replay_has_one_case_per_shard(wakeroll, home):
    junit = home / "replay.xml"

    code, said, _ = wakeroll("replay", "--json", "--junit", str(junit), "--run-name", "nightly", "--home", str(home))

    document = json.loads(said)
    assert (code, document["is_equal"], document["exit_code"]) == (0, True, 0)
    assert document["run"]["name"] == "nightly"
    assert {one["table"]: one["version"] for one in document["tables"]}["decisions"] == 0
    root = read_junit(junit)
    assert [case.get("name") for case in root.iter("testcase")] == [
        f"{one['shard']} from the start" for one in document["shards"]
    ]


def test_a_differing_decision_is_a_failure_with_its_fields(wakeroll, home):
    path = str(home / "warehouse" / "decisions")
    rows = DeltaTable(path).to_pyarrow_table()
    [place] = [n for n, row in enumerate(rows.to_pylist()) if row["shard"] == "groups-1.1" and row["seq"] == 1]
    edited = [
        text.replace("billing", "selling") if n == place else text for n, text in enumerate(rows["json"].to_pylist())
    ]
    index = rows.column_names.index("json")
    write_deltalake(path, rows.set_column(index, rows.schema.field("json"), [edited]), mode="overwrite")
    junit = home / "replay.xml"

    code, _, _ = wakeroll("replay", "--json", "--junit", str(junit), "--home", str(home))

    assert code == 1
    [failure] = read_junit(junit).iter("failure")
    assert "1 decisions differ; the first:\nseq 1, group_id: recorded" in failure.text


@pytest.mark.parametrize("command", ["check", "replay", pytest.param("marts", marks=NEEDS_DBT)])
def test_a_result_is_written_although_the_tables_cannot_be_read(wakeroll, home, command):
    """A CI that finds no file may show the result of the run before."""
    junit = home / "result.xml"
    shutil.rmtree(home / "warehouse" / "events")

    code, said, complaint = wakeroll(command, "--json", "--junit", str(junit), "--home", str(home))

    assert (code, json.loads(said)["exit_code"]) == (3, 3)
    if f"{command}.json" in answer_schemas():
        jsonschema.validate(json.loads(said), answer_schemas()[f"{command}.json"])
    assert "events is missing" in complaint
    root = read_junit(junit)
    assert int(root.attrib["errors"]) > 0
    assert any("events is missing" in (error.text or "") for error in root.iter("error"))


@pytest.mark.operate
@NEEDS_DBT
def test_marts_have_one_case_per_model_and_test(wakeroll, home):
    """One test of dbt finds that the table of assignments is empty."""
    DeltaTable(str(home / "warehouse" / "assignments")).delete()
    junit = home / "marts.xml"

    code, said, _ = wakeroll("marts", "--json", "--junit", str(junit), "--home", str(home))

    document = json.loads(said)
    jsonschema.validate(document, answer_schemas()["marts.json"])
    failed = [one for one in document["results"] if one["kind"] == "test" and one["status"] != "pass"]
    assert (code, document["exit_code"], [one["name"] for one in failed]) == (1, 1, ["a_handover_is_a_change_of_owner"])
    root = read_junit(junit)
    assert int(root.attrib["tests"]) == len(document["results"])
    [failure] = root.iter("failure")
    assert failure.text == failed[0]["message"]


def test_any_text_of_a_client_makes_valid_xml(tmp_path):
    """A client may put NUL, markup or half a surrogate pair into its id."""
    path = tmp_path / "new folder" / "junit.xml"
    cases = [
        Case("events", "events.a", "a < b & 'c'", "broken", "client \x00\x1b[31m\ud800 <![CDATA["),
        Case("events", "events.b", "b", "skipped", "shard groups-1.1 was decided by a former version"),
        Case("offsets", "offsets.a", "a", "ok"),
    ]
    looked_at = TableLookedAt(
        table="events", version=3, rows=2, streams=[StreamSpan(stream="wakeroll.groups/0", rows=2, first=0, last=1)]
    )

    write_junit(path, RunClock("check", None, "duckdb", "/w").run(), cases, [looked_at])

    root = read_junit(path)
    assert [suite.get("name") for suite in root] == ["events", "offsets"]
    [failure] = root.iter("failure")
    assert failure.text == "client \ufffd\ufffd[31m\ufffd <![CDATA["
    [skipped] = root.iter("skipped")
    assert skipped.get("message") == "shard groups-1.1 was decided by a former version"
    assert root.find("testsuite/properties/property[@name='table.events']").get("value") == (
        "version 3, 2 rows: wakeroll.groups/0 0 to 1"
    )
