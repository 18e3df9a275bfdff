"""What data people ask, one statement each: the answers for a story whose answers are known, in both engines."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.ledgers import two_busy_days, write_ledger
from tests.support.statements import statement_of
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.questions import marts

pytestmark = pytest.mark.spark

Ask = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of `two_busy_days`, with its marts."""
    home = tmp_path_factory.mktemp("busy")
    write_ledger(home / "warehouse", two_busy_days(), batches=1)
    done = marts.build(home / "warehouse", home / "logs")
    assert [outcome for outcome in done if not outcome.is_good] == []
    return home / "warehouse"


@pytest.fixture(scope="module")
def ask(open_in, busy: Path) -> Ask:
    """Ask a question by the number of its file, for some columns; times are text."""
    ledger = open_in(busy)
    if isinstance(ledger, DuckLedger):
        ledger.open_marts()
    else:
        marts.open_marts(ledger.spark, busy)

    def ask(number: int, *columns: str) -> list[tuple[Any, ...]]:
        [path] = (marts.PROJECT / "analyses").glob(f"{number}_*.sql")
        statement = statement_of(path.read_text(encoding="utf-8"))
        return [tuple(text_of(row[name]) for name in columns) for row in ledger.rows(statement)]

    return ask


def text_of(value: Any) -> Any:
    # Spark gives times in the zone of this process, without naming it.
    return value.astimezone(UTC).strftime("%H:%M:%S") if isinstance(value, datetime) else value


def test_rebalances_are_counted_per_hour_and_cause(ask: Ask):
    """17 of shop: each of ten joins and seven leaves is one."""
    assert ask(11, "group_id", "hour", "trigger", "rebalances") == [
        ("mail", "22:00:00", "expire", 1),
        ("mail", "22:00:00", "join", 2),
        ("night", "22:00:00", "join", 1),
        ("night", "22:00:00", "leave", 1),
        ("shop", "22:00:00", "join", 10),
        ("shop", "22:00:00", "leave", 7),
        ("slow", "22:00:00", "join", 1),
    ]


def test_the_cause_that_costs_most_stands_first(ask: Ask):
    """A crash lets a queue wait for a session; a deployment moves more queues, and nobody waits."""
    assert ask(12, "group_id", "trigger", "rebalances", "queue_pause_s")[:3] == [
        ("mail", "expire", 1, 46.0),
        ("shop", "join", 10, 0.0),
        ("shop", "leave", 7, 0.0),
    ]


def test_the_silence_of_a_killed_member_is_time_without_a_reader(ask: Ask):
    """Its queue had an owner all the time; the queue of `night` had none from the leave to the end."""
    found = ask(13, "group_id", "queues", "unowned_queue_s", "silent_queue_s", "without_reader_percent")

    assert found == [
        ("night", 1, 6_078.0, 0.0, 99.61),
        ("mail", 2, 0.0, 46.0, 0.38),
        ("shop", 4, 0.0, 0.0, 0.0),
        ("slow", 1, 0.0, 0.0, 0.0),
    ]


def test_percentiles_of_lag_are_of_the_time_of_a_day(ask: Ask):
    """Of slow on the second day: 0 for 40 s, 100 for 50 s, 1,000 for 10 s."""
    found = ask(14, "group_id", "day", "observed_s", "lag_p50_messages", "lag_p95_messages", "lag_max_messages")

    assert [row for row in found if row[0] in ("slow", "mail")] == [
        ("mail", date(2023, 11, 14), 5_973.0, 1_200, 1_200, 1_200),
        # 1,200 of both queues for 40 s, 1,000 after the commit.
        ("mail", date(2023, 11, 15), 100.0, 1_000, 1_200, 1_200),
        ("slow", date(2023, 11, 14), 5_978.0, 0, 0, 0),
        ("slow", date(2023, 11, 15), 100.0, 100, 1_000, 1_000),
    ]


def test_a_rolling_restart_is_told_from_a_member_that_flaps(ask: Ask):
    found = ask(15, "group_id", "began_at", "rebalances", "looks_like", "clients_restarted")

    assert found == [
        ("shop", "22:13:20", 3, "members added", 0),
        ("shop", "22:15:36", 6, "rolling restart", 3),
        ("shop", "22:18:22", 8, "flapping of s4", 1),
    ]


def test_members_that_flap_are_listed_with_their_instances(ask: Ask):
    """Not those that a deployment restarted once."""
    assert ask(16, "group_id", "client_id", "joins", "leaves", "expirations", "instances") == [
        ("shop", "s4", 4, 4, 0, 4)
    ]


def test_the_bound_of_repeated_messages_is_within_a_heartbeat_interval_of_the_truth(ask: Ask):
    """m2 had read 30 messages that it had not committed; ten more come each second, and its interval is 10 s."""
    [(group_id, killed, count, queues, silent_s, at_most)] = ask(
        17, "group_id", "a_killed_client_id", "killed_clients", "queues", "longest_silence_s", "repeats_at_most"
    )

    assert (group_id, killed, count, queues) == ("mail", "m2", 1, 1)
    assert silent_s > 45
    assert 30 <= at_most <= 30 + 10 * 10


def test_the_time_to_drain_is_that_at_the_rates_of_ten_minutes(ask: Ask):
    """The group mail has 1,000 to go, and consumed 200 in 600 s, while nothing came; slow has ever more to do."""
    assert ask(18, "group_id", "lag_messages", "consumed_per_s", "produced_per_s", "drained_in_s") == [
        ("mail", 1_000, 0.3, 0.0, 3_000.0),
        ("slow", 1_000, 0.0, 1.7, None),
        ("shop", 0, 0.0, 0.0, 0.0),
    ]


def test_the_report_of_a_month_has_each_group(ask: Ask):
    found = ask(19, "month", "group_id", "read_percent", "longest_pause_s", "rebalances", "by_expiration", "storms")

    assert found == [
        (date(2023, 11, 1), "mail", 99.623, 46.0, 3, 1, 0),
        (date(2023, 11, 1), "night", 0.393, 0.0, 2, 0, 0),
        (date(2023, 11, 1), "shop", 100.0, 0.0, 17, 0, 3),
        (date(2023, 11, 1), "slow", 100.0, 0.0, 1, 0, 0),
    ]
