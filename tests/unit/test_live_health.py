"""The health of the live view: each state of the system has a sentence and a remedy."""

import pytest

from wakeroll_pipeline.live.live_health import BEHIND_MS, ShardFacts, SystemFacts, health_of

LIVE = ShardFacts(name="groups-0", tick_age_ms=900)


def health(*shards: ShardFacts, **facts: object):
    return health_of(SystemFacts(**{"source": "live", "as_of_ms": 1, "shards": shards or (LIVE,), **facts}))


def kinds(*shards: ShardFacts, **facts: object) -> list[str]:
    return [one.kind for one in health(*shards, **facts).notices]


def test_a_system_that_works_is_live_and_needs_no_notice():
    assert (health().state, kinds()) == ("live", [])


def test_the_log_is_read_first():
    assert health(is_begun=False).state == "starting"
    assert health(read=10, to_read=20).state == "starting"


def test_without_ticks_the_clock_of_the_groups_stands_still():
    found = health(ShardFacts(name="groups-0", tick_age_ms=12_000))

    assert found.state == "stale"
    assert found.notices[0].text.startswith("no ticks for 12 s: the clock of the groups stands still")
    assert found.notices[0].remedy == "start an observer: `wakeroll observe`"


def test_one_dark_shard_is_named():
    [notice] = health(LIVE, ShardFacts(name="queues-1", tick_age_ms=12_000)).notices

    assert "no ticks for 12 s on queues-1" in notice.text


def test_a_shard_that_never_had_a_tick_is_dark():
    assert kinds(ShardFacts(name="groups-0")) == ["no-ticks"]


@pytest.mark.parametrize(("pending_ms", "expected"), [(BEHIND_MS, []), (BEHIND_MS + 1, ["decisions-behind"])])
def test_decisions_that_the_log_requires_and_nobody_publishes_are_behind(pending_ms, expected):
    """The coordinator is dead, and the observer is not."""
    assert kinds(ShardFacts(name="groups-0", tick_age_ms=900, pending=3, pending_ms=pending_ms)) == expected


def test_brokers_that_are_gone_hide_what_follows_from_it():
    """No ticks either, of course."""
    found = health(
        ShardFacts(name="groups-0", tick_age_ms=99_000), trouble="no Kafka broker answered", trouble_ms=3_000
    )

    assert [one.kind for one in found.notices] == ["broker-gone"]
    assert found.state == "stale"


def test_wrong_keys_are_not_called_missing_ticks():
    assert kinds(ShardFacts(name="groups-0", refuses_all_ticks=True)) == ["other-keys"]


def test_a_state_that_was_only_learned_is_marked():
    assert kinds(ShardFacts(name="groups-0", tick_age_ms=1, is_learning=True)) == ["learning"]
    assert kinds(ShardFacts(name="groups-0", tick_age_ms=1, is_different=True)) == ["different"]


def test_an_archived_log_shows_its_age():
    found = health(source="ledger", age_ms=7_500_000)

    assert found.state == "ledger"
    assert "2 h 5 min old" in found.notices[0].text
