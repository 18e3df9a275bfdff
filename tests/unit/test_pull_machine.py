"""The pull machine, under whatever clients, producers and observers may do to it."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.control_log import QUEUES, ControlLog
from tests.support.histories.plain_queues import Answer, PlainQueues
from tests.support.histories.queue_histories import (
    ORDERS,
    PARTITION,
    Play,
    arrival,
    cancel,
    events,
    hints,
    plans,
    pull,
    report,
)
from wakeroll_model import config, invariants, pull_machine, waiting_pulls
from wakeroll_model.config import DEFAULT_LIMITS, Limits
from wakeroll_model.decisions import Cause, Rejected, Wake
from wakeroll_model.events import Arrival, Cancel, Pull, QueueEvent, Tick
from wakeroll_model.filters import matches, parse
from wakeroll_model.held_queue import HeldQueue
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.shard import Shard
from wakeroll_model.shard_clock import ShardClock
from wakeroll_model.shard_load import NOTHING, Load
from wakeroll_model.shard_state import ShardState

decode_state = msgspec.msgpack.Decoder(ShardState).decode


@given(plan=plans, event=events)
def test_a_repeated_event_is_silent(plan, event):
    """Records may come twice; an answer may not."""
    play = Play(plan)
    play.step(event, 700)

    assert play.step(event) == []


@given(plan=plans)
def test_whoever_was_held_is_answered_once_and_in_the_end_nobody_waits(plan):
    """Whatever happened: nobody was told twice, or forgotten."""
    play = Play()
    asked = set()
    for later_ms, event in plan:
        play.step(event, later_ms)
        asked.update(play.held)
    play.step(Tick(), 20_000)

    assert play.held == []
    assert asked <= set(play.answered)
    assert invariants.broken_answers(play.decisions) == []


@given(plan=plans)
def test_the_parts_of_a_queues_state_agree(plan):
    """A tick decodes a queue only when its deadline has come, and an index that forgets a hold never wakes it."""
    play = Play()
    for later_ms, event in plan:
        play.step(event, later_ms)
        assert invariants.broken_queue(play.queue) == []


@given(plan=plans, early_ms=st.integers(1, 30_000))
def test_a_tick_with_nothing_due_changes_nothing(plan, early_ms):
    """Whether a queue is looked at before its time - for another's deadline, or its own old one - must not show."""
    play = Play(plan)
    before, now_ms = msgspec.msgpack.encode(play.queue), play.now_ms
    due_ms, forget_ms = play.queue.due_ms, play.queue.forget_ms
    play.now_ms = max(now_ms, min(play.first_deadline_ms, now_ms + 60_000) - early_ms)

    if play.now_ms < play.first_deadline_ms:
        assert play.step(Tick()) == []
        play.queue.due_ms, play.queue.forget_ms = due_ms, forget_ms  # these may have been too early
        assert msgspec.msgpack.encode(play.queue) == before


@given(plan=plans, together=st.lists(hints, max_size=6), random=st.randoms())
def test_hints_may_come_in_any_order(plan, together, random):
    """Producers know nothing of each other; an order of theirs must not decide who is woken."""
    shuffled = random.sample(together, len(together))
    plays = [Play([*plan, *((0, one) for one in order)]) for order in (together, shuffled)]

    assert sorted(plays[0].answered) == sorted(plays[1].answered)
    assert plays[0].held == plays[1].held
    assert plays[0].queue.end == plays[1].queue.end


@given(plan=plans)
def test_a_wake_tells_an_end_that_was_reported_or_the_offset_that_was_asked_for(plan):
    """Hints may be lies: whoever asked from where one says would be blind for what comes before."""
    play = Play()
    asked_from, told = {}, [0]
    for later_ms, event in plan:
        if isinstance(event, Pull) and event.queue == ORDERS:
            asked_from[event.request_id] = event.from_offset
        elif getattr(event, "observer", ""):
            told.append(event.next_offset)
        for wake in play.step(event, later_ms):
            asked = asked_from[wake.request_id]
            assert wake.next_offset in (*told, asked) or wake.next_offset < asked
            assert wake.reason != "truncated" or wake.next_offset < asked


