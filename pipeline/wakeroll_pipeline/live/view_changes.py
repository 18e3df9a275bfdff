"""The parts of a view that count as changes, for readers that want one message per change and none per heartbeat."""

from typing import Any

from msgspec import structs

from wakeroll_pipeline.live.view_structs import GroupsView, GroupView, Health


def essence(view: GroupsView | GroupView) -> tuple[Any, ...]:
    """Return what differs between two views of which a reader wants both.

    Log times, the ages of ticks, the times of heartbeats and held pulls are left out: they differ all the time. So are
    curves of the lag, which differ only if the lag does.
    """
    if isinstance(view, GroupsView):
        return (*_of_health(view.health), view.groups)
    members = [structs.replace(one, seen_ms=0, session_ends_ms=0) for one in view.members]
    queues = [structs.replace(one, samples=[], trend="none", committed_ms=None, is_held=False) for one in view.queues]
    return (
        *_of_health(view.health),
        view.summary,
        members,
        queues,
        view.rebalances,
        view.rejections,
        view.settings,
    )


def _of_health(health: Health) -> tuple[Any, ...]:
    return health.state, [one.kind for one in health.notices]
