"""The parts of a view that count as changes, for readers that want one message per change and none per heartbeat."""

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from wakeroll_pipeline.live.view_structs import GroupsView, GroupView, Health


def essence(view: GroupsView | GroupView) -> tuple[Any, ...]:
    """Return what differs between two views of which a reader wants both.

    Log times, the ages of ticks, the times of heartbeats and held pulls are left out: they differ all the time. So are
    curves of the lag, which differ only if the lag does, and rates, which differ for a while after it.
    """
    if isinstance(view, GroupsView):
        return (*_of_health(view.health), [structs.replace(one, **_NO_RATES) for one in view.groups])
    members = [structs.replace(one, seen_ms=0, session_ends_ms=0, catch_up_ms=None) for one in view.members]
    queues = [
        structs.replace(one, samples=[], trend="none", committed_ms=None, is_held=False, **_NO_RATES)
        for one in view.queues
    ]
    return (
        *_of_health(view.health),
        structs.replace(view.summary, **_NO_RATES),
        members,
        queues,
        view.rebalances,
        view.rejections,
        view.failures,
        view.reports,
        view.settings,
    )


_NO_RATES: Mapping[str, None] = {"arriving_per_s": None, "consumed_per_s": None, "catch_up_ms": None}


def _of_health(health: Health) -> tuple[Any, ...]:
    return health.state, [one.kind for one in health.notices]