def test_whoever_was_misled_is_not_told_again_what_it_says_itself():
    """It would ask from there for ever, however often it is answered."""
    play = Play([(0, report(7)), (0, pull("a", from_offset=9_000, timeout_ms=600))], is_known=True)

    assert play.answers(Tick(), 1_000) == [("a", "timeout", 7)]


# --- as a shard runs it ---


def records_of(plan: list[tuple[int, QueueEvent]], limits: Limits) -> list[Record]:
    """Return what stands in the partition of `ORDERS` after a plan; a tick tells the limits first."""
    log, at_ms, records = ControlLog(queues=True), 0, []
    for later_ms, event in [(0, Tick(limits=limits)), *plan]:
        at_ms += min(later_ms, config.LONGEST_STEP_MS)
        records += [one for one in log.append(event, at_ms) if (one.topic, one.partition) == (QUEUES, PARTITION)]
    return records


small_limits = st.fixed_dictionaries(
    {},
    optional={
        "max_holds_per_queue": st.integers(1, 3),
        "max_holds_per_shard": st.integers(1, 3),
        "max_lives_per_queue": st.integers(1, 3),
        "max_lives_per_shard": st.integers(1, 3),
        "max_pulled_queues": st.integers(1, 2),
        "max_filters_per_queue": st.sampled_from([0, 36, 43, 80]),
        "max_filters_per_shard": st.sampled_from([0, 36, 43, 80]),
    },
).map(lambda values: Limits(**values))
"""Limits that are met soon."""

short = st.fixed_dictionaries(
    {},
    optional={
        "REMEMBER_MS": st.sampled_from([1_000, 10_000]),
        "HINT_MS": st.sampled_from([1_000, 5_000]),
    },
)
"""Times that are over soon."""


