"""Does everybody have what it should, once nothing goes wrong any more?"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.checks.evidence import Evidence
from tests.support.simulation.groups.checks.roll import Gathering, Roll
from tests.support.simulation.groups.group_plan import TOPICS
from tests.support.simulation.groups.known_strategies import CARELESS, PARAMS
from wakeroll_model.config import REBALANCE_INTERVAL_MS, TICK_MS
from wakeroll_model.decisions import Offset, Rebalance
from wakeroll_model.events import Route
from wakeroll_model.queue import Queue
from wakeroll_model.slices import cut
from wakeroll_model.strategies import allocate, needs_of

RULE = "nobody reads"


def check(evidence: Evidence) -> Iterator[Broken]:
    """2. In the calm, every queue of a topic that a living client subscribes has somebody who reads it.

    In broadcasting that is every living client itself.  Left out are only queues that CARELESS leaves out, and says so.
    """
    probe_ms = evidence.plan.probe_ms
    read = {(one.scope, one.queue) for one in evidence.seen.handlings if one.from_ms >= probe_ms}
    for queue in evidence.world.probes:
        for scope in sorted({process.scope for process in evidence.world.living() if queue.topic in process.topics}):
            # Open: nobody sets right what a broadcasting client has committed beyond the end.  And a far commit of a
            # queue that lost its tail says in its owner's name that the owner has found the new end: nobody tells it.
            is_lied_of = evidence.is_twisted(scope, queue) and (
                evidence.plan.broadcasts(scope.partition("/")[0]) or evidence.is_forged_end(scope, queue)
            )
            if (scope, queue) not in read and (scope, queue) not in evidence.left_out and not is_lied_of:
                yield Broken(RULE, probe_ms, f"nobody of {scope} reads {queue}", queue, scope.partition("/")[0])
    for group_id, says in _not_as_it_should_be(evidence):
        yield Broken(RULE, probe_ms, says, None, group_id)


def _not_as_it_should_be(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Compare who owns what, by the record, with what the strategy says of those who are there."""
    for book in evidence.last_books:
        roll, routes = Roll(book), {one.topic: one for one in book.known(Route)}
        committed = dict[tuple[str, Queue], int]()
        moved_ms: dict[str, int] = {}
        """Group -> the shard's clock when it had a new target, or its lag changed."""
        clock_ms = 0
        for page in book.pages:
            if page.at_ms > evidence.plan.probe_ms:
                break
            clock_ms = page.clock_ms
            roll.take(page)
            if isinstance(page.event, Route):
                if page.event != routes.get(page.event.topic):
                    moved_ms = dict.fromkeys(roll.groups, clock_ms)
                routes[page.event.topic] = page.event
            for decision in page.decisions:
                if isinstance(decision, Offset) and decision.deleted:
                    committed.pop((decision.group_id, decision.queue), None)
                elif isinstance(decision, Offset):
                    committed[decision.group_id, decision.queue] = decision.offset
                if isinstance(decision, Offset | Rebalance):
                    moved_ms[decision.group_id] = clock_ms
        for group_id, group in roll.groups.items():
            yield from ((group_id, says) for says in _not_told(evidence, group_id, group))
            # By lag, the timer moves a few queues at a time, and looks again later.
            by_lag = "lags" in _needs(group.strategy)
            looked = clock_ms - moved_ms.get(group_id, 0) > REBALANCE_INTERVAL_MS + 2 * TICK_MS
            is_planned = group.members and not group.is_broadcasting and group.strategy != CARELESS
            if is_planned and (looked or not by_lag):
                offsets = {queue: offset for (group_, queue), offset in committed.items() if group_ == group_id}
                yield from ((group_id, says) for says in _not_as_planned(group, routes, offsets))


def _needs(strategy: str) -> tuple[str, ...]:
    return tuple(needs_of(strategy)) if strategy not in ("", CARELESS) else ()


def _not_told(evidence: Evidence, group_id: str, group: Gathering) -> Iterator[str]:
    """Each living client is a member by one of its lives; it has heard its last assignment, and holds just that.

    Of two processes under one client_id, one waits for the other.
    """
    lives: dict[str, set[str]] = {}
    for process in evidence.world.living():
        if process.group_id == group_id:
            lives.setdefault(process.client_id, set()).add(process.client.instance_id)
    here = {client_id: member.life for client_id, member in group.members.items()}
    for client_id in sorted(lives.keys() | here.keys()):
        if here.get(client_id) not in lives.get(client_id, set()):
            yield f"{client_id} lives as {sorted(lives.get(client_id, set()))}, and is in as {here.get(client_id)}"
    for client_id, member in group.members.items():
        if member.told is None:
            yield f"{member.life} is told nothing"
        elif member.said.epoch < member.told.epoch:
            yield f"{member.life} shows epoch {member.said.epoch}; it was told {member.told.epoch}"
        elif held := [queue for queue in member.told.revoke if group.owners.get(queue) == client_id]:
            yield f"{member.life} still holds {held[0]}"


class Sliced(NamedTuple):
    """A queue or a slice of one, as its route describes it."""

    queue: Queue
    room: str
    max_offset: int


def _not_as_planned(group: Gathering, routes: dict[str, Route], offsets: dict[Queue, int]) -> Iterator[str]:
    """Each queue belongs to whom the strategy gives it, asked about each topic among its subscribers."""
    wanted = {name: sorted(member.topics) for name, member in group.members.items() if name not in group.leaving}
    topics = [topic for topic in TOPICS if any(topic in subscribed for subscribed in wanted.values())]
    routed = [one for topic in topics if topic in routes for one in routes[topic].queues]
    queues = [
        Sliced(piece, one.room, one.max_offset)
        for one in routed
        for piece in cut(one.queue, group.slices.get(one.topic, 1))
    ]
    params = {
        "consumer_rooms": {name: group.members[name].said.room for name in wanted},
        "queue_rooms": {one.queue: one.room for one in queues},
        "weights": {name: group.members[name].said.weight for name in wanted},
        "lags": {
            one.queue: -(-max(0, one.max_offset - offsets[one.queue]) // one.queue.slices)
            for one in queues
            if one.queue in offsets
        },
    }
    needed = {name: params[name] for name in _needs(group.strategy)} | PARAMS
    shares = allocate(
        group.strategy,
        [one.queue for one in queues],
        wanted,
        needed,
        subscriptions=wanted,
        previous=group.owners,
    )
    planned = {queue: client_id for client_id, share in shares.items() for queue in share}
    for queue in sorted(planned.keys() | group.owners.keys()):
        if planned.get(queue) != group.owners.get(queue):
            yield f"{queue} is {group.owners.get(queue)}'s; {group.strategy} gives it to {planned.get(queue)}"
