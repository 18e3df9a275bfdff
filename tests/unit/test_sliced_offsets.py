"""The mirror of partitions that are cut, beside a shard whose slices change, and across restarts of the mirror."""

from random import Random

import pytest

from tests.support.control_log import TOPIC, ControlLog
from wakeroll.kafka_groups import MIRRORED, StoredOffset
from wakeroll_model.decisions import Assignment, Offset
from wakeroll_model.events import (
    AnyEvent,
    Commit,
    CommittedOffset,
    Configure,
    Heartbeat,
    Level,
    Reset,
    ResetOffset,
    Route,
    RoutedQueue,
    Subscription,
    Tick,
)
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.queue import Queue
from wakeroll_model.shard import Shard
from wakeroll_model.slices import cut
from wakeroll_pipeline.observer.sliced_offsets import SlicedOffsets

GROUP, WHOLE = "billing", Queue("orders", "", 0)


def lowest(group_offsets: dict[Queue, int]) -> int | None:
    return min(group_offsets.values(), default=None)


class Group:
    """A group of two members in a real shard: offsets advance and are reset, and the number of slices changes."""

    def __init__(self, seed: int) -> None:
        self.rng, self._log, self._shard = Random(seed), ControlLog(1), Shard(TOPIC, 0, 1)
        self._at_ms, self._requests = 0, 0
        self._beats: dict[str, Heartbeat] = {}
        self.append(Level(level=NEWEST))
        self.append(Route(topic="orders", version="1", queues=[RoutedQueue(topic="orders", broker="", queue_id=0)]))
        for name in ("a", "b"):
            self._beats[name] = Heartbeat(
                group_id=GROUP,
                client_id=name,
                instance_id=name,
                epoch=-1,
                owned=[],
                subscriptions=[Subscription(topic="orders")],
                consume_from="first",
                slice_by="",
            )
            self.append(self._beats[name])

    @property
    def offsets(self) -> dict[Queue, int]:
        group = self._shard.group(GROUP)
        assert group is not None
        return {queue: offset for queue, offset in group.offsets.items() if queue.topic == "orders"}

    def append(self, event: AnyEvent) -> list[Offset]:
        """Append an event, and return the decisions about offsets."""
        self._at_ms += 1_000
        found: list[Offset] = []
        for record in self._log.append(event, self._at_ms):
            for decision in self._shard.apply(record):
                if isinstance(decision, Offset):
                    found.append(decision)
                elif isinstance(decision, Assignment):
                    beat = self._beats[decision.client_id]
                    owned = [one.queue for one in decision.queues]
                    self._beats[decision.client_id] = type(beat)(
                        group_id=GROUP,
                        client_id=beat.client_id,
                        instance_id=beat.instance_id,
                        epoch=decision.epoch,
                        owned=owned,
                        subscriptions=beat.subscriptions,
                        consume_from="first",
                        slice_by="",
                    )
        return found

    def step(self) -> list[Offset]:
        """Let something happen."""
        self._requests += 1
        match self.rng.randrange(12):
            case 0:
                return self.append(Configure(group_id=GROUP, slices={"orders": self.rng.choice([1, 2, 4, 8])}))
            case 1:
                entry = ResetOffset(queue=WHOLE, offset=self.rng.randrange(500))
                return self.append(Reset(group_id=GROUP, request_id=str(self._requests), offsets=[entry], by="ops"))
            case 2 | 3 | 4:
                name = self.rng.choice(["a", "b"])
                return self.append(self._beats[name])
            case 5:
                return self.append(Tick(observer="o", uptime_ms=self._at_ms + 10_000))
            case _:
                name = self.rng.choice(["a", "b"])
                beat, known = self._beats[name], self.offsets
                if not beat.owned:
                    return []
                queue = self.rng.choice(beat.owned)
                offset = known.get(queue, 0) + self.rng.randrange(1, 50)
                entry = CommittedOffset(queue=queue, offset=offset)
                return self.append(
                    Commit(
                        group_id=GROUP,
                        client_id=name,
                        instance_id=name,
                        epoch=beat.epoch,
                        offsets=[entry],
                    )
                )


