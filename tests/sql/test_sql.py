"""`wakeroll sql`: questions of one's own about a story's ledger, and what becomes of those that cannot be answered."""

import io
import json
import re
from collections.abc import Callable
from functools import partial

import pytest
from deltalake import DeltaTable

from tests.support.engines import ENGINES
from wakeroll_model.rows import RECORDED, TABLES
from wakeroll_pipeline.cli import open_ledger
from wakeroll_pipeline.ledger.duck_ledger import commits_of
from wakeroll_pipeline.ledger.view_queries import VIEWS

pytestmark = pytest.mark.spark

Ask = Callable[..., tuple[int, str, str]]
OWNERS = """
select client_id, timestamp_millis(from_ms) as since, epoch, how
from assignments
where group_id = 'billing' and topic = 'orders' and queue_id = 3
order by seq;
"""
OWNERS_AS_CSV = """\
client_id,since,epoch,how
c1,2023-11-14T22:13:20.000Z,1,first
c2,2023-11-14T22:13:31.000Z,3,released
c3,2023-11-14T22:14:36.000Z,5,expired
"""


@pytest.fixture(params=ENGINES)
def ask(request, day, wakeroll, monkeypatch) -> Ask:
    """The command about the day, with each engine; it returns exit code, output and errors."""
    if request.param == "spark":
        request.getfixturevalue("engine")
    monkeypatch.setenv("COLUMNS", "100")
    return partial(wakeroll, "sql", "--home", str(day.parent), "--engine", request.param)


@pytest.fixture
def ask_spark(engine, day, wakeroll) -> Ask:
    """The command about the day, on the Spark of this process."""
    assert engine
    return partial(wakeroll, "sql", "--home", str(day.parent), "--engine", "spark")


@pytest.fixture
def ask_duckdb(day, wakeroll) -> Ask:
    """The command about the day, as it is without an option."""
    return partial(wakeroll, "sql", "--home", str(day.parent))


def test_a_question_is_read_from_an_argument_a_file_or_standard_input(ask, tmp_path, monkeypatch):
    """Rows alone are on standard output, times in UTC."""
    file = tmp_path / "question.sql"
    file.write_text(OWNERS, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(OWNERS))

    answers = [ask(*where, "--format", "csv") for where in ([OWNERS], ["--file", str(file)], ["-"])]

    assert answers == [(0, OWNERS_AS_CSV, "")] * 3


def test_a_table_is_for_people(ask):
    """Null and nothing are told apart; numbers stand to the right."""
    code, said, _ = ask(
        "select * from (values (null, '', '[bold]', 12), ('x', 'y', 'z', 3)) as t (a, b, c, d) order by d"
    )

    assert code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if line.startswith("│")]
    assert rows == [["x", "y", "z", "3"], ["null", "", "[bold]", "12"]]
    assert "│  3 │" in said


def test_rows_that_are_wider_than_the_terminal_are_written_downwards(ask):
    """Columns of two letters each would be no answer."""
    code, said, _ = ask(f"select 'short' as a, '{'long ' * 30}' as b union all select 'second', 'b' order by a desc")

    assert code == 0
    lines = said.splitlines()
    assert [line.strip() for line in lines if line.startswith("row")] == ["row 1", "row 2"]
    assert all(len(line) <= 100 for line in lines)
    assert said.count("long") == 30


def test_json_is_an_object_a_line_with_what_the_columns_hold(ask_spark):
    """Structs, lists and maps too; bytes are the text they nearly always are."""
    code, said, _ = ask_spark(
        "select 1.50bd as price, cast('nan' as double) as ratio, null as nothing, true as yes, "
        "date'2023-11-14' as day, timestamp_micros(1) as at, timestamp_ntz'2023-11-14 22:13:20' as local, "
        "X'7b7dff' as bytes, array(named_struct('at', timestamp_millis(0))) as list, map('a', 1) as map, "
        "interval 1 day as long",
        *("--format", "json"),
    )

    assert code == 0
    assert json.loads(said) == {
        "price": 1.5,
        "ratio": "nan",
        "nothing": None,
        "yes": True,
        "day": "2023-11-14",
        "at": "1970-01-01T00:00:00.000001Z",
        "local": "2023-11-14T22:13:20.000",
        "bytes": "{}\\xff",
        "list": [{"at": "1970-01-01T00:00:00.000Z"}],
        "map": {"a": 1},
        "long": "1 day, 0:00:00",
    }


