"""Damaged tables: every command ends with one sentence that names the table, the file and what to do."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.damaged_tables import DAMAGES, add_a_column, flip_the_pages, largest_file, lose_a_file
from tests.support.dbt_here import NEEDS_DBT
from tests.support.delta_tables import write_tables
from tests.support.ledgers import PARTITIONS, a_day
from tests.support.samples import sample
from wakeroll.connection import Topics
from wakeroll_model.rows import TABLES
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.ledger.shared_ledger import SharedLedger
from wakeroll_pipeline.live.ledger_reader import NOT_RECORDED, newest_snapshots, read_recorded
from wakeroll_pipeline.serve.access.refusal import NoAnswer
from wakeroll_pipeline.serve.history import History

COMMANDS = {
    "groups": "groups",
    "describe": "describe billing",
    "lag": "lag billing",
    "explain": "explain --group billing --queue orders-3",
    "state": "state",
    "watch": "watch --once",
    "replay": "replay",
    "what-if": "what-if --group billing --add 1",
    "sql": "sql",
    "marts": "marts",
    "check": "check",
}
"""Command -> a call of it that reads the tables."""
READING = [
    pytest.param(command, damage, marks=([] if quick else [pytest.mark.operate]) + [NEEDS_DBT] * (command == "marts"))
    for damage in (lose_a_file, flip_the_pages)
    for command in COMMANDS
    for quick in [command != "marts" and (damage is lose_a_file or command == "sql")]
]
"""In `make test`, each command but `marts` meets a lost file, when it opens the tables, and one meets damaged pages."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A home with sound tables, in three commits each; its path needs quoting."""
    home = tmp_path_factory.mktemp("it's sound")
    story = a_day()
    rows, third = story.rows, len(story.rows) // 3
    for part in (rows[:third], rows[third : 2 * third], rows[2 * third :]):
        story.rows = part
        write_tables(home / "warehouse", story)
        story.snapshots = []
    return home


@pytest.fixture
def home(sound, tmp_path) -> Path:
    """A copy of the sound tables, to be damaged."""
    shutil.copytree(sound / "warehouse", tmp_path / "it's" / "warehouse")
    return tmp_path / "it's"


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("table", ["events", pytest.param("decisions", marks=pytest.mark.operate)])
def test_a_damaged_table_is_named_with_its_file_and_exit_code_3(wakeroll, home, table, what):
    """An operator at night reads one line: which file, and where it can be had again."""
    named = DAMAGES[what](home / "warehouse" / table)

    code, said, complaint = wakeroll("sql", f"select * from {table}", "--home", str(home))

    assert (code, said) == (3, ""), complaint
    assert complaint.startswith(f"wakeroll: cannot read table '{table}': {named}")
    assert complaint.count("\n") == 1
    assert "; put " in complaint, "it does not name a remedy"


@pytest.mark.parametrize(("command", "damage"), READING)
def test_every_command_that_reads_a_damaged_table_ends_with_the_same_sentence(wakeroll, home, command, damage):
    """Whether it is noticed when the tables are opened, or in the middle of a query."""
    named = damage(home / "warehouse" / "decisions")
    words = ["sql", "select json from decisions"] if command == "sql" else COMMANDS[command].split()

    code, said, complaint = wakeroll(*words, "--home", str(home))

    assert (code, f"wakeroll: cannot read table 'decisions': {named}" in complaint) == (3, True), said + complaint


@pytest.mark.parametrize("table", [name for name, table in TABLES.items() if not table.is_optional])
def test_a_lost_table_stops_only_the_questions_that_read_it(home, table):
    """Without rows, a lost table would look like one in which nothing has happened."""
    shutil.rmtree(home / "warehouse" / table)

    with duck_ledger(home / "warehouse") as ledger:
        for other in TABLES:
            if other != table:
                ledger.rows(f"select * from {other}")
    for question in (
        "select count(*) from {}",
        "select 1 where exists (from {})",
        "select * from {} where partition = 7",
    ):
        with pytest.raises(UnreadableTable, match=f"'{table}'"), duck_ledger(home / "warehouse") as ledger:
            ledger.rows(question.format(table))


