"""The queue machine, under whatever clients, producers and observers may do to it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_log import QUEUES, ControlLog
from model import config, invariants
from model.decisions import Rejected
from model.events import Arrival, Pull, Tick
from model.replay import encode_decision
from model.shard import Shard, ShardState
from queue_histories import ORDERS, PARTITION, Play, arrival, arrivals, cancel, events, plans, pull

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
def test_no_deadline_is_later_than_it_is_noted(plan):
    """A tick decodes a queue only when its deadline has come: one that is noted too late is kept too late."""
    play = Play()
    for later_ms, event in plan:
        play.step(event, later_ms)
        assert play.queue.due_ms <= play.first_deadline_ms


@given(plan=plans, early_ms=st.integers(1, 30_000))
def test_a_tick_with_nothing_due_changes_nothing(plan, early_ms):
    """Whether a queue is looked at before its time - for another's deadline, or its own old one - must not show."""
    play = Play(plan)
    before, now_ms = msgspec.structs.asdict(play.queue), play.now_ms
    play.now_ms = max(now_ms, min(play.first_deadline_ms, now_ms + 60_000) - early_ms)

    if play.now_ms < play.first_deadline_ms:
        assert play.step(Tick()) == []
        assert {**msgspec.structs.asdict(play.queue), "due_ms": 0} == {**before, "due_ms": 0}
        assert play.queue.due_ms == play.first_deadline_ms


@given(plan=plans, together=st.lists(arrivals.filter(lambda one: not one.truncated), max_size=6), random=st.randoms())
def test_arrivals_may_come_in_any_order(plan, together, random):
    """Producers and observers know nothing of each other; an order of theirs must not decide who is woken."""
    shuffled = random.sample(together, len(together))
    plays = [Play([*plan, *((0, one) for one in order)]) for order in (together, shuffled)]

    assert sorted(plays[0].answered) == sorted(plays[1].answered)
    assert plays[0].held == plays[1].held
    assert plays[0].queue.next_offset == plays[1].queue.next_offset


@given(plan=plans)
def test_a_wake_never_goes_back_unless_the_queue_was_truncated(plan):
    """Where to ask from next is at least where it asked from, and never above what anybody has told."""
    play = Play()
    asked_from, told = {}, [0]
    for later_ms, event in plan:
        if isinstance(event, Pull) and event.queue == ORDERS:
            told.append(asked_from.setdefault(event.request_id, event.from_offset))
        elif isinstance(event, Arrival):
            told.append(event.next_offset)
        for wake in play.step(event, later_ms):
            assert wake.next_offset <= max(told)
            assert wake.reason == "truncated" or wake.next_offset >= asked_from[wake.request_id]


@given(plan=plans, cuts=st.lists(st.integers(0, 40)))
def test_batches_of_a_shard_of_queues_may_be_cut_anywhere(plan, cuts):
    """A retried, a smaller or a larger batch must not change a byte of what was decided."""
    log, at_ms, records = ControlLog(queues=True), 0, []
    for later_ms, event in plan:
        at_ms += later_ms
        records += [one for one in log.append(event, at_ms) if (one.topic, one.partition) == (QUEUES, PARTITION)]

    def decided(cuts):
        shard, decisions = Shard(QUEUES, PARTITION, 4, raises=True), []
        for number, record in enumerate(records):
            if number in cuts:
                shard = Shard(QUEUES, PARTITION, 4, shard.body(), raises=True)
            decisions += map(encode_decision, shard.apply(record))
        state = decode_state(shard.body())
        assert state.held == sum(len(shard.queue(key).holds) for key in shard.names())
        return decisions

    assert decided([]) == decided(cuts) == decided(range(len(records)))


# --- too many ---


@pytest.fixture
def small_bounds(monkeypatch):
    monkeypatch.setattr(config, "MAX_HOLDS_PER_QUEUE", 2)
    monkeypatch.setattr(config, "MAX_LAST_PULLS", 3)


@pytest.mark.usefixtures("small_bounds")
def test_beyond_a_queues_bound_the_newest_is_not_held():
    """Those who wait already go on waiting; there is room again when one of them was answered."""
    play = Play([(0, pull("a")), (0, pull("b"))])

    assert play.answers(pull("c")) == [("c", "overflow", 5)]
    assert play.answers(cancel("a")) == [("a", "cancelled", 5)]
    assert play.answers(pull("c", 2)) == []
    assert play.held == ["billing:b#1:1", "billing:c#1:2"]


def test_beyond_a_shards_bound_the_newest_is_not_held():
    """The shard says how many more it may hold."""
    play = Play([(0, pull("a"))])

    assert play.answers(pull("b"), places=0) == [("b", "overflow", 5)]
    assert play.answers(pull("b", 2), places=1) == []


@pytest.mark.usefixtures("small_bounds")
def test_who_is_held_already_needs_no_more_room():
    """Or a full shard could never be told of a newer offset."""
    play = Play([(0, pull("a")), (0, pull("b"))])

    assert play.answers(pull("a", 2, from_offset=9), places=0) == [("a", "superseded", 5)]
    assert play.held == ["billing:b#1:1", "billing:a#1:2"]


@pytest.mark.usefixtures("small_bounds")
def test_only_so_many_lives_are_remembered_and_never_one_that_waits_is_forgotten():
    """Clients with a new name at every start must not fill the state; whoever waits must not be answered twice."""
    play = Play([(0, pull("a", from_offset=50))])
    for number in range(10):
        play.step(pull(f"other-{number}", from_offset=0), 10)
        play.step(arrival(1 + number), 10)

    assert list(play.queue.last) == [f"billing@{one} billing:{one}#1" for one in ("a", "other-8", "other-9")]
    assert play.answers(pull("a", from_offset=50)) == []
    assert play.answers(pull("other-9", from_offset=0)) == []


def test_a_queue_that_nobody_waits_for_keeps_what_was_said_last():
    """Otherwise a repeated pull would be answered twice, and an arrival between read and pull be missed."""
    play = Play([(0, pull("a")), (0, arrival(6))])

    assert not play.queue.is_blank
    assert play.answers(pull("a")) == []
    assert play.answers(pull("b")) == [("b", "arrival", 6)]


# --- what is refused ---


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"expression": "amount >", "expression_type": "SQL92"}, "Invalid MessageSelector"),
        ({"expression": "||"}, "separates tags and names none"),
        ({"instance_id": "another"}, "it must begin with the instance, 'another'"),
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
    assert play.answers(pull("a")) == []
    assert play.held == ["billing:a#1:1"]
