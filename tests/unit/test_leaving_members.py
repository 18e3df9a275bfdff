"""Members that an operator has kicked or asked: until they have left, all questions count them as members."""

from pathlib import Path

from tests.support.delta_tables import write_assignments, write_tables
from tests.support.ledgers import a_kick
from wakeroll_model.events import Inspect
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger


def test_who_is_kicked_or_asked_is_a_member_until_it_has_left(tmp_path: Path, wakeroll):
    """The silent one keeps its queue until its session ends, and no rule of the data is broken by that."""
    story = a_kick()
    story.crash("billing", "c2")
    story.append(Inspect(request_id="r2", group_id="billing", client_id="c1", by="mia"))
    story.pass_seconds(5)
    write_tables(tmp_path / "warehouse", story)
    write_assignments(tmp_path / "warehouse", story)

    with duck_ledger(tmp_path / "warehouse") as ledger:
        members = {row.client_id: row.queues for row in ledger.rows("select client_id, queues from current_members")}
    code, said, complaint = wakeroll("check", "--no-docs", "--home", str(tmp_path))

    assert members == {"c1": 1, "c2": 1}
    assert code == 0, said + complaint
