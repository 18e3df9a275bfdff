"""The table of damage: each kind on a copy of a ledger, and what `check` and `replay` say about it as users run them.

The kinds are in `tests/support/hidden_damages.py`, and the ledger in `tests/sql/conftest.py`. Rewritten versions, and
damage on files, are in `test_damaged_versions.py`, so that two processes share the work.
"""

import pytest

from tests.sql.conftest import PARTITIONS
from tests.support.hidden_damages import EDITED, KINDS, LOST
from tests.support.samples import sample
from wakeroll_model.rows import CHAINED
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.proven_rows import chain_of

pytestmark = pytest.mark.spark


def test_the_ledger_is_sound_and_has_what_damage_can_hide_in(sound, ask):
    with duck_ledger(sound / "warehouse") as ledger:
        [found] = ledger.rows(
            "select (select count(distinct group_id) from decisions) as groups, "
            "(select count(distinct era) from decisions) as eras, "
            "(select max(partition) from events) as newest_partition, "
            "(select count(*) from offsets where reset_by is not null) as resets, "
            "(select min(events.offset) from events where topic = 'wakeroll.groups' and partition = 0) as first"
        )
        kinds = {line.kind for table in CHAINED for line in chain_of(ledger, table).lines}

    assert (found.groups, found.eras, found.newest_partition) == (5, 2, PARTITIONS - 1)
    assert (found.resets > 0, found.first > 0) == (True, True), "no reset, or retention has deleted nothing"
    assert kinds >= {"begin", "rows", "cut", "kept"}
    assert ask("check", sound)[:2] == (0, {})
    assert ask("replay", sound).code == 0


def test_the_table_has_all_kinds():
    assert len(KINDS) >= 60


@pytest.mark.parametrize("name", sample(LOST | EDITED, quick=12))
def test_damage_is_found_and_named(judge, name):
    judge(name)