class Mirror:
    """As `OffsetMirror` uses it: it writes now and then, and starts over from what Kafka has."""

    def __init__(self) -> None:
        self.kafka: dict[Queue, StoredOffset] = {}
        self._sliced = SlicedOffsets()
        self._unwritten: list[Offset] = []
        self._whole: int | None = None

    def take(self, decision: Offset) -> None:
        self._unwritten.append(decision)
        self._note(decision)

    def _note(self, decision: Offset) -> None:
        offset = None if decision.deleted else decision.offset
        if decision.queue.slices > 1 or (GROUP, WHOLE) in self._sliced:
            self._sliced.note(GROUP, decision.queue, offset, self._whole)
        self._whole = offset if decision.queue == WHOLE else None

    def write(self) -> None:
        if (GROUP, WHOLE) in self._sliced:
            self._sliced.learn(GROUP, [WHOLE], self.kafka)
            found = self._sliced.lowest(GROUP, WHOLE)
        else:
            found = None if self._whole is None else StoredOffset(self._whole, MIRRORED)
        if found is not None:
            self.kafka[WHOLE] = found
            self._sliced.wrote(GROUP, WHOLE, found.offset)
            self._unwritten, self._whole = [], None

    def restart(self) -> None:
        """Begin at the first decision that is not written, with what Kafka has."""
        self._sliced, self._whole = SlicedOffsets(), None
        for decision in self._unwritten:
            self._note(decision)


@pytest.mark.parametrize("seed", range(60))
def test_the_mirror_is_never_ahead_of_a_slice_and_comes_to_rest_at_the_lowest(seed):
    """Across changes of the number, resets, and restarts of the mirror at any moment."""
    group, mirror = Group(seed), Mirror()
    covered = cuts = 0
    for _ in range(250):
        for decision in group.step():
            mirror.take(decision)
        if group.rng.random() < 0.2:
            mirror.restart()
        if group.rng.random() < 0.5:
            mirror.write()
            offsets = group.offsets
            cuts += any(queue.slices > 1 for queue in offsets)
            if sum(64 // queue.slices for queue in offsets) == 64:
                covered += 1
                assert mirror.kafka[WHOLE].offset == lowest(offsets), (offsets, mirror.kafka)
            elif WHOLE in mirror.kafka:
                assert mirror.kafka[WHOLE].offset <= lowest(offsets)

    assert covered > 50, "the mirror had little to do"
    assert cuts > 20


def test_text_that_somebody_else_has_changed_is_ignored():
    """A tool may write any text; the offsets of slices are taken from ours only."""
    _, right = cut(WHOLE, 2)
    for text, known in [
        ("", None),
        ("lag exporter 0/2=5 1/2=7", None),
        ("wakeroll 0/2=5 1/2=7", 5),
        ("wakeroll 0/2=5 9/2=7 1/3=1 x=y 1/2=99999999999999999999 1/2=8", 5),
    ]:
        sliced = SlicedOffsets()
        sliced.note(GROUP, right, 9)
        assert sliced.is_unknown(GROUP, [WHOLE])
        sliced.learn(GROUP, [WHOLE], {WHOLE: StoredOffset(5, text)})

        found = sliced.lowest(GROUP, WHOLE)

        assert (None if found is None else found.offset) == known, text


def test_what_never_had_an_offset_is_not_mirrored_before_all_slices_have_one():
    """One slice that is ahead says nothing about the others."""
    sliced = SlicedOffsets()
    parts = cut(WHOLE, 4)
    for queue in parts[1:]:
        sliced.note(GROUP, queue, 100)
    sliced.learn(GROUP, [WHOLE], {})
    assert sliced.lowest(GROUP, WHOLE) is None

    sliced.note(GROUP, parts[0], 3)
    assert sliced.lowest(GROUP, WHOLE) == StoredOffset(3, "wakeroll 0/4=3 1/4=100 2/4=100 3/4=100")

    sliced.note(GROUP, WHOLE, 120)
    sliced.wrote(GROUP, WHOLE, 120)
    assert (GROUP, WHOLE) not in sliced


def test_64_slices_fit_into_the_text_that_kafka_stores():
    """A broker refuses more than 4,096 bytes (`offset.metadata.max.bytes`)."""
    sliced = SlicedOffsets()
    for queue in cut(WHOLE, 64):
        sliced.note(GROUP, queue, 2**63 - 1)

    found = sliced.lowest(GROUP, WHOLE)

    assert found is not None
    assert len(found.text) < 2_000
