"""What must hold in every world of long polling, judged by the log, the messages and the clients."""

from collections.abc import Iterator

import msgspec

from tests.support.histories.plain_queues import Answer, PlainQueues
from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.frame.simulated_coordinator import Coordinator
from tests.support.simulation.polling.bounds import small_bounds
from tests.support.simulation.polling.message_queues import may_want
from tests.support.simulation.polling.polling_plan import OBSERVED, TOLD
from tests.support.simulation.polling.polling_world import World
from wakeroll_model import invariants
from wakeroll_model.decisions import Rejected, Wake
from wakeroll_model.events import AnyEvent, Tick
from wakeroll_model.held_queue import HeldQueue
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision, replay
from wakeroll_model.shard import Shard
from wakeroll_model.shard_clock import ShardClock
from wakeroll_model.shard_load import NOTHING
from wakeroll_model.shard_state import ShardState

FIGURES_BYTES = 32
"""By so much a state is larger than a fresh one because its numbers are: seq, offset, clock."""

PROMPT_MS = {OBSERVED: 5_000, TOLD: 12_000}
"""In the calm, a client reads a message within this time; of the second topic it skips some for 5 s, and observers look
at it every 5 s."""

Where = tuple[int, int, int]
"""A record: when it was appended, in world time; partition, offset."""

_decode_state = msgspec.msgpack.Decoder(ShardState).decode
_decode_queue = msgspec.msgpack.Decoder(HeldQueue).decode


def judge(world: World) -> list[Broken]:
    """Return every rule that a world breaks; first what is wrong in the log, in the order of its offsets."""
    found = [*refused(world), *not_replayable(world), *missed(world), *late(world)]
    for coordinator in world.coordinators:
        with small_bounds():
            found += judged(world, coordinator)
        found += shrunk(coordinator)
        found += (Broken("invariants", 0, says) for says in invariants.broken_numbering(coordinator.decisions))
    return sorted(found, key=lambda one: (one.offset < 0, one.offset))


def judged(world: World, coordinator: Coordinator) -> Iterator[Broken]:
    """Every record has the answers that `PlainQueues` gives; after each batch the state says the same as its state."""
    plain, clock = PlainQueues(may_want), ShardClock()
    given: dict[int, list[Answer]] = {}
    for decision in coordinator.decisions:
        if isinstance(decision, Wake):
            given.setdefault(decision.cause.offset, []).append(_answer_of(decision))
    bodies = dict(coordinator.saved)
    appended = world.broker.appended[coordinator.partition]
    for record, (at_ms, event) in zip(coordinator.log, appended, strict=True):
        now_ms = _now_ms(clock, record, event)
        due = [] if event is None else plain.happen(event, now_ms)
        where = at_ms, coordinator.partition, record.offset
        yield from wrong(where, given.get(record.offset, []), due)
        if record.offset + 1 in bodies:
            yield from counted(where, bodies[record.offset + 1], plain)


def wrong(where: Where, given: list[Answer], due: list[Answer]) -> Iterator[Broken]:
    """Every pull has its one answer, at the right record and for the right reason; nothing else is answered.

    Whoever came first is told first, queue by queue, so that nobody is always the last.
    """
    if given == due:
        return
    for answer in sorted({*given, *due}, key=lambda one: (one.queue, one.request_id)):
        if given.count(answer) != due.count(answer):
            says = f"{answer} is given {given.count(answer)} times; right is {due.count(answer)}"
            yield _broken("right answer", where, says, Queue.of_key(answer.queue))
    if sorted(map(repr, given)) == sorted(map(repr, due)):
        says = f"answered are {[one.request_id for one in given]}; right is {[one.request_id for one in due]}"
        yield _broken("in order", where, says)


def counted(where: Where, body: bytes, plain: PlainQueues) -> Iterator[Broken]:
    """After a batch a shard has what is not answered yet, and counts right; no deadline is later than noted."""
    state = _decode_state(body)
    queues = {key: _decode_queue(entity) for key, entity in state.entities.items()}
    held = {key: [hold.request_id for hold in queue.holds.values()] for key, queue in queues.items()}
    expected = {key: [one.pull.request_id for one in queue.holds] for key, queue in plain.known.items()}
    if held != expected:
        yield _broken("holds", where, f"it holds {held}; unanswered are {expected}")
    if state.load != sum((queue.load for queue in queues.values()), NOTHING):
        says = f"it counts {state.load}; its queues have {[one.load for one in queues.values()]}"
        yield _broken("counts", where, says)
    for key, queue in queues.items():
        yield from (_broken("parts", where, says, Queue.of_key(key)) for says in invariants.broken_queue(queue))
        if not state.next_due_ms <= state.deadlines[key] == queue.due_ms:
            says = f"{key} is due at {queue.due_ms}; noted are {state.deadlines[key]}, {state.next_due_ms}"
            yield _broken("deadlines", where, says, Queue.of_key(key))


