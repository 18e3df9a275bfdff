"""What a client says to the coordinator, and what those who read for it are told."""

from typing import Literal

from msgspec import Struct

from model.decisions import FencedReason, Start
from model.events import Commit, Heartbeat, Unregister
from model.queue import Queue

DropReason = FencedReason | Literal["silent"]
"""Why a life ended; ``silent``: Kafka acknowledged no heartbeat for longer than the session timeout."""


class Send(Struct, frozen=True):
    """Append this to the groups topic; calls of `Client` must reach Kafka in the order in which they were made."""

    event: Heartbeat | Unregister | Commit
    sent_ms: int
    """The caller's time: what `Client.acknowledged` wants back for a heartbeat; for a commit, call `committed`."""


class Give(Struct, frozen=True):
    """A queue may be read, from `start` on, until it is taken or everything is dropped.

    Say with `Client.started` which offset that is.
    """

    queue: Queue
    start: Start
    given: int
    """Epoch it was given in."""
    instance_id: str
    """The life it was given to: with `given`, it tells one giving of a queue from another."""


class Take(Struct, frozen=True):
    """Hand out nothing more of these queues; when what was handed out is `done`, call `Client.released`."""

    queues: tuple[Queue, ...]


class Dropped(Struct, frozen=True):
    """This life is over, and everything it held is somebody else's: nothing to drain, nothing to report."""

    queues: tuple[Queue, ...]
    reason: DropReason
    by: str = ""
    """Of a duplicate: the instance that has its client_id; else empty."""

    @property
    def comes_back(self) -> bool:
        """Whether to call `Client.join` with a new instance_id; otherwise this is for the application to know."""
        return self.reason in ("expired", "deaf", "epoch", "silent")


class EventRefused(Struct, frozen=True):
    """The coordinator refused an event of this client; said once a rule."""

    rule: str
    detail: str


Output = Send | Give | Take | Dropped | EventRefused
