"""Push consumption with several clients that come, go and fail, on the real coordinator in memory."""

import threading
import time
from collections import Counter, defaultdict
from random import Random

import pytest
from confluent_kafka import Message

from tests.support.systems.memory_plane import MemoryPlane, PushClient
from tests.support.waiting import wait_until
from wakeroll.push.limits import PushLimits

QUEUES = 4
MESSAGES = 400
"""Per queue."""
KEYS = 5


class Records:
    """What all handlers received: which messages were processed, how often, and what was at work at the same time."""

    def __init__(self, plane: MemoryPlane, rng: Random, *, orderly: bool) -> None:
        self.processed: dict[int, Counter[int]] = defaultdict(Counter)
        """Queue number -> how often each offset was processed."""
        self.order: dict[tuple[int, bytes | None], list[int]] = defaultdict(list)
        """Queue number and key -> offsets, as their calls began."""
        self.faults: list[str] = []
        self.fails = 0.0
        """Part of the calls that raise."""
        self._plane = plane
        self._rng = rng
        self._orderly = orderly
        self._at_work: set[tuple[int, bytes | None]] = set()
        self._lock = threading.Lock()
        plane.on_commit = self._judge

    def __call__(self, messages: list[Message]) -> None:
        """Handle a batch."""
        number = messages[0].partition() or 0
        lanes = {(number, None if self._orderly else message.key()) for message in messages}
        with self._lock:
            if self._at_work & lanes:
                self.faults.append(f"two calls at once: {sorted(self._at_work & lanes)}")
            self._at_work |= lanes
            for message in messages:
                self.order[number, None if self._orderly else message.key()].append(message.offset() or 0)
            pause_s, fails = self._rng.random() * 0.01, self._rng.random() < self.fails
        time.sleep(pause_s)
        with self._lock:
            self._at_work -= lanes
            if fails:
                raise LookupError("no such order")
            self.processed[number].update(message.offset() or 0 for message in messages)

    def is_complete(self) -> bool:
        """Return whether every message was processed."""
        with self._lock:
            return all(len(self.processed[number]) == MESSAGES for number in range(QUEUES))

    def _judge(self, number: int, offset: int) -> None:
        with self._lock:
            missing = [at for at in range(offset) if at not in self.processed[number]]
            if missing:
                self.faults.append(f"queue {number} is committed up to {offset} without {missing[:3]}")


@pytest.mark.parametrize("orderly", [True, False], ids=["in order", "by key"])
@pytest.mark.parametrize("seed", range(3))
def test_clients_that_come_and_go_process_every_message_once(seed, orderly):
    """Whoever stops lets its calls return first; so nothing is repeated, and order holds across clients."""
    rng = Random(seed)
    plane = MemoryPlane(QUEUES)
    for number in range(QUEUES):
        plane.produce(number, MESSAGES, keys=KEYS)
    records = Records(plane, rng, orderly=orderly)
    limits = PushLimits(workers=rng.choice([1, 3, 8]), batch_size=rng.choice([1, 7, 32]), prefetch=60)
    clients = [PushClient(plane, "c0", records, limits, orderly=orderly)]

    for number in range(1, 8):
        time.sleep(rng.random() * 0.2)  # not a wait for anything: the moment of the change is what is drawn
        if len(clients) > 1 and rng.random() < 0.5:
            clients.pop(rng.randrange(len(clients))).stop()
        else:
            clients.append(PushClient(plane, f"c{number}", records, limits, orderly=orderly))
    wait_until(records.is_complete, "every message is processed", state=lambda: plane.offsets())
    for client in clients:
        client.stop()

    assert records.faults == []
    assert all(set(counts.values()) == {1} for counts in records.processed.values())
    assert all(offsets == sorted(offsets) for offsets in records.order.values())
    assert plane.offsets() == dict.fromkeys(range(QUEUES), MESSAGES)


@pytest.mark.parametrize("seed", range(3))
def test_when_handlers_raise_nothing_is_missing_and_no_commit_passes_what_failed(seed):
    rng = Random(100 + seed)
    plane = MemoryPlane(QUEUES)
    for number in range(QUEUES):
        plane.produce(number, MESSAGES, keys=KEYS)
    records = Records(plane, rng, orderly=False)
    records.fails = 0.1
    limits = PushLimits(workers=4, batch_size=16, prefetch=100)
    clients = [PushClient(plane, f"c{number}", records, limits) for number in range(2)]
    failures = 0

    def restart_failed() -> None:
        nonlocal failures
        for at, client in enumerate(clients):
            if not client.is_alive():
                assert isinstance(client.problem, LookupError)
                failures += 1
                client.stop()
                clients[at] = PushClient(plane, f"c{2 + failures}", records, limits)
        if failures >= 5:
            records.fails = 0.0
        time.sleep(0.01)

    wait_until(records.is_complete, "every message is processed", between=restart_failed)
    for client in clients:
        client.stop()

    assert (records.faults, failures > 0) == ([], True)
    assert plane.offsets() == dict.fromkeys(range(QUEUES), MESSAGES)
