"""The puller's side of long polling: what to ask the coordinator, which of its answers count, when to stop waiting.

The SDK puts threads and Kafka around it.  Time is the caller's: `now_ms` is a monotonic clock of its own, in
milliseconds.
"""

import base64
from typing import Literal

import msgspec
from msgspec import Struct

from model.config import MAX_RAW_BYTES, NEVER_MS
from model.decisions import Rejected, Wake, WakeReason
from model.events import Cancel, Pull, Subscription
from model.queue import Queue

PATIENCE_MS = 5_000
"""A wake may be lost with its broker, and without a coordinator there is none: this long after its deadline a pull ends
by itself.  In order, a wake comes with the tick after the deadline."""

_encode = msgspec.json.Encoder().encode


class PullEnded(Struct, frozen=True):
    """A pull is over: read again."""

    pull: Pull
    reason: WakeReason | Literal["lost", "refused"]
    """Of its wake; ``lost``: none came in time; ``refused``: the coordinator did not take it."""
    next_offset: int
    """How far the queue reaches, by what the coordinator has been told; the pull's own offset if it has not said."""
    rule: str = ""
    """Which rule a refused one broke; else empty."""
    detail: str = ""
    """Why a refused one was refused; else empty."""


class Pulls:
    """The pulls of one life of a client, at most one a queue at a time.

    Each ends once: by `hear`, `on_time` or `cancel`.  Not safe to use from two threads at once.
    """

    def __init__(self, group_id: str, client_id: str, instance_id: str) -> None:
        """Wait for nothing yet; `instance_id` was never used before."""
        self._group_id = group_id
        self._client_id = client_id
        self._instance_id = instance_id
        self._number = 0
        self._waiting: dict[str, tuple[Pull, int]] = {}
        """Request id -> the pull, and when it ends by itself."""

    def pull(self, queue: Queue, from_offset: int, timeout_ms: int, subscription: Subscription, now_ms: int) -> Pull:
        """Return the pull to append: it waits for messages of `queue` from `from_offset` on that are subscribed.

        Pulls of a queue must reach Kafka in the order of these calls: a lower number after a higher one has no answer.
        """
        assert self.waiting(queue) is None, f"{queue} is being waited for already"
        self._number += 1
        pull = Pull(
            request_id=f"{self._instance_id}:{self._number}",
            group_id=self._group_id,
            client_id=self._client_id,
            instance_id=self._instance_id,
            queue=queue,
            from_offset=from_offset,
            timeout_ms=timeout_ms,
            expression=subscription.expression,
            expression_type=subscription.expression_type,
        )
        self._waiting[pull.request_id] = pull, now_ms + timeout_ms + PATIENCE_MS
        return pull

    def hear(self, answer: Wake | Rejected) -> PullEnded | None:
        """Take an answer from the inbox; None if no pull ends by it.

        The inbox is delivered at least once, holds the answers of other lives too, and a wake may come after its pull
        has ended by itself: what is not waited for is silent.
        """
        if isinstance(answer, Rejected):
            return self._refused(answer)
        if answer.request_id not in self._waiting:
            return None
        pull, _ = self._waiting.pop(answer.request_id)
        return PullEnded(pull, answer.reason, answer.next_offset)

    def cancel(self, queue: Queue) -> Cancel | None:
        """Wait no more for a queue; return what to append, or None if nothing was waited for."""
        pull = self.waiting(queue)
        if pull is None:
            return None
        del self._waiting[pull.request_id]
        return Cancel(request_id=pull.request_id, group_id=self._group_id, client_id=self._client_id, queue=queue)

    def on_time(self, now_ms: int) -> list[PullEnded]:
        """End what has waited too long, the oldest first."""
        late = [pull for pull, due_ms in self._waiting.values() if due_ms <= now_ms]
        for pull in late:
            del self._waiting[pull.request_id]
        return [PullEnded(pull, "lost", pull.from_offset) for pull in late]

    def next_due_ms(self) -> int:
        """Return when `on_time` has something to do next, unless something is heard before."""
        return min((due_ms for _, due_ms in self._waiting.values()), default=NEVER_MS)

    def waiting(self, queue: Queue) -> Pull | None:
        """Return what waits for messages of a queue."""
        return next((pull for pull, _ in self._waiting.values() if pull.queue == queue), None)

    def _refused(self, refusal: Rejected) -> PullEnded | None:
        """End the pull that a refusal quotes.  It names no request, but the record, or the first bytes of it."""
        for request_id, (pull, _) in self._waiting.items():
            if base64.b64encode(_encode(pull)[:MAX_RAW_BYTES]).decode() == refusal.raw:
                del self._waiting[request_id]
                return PullEnded(pull, "refused", pull.from_offset, refusal.rule, refusal.detail)
        return None
