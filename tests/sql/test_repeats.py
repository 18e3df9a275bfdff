"""How near the bound of repeated messages is to the number that consumers know, and that it is never below."""

import pytest

from tests.support.ledgers import killed_members, write_ledger
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.questions import marts
from wakeroll_pipeline.storage.place import Place

pytestmark = pytest.mark.spark

Repeats = list[tuple[str, int, int]]
"""Lost members with their queues and a number of repeated messages."""


@pytest.fixture(scope="module")
def known_and_bound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repeats, Repeats]:
    """What the members of `killed_members` know, and what the mart says."""
    home = tmp_path_factory.mktemp("killed")
    story, known = killed_members()
    write_ledger(home / "warehouse", story, batches=1)
    done = marts.build(home / "warehouse", home / "logs")
    assert [outcome for outcome in done if not outcome.is_good] == []
    with duck_ledger(Place.of(home / "warehouse")) as ledger:
        ledger.open_marts()
        rows = ledger.rows(
            "select client_id, count(*) as queues, any_value(repeats_possible) as repeats from silences "
            "inner join (select shard, seq, epoch from handovers) as handovers using (shard, seq) "
            "inner join rebalance_cost using (group_id, epoch, shard) "
            "where to_client_id is not null group by client_id, epoch order by epoch"
        )
        others = ledger.rows(
            "select sum(repeats_possible)::bigint as repeats from rebalance_cost where trigger <> 'expire'"
        )
    assert [row.repeats for row in others] == [0]
    return known, [(row.client_id, row.queues, row.repeats) for row in rows]


def test_the_bound_is_never_below_the_truth(known_and_bound):
    """Neither for members that were killed, nor for one that read on until its session had ended."""
    known, bound = known_and_bound

    assert [one[:2] for one in bound] == [one[:2] for one in known]
    assert [
        (client, most, least) for (client, _, most), (_, _, least) in zip(bound, known, strict=True) if most < least
    ] == []


def test_the_bound_of_killed_members_is_what_comes_in_an_interval_of_heartbeats_above_the_truth(known_and_bound):
    """At ten messages per second and queue, and a heartbeat every ten seconds."""
    known, bound = (
        [(queues, repeats) for client, queues, repeats in one if client != "alive"] for one in known_and_bound
    )

    assert [most - least <= 10 * 11 * queues for (queues, most), (_, least) in zip(bound, known, strict=True)] == [
        True
    ] * 10
    ratio = sum(most for _, most in bound) / sum(least for _, least in known)
    assert ratio == pytest.approx(4.25), "docs/sql.md and CHANGELOG.md name this ratio"
