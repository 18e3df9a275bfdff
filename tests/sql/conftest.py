"""What tests of damage share: a ledger that nobody may write to, and the commands that look at a copy of it."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.hidden_damages import KINDS
from tests.support.ledgers import a_long_life, forget_the_first_day, write_ledger
from tests.support.shared_folders import written_once
from wakeroll_model.chain import text_of_heads
from wakeroll_model.rows import CHAINED
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.proven_rows import chain_of
from wakeroll_pipeline.questions import marts

PARTITIONS = 8
"""Of the deployment at the end of the story."""
BATCHES = 6


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a ledger that `record` and upkeep have written, without damage: nobody may write to it.

    It has five groups, two eras, a clock that steps back, a reset, more shards at the end, and a first day that
    retention has deleted. It is written once, for all processes that run tests at once.
    """

    def write(home: Path) -> None:
        warehouse, story = home / "warehouse", a_long_life()
        chains = Chains(warehouse)
        write_ledger(warehouse, story, BATCHES, chains)
        forget_the_first_day(warehouse, story, chains)

    return written_once(tmp_path_factory, "long", write)


@pytest.fixture(scope="session")
def line(sound: Path) -> str:
    """The newest lines of the chains, which somebody has kept elsewhere."""
    with duck_ledger(sound / "warehouse") as ledger:
        heads = [chain_of(ledger, table).head for table in CHAINED]
    return text_of_heads(head for head in heads if head is not None)


@pytest.fixture(scope="module")
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the tables of the ledger that a module names as `LEDGER`, in a folder with a space in its name."""
    home = tmp_path_factory.mktemp("my marts")
    shutil.copytree(request.getfixturevalue(request.module.LEDGER), home / "warehouse")
    return home


@pytest.fixture(scope="module")
def built(home: Path) -> list[marts.BuildResult]:
    """What became of each model and test in DuckDB; `test_two_engines.py` compares the marts with those of Spark."""
    return marts.build(home / "warehouse", home / "logs")


class Said(NamedTuple):
    """What a command says."""

    code: int
    broken: Mapping[str, str]
    """As in `Kind`."""
    unread: str
    """Standard error."""


Ask = Callable[..., Said]


@pytest.fixture
def ask(wakeroll: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run `check` or `replay` as users do."""
    monkeypatch.setenv("WAKEROLL_PARTITIONS", str(PARTITIONS))

    def ask(command: str, home: Path, *options: str) -> Said:
        more = ["--no-docs"] if command == "check" else []
        code, said, complaint = wakeroll(command, "--json", *more, "--home", str(home), *options)
        document = json.loads(said)
        assert document["exit_code"] == code
        broken: dict[str, str] = {}
        for rule in document.get("rules", ()):
            if rule["status"] == "broken":
                table, *_, what = rule["name"].split(".")
                where = rule["rows"][0].get("at", "")
                broken.setdefault(f"{table}.{what}", where.partition(" of ")[0] if where.startswith("line") else where)
        return Said(code, broken, complaint)

    return ask


@pytest.fixture
def judge(sound: Path, line: str, ask: Ask, tmp_path: Path) -> Callable[[str], None]:
    """Damage a copy of the ledger, and expect what is said about this kind of damage.

    `check` names the rules of the table, and where it is; `replay` finds it if it reads what is damaged.
    """

    def judge(name: str) -> None:
        kind, warehouse = KINDS[name], tmp_path / "warehouse"
        shutil.copytree(sound / "warehouse", warehouse)
        named = kind.damage(warehouse)

        said = ask("check", tmp_path, *(["--against", line] if kind.is_published else []))

        assert (said.code, said.broken) == (kind.check, kind.broken), said.unread
        if isinstance(named, str):
            assert f"cannot read table '{name.partition(':')[0]}': {named}" in said.unread
        if kind.replay is not None:
            assert ask("replay", tmp_path).code == kind.replay

    return judge
