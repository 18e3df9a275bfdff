"""Effects of the faults that both kinds of world have: of the coordinators, the log and the observers."""

from collections.abc import Mapping
from typing import Any

from tests.support.simulation.frame.fault import Fault
from tests.support.simulation.frame.world import Effect, World


def _kill(world: World[Any], fault: Fault) -> None:
    for coordinator in world.coordinators:
        coordinator.kill_in_next_batch(fault.amount)


def _restore(world: World[Any], fault: Fault) -> None:
    for coordinator in world.coordinators:
        coordinator.restore(fault.amount)


def _darken(world: World[Any], fault: Fault) -> None:
    world.broker.dark_until_ms = max(world.broker.dark_until_ms, world.now_ms + fault.length_ms)


def _stop_observers(world: World[Any], fault: Fault) -> None:
    world.unobserved_until_ms = max(world.unobserved_until_ms, world.now_ms + fault.length_ms)


def _step_clock(world: World[Any], fault: Fault) -> None:
    world.broker.skew_ms += fault.amount


COMMON_EFFECTS: Mapping[str, Effect] = {
    "kill": _kill,
    "restore": _restore,
    "behind": lambda world, fault: world.delay_coordinators(fault.length_ms),
    "dark": _darken,
    "no ticks": _stop_observers,
    "step": _step_clock,
}
