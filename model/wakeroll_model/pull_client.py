"""The client's side of long polling: pulls to send, answers to accept, and timeouts of pulls.

The SDK runs it with threads and Kafka. The caller provides the time: `now_ms` is a monotonic clock of the client, in
milliseconds.
"""

import base64
from typing import Literal

import msgspec
from msgspec import Struct

from wakeroll_model.config import MAX_RAW_BYTES, NEVER_MS
from wakeroll_model.decisions import Rejected, Wake, WakeReason
from wakeroll_model.events import Cancel, Pull, Subscription
from wakeroll_model.queue import Queue

PATIENCE_MS = 5_000
"""Time after its deadline at which a pull ends without an answer, ms: a wake may be lost with its broker, or no
coordinator may be running. Normally the wake arrives with the tick after the deadline."""

_encode = msgspec.json.Encoder().encode


class PullEnded(Struct, frozen=True):
    """A pull has ended, so the client must read again."""

    pull: Pull
    reason: WakeReason | Literal["lost", "refused"]
    """Reason of its wake; ``lost``: no wake arrived in time; ``refused``: the coordinator rejected the pull."""
    next_offset: int
    """End of the queue by the coordinator's wake; the pull's own offset if there was no wake."""
    rule: str = ""
    """The broken rule, if the pull was rejected; else empty."""
    detail: str = ""
    """The reason of a rejection; else empty."""


class Pulls:
    """The pulls of one instance, at most one per queue at a time.

    Each ends once: by `receive`, `on_time` or `cancel`. Not safe to use from two threads at once.
    """

    def __init__(self, group_id: str, client_id: str, instance_id: str) -> None:
        """Begin without pulls; `instance_id` was never used before."""
        self._group_id = group_id
        self._client_id = client_id
        self._instance_id = instance_id
        self._number = 0
        self._waiting: dict[str, tuple[Pull, int]] = {}
        """Request id -> the pull, and when it ends by itself."""
        self._of_queue: dict[Queue, Pull] = {}
        """The same pulls by queue, because some clients wait for thousands of queues."""

    def pull(self, queue: Queue, from_offset: int, timeout_ms: int, subscription: Subscription, now_ms: int) -> Pull:
        """Return the pull to append: it waits for messages of `queue` from `from_offset` on, by this subscription.

        Pulls of a queue must reach Kafka in the order of these calls: a pull with a lower number after one with a
        higher number gets no answer.
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
        self._of_queue[queue] = pull
        return pull

    def receive(self, answer: Wake | Rejected) -> PullEnded | None:
        """Process an answer from the inbox; return the pull that it ends, None if there is none.

        The inbox delivers at least once and contains the answers to other instances too. A wake may also arrive after
        its pull ended by itself. Answers to pulls that do not wait are ignored.
        """
        if isinstance(answer, Rejected):
            return self._refused(answer)
        if answer.request_id not in self._waiting:
            return None
        pull = self._end(answer.request_id)
        return PullEnded(pull, answer.reason, answer.next_offset)

    def quoted_in(self, refusal: Rejected) -> Pull | None:
        """Return the waiting pull that a rejection is about; None if there is none.

        A rejection contains the first bytes of the record, and no request id.
        """
        for pull, _ in self._waiting.values():
            if base64.b64encode(_encode(pull)[:MAX_RAW_BYTES]).decode() == refusal.raw:
                return pull
        return None

    def cancel(self, queue: Queue) -> Cancel | None:
        """Cancel the pull of a queue; return the event to append, or None if there is no pull."""
        pull = self.waiting(queue)
        if pull is None:
            return None
        self._end(pull.request_id)
        return Cancel(request_id=pull.request_id, group_id=self._group_id, client_id=self._client_id, queue=queue)

    def on_time(self, now_ms: int) -> list[PullEnded]:
        """End the pulls that have timed out, the oldest first."""
        late = [pull for pull, due_ms in self._waiting.values() if due_ms <= now_ms]
        for pull in late:
            self._end(pull.request_id)
        return [PullEnded(pull, "lost", pull.from_offset) for pull in late]

    def next_due_ms(self) -> int:
        """Return when `on_time` next has work to do, unless an answer arrives before."""
        return min((due_ms for _, due_ms in self._waiting.values()), default=NEVER_MS)

    def waiting(self, queue: Queue) -> Pull | None:
        """Return the pull that waits for messages of a queue; None if there is none."""
        pull = self._of_queue.get(queue)
        return pull if pull is not None and pull.request_id in self._waiting else None

    def _end(self, request_id: str) -> Pull:
        pull, _ = self._waiting[request_id]
        if self._of_queue.get(pull.queue) == pull:  # not if an exception came in the middle of the last call
            del self._of_queue[pull.queue]
        del self._waiting[request_id]
        return pull

    def _refused(self, refusal: Rejected) -> PullEnded | None:
        """End the pull that a rejection is about."""
        pull = self.quoted_in(refusal)
        if pull is None:
            return None
        self._end(pull.request_id)
        return PullEnded(pull, "refused", pull.from_offset, refusal.rule, refusal.detail)
