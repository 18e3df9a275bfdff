"""A lease has one holder at a time, whatever is paused, delayed, repeated or forgotten."""

import random
from dataclasses import dataclass, field

import pytest

from wakeroll_model.lease_contender import Contender
from wakeroll_model.lease_log import AnyLeaseRecord, Claim, Lease, Release, Renewal, decode, encode

LEASE_MS = 10_000
NAME = "record"


def claim(holder: str, read: int) -> Claim:
    return Claim(lease=NAME, holder=holder, number=1, lease_ms=LEASE_MS, read=read)


def renewal(holder: str, term: int) -> Renewal:
    return Renewal(lease=NAME, holder=holder, number=2, lease_ms=LEASE_MS, term=term)


def release(holder: str, term: int) -> Release:
    return Release(lease=NAME, holder=holder, number=3, lease_ms=LEASE_MS, term=term)


def lease_after(*records: AnyLeaseRecord) -> Lease:
    lease = Lease(NAME)
    for offset, record in enumerate(records):
        lease.read(offset, record)
    return lease


def test_of_two_claims_the_first_in_the_log_is_valid():
    lease = lease_after(claim("a", -1), claim("b", -1))

    assert (lease.holder, lease.term) == ("a", 0)


def test_a_claim_is_not_valid_if_the_holder_renewed_before_it():
    lease = lease_after(claim("a", -1), renewal("a", 0), claim("b", 0))

    assert (lease.holder, lease.term) == ("a", 0)


def test_a_renewal_of_an_earlier_term_has_no_effect():
    lease = lease_after(claim("a", -1), claim("b", 0), renewal("a", 0), release("a", 0))

    assert (lease.holder, lease.term, lease.is_released) == ("b", 1, False)


def test_records_of_other_leases_do_not_count():
    other = Claim(lease="coordinate", holder="c", number=1, lease_ms=LEASE_MS, read=-1)

    lease = lease_after(claim("a", -1), other, claim("b", 0))

    assert (lease.holder, lease.term) == ("b", 2)


def test_a_reader_without_the_claim_learns_the_holder_from_its_renewal():
    """Kafka deletes old records, and a holder may hold for months."""
    late = Lease(NAME, first=700)

    late.read(700, renewal("a", 3))

    assert (late.holder, late.term) == ("a", 3)


def test_a_record_survives_its_encoding():
    for record in (claim("a", -1), renewal("a", 0), release("a", 0)):
        assert decode(encode(record)) == record


def test_a_released_lease_is_claimed_at_once():
    contender = Contender(NAME, "b", LEASE_MS, 0)
    contender.read(0, claim("a", -1))
    assert contender.next_record(0, 0) is None

    contender.read(1, release("a", 0))

    assert contender.next_record(1, 1) == claim("b", 1)


def test_a_holder_that_renews_is_not_disturbed_and_one_that_is_silent_is():
    contender = Contender(NAME, "b", LEASE_MS, 0)
    contender.read(0, claim("a", -1))
    for second in range(1, 60):
        contender.read(second, renewal("a", 0))
        assert contender.next_record(1_000 * second, second) is None

    sent = [contender.next_record(60_000 + 500 * step, 59) for step in range(21)]

    assert sent == [None] * 19 + [claim("b", 59), None]


def test_a_pause_of_the_waiting_process_is_not_silence_of_the_holder():
    """It may simply not have read the renewals of an hour yet."""
    contender = Contender(NAME, "b", LEASE_MS, 0)
    contender.read(0, claim("a", -1))

    assert contender.next_record(3_600_000, 0) is None


def test_of_two_processes_that_find_an_empty_log_one_acts():
    """Both claim at once; the second claim in the log has not read the first one."""
    first, second = (Contender(NAME, name, LEASE_MS, 0) for name in "ab")
    claims = [one.next_record(0, -1) for one in (first, second)]
    for offset, sent in enumerate(claims):
        for one in (first, second):
            one.read(offset, sent)

    assert [one.state(1) for one in (first, second)] == ["held", "waiting"]
    assert [second.next_record(step * 500, 1) for step in range(1, 10)] == [None] * 9


def test_a_holder_in_doubt_may_act_again_when_its_renewal_returns():
    """The brokers were unreachable for longer than the lease, and nobody else claimed it."""
    contender = Contender(NAME, "a", LEASE_MS, 0)
    contender.read(0, contender.next_record(0, -1))
    assert contender.is_held(1)
    late = contender.next_record(9_500, 0)

    assert contender.state(9_500) == "doubtful"
    contender.read(1, late)
    assert contender.state(9_501) == "held"