def test_json_has_all_types_of_duckdb_too(ask_duckdb):
    code, said, _ = ask_duckdb(
        "select 1.50::decimal(5, 2) as price, 'nan'::double as ratio, null as nothing, true as yes, "
        "date '2023-11-14' as day, timestamp_millis(1) as at, timestamp '2023-11-14 22:13:20' as local, "
        "'{}\\xff'::blob as bytes, [{'at': timestamp_millis(0)}] as list, map {'a': 1} as map, "
        "interval 1 day as long, 3::hugeint as huge, uuid '00000000-0000-0000-0000-000000000001' as id",
        *("--format", "json"),
    )

    assert code == 0
    assert json.loads(said) == {
        "price": 1.5,
        "ratio": "nan",
        "nothing": None,
        "yes": True,
        "day": "2023-11-14",
        "at": "1970-01-01T00:00:00.001Z",
        "local": "2023-11-14T22:13:20.000",
        "bytes": "{}\\xff",
        "list": [{"at": "1970-01-01T00:00:00.000Z"}],
        "map": {"a": 1},
        "long": "1 day, 0:00:00",
        "huge": 3,
        "id": "00000000-0000-0000-0000-000000000001",
    }


def test_more_rows_than_the_limit_are_told_of(ask):
    """Beside the rows, not among them."""
    three = "select * from (values (1), (2), (3)) as t (n) order by n"

    assert ask(three, "--limit", "2", "--format", "csv") == (
        0,
        "n\n1\n2\n",
        "wakeroll: these are the first 2 rows, and there are more; --limit N shows N rows\n",
    )
    assert ask(three, "--limit", "3", "--format", "csv") == (0, "n\n1\n2\n3\n", "")


def test_tables_and_columns_say_what_they_are(ask):
    code, said, _ = ask("describe assignments", "--format", "json")

    assert code == 0
    comments = {row["col_name"]: row["comment"] for row in map(json.loads, said.splitlines())}
    assert comments["client_id"] == "owner from this moment on; null if nobody owns the queue"


_MORE_STATEMENTS = (
    "delete from assignments",
    "insert into offsets select * from offsets",
    "from offsets insert into offsets select *",
    "create table mine as select * from offsets",
    "drop view offsets",
    "set spark.sql.session.timeZone = Asia/Tokyo",
    "begin select 1; end",
)


@pytest.mark.parametrize(
    "statement",
    [
        "with some as (select * from offsets) insert into offsets select * from some",
        *(pytest.param(one, marks=pytest.mark.operate) for one in _MORE_STATEMENTS),
    ],
)
def test_what_is_no_question_is_refused(ask_spark, day, statement):
    """Before anything has happened."""
    files = sorted(day.rglob("*"))

    assert ask_spark(statement) == (
        2,
        "",
        "wakeroll: `sql` only reads; it accepts a query, describe, show or explain, "
        f"not {statement.split()[0]!r} ...\n",
    )
    assert sorted(day.rglob("*")) == files
    assert ask_spark("select count(*) > 0 as there from offsets", "--format", "csv")[1] == "there\ntrue\n"


@pytest.mark.parametrize(
    "statement",
    [
        "delete from assignments",
        "insert into offsets select * from offsets",
        "create table mine as select * from offsets",
        "drop view offsets",
        "set threads = 1",
        "copy offsets to 'offsets.csv'",
        "attach 'other.db'",
        "install httpfs",
    ],
)
def test_duckdb_runs_queries_only(ask_duckdb, tmp_path, monkeypatch, statement):
    """A statement that writes is refused before it runs."""
    monkeypatch.chdir(tmp_path)

    code, said, complained = ask_duckdb(statement)

    assert (code, said) == (2, "")
    assert "`sql` only reads; it accepts a query, describe, show or explain" in complained
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("selec 1", 'Parser Error: syntax error at or near "selec" (line 1, column 1)'),
        (
            "select\n  who from (select client_id from offsets)",
            'Binder Error: Referenced column "who" not found in FROM clause! Candidate bindings: "client_id" '
            "(line 2, column 3)",
        ),
    ],
)
def test_a_mistake_is_told_in_one_sentence_of_duckdbs(ask_duckdb, question, reason):
    assert ask_duckdb(question) == (2, "", f"wakeroll: DuckDB rejects the query: {reason}\n")


