"""What must hold in every world of long polling, judged by the log, the messages and the clients."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from coordinator import Coordinator
from model import invariants
from model.decisions import Rejected, Wake
from model.held_queue import HeldQueue
from model.queue import Queue
from model.replay import encode_decision, replay
from model.shard import ShardState
from polling.answers import Answer, answers, read_log
from polling.bounds import small_bounds
from polling.plan import PARTITIONS
from polling.world import World

_decode_state = msgspec.msgpack.Decoder(ShardState).decode
_decode_queue = msgspec.msgpack.Decoder(HeldQueue).decode


@dataclass(frozen=True)
class Broken:
    """A rule that does not hold; `partition` and `offset` say where in the log, or -1."""

    rule: str
    says: str
    partition: int = -1
    offset: int = -1
    queue: Queue | None = None


def broken(world: World) -> list[Broken]:
    """Return every rule that a world breaks."""
    found = [*refused(world), *not_replayable(world), *missed(world)]
    for coordinator in world.coordinators:
        log = read_log(coordinator.log, world.events[coordinator.partition])
        due = answers(log)
        pulls = {happened.offset: happened.event for happened in log}
        found += answered(coordinator, pulls, due)
        found += counted(coordinator, pulls, due)
        found += (Broken("invariants", says) for says in invariants.broken(coordinator.decisions))
    return found


def answered(coordinator: Coordinator, pulls: dict, due: dict[int, Answer]) -> Iterator[Broken]:
    """Every pull has its one answer, at the right record and for the right reason; nothing else is answered.

    Whoever came first is told first, queue by queue, so that nobody is always the last.
    """
    asked = {pull.request_id: offset for offset, pull in pulls.items() if offset in due}
    open_answers = {offset: answer for offset, answer in due.items() if answer.offset < len(coordinator.log)}
    before: tuple[int, Queue | None, int] = (-1, None, -1)
    for wake in coordinator.decisions:
        if not isinstance(wake, Wake):
            continue
        at = asked.get(wake.request_id, -1)
        answer, cause = open_answers.pop(at, None), wake.cause.offset
        where = (coordinator.partition, cause, wake.queue)
        if answer is None:
            yield Broken("answered once", f"{wake.request_id} is answered, {wake.reason}; nothing is due", *where)
            continue
        given = Answer(cause, wake.reason, wake.next_offset, wake.held_ms)
        if given != answer:
            yield Broken("right answer", f"{wake.request_id} gets {given}; right is {answer}", *where)
        pull = pulls[at]
        if (wake.group_id, wake.client_id, wake.queue) != (pull.group_id, pull.client_id, pull.queue):
            yield Broken("right answer", f"{wake.request_id} is answered to {wake.group_id}/{wake.client_id}", *where)
        if wake.reason != "truncated" and wake.next_offset < pull.from_offset:
            says = f"{wake.request_id} asks from {pull.from_offset}, and gets {wake.next_offset}"
            yield Broken("never back", says, *where)
        if before[:2] == (cause, wake.queue) and at < before[2]:
            yield Broken("in order", f"{wake.request_id} is woken after one that came later", *where)
        before = (cause, wake.queue, at)
    for at, answer in open_answers.items():
        pull = pulls[at]
        says = f"{pull.request_id} has no answer; right is {answer}"
        yield Broken("answered once", says, coordinator.partition, answer.offset, pull.queue)


def counted(coordinator: Coordinator, pulls: dict, due: dict[int, Answer]) -> Iterator[Broken]:
    """After each batch a shard holds what is not answered yet, and counts right; no deadline is later than noted."""
    for offset, body in coordinator.saved:
        state = _decode_state(body)
        queues = {key: _decode_queue(entity) for key, entity in state.entities.items()}
        held = sorted(hold.request_id for queue in queues.values() for hold in queue.holds.values())
        expected = sorted(pulls[at].request_id for at, answer in due.items() if at < offset <= answer.offset)
        where = (coordinator.partition, offset - 1)
        if held != expected:
            yield Broken("holds", f"it holds {held}; unanswered are {expected}", *where)
        if state.held != len(held):
            yield Broken("counts", f"it counts {state.held} pulls; its queues hold {len(held)}", *where)
        for key, queue in queues.items():
            first_ms = min((hold.until_ms for hold in queue.holds.values()), default=queue.due_ms)
            noted_ms = state.next_due_ms, state.deadlines[key]
            if not noted_ms[0] <= noted_ms[1] <= first_ms:
                says = f"the first deadline of {key} is {first_ms}; noted are {noted_ms}"
                yield Broken("deadlines", says, *where, Queue.of_key(key))


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
                    yield Broken("missed", says, queue=queue)


def refused(world: World) -> Iterator[Broken]:
    """What is no event, or not its sender's, is rejected; nothing else is."""
    rejected = [
        (decision.cause.partition, decision.cause.offset)
        for coordinator in world.coordinators
        for decision in coordinator.decisions
        if isinstance(decision, Rejected)
    ]
    if sorted(rejected) != sorted(world.refused):
        yield Broken("refused", f"rejected are {sorted(rejected)}; right is {sorted(world.refused)}")


def not_replayable(world: World) -> Iterator[Broken]:
    """The same records give the same bytes: repeated, cut into other batches, or all at once."""
    for coordinator in world.coordinators:
        with small_bounds():
            again = [encode_decision(decision) for decision in replay(coordinator.log, PARTITIONS)]
        if again != coordinator.encoded:
            yield Broken("not replayable", f"partition {coordinator.partition} replayed decides otherwise")
        for says in coordinator.differing:
            yield Broken("not replayable", f"a repeated batch decides otherwise: {says}")
