"""The adapter between Spark and the machines: what a batch holds in memory, and what it reports."""

from collections.abc import Iterator

import pandas as pd
import pytest

from model.events import Heartbeat, Subscription, Tick
from model.records import Record
from model.replay import encode_decision
from model.shard import READABLE, VERSION, Shard
from model.signing import DEV_KEYS
from pipeline.operators import shard_operator as operator
from pipeline.operators.shard_operator import Counts, run_shard
from pipeline.recovery.initial_state import Beginning, Restore
from wakeroll.connection import Topics

GROUPS = Topics().groups


class State:
    """What Spark keeps for a shard between two batches."""

    exists = False

    def update(self, value: tuple[int, bytes]) -> None:
        self.exists, self.get = True, value


class Sum:
    """An accumulator of Spark's."""

    value: object = None

    def add(self, value: object) -> None:
        self.value = value


def records(count: int) -> list[tuple[str, int, int, int, bytes | None, bytes]]:
    """Make records of a partition: a tick, and as many heartbeats that join."""
    events = [(None, Tick())]
    for number in range(count):
        wants = [Subscription(topic="orders", expression="x" * 1_000)]
        beat = Heartbeat(group_id="billing", client_id=f"c{number}", instance_id=f"i{number}", subscriptions=wants)
        events.append((b"billing", beat))
    return [
        (GROUPS, 0, offset, 1_000 + offset, key, encode_decision(event)) for offset, (key, event) in enumerate(events)
    ]


def frames(rows: list[tuple[object, ...]], size: int) -> Iterator[pd.DataFrame]:
    names = ["topic", "partition", "offset", "timestamp_ms", "key", "value"]
    for begin in range(0, len(rows), size):
        yield pd.DataFrame(rows[begin : begin + size], columns=names)


def run(rows: list[tuple[object, ...]], state: State, restore: Restore = Restore()) -> tuple[list[bytes], Counts]:  # noqa: B008
    counts = Counts(Sum(), Sum(), Sum(), Sum())
    found = run_shard(1, Topics(), restore, DEV_KEYS, counts, (GROUPS, 0), frames(rows, 7), state)
    published = [row for frame in found for row in frame.itertuples(index=False)]
    return [row.value for row in published if row.topic == Topics().decisions], counts


@pytest.mark.parametrize("at_once", [1, 10**9])
def test_a_batch_is_decided_in_the_order_of_its_log_and_reports_its_state(monkeypatch, at_once):
    """Spark hands the records over in pieces and in no order; decisions go back in pieces too."""
    monkeypatch.setattr(operator, "_AT_ONCE", at_once)
    rows, state = records(50), State()
    plain = Shard(GROUPS, 0, 1, signatures=DEV_KEYS)
    expected = [encode_decision(decision) for row in rows for decision in plain.apply(Record(*row))]

    decisions, counts = run(rows[::-1], state)

    assert decisions == expected
    assert state.get == (VERSION, plain.body())
    assert counts.bytes.value == {"groups-0": len(plain.body())}
    assert counts.marks.value == {f"{GROUPS}-0": (50, 1_050)}


def test_rejections_are_reported_by_rule():
    """They are counted for the metrics of the process, without a look at the decisions topic."""
    broken = [
        (GROUPS, 0, offset, 1_000, b"billing", value) for offset, value in enumerate((b"", b"{", b'{"type":"x"}'))
    ]

    _, counts = run(broken, State())

    assert counts.rejections.value == {"json": 2, "type": 1}


def test_a_shard_without_a_state_begins_as_it_was_restored():
    """Also when its first record comes days after those of the others."""
    rows, state = records(3), State()
    body = Shard(GROUPS, 0, 1).body()

    quiet, _ = run(rows, state, Restore({f"{GROUPS}-0": Beginning(era=3, quiet_until=len(rows), body=body)}))

    assert quiet == []
    assert Shard(GROUPS, 0, 1, state.get[1]).era == 3


def test_a_state_of_another_version_is_refused_with_what_to_do():
    """A program that guessed would decide something else than the one that made it."""
    state = State()
    state.update((READABLE[0] - 1, b"state"))

    with pytest.raises(RuntimeError, match=r"groups-0 has states of version \d+, .* restore --from-log"):
        run(records(1), state)
