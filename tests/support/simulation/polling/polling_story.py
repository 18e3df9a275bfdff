"""The story of a failing world of long polling: its faults, and the log of the queue in question."""

from collections.abc import Iterator

from tests.support.control_log import START_MS
from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.polling.polling_world import World
from wakeroll_model.decisions import Rejected, Wake
from wakeroll_model.events import AnyEvent, Arrival, Cancel, Pull, Tick

LINES = 40
"""Of the log, so many lines up to the broken rule."""


def story(world: World, first: Broken) -> Iterator[str]:
    """Tell the faults of a world, and the end of its log up to a broken rule."""
    yield from (f"  {fault.at_ms / 1000:8.3f}s  FAULT {fault}" for fault in world.plan.faults)
    yield from list(_log(world, first))[-LINES:]


def _log(world: World, first: Broken) -> Iterator[str]:
    """Tell what the log says of the queue in question, with the decisions below; times are the log's."""
    for coordinator in world.coordinators:
        if first.offset >= 0 and coordinator.partition != first.partition:
            continue
        caused: dict[int, list[str]] = {}
        for decision in coordinator.decisions:
            if not (isinstance(decision, Wake) and first.queue not in (None, decision.queue)):
                caused.setdefault(decision.cause.offset, []).append(_answer(decision))
        for record, event in zip(coordinator.log, world.broker.events(coordinator.partition), strict=True):
            decided = caused.get(record.offset, [])
            is_about = event is None or (not isinstance(event, Tick) and first.queue in (None, event.queue))
            if (is_about or decided) and (first.offset < 0 or record.offset <= first.offset):
                at_ms = record.timestamp_ms - START_MS
                yield f"  {at_ms / 1000:8.3f}s  {coordinator.partition}/{record.offset} {_words(event)}"
                yield from (f"             -> {answer}" for answer in decided)


def _words(event: AnyEvent | None) -> str:
    match event:
        case Pull():
            wants = f"{event.expression} for {event.timeout_ms} ms"
            return f"pull {event.request_id} of {event.queue} from {event.from_offset}: {wants}"
        case Cancel():
            return f"cancel {event.request_id}"
        case Arrival():
            said = event.observer or f"{event.tags} {event.tags_code} {event.properties}"
            return f"arrival of {event.queue}: next {event.next_offset}, {said}"
        case Tick():
            return "tick"
    return "what must be rejected"


def _answer(decision: Wake | Rejected) -> str:
    if isinstance(decision, Rejected):
        return f"rejected, {decision.rule}: {decision.detail}"
    return f"wake {decision.request_id}: {decision.reason}, next {decision.next_offset}, held {decision.held_ms} ms"
