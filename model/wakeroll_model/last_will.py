"""The last will of a member: the events that are sent for it after its process has ended.

While a member is alive, its process stores two things in memory that outlives it: the will, which changes when queues
are assigned and revoked, and the progress, one number per queue, which changes with each message. When the kernel
reports that the process has ended, the executor reads both and sends the events of the will: a last commit of the
processed messages, and an `unregister` with `died`. The term comes from MQTT.
"""

from collections.abc import Mapping

from msgspec import Struct

from wakeroll_model.client_queues import ClientQueue, Holding
from wakeroll_model.events import Commit, Unregister
from wakeroll_model.queue import Queue


class LastWill(Struct, frozen=True, kw_only=True):
    """A member and its queues at one moment, without later progress."""

    group_id: str
    client_id: str
    instance_id: str
    secret: str
    """The secret of the instance_id; empty if it has none."""
    epoch: int
    """Epoch of the newest assignment that the instance received; -1 if none."""
    commits_itself: bool
    """Whether processed messages are committed without a call of `commit`."""
    queues: tuple[ClientQueue, ...]
    """The queues, each by its assignment."""

    def events(self, progress: Mapping[Queue, int], died: str) -> list[Commit | Unregister]:
        """Return the events to send to the group's partition, in this order.

        They have no effect if the instance had ended before, or if its queues have other owners by now.

        Args:
            progress: queue -> the application has processed all messages below this offset. A queue that is not in it
                has the progress of the will.
            died: how the process has ended, such as ``SIGKILL``; empty if that is not known.
        """
        holding = Holding(self.queues)
        for queue in self.queues:
            if (offset := progress.get(queue.give.queue)) is not None:
                holding.finish(queue.give, offset)
        news = holding.news(starts_only=not self.commits_itself)
        commits: list[Commit | Unregister] = []
        if news:
            commits.append(
                Commit(
                    group_id=self.group_id,
                    client_id=self.client_id,
                    instance_id=self.instance_id,
                    epoch=self.epoch,
                    offsets=news,
                )
            )
        end = Unregister(
            group_id=self.group_id,
            client_id=self.client_id,
            instance_id=self.instance_id,
            secret=self.secret,
            died=died,
        )
        return [*commits, end]
