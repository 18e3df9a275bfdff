"""The adapter between Spark and the machines: what a batch holds in memory, and what it reports."""

import inspect
import subprocess
import sys
from collections.abc import Iterator

import pandas as pd
import pytest

from tests.support.running_processes import ROOT
from wakeroll.connection import Topics
from wakeroll.keys import key_to_sign
from wakeroll_model import feature_levels
from wakeroll_model.events import Heartbeat, Level, Subscription, Tick
from wakeroll_model.feature_levels import UnknownLevel
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import READABLE, VERSION
from wakeroll_model.signing import DEV_KEYS, Signer
from wakeroll_pipeline.operators import shard_operator as operator
from wakeroll_pipeline.operators.shard_operator import Counts, decide, run_shard
from wakeroll_pipeline.recovery.initial_state import Beginning, Restore
from wakeroll_pipeline.recovery.packed_states import pack, unpack

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
    counts = Counts(*[Sum() for _ in Counts._fields])
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
    assert state.get == (feature_levels.STATE_VERSIONS[1], plain.body())
    assert counts.bytes.value == {"groups-0": len(plain.body())}
    assert counts.marks.value == {f"{GROUPS}-0": (50, 1_050)}
    assert counts.levels.value == {"groups-0": 1}
    assert counts.eras.value == {"groups-0": 1}
    assert counts.used.value == {"groups-0": plain.used}


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


@pytest.mark.parametrize(("version", "creator"), [(READABLE[0] - 1, "older"), (VERSION + 1, "newer")])
def test_a_state_of_another_version_is_refused_with_what_to_do(version, creator):
    """A program that guessed would decide something else than the one that made it, as before a rollback."""
    state = State()
    state.update((version, b"state"))

    sentence = rf"groups-0 has states of version {version}, .* the {creator} release .* restore --from-log"
    with pytest.raises(RuntimeError, match=sentence):
        run(records(1), state)


def test_a_raised_level_gives_the_state_a_version_that_the_release_before_refuses():
    """At level 1 the release before this one reads the state, and decides as this one does."""
    value = signed(Level(level=2))
    rows, state = [*records(1), (GROUPS, 0, 2, 2_000, None, value)], State()

    _, counts = run(rows, state)

    assert state.get[0] == feature_levels.STATE_VERSIONS[2] > feature_levels.STATE_VERSIONS[1]
    assert counts.levels.value == {"groups-0": 2}


def test_a_state_that_only_this_release_reads_is_compressed():
    """Spark pickles a state in each batch; without compression, 200,000 members needed more than 1 GiB of heap."""
    raised = [(GROUPS, 0, 0, 1_000, None, signed(Level(level=2)))]
    rows, state = [*raised, *((GROUPS, 0, 1 + row[2], *row[3:]) for row in records(50))], State()
    plain = Shard(GROUPS, 0, 1, signatures=DEV_KEYS)
    for row in rows:
        plain.apply(Record(*row))

    _, counts = run(rows, state)

    assert unpack(state.get[1]) == plain.body()
    assert len(state.get[1]) < len(plain.body()) / 5
    assert counts.bytes.value == {"groups-0": len(plain.body())}


def test_a_state_that_was_stored_without_compression_is_read():
    """As at level 1, and by a checkpoint of a release in between."""
    rows, plain, stored, packed = records(50), Shard(GROUPS, 0, 1, level=2, signatures=DEV_KEYS), State(), State()
    for row in rows[:20]:
        plain.apply(Record(*row))
    stored.update((plain.version, plain.body()))
    packed.update((plain.version, pack(plain.body(), plain.version)))

    assert run(rows[20:], stored)[0] == run(rows[20:], packed)[0] != []


def test_a_worker_does_not_collect_its_libraries_after_each_task():
    """Spark calls `gc.collect` after each task, which took 45 ms with all that a worker has imported."""
    program = (
        "import gc; from wakeroll_pipeline.operators.shard_operator import freeze_imports; "
        "gc.disable(); freeze_imports(); "
        "frozen = gc.get_freeze_count(); more = [[] for _ in range(1_000)]; freeze_imports(); "
        "print(frozen, gc.get_freeze_count() == frozen, len(gc.get_objects()) < frozen / 10)"
    )

    frozen, *once = subprocess.check_output([sys.executable, "-c", program], text=True).split()

    assert int(frozen) > 30_000
    assert once == ["True", "True"]


def test_a_level_that_this_release_does_not_know_stops_the_shard():
    """It must not guess: from this offset on, the others decide by rules that this release does not have."""
    rows = [(GROUPS, 0, 0, 1_000, None, signed(Level(level=feature_levels.NEWEST + 1)))]

    with pytest.raises(UnknownLevel, match=r"groups-0, from offset 0 on, is at feature level \d+, but this release"):
        run(rows, State())


def test_an_unsigned_level_has_no_effect():
    """Anybody who may write heartbeats could stop all coordinators otherwise."""
    rows, state = [(GROUPS, 0, 0, 1_000, None, encode_decision(Level(level=feature_levels.NEWEST + 1)))], State()

    _, counts = run(rows, state)

    assert counts.rejections.value == {"signature": 1}
    assert counts.levels.value == {"groups-0": 1}


def signed(event: Level) -> bytes:
    signer = Signer(key_to_sign(DEV_KEYS, "operator"), "0123456789abcdef")
    return signer.sign(GROUPS, 0, None, encode_decision(event), 0)


def test_a_coordinator_decides_by_nothing_but_this():
    """Two coordinators with other settings, clocks or environments must decide alike: the page has a row for each."""
    page = (ROOT / "docs" / "decisions" / "0035-keys-on-record.md").read_text(encoding="utf-8")
    takes = [*inspect.signature(decide).parameters]

    assert takes == ["records", "partitions", "topics", "restore", "keys", "counts"]
    assert "the records, `partitions`, the names of the topics, the initial states and the keys" in " ".join(
        page.split()
    )
    assert [*inspect.signature(run_shard).parameters] == [*takes[1:], "at", "frames", "state"]
