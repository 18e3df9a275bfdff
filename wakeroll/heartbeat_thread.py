"""The control thread: heartbeats and decisions, however slow the application's handler is."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial

from model.client import Client
from model.client_actions import Dropped, EventRefused, Give, Output, Send, Take
from model.decisions import Rejected, Wake
from model.events import Commit, Heartbeat
from model.instance_secrets import provable_id
from model.queue import Queue
from wakeroll.errors import Fenced, WakerollError
from wakeroll.inbox import Inbox
from wakeroll.monotonic_clock import now_ms
from wakeroll.outbox import Outbox

log = logging.getLogger("wakeroll")

SLICE_S = 0.05
"""How long the thread waits for a decision before it looks at acknowledgements and the time again."""
LEAVE_S = 1.0
"""How long to wait for the thread's end, which comes within a slice."""


class Control:
    """The pure client, shared by its own thread and the application's.

    What the client wants sent is handed to Kafka under the same lock: a release must not overtake a receipt.
    """

    def __init__(
        self, client: Client, inbox: Inbox, outbox: Outbox, on_answer: Callable[[Wake | Rejected], None]
    ) -> None:
        """Prepare; `start` begins.

        Args:
            client: the pure side.
            inbox: of the client.
            outbox: of the client's group.
            on_answer: called in the control thread with what may answer a pull.
        """
        self.changed = threading.Event()
        """Set when there is something for the application's thread to follow."""
        self._client = client
        self._inbox = inbox
        self._outbox = outbox
        self._on_answer = on_answer
        self._lock = threading.Lock()
        self._delivered = threading.Condition(self._lock)
        """Told of each commit that Kafka has, and of the end of a life."""
        self._stopping = threading.Event()
        self._ended: Dropped | None = None
        self._failure: Exception | None = None
        self._refusal = ""
        """Why the coordinator does not let this client in; empty: it has said nothing."""
        self._thread = threading.Thread(target=self._run, name=f"wakeroll-{client.client_id}", daemon=True)

    def start(self) -> None:
        """Join the group and keep in touch with it."""
        with self._lock:
            self._join()
        self._thread.start()

    def view(self) -> tuple[dict[Queue, Give], list[Queue]]:
        """Return, as of one moment, what may be read and what is to be drained."""
        with self._lock:
            return self._client.readable(), self._client.draining()

    def started(self, starts: Iterable[tuple[Give, int]]) -> None:
        """Report from which offsets these are read."""
        with self._lock:
            self._do(self._client.started(starts, now_ms()))

    def done(self, give: Give, offset: int) -> bool:
        """Report that the application is done with all messages below `offset`; return whether that counts."""
        with self._lock:
            return self._client.done(give, offset)

    def commit(self, timeout: float) -> bool:
        """Commit what is done; wait at most `timeout` seconds until Kafka has it, and return whether it has."""
        deadline = time.monotonic() + timeout
        client = self._client
        with self._lock:
            life = client.instance_id
            self._do(client.commit(now_ms()))
            waits = client.instance_id == life and not client.is_committed()
        if waits:
            self._outbox.flush(timeout)  # this thread may see its end before the other has run the last callback
        with self._delivered:
            if waits:
                self._delivered.wait_for(
                    lambda: client.instance_id != life or client.is_committed(), max(deadline - time.monotonic(), 0.0)
                )
            return bool(life) and client.instance_id == life and client.is_committed()

    def released(self, queues: Iterable[Queue]) -> None:
        """Report that the application is done with these."""
        with self._lock:
            self._do(self._client.released(queues, now_ms()))

    def may_hand_out(self, give: Give) -> bool:
        """Say whether a message of this giving may go to the application now."""
        with self._lock:
            now = now_ms()
            if self._client.may_hand_out(give, now):
                return True
            self._do(self._client.on_time(now))
            return False

    def check(self) -> None:
        """Raise what ended this client's membership, if anything did.

        Raises:
            Fenced: the coordinator wants it out.
            WakerollError: the control thread failed; the cause is attached.
        """
        if self._failure is not None:
            raise WakerollError(f"the control thread failed: {self._failure!r}") from self._failure
        if self._ended is not None:
            raise Fenced(self._sentence(self._ended), self._ended.reason, self._ended.by)

    def leave(self, timeout: float) -> None:
        """Commit, leave the group and end the thread; wait at most `timeout` seconds until Kafka knows."""
        with self._lock:
            self._do(self._client.leave(now_ms()))
        self._stopping.set()
        if not self._outbox.flush(timeout):
            log.warning(
                "%s has left group %s without Kafka's receipt; its queues are free when its session ends",
                self._client.client_id,
                self._client.group_id,
            )
        self._thread.join(LEAVE_S)
        self._outbox.close()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                decisions = self._inbox.poll(SLICE_S)
                for decision in decisions:
                    if isinstance(decision, Wake | Rejected):
                        self._on_answer(decision)
                self._outbox.serve()
                deaf = self._inbox.is_deaf(self._client.session_timeout_ms)
                with self._lock:
                    for decision in decisions:
                        self._do(self._client.hear(decision, now_ms()))
                    self._do(self._client.on_time(now_ms()))
                    if deaf:
                        self._do(self._client.give_up())
        except Exception as problem:  # the application hears of it in its next poll()
            self._failure = problem
            self.changed.set()
        finally:
            self._inbox.close()

    def _acknowledged(self, sent_ms: int) -> None:
        with self._lock:
            self._do(self._client.acknowledged(sent_ms, now_ms()))

    def _committed(self, commit: Commit) -> None:
        with self._lock:
            self._client.committed(commit)
            self._delivered.notify_all()

    def _do(self, outputs: list[Output]) -> None:
        """Carry out what the client wants, in its order; with the lock held."""
        for output in outputs:
            match output:
                case Send(Heartbeat() as event, sent_ms):
                    self._outbox.send(event, partial(self._acknowledged, sent_ms))
                case Send(Commit() as event):
                    self._outbox.send(event, partial(self._committed, event))
                case Send(event):
                    self._outbox.send(event)
                case Give() | Take():
                    self.changed.set()
                case Dropped():
                    self._drop(output)
                case EventRefused(rule, detail):
                    if rule == "mode":  # the only one that is followed by `fenced`
                        self._refusal = detail
                    log.warning("the coordinator refused an event of %s (%s): %s", self._client.client_id, rule, detail)

    def _drop(self, dropped: Dropped) -> None:
        self.changed.set()
        self._delivered.notify_all()
        if not dropped.comes_back:
            self._ended = dropped
            return
        level = logging.WARNING if dropped.queues else logging.DEBUG
        log.log(level, "%s; %s of its queues dropped, joining anew", self._sentence(dropped), len(dropped.queues))
        self._join()

    def _join(self) -> None:
        """Begin a life that only this process can unregister."""
        secret = uuid.uuid4().hex
        self._do(self._client.join(provable_id(secret), now_ms(), secret))

    def _sentence(self, dropped: Dropped) -> str:
        """Say why a life ended."""
        client = self._client
        who = f"client {client.client_id!r} of group {client.group_id!r}"
        match dropped.reason:
            case "duplicate":
                return (
                    f"{who} is a duplicate: another process, instance {dropped.by}, uses the same client_id; "
                    "give each process its own, or none"
                )
            case "refused":
                return f"{who} was refused: {self._refusal or 'the group has as many members as max_members allows'}"
            case "left":
                return f"{who} was unregistered; make a new Consumer to come back"
            case "expired":
                return f"{who} was silent for longer than its session in the coordinator's eyes"
            case "deaf":
                return f"{who} cannot read its partition of the inbox"
            case "epoch":
                return f"{who} showed an epoch that the coordinator has never given"
            case "silent":
                return f"{who} had no heartbeat acknowledged by Kafka for almost {client.session_timeout_ms} ms"
