"""The last will of a member: what is sent for it after its process has ended.

While a member lives, its process keeps two things where they outlive it: the will, which changes when queues come and
go, and the progress, one number per queue, which changes with each message. When the kernel says that the process has
ended, somebody else reads both and sends the events of the will: a last commit of what the application had processed,
and an `unregister` that says `died`. The term is MQTT's.
"""

from collections.abc import Mapping

from msgspec import Struct

from wakeroll_model.client_queues import ClientQueue, Holding
from wakeroll_model.events import Commit, Unregister
from wakeroll_model.queue import Queue


class LastWill(Struct, frozen=True, kw_only=True):
    """A member and its queues, as of one moment, without the progress since."""

    group_id: str
    client_id: str
    instance_id: str
    secret: str
    """The secret behind the instance_id, else empty."""
    epoch: int
    """Epoch of the newest assignment that the instance received; -1 if none."""
    commits_itself: bool
    """Whether processed messages are committed without a call of `commit`."""
    queues: tuple[ClientQueue, ...]
    """The queues, each by its assignment."""

    def events(self, progress: Mapping[Queue, int], died: str) -> list[Commit | Unregister]:
        """Return what to send, in this order, to the group's partition.

        An instance that has ended before, or whose queues have other owners by now, has no effect with them.

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
