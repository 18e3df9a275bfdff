"""Random histories of queues: what those who wait, producers and observers might do, in any order and at any pace."""

from typing import Any

from hypothesis import strategies as st

from wakeroll_model import config
from wakeroll_model.config import DEFAULT_LIMITS, Limits
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.events import Arrival, Cancel, Pull, QueueEvent, Tick
from wakeroll_model.held_queue import HeldQueue
from wakeroll_model.pull_machine import step
from wakeroll_model.queue import Queue
from wakeroll_model.shard_clock import Moment
from wakeroll_model.shard_load import NOTHING, Load

ORDERS = Queue("orders", "", 0)
ELSEWHERE = Queue("orders", "", 4)
"""In the same partition of four."""
PARTITION = 1


def pull(client_id: str = "a", number: int = 1, *, life: int = 1, group_id: str = "billing", **wants: Any) -> Pull:
    """Return a pull of a client's life: of `ORDERS` from 5 on, if it does not want something else."""
    instance_id = f"{group_id}:{client_id}#{life}"
    return Pull(
        request_id=f"{instance_id}:{number}",
        group_id=group_id,
        client_id=client_id,
        instance_id=instance_id,
        **{"queue": ORDERS, "from_offset": 5, **wants},
    )


def cancel(client_id: str = "a", number: int = 1, *, life: int = 1, group_id: str = "billing", **of: Any) -> Cancel:
    """Return the cancel of such a pull."""
    request_id = f"{group_id}:{client_id}#{life}:{number}"
    return Cancel(request_id=request_id, group_id=group_id, client_id=client_id, **{"queue": ORDERS, **of})


def arrival(next_offset: int = 6, **said: Any) -> Arrival:
    """Return a producer's arrival of a message at `ORDERS`; by itself it says nothing else."""
    return Arrival(**{"queue": ORDERS, **said}, next_offset=next_offset)


def report(next_offset: int = 6, **said: Any) -> Arrival:
    """Return an observer's report of the end of `ORDERS`."""
    return arrival(next_offset, **{"observer": "o1", **said})


_queues = st.sampled_from([ORDERS, ORDERS, ELSEWHERE])
_whose = (st.sampled_from("abc"), st.integers(0, 9))
_which = {"life": st.sampled_from([1, 1, 2]), "group_id": st.sampled_from(["billing", "audit"]), "queue": _queues}
_tag_wishes = st.builds(
    pull,
    *_whose,
    **_which,
    from_offset=st.integers(0, 8),
    timeout_ms=st.sampled_from([600, 5_000, 20_000]),
    expression=st.sampled_from(["*", "*", "paid", "paid||lost"]),
)
_condition_wishes = st.builds(
    pull, *_whose, **_which, expression=st.just("amount > 10"), expression_type=st.just("SQL92")
)

hints = st.builds(
    arrival,
    st.sampled_from([*range(10), 2**63 - 1]),
    queue=_queues,
    tags=st.sampled_from([None, "", "paid", "lost"]),
    properties=st.sampled_from([None, {}, {"amount": "7"}, {"amount": "70"}]),
)
reports = st.builds(report, st.integers(0, 9), queue=_queues, observer=st.sampled_from(["o1", "o2"]))
arrivals = st.one_of(hints, hints, reports)
events = st.one_of(
    _tag_wishes, _tag_wishes, _condition_wishes, arrivals, st.builds(cancel, *_whose, **_which), st.just(Tick())
)
plans = st.lists(st.tuples(st.sampled_from([0, 1, 700, 2_000, 5_000, 61_000, 300_000]), events), max_size=40)
"""Lists of (ms since the event before, event)."""


class Play:
    """The machine of `ORDERS`, and what it decided; what is about other queues does not reach it."""

    def __init__(
        self,
        plan: list[tuple[int, QueueEvent]] | None = None,
        *,
        is_known: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Play a plan; `is_known`: somebody has pulled the queue before that."""
        self.limits = limits
        self.queue = HeldQueue(key=ORDERS.key)
        self.now_ms = 0
        self.decisions: list[AnyDecision] = []
        if is_known:
            self.step(pull("first", from_offset=0))
        for later_ms, event in plan or ():
            self.step(event, later_ms)

    def step(self, event: QueueEvent, later_ms: int = 0, elsewhere: Load = NOTHING) -> list[AnyDecision]:
        """Let an event happen, so much later than the one before; `elsewhere`: what other queues have."""
        self.now_ms += later_ms
        if not isinstance(event, Tick) and event.queue != ORDERS:
            return []
        moment = Moment(self.now_ms, self.now_ms, True)
        decisions = step(self.queue, event, moment, elsewhere + self.queue.load, self.limits)
        for decision in decisions:
            decision.at_ms = self.now_ms
        self.decisions += decisions
        if self.queue.is_blank:
            self.queue = HeldQueue(key=ORDERS.key)
        return decisions

    def answers(self, event: QueueEvent, later_ms: int = 0, elsewhere: Load = NOTHING) -> list[tuple[str, str, int]]:
        """Let an event happen; return who is woken, why, and from where to ask next."""
        return [(one.client_id, one.reason, one.next_offset) for one in self.step(event, later_ms, elsewhere)]

    @property
    def held(self) -> list[str]:
        """The requests that are held, in their order."""
        return [hold.request_id for hold in self.queue.holds.values()]

    @property
    def answered(self) -> list[str]:
        """The requests that were answered, in the order of the answers."""
        return [one.request_id for one in self.decisions]

    @property
    def first_deadline_ms(self) -> int:
        """When a tick has something to do next."""
        holds = self.queue.holds.values()
        ends = [hold.until_ms for hold in holds]
        skips = [hold.skipped_ms + config.SKIP_MS for hold in holds if hold.skipped_ms >= 0]
        lives = [answered.at_ms + config.REMEMBER_MS for answered in self.queue.answered.values()]
        return min([*ends, *skips, *lives], default=config.NEVER_MS)
