"""The puller's side of long polling, without Kafka: what it asks, what it obeys, and that every pull ends once."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from wakeroll_model.config import NEVER_MS
from wakeroll_model.decisions import AnyDecision, Rejected, Wake, WakeReason
from wakeroll_model.events import Arrival, Cancel, Event, Pull, Subscription, Tick
from wakeroll_model.pull_client import PATIENCE_MS, PullEnded, Pulls
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard

A, B = Queue("orders", "", 0), Queue("orders", "", 1)
ALL = Subscription(topic="orders")
PAID = Subscription(topic="orders", expression="paid", version=3)


def pulls() -> Pulls:
    return Pulls("billing", "c1", "i1")


def wake(pull: Pull, reason: WakeReason = "arrival", next_offset: int = 6) -> Wake:
    return Wake(
        request_id=pull.request_id,
        group_id=pull.group_id,
        client_id=pull.client_id,
        queue=pull.queue,
        reason=reason,
        next_offset=next_offset,
        held_ms=0,
    )


class Log:
    """The queues' control topic with one partition, and the coordinator's shard that reads it and knows both queues."""

    def __init__(self) -> None:
        self.shard = Shard("wakeroll.queues", 0, 1, raises=True)
        self.now_ms = 0
        others = Pulls("audit", "c1", "i0")
        for queue in (A, B):
            self.append(others.pull(queue, 0, 20_000, ALL, 0))

    def append(self, event: Event, key: bytes | None = None) -> list[AnyDecision]:
        """Append an event and return what is decided."""
        key = event.queue.key.encode() if isinstance(event, Pull | Cancel | Arrival) else key
        value = msgspec.json.encode(event)
        return self.shard.apply(Record("wakeroll.queues", 0, self.shard.offset + 1, self.now_ms, key, value))

    def pass_time(self, duration_ms: int) -> list[AnyDecision]:
        """Tick once a second; return what is decided."""
        decided: list[AnyDecision] = []
        for _ in range(duration_ms // 1_000):
            self.now_ms += 1_000
            decided += self.append(Tick())
        return decided


# --- asking ---


def test_a_pull_says_what_is_wanted_and_has_a_number_of_its_own():
    """The coordinator knows a repeated pull by its number, and another life by its instance."""
    asked = pulls()

    assert asked.pull(A, 5, 20_000, PAID, 0) == Pull(
        request_id="i1:1",
        group_id="billing",
        client_id="c1",
        instance_id="i1",
        queue=A,
        from_offset=5,
        timeout_ms=20_000,
        expression="paid",
    )
    assert asked.pull(B, 0, 20_000, ALL, 0).request_id == "i1:2"
    asked.cancel(A)
    assert asked.pull(A, 5, 20_000, ALL, 0).request_id == "i1:3"


def test_a_queue_is_pulled_once_at_a_time():
    """A second pull would end the first, and whoever waits in it would hear of nothing."""
    asked = pulls()
    asked.pull(A, 5, 20_000, ALL, 0)

    with pytest.raises(AssertionError, match="orders-0 is being waited for already"):
        asked.pull(A, 6, 20_000, ALL, 0)


def test_who_does_not_wait_any_more_says_so_once():
    asked = pulls()
    pull = asked.pull(A, 5, 20_000, ALL, 0)

    assert asked.cancel(B) is None
    assert asked.cancel(A) == Cancel(request_id="i1:1", group_id="billing", client_id="c1", queue=A)
    assert asked.cancel(A) is None
    assert asked.receive(wake(pull, "cancelled", 5)) is None


# --- obeying ---


def test_a_wake_ends_its_pull_and_tells_how_far_the_queue_reaches():
    asked = pulls()
    first, second = asked.pull(A, 5, 20_000, ALL, 0), asked.pull(B, 7, 20_000, ALL, 0)

    assert asked.receive(wake(second, "skipped", 9)) == PullEnded(second, "skipped", 9)
    assert asked.waiting(A) == first
    assert asked.waiting(B) is None


@pytest.mark.parametrize("request_id", ["i0:1", "i1:2", "i1:11", "i1:01"])
def test_a_wake_of_another_life_or_another_number_is_ignored(request_id):
    """The inbox holds what earlier lives were told, and somebody's clients may share it."""
    asked = pulls()
    pull = asked.pull(A, 5, 20_000, ALL, 0)

    assert asked.receive(structs.replace(wake(pull), request_id=request_id)) is None
    assert asked.waiting(A) == pull