@pytest.mark.parametrize(("question", "count"), [("select 1; select 2", 2), (" ", 0)])
def test_one_statement_is_answered_at_a_time(ask_duckdb, question, count):
    code, said, complained = ask_duckdb(question)

    assert (code, said) == (2, "")
    assert complained.startswith(f"wakeroll: {count} statements are given; `sql` accepts one query")


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("selec 1", "Syntax error at or near 'selec' (line 1, column 1)"),
        pytest.param(
            "select 1; select 2",
            "Syntax error at or near 'select': extra input 'select' (line 1, column 11)",
            marks=pytest.mark.operate,
        ),
        pytest.param(" ", "Syntax error, unexpected empty statement (line 1, column 2)", marks=pytest.mark.operate),
        (
            "select\n  who from (select client_id from offsets)",
            "A column, variable, or function parameter with name `who` cannot be resolved. "
            "Did you mean one of the following? [`client_id`] (line 2, column 3)",
        ),
        pytest.param(
            "select group_id, count(*) from offsets",
            "The query does not include a GROUP BY clause. Add GROUP BY or turn it into the window functions "
            "using OVER clauses (line 1, column 1)",
            marks=pytest.mark.operate,
        ),
        pytest.param(
            "select cast(group_id as int) from offsets",
            'The value \'billing\' of the type "STRING" cannot be cast to "INT" because it is malformed. '
            "Correct the value as per the syntax, or change its target type. Use `try_cast` to tolerate malformed "
            "input and return NULL instead (line 1, column 8)",
            marks=pytest.mark.operate,
        ),
    ],
)
def test_a_mistake_is_told_in_one_sentence_of_sparks(ask_spark, question, reason):
    """Not by a plan, and not by the places in Spark's source that saw it."""
    assert ask_spark(question) == (2, "", f"wakeroll: Spark rejects the query: {reason}\n")


def test_who_asks_for_another_table_is_told_which_there_are(ask):
    names = ", ".join(sorted([*TABLES, *VIEWS]))

    assert ask("select * from groops") == (2, "", f"wakeroll: no table or view 'groops'; it must be one of: {names}\n")


@pytest.mark.parametrize(
    "words", ["sql select+*+from+groups+order+by+group_id", "sql select+count(*)+as+rows+from+offsets"]
)
def test_large_tables_are_read_by_spark_with_the_same_answer(engine, day, wakeroll, monkeypatch, tmp_path, words):
    """Refused above 8 GiB, all questions ended after five days of 1,000 groups."""
    assert engine
    monkeypatch.setenv("WAKEROLL_WORK", str(tmp_path))
    asked = [*(word.replace("+", " ") for word in words.split()), "--home", str(day.parent)]
    small = wakeroll(*asked)
    monkeypatch.setattr(open_ledger, "LARGEST_BYTES", 1_000)
    code, said, noted = wakeroll(*asked)

    assert small[0] == code == 0
    assert said.partition("Data Docs")[0] == small[1].partition("Data Docs")[0]
    assert re.search(r"have 0.0 GiB of files, so Spark reads them: up to 1 min", noted)


def test_the_tables_are_asked_as_they_were(ask, day):
    """In the version of one of them, or at a time: after the first of the day's two batches."""
    first = DeltaTable(day / "assignments", version=1).to_pyarrow_table().num_rows
    then = max(commits_of(day, table.name)[1] for table in RECORDED)
    count = ["select count(*) as rows from assignments", "--format", "csv"]

    by_version, by_time, now = (
        ask(*count, "--version", "assignments=1"),
        ask(*count, "--at", str(then)),
        ask(*count),
    )

    assert by_version == by_time == (0, f"rows\n{first}\n", "")
    assert int(now[1].split()[1]) > first > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "name one query: as an argument"),
        (["select 1", "--file", "question.sql"], "name one query: as an argument"),
        (["--file", "nowhere.sql"], "nowhere.sql: No such file or directory"),
        (
            ["select 1", "--version", "3"],
            "--version is '3'; it must be a table and its Delta version, such as offsets=3",
        ),
        (["select 1", "--version", "groups=3"], "the tables are: events, decisions, assignments, offsets, snapshots"),
        (["select 1", "--version", "offsets=99"], "table 'offsets' has no version 99; it has 0 to 2"),
        (["select 1", "--version", "offsets=1", "--at", "0"], "use only one of them"),
        (
            ["select 1", "--at", "0"],
            "table 'events' has no version of 1970-01-01T00:00:00.000Z; the oldest kept version",
        ),
        (["select 1 as a, 2 as a", "--format", "json"], "two columns are named 'a'; give one of them another name"),
        (["select 1", "--home", "nowhere"], "no tables in"),
    ],
)
def test_wrong_usage_is_told(ask, arguments, complaint):
    code, said, complained = ask(*arguments)

    assert code != 0
    assert said == ""
    assert complaint in complained
    assert "Traceback" not in complained