def test_a_holder_that_another_one_replaced_never_acts_again():
    contender = Contender(NAME, "a", LEASE_MS, 0)
    contender.read(0, contender.next_record(0, -1))
    late = contender.next_record(60_000, 0)

    contender.read(1, claim("b", 0))
    contender.read(2, late)

    assert contender.state(60_000) == "lost"
    assert contender.next_record(90_000, 2) is None
    assert contender.end(90_000) is None


@dataclass
class Process:
    """A contender with a clock of its own, a queue to the log, and a place up to which it has read."""

    contender: Contender
    rate: float
    begun_ms: int
    next_offset: int
    paused_until_ms: int = 0
    sending: list[tuple[int, bytes]] = field(default_factory=list)

    def clock(self, now_ms: int) -> int:
        return round((now_ms - self.begun_ms) * self.rate)


class World:
    """Processes that come, pause, end and are killed, and one log whose beginning is deleted."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now_ms = 0
        self.log: list[tuple[int, bytes]] = []
        self.first = 0
        self.processes: list[Process] = []
        self.terms: list[int] = []
        self.born = 0

    def begin(self) -> None:
        self.born += 1
        contender = Contender(NAME, f"p{self.born}", LEASE_MS, 0, first=self.first)
        self.processes.append(Process(contender, self.dice.uniform(0.96, 1.04), self.now_ms, self.first))

    def step(self, *, is_calm: bool) -> None:
        self.now_ms += self.dice.randrange(20, 400)
        if not is_calm:
            self._disturb()
        for process in self.processes:
            if process.paused_until_ms > self.now_ms:
                continue
            now_ms = process.clock(self.now_ms)
            while process.next_offset < len(self.log):
                process.contender.read(process.next_offset, decode(self.log[process.next_offset][1]))
                process.next_offset += 1
            record = process.contender.next_record(now_ms, process.next_offset - 1)
            if record is not None:
                delay_ms = 0 if is_calm else self.dice.choice((0, 0, 30, 500, 4_000, 20_000))
                process.sending.append((self.now_ms + delay_ms, encode(record)))
        self._deliver()

    def _disturb(self) -> None:
        for process in list(self.processes):
            chance = self.dice.random()
            if chance < 0.004:
                process.paused_until_ms = self.now_ms + self.dice.choice((300, 9_000, 11_000, 60_000))
            elif chance < 0.006:
                self.processes.remove(process)  # killed; what it has sent may still arrive
                self._append_all(process)
            elif chance < 0.007:
                record = process.contender.end(process.clock(self.now_ms))
                self.processes.remove(process)
                if record is not None:
                    process.sending.append((self.now_ms, encode(record)))
                self._append_all(process)
        if len(self.processes) < 3 and self.dice.random() < 0.05:
            self.begin()
        if self.dice.random() < 0.01:
            kept = [offset for offset, (at_ms, _) in enumerate(self.log) if at_ms > self.now_ms - 100_000]
            self.first = max(self.first, kept[0] if kept else len(self.log))

    def _deliver(self) -> None:
        for process in self.processes:
            while process.sending and process.sending[0][0] <= self.now_ms:
                self._append(process.sending.pop(0)[1])

    def _append_all(self, process: Process) -> None:
        for _, value in process.sending:
            if self.dice.random() < 0.5:
                self._append(value)

    def _append(self, value: bytes) -> None:
        for _ in range(2 if self.dice.random() < 0.02 else 1):
            self.log.append((self.now_ms, value))

    def holders(self) -> list[Contender]:
        """Return who may act now, also those that are paused in the middle of a step."""
        return [one.contender for one in self.processes if one.contender.is_held(one.clock(self.now_ms))]


@pytest.mark.parametrize("seed", range(40))
def test_at_no_time_may_two_processes_act(seed: int):
    world = World(seed)
    held = 0
    for _ in range(1_500):
        world.step(is_calm=False)
        holders = world.holders()
        held += bool(holders)
        assert len(holders) <= 1, (world.now_ms, [(one.term, one.lease.term) for one in holders])
        world.terms += [one.term for one in holders if world.terms[-1:] != [one.term]]
    assert held > 300
    assert world.terms == sorted(set(world.terms)), "a later holder has a higher term"

    if not world.processes:
        world.begin()
    for _ in range(400):
        world.step(is_calm=True)
    assert len(world.holders()) == 1 or all(one.contender.is_lost for one in world.processes)


def run_all(seeds: int) -> None:
    for seed in range(seeds):
        test_at_no_time_may_two_processes_act(seed)


@pytest.mark.parametrize("fault", ["no silence", "no margin"])
def test_the_simulation_finds_a_contender_that_breaks_a_rule(fault: str, monkeypatch: pytest.MonkeyPatch):
    if fault == "no silence":
        monkeypatch.setattr(Contender, "_may_claim", lambda _: True)
    else:
        monkeypatch.setattr("wakeroll_model.lease_contender.MARGIN", -0.6)

    with pytest.raises(AssertionError):
        run_all(40)