def test_a_repeated_wake_does_not_end_the_pull_that_came_after():
    asked = pulls()
    first = asked.pull(A, 5, 20_000, ALL, 0)
    asked.receive(wake(first))
    second = asked.pull(A, 6, 20_000, ALL, 0)

    assert asked.receive(wake(first)) is None
    assert asked.waiting(A) == second


def test_a_lost_wake_is_made_good_by_the_pulls_own_deadline():
    """A wake may be lost with its broker, and a coordinator may be away for an hour."""
    asked = pulls()
    pull = asked.pull(A, 5, 20_000, ALL, 1_000)

    assert asked.next_due_ms() == 21_000 + PATIENCE_MS
    assert asked.on_time(21_000 + PATIENCE_MS - 1) == []
    assert asked.on_time(21_000 + PATIENCE_MS) == [PullEnded(pull, "lost", 5)]
    assert asked.on_time(21_000 + PATIENCE_MS) == []
    assert asked.next_due_ms() == NEVER_MS
    assert asked.receive(wake(pull)) is None


# --- with the coordinator ---


def test_a_wake_in_order_comes_before_the_deadline_of_its_own():
    """However the ticks lie, the coordinator's answer is not taken for lost."""
    log, asked = Log(), pulls()
    log.pass_time(3_000)
    pull = asked.pull(A, 5, 20_000, ALL, log.now_ms)
    assert log.append(pull) == []

    [answer] = log.pass_time(30_000)
    held_until_ms = answer.at_ms

    assert asked.on_time(held_until_ms) == []
    assert asked.receive(answer) == PullEnded(pull, "timeout", 5)


def test_the_coordinator_wakes_a_pull_by_what_its_subscription_wants():
    log, asked = Log(), pulls()
    pull = asked.pull(A, 5, 20_000, PAID, 0)

    assert log.append(pull) == []
    assert log.append(Arrival(queue=A, next_offset=6, tags="lost")) == []
    [answer] = log.append(Arrival(queue=A, next_offset=7, tags="paid"))
    assert asked.receive(answer) == PullEnded(pull, "arrival", 5)


@pytest.mark.parametrize("length", [10, 4_000])
def test_a_refusal_ends_the_pull_that_it_quotes(length):
    """It names no request: it quotes the record, and of a long one the beginning."""
    log, asked = Log(), pulls()
    unreadable = Subscription(topic="orders", expression="(" * length, expression_type="SQL92")
    other, pull = asked.pull(B, 5, 20_000, unreadable, 0), asked.pull(A, 5, 20_000, unreadable, 0)

    [refusal] = log.append(pull)
    ended = asked.receive(refusal)

    assert isinstance(refusal, Rejected)
    assert ended == PullEnded(pull, "refused", 5, "pull", refusal.detail)
    assert asked.receive(refusal) is None
    assert asked.waiting(B) == other


def test_a_pull_that_a_refusal_quotes_can_be_sent_again():
    """Its queue has moved to another partition, whose shard answers it."""
    log, asked = Log(), pulls()
    pull = asked.pull(A, 5, 20_000, ALL, 0)
    misplaced = Record("wakeroll.queues", 0, log.shard.offset + 1, 0, b"payments@0", msgspec.json.encode(pull))
    [refusal] = log.shard.apply(misplaced)

    assert isinstance(refusal, Rejected)
    assert asked.quoted_in(refusal) == pull
    assert asked.waiting(A) == pull
    assert log.append(pull) == []
    [answer] = log.append(Arrival(queue=A, next_offset=6))
    assert asked.receive(answer) == PullEnded(pull, "arrival", 5)
    assert asked.quoted_in(refusal) is None


