"""The actions that a `Client` returns: events to send, and changes of the queues that may be read."""

from typing import Literal

from msgspec import Struct, field

from wakeroll_model.decisions import FencedReason, OtherFilter, Start
from wakeroll_model.events import Commit, Failures, Filter, Heartbeat, Report, Unregister
from wakeroll_model.queue import Queue

DropReason = FencedReason | Literal["silent", "idle"]
"""Why an instance ended; ``silent``: Kafka acknowledged no heartbeat for longer than the session timeout; ``idle``: the
application does not read."""


class Send(Struct, frozen=True):
    """Append this event to the groups topic. Events must reach Kafka in the order of the calls of `Client`."""

    event: Heartbeat | Unregister | Commit | Failures | Report
    sent_ms: int
    """Time of the call, by the caller's clock. Pass it to `Client.acknowledged` or, for a commit, to `committed`."""


class Give(Struct, frozen=True):
    """A queue may be read, from `start` on, until a `Take` or `Dropped` names it.

    Report the resolved offset with `Client.started`.
    """

    queue: Queue
    start: Start
    assigned_epoch: int = field(name="given")
    """Epoch of the assignment."""
    instance_id: str
    """The instance that the queue is assigned to; with `assigned_epoch` it identifies one assignment of a queue."""
    filter: Filter = ("*", "TAG")
    """The client's filter of its messages; when that changes, the queue drains, and is given again with the new one."""


class Take(Struct, frozen=True):
    """Stop reading these queues; call `Client.released` when their delivered messages are `done`.

    `Client.may_handle` tells which other messages may still be delivered.
    """

    queues: tuple[Queue, ...]


class Dropped(Struct, frozen=True):
    """The instance has ended, and its queues may have other owners: do not drain or commit them."""

    queues: tuple[Queue, ...]
    reason: DropReason
    by: str = ""
    """The instance that has its client_id, if `reason` is ``duplicate``; the operator, if it is ``kicked``; else
    empty."""

    @property
    def comes_back(self) -> bool:
        """Whether to call `Client.join` with a new instance_id; if ``idle``, when the application reads again.

        Otherwise report the end to the application.
        """
        return self.reason in ("expired", "deaf", "epoch", "silent", "idle")


class OthersChanged(Struct, frozen=True):
    """The filters of other members changed: see `Client.others`."""

    others: tuple[OtherFilter, ...]


class PauseChanged(Struct, frozen=True):
    """An operator has paused or resumed the group: see `Client.is_paused`."""

    is_paused: bool


class Inspected(Struct, frozen=True):
    """An operator has requested a report of what the application does: answer with `Client.report`."""


class EventRefused(Struct, frozen=True):
    """The coordinator rejected an event of this client; reported once per rule."""

    rule: str
    detail: str


Output = Send | Give | Take | Dropped | OthersChanged | PauseChanged | Inspected | EventRefused