def shrunk(coordinator: Coordinator) -> Iterator[Broken]:
    """Some time after everybody is gone, the state is that of a shard that nobody ever asked anything."""
    _, body = coordinator.saved[-1]
    fresh = Shard(coordinator.log[0].topic, coordinator.partition, World.partitions)
    first_tick = next(one for one in coordinator.log if b'"limits"' in (one.value or b""))
    for record in dict.fromkeys((coordinator.log[0], first_tick)):
        fresh.apply(record)
    state = _decode_state(body)
    if state.entities or state.deadlines or state.load != NOTHING:
        says = f"it keeps {sorted(state.entities)}, deadlines of {sorted(state.deadlines)}, {state.load}"
        yield Broken("shrunk", 0, says, partition=coordinator.partition)
    if len(body) > len(fresh.body()) + FIGURES_BYTES:
        says = f"its state has {len(body)} bytes, a fresh one {len(fresh.body())}"
        yield Broken("shrunk", 0, says, partition=coordinator.partition)


def missed(world: World) -> Iterator[Broken]:
    """In the calm, whoever goes on has read every message of its queues; those that it does not want, too.

    But for what came where it had read already when the queue was cut, before anybody told it.
    """
    for name, poller in world.pollers.items():
        for queue, reading in poller.readings.items():
            for offset, message in enumerate(world.messages[queue].log):
                if message is None or message.number in reading.has_read:
                    continue
                may_be_blind = message.number <= world.last_before_probe
                if not (may_be_blind and any(cut <= offset < end for cut, end in reading.blind)):
                    says = f"{name} has not read {queue} at {offset}; it is at {reading.position}"
                    yield Broken("missed", 0, says, queue)


def late(world: World) -> Iterator[Broken]:
    """In the calm, a new message is read soon: its readers are woken, rather than answered at their deadlines."""
    for name, poller in world.pollers.items():
        for queue, reading in poller.readings.items():
            for number, at_ms in reading.has_read.items():
                if number > world.last_before_probe and at_ms > world.plan.probe_ms + PROMPT_MS[queue.topic]:
                    says = f"{name} has read message {number} of {queue} {at_ms - world.plan.probe_ms} ms after it came"
                    yield Broken("late", 0, says, queue)


def refused(world: World) -> Iterator[Broken]:
    """What is no event, or not its sender's, is rejected; nothing else is."""
    rejected = [
        (decision.cause.partition, decision.cause.offset)
        for coordinator in world.coordinators
        for decision in coordinator.decisions
        if isinstance(decision, Rejected)
    ]
    if sorted(rejected) != sorted(world.refused):
        yield Broken("refused", 0, f"rejected are {sorted(rejected)}; right is {sorted(world.refused)}")


def not_replayable(world: World) -> Iterator[Broken]:
    """The same records give the same bytes: repeated, cut into other batches, or all at once."""
    for coordinator in world.coordinators:
        with small_bounds():
            again = [encode_decision(decision) for decision in replay(coordinator.log, world.partitions)]
        if again != coordinator.encoded:
            yield Broken("not replayable", 0, f"partition {coordinator.partition} replayed decides otherwise")
        for says in coordinator.differing:
            yield Broken("not replayable", 0, f"a repeated batch decides otherwise: {says}")


def _broken(rule: str, where: Where, says: str, queue: Queue | None = None) -> Broken:
    at_ms, partition, offset = where
    return Broken(rule, at_ms, says, queue, partition=partition, offset=offset)


def _now_ms(clock: ShardClock, record: Record, event: AnyEvent | None) -> int:
    """Return the shard's clock at a record; one that is no event moves it, too."""
    return clock.read(record.timestamp_ms, event if isinstance(event, Tick) else None).now_ms


def _answer_of(wake: Wake) -> Answer:
    names = wake.request_id, wake.group_id, wake.client_id, wake.queue.key
    return Answer(*names, wake.reason, wake.next_offset, wake.held_ms)
