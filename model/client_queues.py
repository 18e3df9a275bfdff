"""The queues that one client has and must account for: which may be read, which drain, and what can be committed."""

from collections.abc import Iterable

from msgspec import Struct

from model.client_actions import Give
from model.decisions import AssignedQueue
from model.events import CommittedOffset
from model.queue import Queue


class _Held(Struct):
    """A queue, from the giving until it is released."""

    give: Give
    given: int
    """The newest epoch that it is known to be given in."""
    acknowledged: int | None
    """The offset that is on record; None: none that this client knows of."""
    draining: bool = False
    anew: AssignedQueue | None = None
    """How it is given again once it is drained."""
    outdated: bool = False
    """It was given anew, though that may have been taken back: how far this giving came counts no more."""
    least: int | None = None
    """What must be on record in any case: where it was started, or what was committed since; None: not started yet."""
    done: int | None = None
    """The application is done with all messages below."""


class Aligned(Struct, frozen=True):
    """What an assignment changed."""

    taken: tuple[Queue, ...]
    """These began to drain."""
    missing: tuple[AssignedQueue, ...]
    """These are listed and not held: they are to be given."""
    changed: bool
    """Whether anything is otherwise than before, be it only what a draining queue will be given as."""


class Holding:
    """Queues by givings; all that asks for a giving answers for that one only, not for an earlier one of its queue."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._held: dict[Queue, _Held] = {}

    # --- questions ---

    def queues(self) -> list[Queue]:
        """Return all, sorted; what drains is held still."""
        return sorted(self._held)

    def readable(self) -> dict[Queue, Give]:
        """Return what may be read."""
        return {queue: held.give for queue, held in self._held.items() if not held.draining}

    def draining(self) -> list[Queue]:
        """Return what was taken and is not yet released."""
        return [queue for queue, held in self._held.items() if held.draining]

    def is_readable(self, give: Give) -> bool:
        """Say whether this giving lasts."""
        held = self._by(give)
        return held is not None and not held.draining

    def news(self, queues: Iterable[Queue] | None = None, *, starts_only: bool = False) -> list[CommittedOffset]:
        """Return what could be committed of these queues, or of all, sorted.

        Nothing of a queue that was given anew: its new start counts, not how far the old giving came.
        """
        news = []
        for queue in self._held if queues is None else queues:
            held = self._held[queue]
            offset = held.least if starts_only else held.done
            if offset is None or held.outdated:
                continue
            if held.acknowledged is None or (not starts_only and offset > held.acknowledged):
                news.append(CommittedOffset(queue=queue, offset=offset))
        return sorted(news, key=lambda entry: entry.queue)

    # --- what is assigned ---

    def align(self, queues: Iterable[AssignedQueue]) -> Aligned:
        """Drain what is not listed or given anew."""
        listed = {assigned.queue: assigned for assigned in queues}
        changed = False
        taken = []
        for queue, held in self._held.items():
            assigned = listed.pop(queue, None)
            if assigned is not None and assigned.start.offset is None and held.least is not None:
                # First offsets are put on record: a coordinator that knows none has lost it, and given nothing anew.
                held.given = max(held.given, assigned.given)
            anew = assigned if assigned and assigned.given > held.given else None
            held.outdated |= anew is not None
            if held.draining:  # goes to its end: what came between is not known to the application
                changed |= held.anew != anew
                held.anew = anew
            elif assigned is None or anew:
                held.draining, held.anew = True, anew
                taken.append(queue)
        return Aligned(tuple(taken), tuple(listed.values()), changed or bool(taken or listed))

    def give(self, assigned: AssignedQueue, instance_id: str) -> Give:
        """Hold a queue that was not held, for this life."""
        give = Give(assigned.queue, assigned.start, assigned.given, instance_id)
        self._held[assigned.queue] = _Held(give, assigned.given, assigned.start.offset)
        return give

    def release(self, queues: Iterable[Queue]) -> list[AssignedQueue]:
        """Hold these no longer; return what is given anew of them."""
        return [held.anew for queue in queues if (held := self._held.pop(queue)).anew]

    def clear(self) -> tuple[Queue, ...]:
        """Hold nothing; return what was held."""
        queues = tuple(self._held)
        self._held.clear()
        return queues

    # --- how far it was read ---

    def start(self, give: Give, offset: int) -> None:
        """Read this giving from there on."""
        held = self._by(give)
        if held is not None:
            held.least = held.done = offset

    def finish(self, give: Give, offset: int) -> bool:
        """Be done with all below; say whether that counts: the queue is held, or drained, by that giving still."""
        held = self._by(give)
        if held is None:
            return False
        held.done = offset
        return True

    def acknowledge(self, offsets: Iterable[CommittedOffset], epoch: int) -> None:
        """Count these, committed in that epoch, as on record."""
        for entry in offsets:
            held = self._held.get(entry.queue)
            if held is not None and epoch >= held.given:
                held.least = held.acknowledged = max(held.acknowledged or 0, entry.offset)

    def forget_acknowledged(self, *, readable_only: bool = False) -> None:
        """Count on nothing being on record."""
        for held in self._held.values():
            if not (readable_only and held.draining):
                held.acknowledged = None

    def _by(self, give: Give) -> _Held | None:
        held = self._held.get(give.queue)
        # Asked before each message: mostly it is the very giving that is asked for.
        return held if held is not None and (held.give is give or held.give == give) else None
