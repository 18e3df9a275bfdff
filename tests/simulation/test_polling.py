"""Every pull is answered once and nobody misses a message: worlds made from seeds, in which everything goes wrong."""

from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from tests.support.simulation.frame.seeds import digests, run_worlds
from tests.support.simulation.polling.poller import Reading
from tests.support.simulation.polling.polling_plan import OBSERVED
from tests.support.simulation.polling.polling_simulation import POLLING, REASONS
from tests.support.simulation.polling.polling_world import World
from wakeroll_model.config import NEVER_MS
from wakeroll_model.decisions import Wake
from wakeroll_model.held_queue import HeldQueue
from wakeroll_model.shard_load import NOTHING
from wakeroll_model.shard_state import ShardState

WORLDS = 16
"""Worlds with seeds in a row: `make simulate` runs more."""


def test_the_rules_of_long_polling_hold_in_every_world(tell):
    """`python -m tests.simulation.simulate --only polling --from SEED --seeds 1` runs a failing one again."""
    happened, worlds = run_worlds(POLLING.live, WORLDS)
    tell(POLLING.coverage(happened, worlds))
    assert {*POLLING.kinds, *REASONS} <= happened.keys()


def test_a_seed_is_a_world_of_long_polling_whatever_the_hash_seed():
    """Or a failing seed could not be looked at."""
    first, second = digests(
        "from tests.support.simulation.polling.polling_simulation import POLLING as simulation;"
        "world = simulation.world(simulation.draw(7)).run();"
        "said = [(one.encoded, one.saved, one.log) for one in world.coordinators]"
    )

    assert first == second


def test_without_faults_nobody_hears_what_only_faults_explain():
    """What the checkers let pass as superseded, cancelled or cut must come from faults, or it would excuse too much."""
    world = POLLING.world(POLLING.draw(3, only=())).run()

    assert POLLING.broken(world) == []
    answers = {one.reason for each in world.coordinators for one in each.decisions if isinstance(one, Wake)}
    assert answers <= {"arrival", "timeout", "skipped", "unknown"}
    assert not any(reading.blind for poller in world.pollers.values() for reading in poller.readings.values())


# --- each checker can fail ---


def lose_a_message(world: World) -> None:
    reading = _a_reading(world)
    del reading.has_read[min(reading.has_read)]


def read_late(world: World) -> None:
    reading = _a_reading(world)
    reading.has_read[max(reading.has_read)] += 60_000


def lose_an_answer(world: World) -> None:
    decisions = world.coordinators[0].decisions
    decisions.remove(next(one for one in decisions if isinstance(one, Wake)))


def answer_twice(world: World) -> None:
    decisions = world.coordinators[0].decisions
    decisions.append(next(one for one in decisions if isinstance(one, Wake)))


def answer_the_last_first(world: World) -> None:
    """Of two that one record wakes."""
    for coordinator in world.coordinators:
        for at, (one, next_one) in enumerate(pairwise(coordinator.decisions)):
            if isinstance(one, Wake) and isinstance(next_one, Wake) and one.cause == next_one.cause:
                coordinator.decisions[at : at + 2] = [next_one, one]
                return
    raise AssertionError("no record wakes two")


def reject(world: World) -> None:
    world.refused.append((0, 0))


def decide_otherwise(world: World) -> None:
    world.coordinators[0].encoded[0] += b" "


def decide_otherwise_again(world: World) -> None:
    world.coordinators[0].differing.append("0/1")


def keep_everything(world: World) -> None:
    saved = world.coordinators[0].saved
    saved[-1] = saved[-1][0], max((body for _, body in saved), key=len)


def forget_a_hold(world: World) -> None:
    _change(world, lambda _, queue: queue.holds.clear() or queue.pull_filters.clear())


def count_wrongly(world: World) -> None:
    _change(world, lambda state, _: setattr(state, "load", NOTHING))


def note_a_deadline_too_late(world: World) -> None:
    _change(world, lambda state, queue: state.deadlines.update({queue.key: NEVER_MS}))


def mix_up_parts(world: World) -> None:
    _change(world, lambda _, queue: setattr(queue, "pulls", 0))


def _a_reading(world: World) -> Reading:
    """Return how a client has read a queue of the topic that only observers tell of."""
    readings = (one for poller in world.pollers.values() for one in poller.readings.values())
    return next(one for one in readings if one.queue.topic == OBSERVED and one.has_read)


def _change(world: World, change: Callable[[ShardState, HeldQueue], object]) -> None:
    """Change a state that was saved while somebody waited."""
    for coordinator in world.coordinators:
        for number, (offset, body) in enumerate(coordinator.saved):
            state = msgspec.msgpack.decode(body, type=ShardState)
            for key, entity in state.entities.items():
                queue = msgspec.msgpack.decode(entity, type=HeldQueue)
                if queue.holds:
                    change(state, queue)
                    state.entities[key] = msgspec.msgpack.encode(queue)
                    coordinator.saved[number] = offset, msgspec.msgpack.encode(state)
                    return
    raise AssertionError("nobody ever waited")


@pytest.mark.parametrize(
    ("tamper", "rule"),
    [
        (lose_a_message, "missed"),
        (read_late, "late"),
        (lose_an_answer, "right answer"),
        (answer_twice, "right answer"),
        (answer_the_last_first, "in order"),
        (reject, "refused"),
        (decide_otherwise, "not replayable"),
        (decide_otherwise_again, "not replayable"),
        (keep_everything, "shrunk"),
        (forget_a_hold, "holds"),
        (count_wrongly, "counts"),
        (note_a_deadline_too_late, "deadlines"),
        (mix_up_parts, "parts"),
    ],
)
def test_a_checker_finds_what_somebody_has_tampered_with(tamper, rule):
    """A checker that cannot fail proves nothing."""
    world = POLLING.world(POLLING.draw(3, only=(), chaos_ms=20_000)).run()
    assert POLLING.broken(world) == []

    tamper(world)

    assert rule in {one.rule for one in POLLING.broken(world)}
