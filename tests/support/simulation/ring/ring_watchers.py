"""Processes of the deployment that follow the decisions: the mirror of offsets, and the live view."""

import re
from typing import TYPE_CHECKING, Any, cast

from tests.support.simulation.ring.ring_processes import Process
from tests.support.simulation.ring.virtual_threads import VirtualEvent
from wakeroll.connection import Connection, Topics
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import has_failed_messages
from wakeroll_pipeline.live.kafka_follower import KafkaFollower
from wakeroll_pipeline.live.live_model import LiveModel
from wakeroll_pipeline.metrics.observer_metrics import ObserverMetrics
from wakeroll_pipeline.observer.offset_mirror import OffsetMirror

if TYPE_CHECKING:
    from tests.support.simulation.ring.ring_world import RingWorld

MIRRORED = "billing"


class MirrorProcess(Process):
    """`wakeroll observe --mirror-offsets`: its offsets come to rest at the committed ones."""

    kind = "mirror"

    def __init__(self, world: "RingWorld", name: str) -> None:
        super().__init__(world, name)
        self._stop = VirtualEvent(world.scheduler)

    def leave(self) -> None:
        super().leave()
        self._stop.set()

    def difference(self) -> dict[str, tuple[int | None, int]]:
        """Return queue -> mirrored and committed offset, where they differ; of the topics of the application."""
        group = self.world.coordinator.group(MIRRORED)
        mirrored = self.world.log.kafka_groups.get(MIRRORED, {})
        if group is None:
            return {}
        lowest: dict[Queue, int] = {}
        for queue, offset in group.offsets.items():
            lowest[queue.whole] = min(offset, lowest.get(queue.whole, offset))
        return {
            str(queue): (mirrored.get((queue.topic, queue.queue_id)), offset)
            for queue, offset in lowest.items()
            if not has_failed_messages(queue.topic) and mirrored.get((queue.topic, queue.queue_id)) != offset
        }

    def _main(self) -> None:
        stop = cast(Any, self._stop)
        OffsetMirror(Connection(self.address), re.compile(MIRRORED), stop, ObserverMetrics(mirrors=True)).run()


class LiveProcess(Process):
    """`wakeroll serve`: its model of the groups is the coordinator's state."""

    kind = "live view"

    def __init__(self, world: "RingWorld", name: str) -> None:
        super().__init__(world, name)
        self.model: LiveModel | None = None
        self._follower: KafkaFollower | None = None

    def leave(self) -> None:
        super().leave()
        if self._follower is not None:
            self._follower.stop()

    def difference(self) -> dict[str, tuple[Any, Any]]:
        """Return group -> what the view and the coordinator know of it, where that differs."""
        found = {}
        for plan in self.world.plan.groups:
            ours = theirs = None
            if self.model is not None:
                for follower in self.model.shards.values():
                    if follower.kind == "groups" and (group := follower.shard.group(plan.group_id)) is not None:
                        ours = (group.epoch, sorted(group.members), dict(group.owners), dict(group.offsets))
            if (group := self.world.coordinator.group(plan.group_id)) is not None:
                theirs = (group.epoch, sorted(group.members), dict(group.owners), dict(group.offsets))
            if ours != theirs:
                found[plan.group_id] = (ours, theirs)
        return found

    def _main(self) -> None:
        self.model = LiveModel(Topics(), self.world.coordinator.partitions)
        self._follower = KafkaFollower(Connection(self.address), self.model, cast(Any, None))
        self._follower.run()
