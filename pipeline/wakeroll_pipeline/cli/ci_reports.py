"""Results for CI: JUnit XML of the commands that check or compare, and the facts about the run."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from xml.etree import ElementTree

import typer
from msgspec import Struct

from wakeroll.epoch_ms import EpochMs, now_ms
from wakeroll.installed_version import installed_version
from wakeroll_pipeline.cli.exit_codes import NOT_CHECKED
from wakeroll_pipeline.cli.output import write_document
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.questions.tables_looked_at import TableLookedAt

Status = Literal["ok", "broken", "skipped", "not_checked"]
"""Verdict on one case: a rule, a shard, a model or test of dbt."""

JUnitFile = Annotated[
    Path | None,
    typer.Option("--junit", metavar="FILE", help="Write the result as JUnit XML too, one test case per judgement."),
]
RunName = Annotated[
    str | None,
    typer.Option(
        "--run-name",
        metavar="NAME",
        help="Name of this run in the results, such as the number of the CI's build; default: its time.",
    ),
]


class Run(Struct, frozen=True, kw_only=True):
    """One call of a command."""

    name: str
    command: str
    version: str
    """Version of wakeroll."""
    engine: str
    warehouse: str
    """Folder of the tables."""
    began_at: str
    """Start by this machine's clock, ISO 8601 in UTC."""
    seconds: float
    """Duration up to the result (s)."""


class RunClock:
    """The start time and the facts of a call of a command."""

    def __init__(self, command: str, name: str | None, engine: str, warehouse: object) -> None:
        """Begin now; `name` is the run's own name, or None for its time."""
        self._began_at = str(EpochMs(now_ms()))
        self._began_s = time.monotonic()
        self._facts = {"command": command, "engine": engine, "warehouse": str(warehouse)}
        self.name = name or self._began_at

    def run(self) -> Run:
        """Return the call, with its duration so far."""
        seconds = round(time.monotonic() - self._began_s, 3)
        return Run(name=self.name, version=installed_version(), began_at=self._began_at, seconds=seconds, **self._facts)


class Case(NamedTuple):
    """One result of a check or a comparison."""

    suite: str
    """Name of the test suite: a table or view, or the command."""
    name: str
    says: str
    """The rule as a sentence, or the comparison."""
    status: Status
    details: str = ""
    """Broken rows or differences, or the reason why there is no result."""


@contextmanager
def reported_failure(clock: RunClock, *, as_json: bool, junit: Path | None) -> Iterator[None]:
    """Write the results even if the tables cannot be read at all: a CI without a new result may show the last one."""
    try:
        yield
    except UnreadableTable as error:
        command = clock.run().command
        if junit is not None:
            case = Case(command, "the tables can be read", "the tables can be read", "not_checked", str(error))
            write_junit(junit, clock.run(), [case])
        if as_json:
            write_document({"exit_code": NOT_CHECKED, "run": clock.run(), "problem": str(error)})
        raise


def write_junit(path: Path, run: Run, cases: Iterable[Case], tables: Sequence[TableLookedAt] = ()) -> None:
    """Write a file of JUnit XML, with one suite per table and one case per result.

    `broken` is a failure, `not_checked` an error, `skipped` is skipped.  The properties of each suite name the run and
    the checked tables.

    Args:
        path: the file; its folder is created.
        run: the call.
        cases: the results; those of one suite are consecutive.
        tables: the checked tables.
    """
    everything = list(cases)
    about = {"name": f"wakeroll {run.command}", "time": f"{run.seconds:.3f}", **_counts(everything)}
    del about["skipped"]  # the schema of Jenkins has it for single suites only
    root = ElementTree.Element("testsuites", about)
    properties = _properties(run, tables)
    for name, its in groupby(everything, attrgetter("suite")):
        own = list(its)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            {
                "name": _valid(name),
                "timestamp": run.began_at.partition(".")[0],
                "hostname": "localhost",
                "time": "0.000",
                **_counts(own),
            },
        )
        listed = ElementTree.SubElement(suite, "properties")
        for key, value in properties.items():
            ElementTree.SubElement(listed, "property", {"name": key, "value": _valid(value)})
        for case in own:
            _add(suite, run, case)
        ElementTree.SubElement(suite, "system-out")
        ElementTree.SubElement(suite, "system-err")
    ElementTree.indent(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


_ELEMENTS: Mapping[Status, str] = {"broken": "failure", "not_checked": "error", "skipped": "skipped"}


def _add(suite: ElementTree.Element, run: Run, case: Case) -> None:
    names = {"name": _valid(case.name), "classname": f"wakeroll.{run.command}.{_valid(case.suite)}", "time": "0.000"}
    element = ElementTree.SubElement(suite, "testcase", names)
    if case.status == "ok":
        return
    about = {"message": _valid(case.details if case.status == "skipped" else case.says)}
    if case.status != "skipped":
        about["type"] = case.status
    ElementTree.SubElement(element, _ELEMENTS[case.status], about).text = _valid(case.details)


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    counts = {"tests": len(cases)}
    for status, name in (("broken", "failures"), ("not_checked", "errors"), ("skipped", "skipped")):
        counts[name] = sum(case.status == status for case in cases)
    return {name: str(count) for name, count in counts.items()}


def _properties(run: Run, tables: Sequence[TableLookedAt]) -> dict[str, str]:
    found = {f"run.{name}": str(getattr(run, name)) for name in Run.__struct_fields__}
    for one in tables:
        spans = ", ".join(f"{span.stream} {span.first} to {span.last}" for span in one.streams)
        found[f"table.{one.table}"] = one.problem or f"version {one.version}, {one.rows} rows: {spans or 'none'}"
    return found


_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _valid(text: str) -> str:
    """Return a text with a replacement for each character that XML does not allow, such as NUL."""
    return _NOT_IN_XML.sub("\ufffd", text)