def test_check_judges_the_rules_of_the_other_tables(wakeroll, home):
    """A lost file of one table must not hide a broken rule of another one."""
    events = str(home / "warehouse" / "events")
    rows = DeltaTable(events).to_pyarrow_table().sort_by([("topic", "ascending"), ("offset", "ascending")])
    write_deltalake(events, pa.concat_tables([rows[:50], rows[51:]]), mode="overwrite")
    lose_a_file(home / "warehouse" / "offsets")

    code, said, complaint = wakeroll("check", "--home", str(home))

    assert code == 1
    assert "events.offsets" in said
    assert "could not be checked" in said
    assert complaint.startswith("wakeroll: cannot read table 'offsets': the file ")
    lines = [line for line in said.splitlines() if "match the offset decisions" in line]
    assert ["not checked" in line for line in lines] == [True]


def test_a_column_of_another_type_breaks_the_rule_of_its_type(wakeroll, home):
    DAMAGES["change a type"](home / "warehouse" / "offsets")

    code, said, _ = wakeroll("check", "--table", "offsets", "--home", str(home))

    assert code == 1
    assert "offsets.partition.type" in said


@pytest.mark.parametrize("command", sample([name for name in COMMANDS if name not in ("marts", "check")], quick=4))
def test_a_column_of_a_newer_release_is_ignored(wakeroll, sound, home, command):
    """docs/upgrading.md: until the level is raised, one may go back to the release before."""
    words = ["sql", "select * from groups order by group_id"] if command == "sql" else COMMANDS[command].split()
    expected = wakeroll(*words, "--home", str(sound))
    for name in TABLES:
        if is_delta(home / "warehouse" / name):
            add_a_column(home / "warehouse" / name)

    code, said, complaint = wakeroll(*words, "--home", str(home))

    assert (code, complaint) == (expected[0], expected[2])
    if command in ("explain", "replay", "what-if", "sql"):  # the others print the age of the tables too
        assert said == expected[1]


def test_check_ignores_a_column_of_a_newer_release(wakeroll, home):
    for name in ("events", "offsets"):
        add_a_column(home / "warehouse" / name)
        code, said, complaint = wakeroll("check", "--table", name, "--home", str(home))
        assert code == 0, said + complaint


@pytest.mark.parametrize("forbidden", ["", pytest.param("events", marks=pytest.mark.operate), "events/_delta_log"])
def test_a_folder_without_rights_is_named(wakeroll, sound, forbidden):
    folder = Path(tempfile.mkdtemp(prefix="rights-"))
    shutil.copytree(sound / "warehouse", folder / "warehouse")
    folder.chmod(0o755)
    assert wakeroll("sql", "from events", "--home", str(folder))[0] == 0
    closed = folder / "warehouse" / forbidden
    closed.chmod(0)
    try:
        with as_an_ordinary_user():
            code, said, complaint = wakeroll("sql", "from events", "--home", str(folder))
    finally:
        closed.chmod(0o755)
        shutil.rmtree(folder)

    assert (code, said) == (3, ""), complaint
    assert str(closed) in complaint
    assert "ermission denied" in complaint
    assert "give this user the right to read it" in complaint


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Give up the rights of root, which may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_folder_without_any_table_is_a_mistake_of_the_caller(wakeroll, tmp_path):
    """Nothing was lost there."""
    (tmp_path / "warehouse").mkdir()

    code, _, complaint = wakeroll("groups", "--home", str(tmp_path))

    assert (code, "no table 'events'" in complaint) == (2, True)


def test_the_past_of_the_page_reports_damage_and_its_end(home):
    """The page stays up, says which file is missing, and answers again when it is back."""
    file = largest_file(home / "warehouse" / "events")
    body = file.read_bytes()
    file.unlink()
    history = History(home / "warehouse", Topics(), PARTITIONS)
    with pytest.raises(NoAnswer, match=f"cannot read table 'events': the file .*{file.name} is missing"):
        asyncio.run(history.ask(lambda ledger: ledger.rows("from events")))
    history.close()

    file.write_bytes(body)
    ledger = SharedLedger(home / "warehouse")
    assert ledger.extent().from_ms is not None
    ledger.close()


def test_a_live_view_does_without_damaged_tables(home, caplog):
    """The brokers have the log; a page that follows them must not end with the tables."""
    lose_a_file(home / "warehouse" / "snapshots")

    assert newest_snapshots(home / "warehouse") == {}
    assert read_recorded(home / "warehouse", 0) == NOT_RECORDED
    assert "cannot read table 'snapshots'" in caplog.text
