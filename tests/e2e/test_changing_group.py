"""What `group_changes` of bench does with one group, with real consumer processes; how long it takes is not judged."""

import pytest

from bench.changing_group import CASES, QUEUES, ChangingGroup
from bench.consumer_logs import effect_of
from bench.frame import NotMeasured

pytestmark = pytest.mark.e2e
NAMES = ["wakeroll", "Kafka, cooperative-sticky, short sessions"]
PATIENCE_S = 120.0


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case.protocol == "wakeroll" else [pytest.mark.operate], id=case.protocol)
        for case in CASES
        if case.name in NAMES
    ],
)
def test_joins_and_ends_repeat_and_lose_nothing(coordinator, group_id, tmp_path, case):
    """Both kinds of groups move only the queues that they must."""
    group = ChangingGroup(coordinator.connection, case, group_id, tmp_path / "group", PATIENCE_S)
    if case.protocol == "wakeroll":
        coordinator.announce(group_id, QUEUES)
    with group:
        group.start(("c1", "c2", "c3"))
        changes = [group.join("c4"), group.leave("c4")]
        if case.has_wills:
            changes += [group.join("c4"), group.crash("c4", 0.0)]
        lost = group.finish()
    effects = [effect_of(change, group.handed) for change in changes]

    assert lost == 0
    assert {effect.repeated for effect in effects} == {0}
    assert all(effect.first_s > 0 and effect.moved_gap_s > 0 for effect in effects)


def test_a_group_that_does_not_settle_in_time_is_named(coordinator, group_id, tmp_path):
    """A measurement that waits for ever would not be noticed."""
    [case] = [case for case in CASES if case.name == NAMES[1]]

    with (
        ChangingGroup(coordinator.connection, case, group_id, tmp_path / "group", limit_s=0.1) as group,
        pytest.raises(
            NotMeasured, match=r"Kafka, cooperative-sticky, short sessions: the first .*: not true within 0\.1 s"
        ),
    ):
        group.start(("c1",))