def test_a_refusal_of_something_else_ends_nothing():
    """A heartbeat may be refused while a pull waits."""
    asked = pulls()
    pull = asked.pull(A, 5, 20_000, ALL, 0)

    assert asked.receive(Rejected(rule="commit", detail="", raw="eyJ0", group_id="billing", client_id="c1")) is None
    assert asked.waiting(A) == pull


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pull"), st.sampled_from([A, B]), st.sampled_from([1, 2_000, 20_000])),
        st.tuples(st.just("arrive"), st.sampled_from([A, B]), st.integers(1, 9)),
        st.tuples(st.just("cancel"), st.sampled_from([A, B]), st.none()),
        st.tuples(st.just("wait"), st.none(), st.sampled_from([1_000, 4_000, 30_000])),
    ),
    max_size=30,
)


class Weather(Log):
    """A log that loses some of what is appended and some of what is decided, and delivers some decisions twice."""

    def __init__(self, losses: set[int], repeats: set[int]) -> None:
        super().__init__()
        self.asked = pulls()
        self.made: list[Pull] = []
        self.ended: Counter[str] = Counter()
        self._losses, self._repeats = losses, repeats
        self._sent = 0

    def pull(self, queue: Queue, timeout_ms: int) -> None:
        """Pull a queue, unless that is done already."""
        if self.asked.waiting(queue) is None:
            self.made.append(self.asked.pull(queue, 5, timeout_ms, ALL, self.now_ms))
            self.send(self.made[-1])

    def cancel(self, queue: Queue) -> None:
        """Wait no more."""
        event = self.asked.cancel(queue)
        if event is not None:
            self.ended[event.request_id] += 1
            self.send(event)

    def wait(self, duration_ms: int) -> None:
        """Have time pass, for the coordinator and then for the puller."""
        self._deliver(self.pass_time(duration_ms))
        self._note(self.asked.on_time(self.now_ms))

    def send(self, event: Event) -> None:
        """Append an event, perhaps, and deliver the answers, perhaps."""
        if self._copies():
            self._deliver(self.append(event))

    def _deliver(self, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            assert isinstance(decision, Wake)
            answers = [self.asked.receive(decision) for _ in range(self._copies())]
            self._note([ended for ended in answers if ended is not None])

    def _note(self, over: list[PullEnded]) -> None:
        self.ended.update(ended.pull.request_id for ended in over)

    def _copies(self) -> int:
        self._sent += 1
        return 0 if self._sent in self._losses else 2 if self._sent in self._repeats else 1


@given(steps=STEPS, losses=st.sets(st.integers(1, 40)), repeats=st.sets(st.integers(1, 40)))
def test_every_pull_ends_once_whatever_is_lost_or_repeated(steps, losses, repeats):
    """Nobody waits for ever, nobody is woken twice, and what has ended is not waited for."""
    weather = Weather(losses, repeats)
    for kind, queue, value in steps:
        match kind:
            case "pull":
                weather.pull(queue, value)
            case "cancel":
                weather.cancel(queue)
            case "arrive":
                weather.send(Arrival(queue=queue, next_offset=value))
            case "wait":
                weather.wait(value)
        waiting = [pull.request_id for one in (A, B) if (pull := weather.asked.waiting(one)) is not None]
        assert weather.ended + Counter(waiting) == Counter(pull.request_id for pull in weather.made)
    weather.wait(30_000)

    assert weather.ended == Counter(pull.request_id for pull in weather.made)
    assert weather.asked.next_due_ms() == NEVER_MS