@contextmanager
def times(values: dict[str, int]) -> Iterator[None]:
    """Have other times for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(config, name, value)
        yield


@given(plan=plans, cuts=st.lists(st.integers(0, 40)), limits=small_limits, values=short)
def test_batches_of_a_shard_of_queues_may_be_cut_anywhere(plan, cuts, limits, values):
    """A retried, a smaller or a larger batch must not change a byte of what was decided, nor of the state."""
    records = records_of(plan, limits)

    def decided(cuts):
        shard, decisions = Shard(QUEUES, PARTITION, 4, raises=True), []
        for number, record in enumerate(records):
            if number in cuts:
                shard = Shard(QUEUES, PARTITION, 4, shard.body(), raises=True)
            decisions += map(encode_decision, shard.apply(record))
        return decisions, shard.body()

    with times(values):
        assert decided([]) == decided(cuts) == decided(range(len(records)))


@given(plan=plans, limits=small_limits, values=short)
def test_a_shard_answers_as_one_that_looks_through_everything(plan, limits, values):
    """Its indexes save work and decide nothing; and it counts right what it has."""
    shard, plain, clock = Shard(QUEUES, PARTITION, 4, raises=True), PlainQueues(wants), ShardClock()
    with times(values):
        for record in records_of(plan, limits):
            event = msgspec.json.decode(record.value, type=QueueEvent)
            now_ms = clock.read(record.timestamp_ms, event if isinstance(event, Tick) else None).now_ms
            wakes = [one for one in shard.apply(record) if isinstance(one, Wake)]

            assert [answer_of(wake) for wake in wakes] == plain.happen(event, now_ms)
            assert shard.names() == sorted(plain.known)
            load = decode_state(shard.body()).load
            assert load == sum((shard.queue(key).load for key in shard.names()), NOTHING)
            assert (load.pulls, load.lives) == (plain.holds(), plain.lives())


def wants(pull: Pull, arrival: Arrival) -> bool:
    wanted = parse(pull.expression, pull.expression_type)
    return matches(wanted, arrival.tags_code, arrival.tags, arrival.properties)


def answer_of(wake: Wake) -> Answer:
    names = wake.request_id, wake.group_id, wake.client_id, wake.queue.key
    return Answer(*names, wake.reason, wake.next_offset, wake.held_ms)


# --- what is kept, and for how long ---


class Running:
    """A shard of queues that is alone in its topic, and its log."""

    def __init__(self) -> None:
        self.shard = Shard(QUEUES, 0, 1, raises=True)
        self.now_ms = 0
        self.append(Tick(observer="o", uptime_ms=0))

    def append(self, event: QueueEvent) -> list[object]:
        """Append an event, and return what is decided."""
        key = None if isinstance(event, Tick) else event.queue.key.encode()
        value = msgspec.json.encode(event)
        return self.shard.apply(Record(QUEUES, 0, self.shard.offset + 1, self.now_ms, key, value))

    def pass_time(self, duration_ms: int) -> None:
        """Tick every 3 s."""
        for _ in range(duration_ms // 3_000 + 1):
            self.now_ms += 3_000
            self.append(Tick(observer="o", uptime_ms=self.now_ms))

    def cut(self) -> int:
        """End a batch; return how large the state is."""
        body = self.shard.body()
        self.shard = Shard(QUEUES, 0, 1, body, raises=True)
        return len(body)


def past(count: int) -> Running:
    """Return a shard after so many lives have pulled one queue, each with a filter of its own, and as many others."""
    running = Running()
    for number in range(count):
        elsewhere = Queue("other", "", number)
        running.append(arrival(3, queue=elsewhere))
        running.append(pull(f"c{number}", expression=f"tag-{number}"))
        running.append(pull(f"c{number}", number=2, expression=f"tag-{number}", timeout_ms=30_000))
        running.append(pull(f"c{number}", number=3, queue=elsewhere))
        running.append(report(2**63 - 1, queue=elsewhere))
        running.append(arrival(3, queue=Queue("never-pulled", "", number)))
        if number % 100 == 99:
            running.pass_time(5_000)
            running.cut()
    return running


@pytest.mark.parametrize("count", [10, 10_000])
def test_the_state_goes_back_to_its_base_line(count):
    """Clients have a new name at every start, topics come and go; nothing of that may stay in the state."""
    running, fresh = past(count), Running()
    assert running.cut() > 100 * count

    running.pass_time(config.MAX_PULL_TIMEOUT_MS + config.REMEMBER_MS)

    state, base = decode_state(running.shard.body()), decode_state(fresh.shard.body())
    assert (state.entities, state.deadlines, state.load) == (base.entities, base.deadlines, base.load)
    assert len(running.shard.body()) <= len(fresh.shard.body()) + 32  # larger numbers: seq, offset, clock


def test_what_is_said_of_a_queue_that_nobody_pulls_is_not_kept():
    """Anybody may name 10,000 queues; only pulls make one known, and those are bounded."""
    running = Running()
    for number in range(1_000):
        running.append(report(5, queue=Queue("other", "", number)))
        running.append(arrival(5, queue=Queue("other", "", number)))
        running.append(Cancel(request_id="i:1", group_id="g", client_id="c", queue=Queue("other", "", number)))

    assert running.shard.names() == []
    assert decode_state(running.shard.body()).deadlines == {}


def test_a_life_is_remembered_for_ten_minutes_after_its_last_answer():
    """Until then a repeated pull is silent; a record comes a session late at most."""
    play = Play([(0, pull("a")), (0, arrival(6)), (1_000, pull("a", 2))], is_known=True)

    play.step(Tick(), config.REMEMBER_MS - 1)
    assert play.answers(pull("a", 2)) == []
    play.step(Tick(), 1)
    assert play.answers(pull("a", 2)) == [("a", "unknown", 5)]


def test_a_queue_that_nobody_waits_for_keeps_what_was_said_last():
    """Otherwise a repeated pull would be answered twice, and an arrival between read and pull be missed."""
    play = Play([(0, pull("a")), (0, arrival(6))], is_known=True)

    assert not play.queue.is_blank
    assert play.answers(pull("a")) == []
    assert play.answers(pull("b")) == [("b", "arrival", 5)]


# --- too many ---


FEW = Limits(max_holds_per_queue=2, max_lives_per_queue=3, max_filters_per_queue=40)


def test_beyond_a_queues_bound_the_newest_is_not_held():
    """Those who wait already go on waiting; there is room again when one of them was answered."""
    play = Play([(0, pull("a")), (0, pull("b"))], is_known=True, limits=FEW)

    assert play.answers(pull("c")) == [("c", "overflow", 5)]
    assert play.answers(cancel("a")) == [("a", "cancelled", 5)]
    assert play.answers(pull("c", 2)) == []
    assert play.held == ["billing:b#1:1", "billing:c#1:2"]


def test_beyond_a_shards_bound_the_newest_is_not_held():
    """The shard says how many are held elsewhere."""
    play = Play([(0, pull("a"))], is_known=True)

    assert play.answers(pull("b"), elsewhere=Load(pulls=DEFAULT_LIMITS.max_holds_per_shard - 1)) == [
        ("b", "overflow", 5)
    ]
    assert play.answers(pull("b", 2), elsewhere=Load(pulls=DEFAULT_LIMITS.max_holds_per_shard - 2)) == []


def test_who_is_held_already_needs_no_more_room():
    """Or a full shard could never be told of a newer offset."""
    full = Load(pulls=DEFAULT_LIMITS.max_holds_per_shard - 2, filters=DEFAULT_LIMITS.max_filters_per_shard - 36)
    play = Play([(0, pull("a", expression="paid")), (0, pull("b"))], is_known=True, limits=FEW)

    assert play.answers(pull("a", 2, from_offset=9, expression="lost"), elsewhere=full) == [("a", "superseded", 5)]
    assert play.held == ["billing:b#1:1", "billing:a#1:2"]


def test_so_many_characters_of_different_expressions_are_held_and_no_more():
    """Each costs every arrival something.  Whoever wants everything, or the same as somebody else, costs nothing."""
    play = Play([(0, pull("a", expression="paid"))], is_known=True, limits=FEW)

    assert play.answers(pull("b", expression="refund")) == [("b", "overflow", 5)]
    assert play.answers(pull("b", 2, expression="paid")) == []
    assert play.answers(pull("a", 2, expression="refund", from_offset=9)) == [
        ("a", "superseded", 5),
        ("a", "overflow", 9),
    ]
    assert play.answers(cancel("b", 2)) == [("b", "cancelled", 5)]
    assert play.answers(pull("b", 3, expression="refund")) == []


def test_whoever_wants_everything_is_held_however_many_filters_there_are():
    play = Play([(0, pull("a", expression="abcdefgh"))], is_known=True, limits=FEW)

    assert play.answers(pull("b")) == []


def test_only_so_many_lives_are_remembered_and_never_one_that_waits_is_forgotten():
    """Clients with a new name at every start must not fill the state; whoever waits must not be answered twice."""
    play = Play([(0, pull("a", from_offset=50))], is_known=True, limits=FEW)
    for number in range(10):
        play.step(pull(f"other-{number}", from_offset=0), 10)
        play.step(arrival(1 + number), 10)

    assert len(play.queue.answered) == 3
    assert play.answers(pull("a", from_offset=50)) == []
    assert [play.answers(pull(f"other-{number}", from_offset=0)) for number in (7, 8, 9)] == [[], [], []]
    assert play.answers(pull("other-6", from_offset=0)) == [("other-6", "arrival", 0)]


def test_where_a_shard_has_no_room_a_queue_is_not_made_known():
    """Its client comes again after a while, rather than at once and for ever."""
    play = Play()

    for full in (Load(entities=DEFAULT_LIMITS.max_pulled_queues), Load(lives=DEFAULT_LIMITS.max_lives_per_shard)):
        assert play.answers(pull("a"), elsewhere=full) == [("a", "overflow", 5)]
        assert play.queue.is_blank


# --- when the machine itself fails ---


def test_an_event_that_the_machine_fails_at_leaves_the_queue_as_it_was(monkeypatch):
    """In the middle of a change, after others of the same batch; also of a queue that was forgotten in between."""
    running = Running()
    running.shard = Shard(QUEUES, 0, 1, raises=False)
    running.append(pull("first", from_offset=0))
    running.pass_time(config.REMEMBER_MS)
    assert running.shard.names() == []
    for number in (1, 2):
        running.append(pull("a", number))
    load = running.shard.queue(ORDERS.key).load
    before = msgspec.msgpack.decode(msgspec.msgpack.encode(running.shard.queue(ORDERS.key)), strict=False)

    monkeypatch.setattr(pull_machine, "_has_room", lambda _, wish, __: 1 // (wish.expression == "*"))
    [refusal] = running.append(pull("a", 3, expression="paid"))
    monkeypatch.undo()

    assert (refusal.rule, "ZeroDivisionError" in refusal.detail) == ("internal", True)
    after = msgspec.msgpack.decode(msgspec.msgpack.encode(running.shard.queue(ORDERS.key)))
    assert after[:-1] == before[:-1]  # the last one is when it is due
    assert decode_state(running.shard.body()).load == load
    assert [wake.reason for wake in running.append(pull("a", 4))] == ["superseded"]


# --- what it costs: steps, not seconds ---

MANY = 2_000


class Counted(dict):
    """Holds that count how often one of them is visited."""

    visits = 0

    def __getitem__(self, key):
        self.visits += 1
        return super().__getitem__(key)

    def pop(self, *arguments):
        self.visits += 1
        return super().pop(*arguments)

    def values(self):
        self.visits += len(self)
        return super().values()

    def items(self):
        self.visits += len(self)
        return super().items()


class Watched:
    """A queue that many wait for, and the visits and evaluations that an event costs."""

    def __init__(self, monkeypatch, **wants) -> None:
        self.play = Play(is_known=True)
        for number in range(MANY):
            said = {name: value(number) for name, value in wants.items()}
            self.play.step(pull(f"c{number}", **{"timeout_ms": 600_000, **said}))
        self.play.queue = msgspec.msgpack.decode(msgspec.msgpack.encode(self.play.queue), type=HeldQueue)
        self.play.queue.holds = self.holds = Counted(self.play.queue.holds)
        assert self.play.queue.load.pulls == MANY
        self.evaluated = self.read = 0
        for name, counter in (("matches", "evaluated"), ("parse", "read")):
            monkeypatch.setattr(waiting_pulls, name, self._counting(counter, getattr(waiting_pulls, name)))

    def cost(self, event: QueueEvent, later_ms: int = 0) -> tuple[int, int, int]:
        """Let an event happen; return how many were woken, how many holds visited, how many expressions evaluated."""
        self.holds.visits = self.evaluated = 0
        woken = len(self.play.step(event, later_ms))
        return woken, self.holds.visits, self.evaluated

    def _counting(self, counter: str, function):
        def counted(*arguments):
            setattr(self, counter, getattr(self, counter) + 1)
            return function(*arguments)

        return counted


def test_a_cancel_visits_its_own_pull(monkeypatch):
    watched = Watched(monkeypatch)

    assert watched.cost(cancel(f"c{MANY - 1}")) == (1, 3, 0)
    assert watched.cost(cancel("nobody")) == (0, 0, 0)


def test_a_pull_visits_the_one_that_it_supersedes(monkeypatch):
    watched = Watched(monkeypatch)

    woken, visits, _ = watched.cost(pull(f"c{MANY - 1}", 2))
    assert (woken, visits <= 4) == (1, True)


def test_a_tick_visits_what_is_due(monkeypatch):
    """Ticks come each second to every queue; a coordinator that catches up has hundreds in a batch."""
    watched = Watched(monkeypatch, timeout_ms=lambda number: 1_000 if number == 7 else 600_000)

    assert watched.cost(Tick(), 999) == (0, 0, 0)
    woken, visits, _ = watched.cost(Tick(), 1)
    assert (woken, visits <= 3) == (1, True)
    assert watched.cost(Tick(), 1_000) == (0, 0, 0)


def test_an_arrival_evaluates_each_expression_once_and_visits_whom_it_concerns(monkeypatch):
    """A thousand clients of a group want the same; and whoever has skipped a message is not visited for the next."""
    watched = Watched(monkeypatch, expression=lambda number: "paid" if number % 2 else "lost")

    assert watched.cost(arrival(6, tags="new")) == (0, MANY, 2)
    assert watched.read == 2
    assert [watched.cost(arrival(offset, tags="new")) for offset in range(7, 99)] == [(0, 0, 2)] * 92
    assert watched.read == 2
    woken, visits, evaluated = watched.cost(arrival(99, tags="paid"))
    assert (woken, visits <= 2 * woken, evaluated) == (MANY // 2, True, 2)


def test_an_arrival_visits_nobody_who_waits_behind_it(monkeypatch):
    watched = Watched(monkeypatch, from_offset=lambda number: 1_000 + number, expression=lambda _: "paid")

    assert watched.cost(arrival(999, tags="paid")) == (0, 0, 0)
    assert watched.cost(arrival(1_001, tags="paid"))[0] == 1


def test_a_report_evaluates_nothing(monkeypatch):
    """It says nothing of a message, so it is for everybody."""
    watched = Watched(monkeypatch, expression=lambda number: f"tag-{number}")

    woken, visits, evaluated = watched.cost(report(6))
    assert (woken, visits <= 2 * woken, evaluated) == (MANY, True, 0)


@pytest.mark.parametrize("type_", ["TAG", "SQL92"])
def test_the_work_of_an_arrival_is_bounded_by_the_characters_that_are_held(monkeypatch, type_):
    """Whoever sends pulls with ever new expressions gets no more of them held than a queue may have."""
    play = Play(is_known=True)
    evaluated = []
    monkeypatch.setattr(waiting_pulls, "matches", lambda wanted, *_: evaluated.append(wanted.expression) or False)
    for number in range(3_000):
        expression = f"tag-{number} || x" if type_ == "TAG" else f"a{number} > 1 OR b IS NULL OR c IN ('1', '2')"
        play.step(pull(f"c{number}", expression=expression, expression_type=type_))
    play.step(arrival(6, tags="x", properties={"b": "1"}))

    assert len(evaluated) == len(set(evaluated))
    assert sum(map(len, evaluated)) <= DEFAULT_LIMITS.max_filters_per_queue
    assert len(play.held) == len(evaluated)


def test_outdated_deadlines_do_not_pile_up():
    """A client that is woken a thousand times leaves no trace of its deadlines."""
    play = Play(is_known=True)
    for number in range(1_000):
        play.step(pull("a", number, from_offset=number))
        play.step(arrival(number + 1))

    assert len(play.queue.waiting._due) <= 2 * len(play.held) + 64


def test_a_wake_is_small_whatever_the_names_are():
    """One arrival may wake 20,000: inherent, so each must be small."""
    queue = Queue("t" * 249, '"' * 255, 2**31 - 1)
    longest = Wake(
        shard="queues-2147483647.9223372036854775807",
        seq=2**63 - 1,
        at_ms=2**53,
        cause=Cause("t" * 249, 2**31 - 1, 2**63 - 1),
        request_id="i" * 64 + ":" + "9" * 18,
        group_id="g" * 255,
        client_id="c" * 255,
        queue=queue,
        reason="superseded",
        next_offset=2**63 - 1,
        held_ms=2**53,
    )

    assert len(encode_decision(longest)) <= 2_048


# --- whom to believe ---


@given(plan=plans, end=st.integers(0, 9), other=st.integers(0, 9))
def test_two_reports_heal_whatever_was_said_before(plan, end, other):
    """A lie, a late report, a truncation: whoever pulls then is held at the end, and woken by the next message."""
    play = Play([*plan, (0, pull("first", 99, from_offset=0))])
    play.step(report(other), 1_000)
    for _ in range(2):
        play.step(report(end), config.CONFIRM_MS)

    assert play.queue.end.reported_or_hinted(play.now_ms) == end
    assert play.answers(pull("z", from_offset=end)) == []
    assert ("z", "arrival", end + 1) in play.answers(report(end + 1))


# --- what is refused ---


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"expression": "amount >", "expression_type": "SQL92"}, "Invalid MessageSelector"),
        ({"expression": "||"}, "has separators and no tag"),
        ({"instance_id": "another"}, "it must begin with the instance_id 'another'"),
    ],
    ids=["a condition with a mistake", "no tags", "another's request"],
)
def test_a_pull_that_cannot_be_held_is_refused_and_leaves_no_trace(wish, reason):
    """Its sender hears of it, and may send a better one with the same number."""
    play = Play()

    [refusal] = play.step(msgspec.structs.replace(pull("a"), **wish))

    assert (type(refusal), refusal.rule, refusal.group_id, refusal.client_id) == (Rejected, "pull", "billing", "a")
    assert reason in refusal.detail
    assert play.queue.is_blank
    play.step(pull("first"))
    assert play.answers(pull("a")) == []
    assert play.held == ["billing:a#1:1"]
