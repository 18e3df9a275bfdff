"""The queues of a client: readable ones, draining ones, and the offsets that can be committed."""

from collections.abc import Callable, Container, Iterable, Set

from msgspec import Struct, field, structs

from wakeroll_model import config, offsets_by_filter
from wakeroll_model.client_actions import Give
from wakeroll_model.decisions import AssignedQueue, Start
from wakeroll_model.events import Ahead, CommittedOffset, Filter
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import has_failed_messages


class ClientQueue(Struct):
    """A queue, from its assignment to its release."""

    give: Give
    assigned_epoch: int = field(name="given")
    """The newest epoch in which the queue is known to be assigned."""
    acknowledged: int | None
    """The committed offset; None if this client has received none."""
    draining: bool = False
    following: AssignedQueue | None = None
    """The next assignment of the queue, which begins when it is drained; None if there is none."""
    refiltered: bool = False
    """Whether it drains because the client's filter has changed: it stays assigned, and is given with the new one."""
    outdated: bool = False
    """Whether the queue was assigned again, even if the new assignment was revoked since: progress of this one is not
    committed."""
    least: int | None = None
    """Lower bound of the offset to commit: the first offset, or one committed since; None until reading began."""
    done: int | None = None
    """The application has processed all messages below this offset; None until reading began."""
    leader_epochs: list[tuple[int, int | None]] = []
    """Offset -> leader epoch of the messages from there on, None if not known; by offset. The first entry is where
    reading began, with the leader epoch of the message before it."""
    since_epoch: int | None = None
    """Acknowledged commits count from this leader epoch on, because the log lost its tail; None if it has not."""
    lost_end: int | None = None
    """Commits up to this offset are repeated, because the log lost its tail there and no leader epoch shows that to the
    coordinator; None if there is no need."""

    kept: int | None = None
    """Limit of commits: offset of the first message that matches only other members' filters; None if there is none."""
    is_limit_final: bool = False
    """Whether `kept` stays, because the queue drains and the client is not told any more which filters others have."""
    ahead: tuple[Ahead, ...] = ()
    """Progress beyond the committed offset, by filter, from the assignment or from a commit that was acknowledged
    since."""

    def goes_on(self, start: Start) -> bool:
        """Return whether the queue continues where it is, although it is assigned again with this start.

        First offsets are committed. A coordinator that has no offset has lost it, or has not received it yet. But
        ``first`` counts for a queue that drains: it skips nothing, and the log may be another one, or an operator may
        have deleted the offset.
        """
        return self.least is not None and start.offset is None and not (self.draining and start.policy == "first")

    def leader_epoch_at(self, offset: int) -> int | None:
        """Return the leader epoch of the message before an offset; None if not known."""
        known = [epoch for begin, epoch in self.leader_epochs if begin < offset]
        if known:
            return known[-1]
        return self.leader_epochs[0][1] if self.leader_epochs else None


class Aligned(Struct, frozen=True):
    """Changes by an assignment."""

    taken: tuple[Queue, ...]
    """Queues that began to drain."""
    missing: tuple[AssignedQueue, ...]
    """Assigned queues that the client does not have yet."""
    changed: bool
    """Whether anything differs from before, including only the next assignment of a draining queue."""


class Holding:
    """Queues that the client has, each by its assignment. Calls about a replaced assignment of a queue are ignored."""

    def __init__(self, queues: Iterable[ClientQueue] = ()) -> None:
        """Begin with copies of these queues."""
        self._held: dict[Queue, ClientQueue] = {queue.give.queue: structs.replace(queue) for queue in queues}
        self._texts: dict[Queue, tuple[Give, int, str]] = {}
        """Texts that the application commits, each with its offset. A last will has no texts."""
        self._left: dict[Queue, int] = {}
        """Where to continue in queues that this client has read earlier, if they are assigned again without an
        offset."""
        self.changes = 0
        """Number of changes so far, except those by `finish` and `keep`."""

    # --- queries ---

    def queues(self) -> list[Queue]:
        """Return all queues, including draining ones, sorted."""
        return sorted(self._held)

    def gives(self) -> list[Give]:
        """Return the assignments of all queues."""
        return [held.give for held in self._held.values()]

    def copies(self) -> tuple[ClientQueue, ...]:
        """Return copies of the queues, which later changes do not affect."""
        return tuple(structs.replace(held, leader_epochs=held.leader_epochs.copy()) for held in self._held.values())

    def readable(self) -> dict[Queue, Give]:
        """Return the queues that may be read, with their assignments."""
        return {queue: held.give for queue, held in self._held.items() if not held.draining}

    def draining(self) -> list[Queue]:
        """Return the queues that were revoked and are not yet released."""
        return [queue for queue, held in self._held.items() if held.draining]

    def progress(self, give: Give) -> tuple[int | None, int | None]:
        """Return how far an assignment is processed, and the offset that no commit passes, each None if not set."""
        held = self._by(give)
        return (None, None) if held is None else (held.done, held.kept)

    def processed(self) -> dict[Queue, int]:
        """Return the offsets below which the queues are processed, as far as reading has begun."""
        return {queue: held.done for queue, held in self._held.items() if held.done is not None}

    def give_of(self, queue: Queue) -> Give | None:
        """Return the assignment of a queue; None if there is none."""
        held = self._held.get(queue)
        return None if held is None else held.give

    def is_readable(self, give: Give) -> bool:
        """Return whether this assignment is in force and not draining."""
        held = self._by(give)
        return held is not None and not held.draining

    def has(self, give: Give) -> bool:
        """Return whether this assignment is in force, or draining."""
        return self._by(give) is not None

    def commits(self) -> dict[Queue, int]:
        """Return the committed offsets of the queues, as far as this client has received them."""
        return {queue: held.acknowledged for queue, held in self._held.items() if held.acknowledged is not None}

    def news(self, queues: Iterable[Queue] | None = None, *, starts_only: bool = False) -> list[CommittedOffset]:
        """Return the offsets of these queues, or of all, that could be committed, sorted.

        A queue that was assigned again is left out: it continues at its new start, whatever the progress of the old
        assignment.
        """
        news, room = [], config.MAX_AHEAD_SENT_BYTES
        for queue in self._held if queues is None else self._held.keys() & set(queues):
            held = self._held[queue]
            offset = held.least if starts_only else held.done
            if offset is None or held.outdated:
                continue
            ahead: tuple[Ahead, ...] = ()
            if held.kept is not None or held.ahead:
                offset, ahead = self._split(held, offset)
            if held.acknowledged is None or (
                not starts_only
                and (offset > held.acknowledged or (ahead != held.ahead and offset == held.acknowledged))
            ):
                room -= offsets_by_filter.bytes_of(ahead)  # beyond it, messages are delivered again, not lost
                news.append(
                    CommittedOffset(
                        queue=queue,
                        offset=offset,
                        leader_epoch=held.leader_epoch_at(offset),
                        ahead=ahead if room >= 0 else (),
                        metadata=self._text_at(held, offset),
                    )
                )
        return sorted(news, key=lambda entry: entry.queue)

    def _text_at(self, held: ClientQueue, offset: int) -> str:
        give, at, text = self._texts.get(held.give.queue, (None, 0, ""))
        return text if give == held.give and at == offset else ""

    def _split(self, held: ClientQueue, done: int) -> tuple[int, tuple[Ahead, ...]]:
        """Return the offset to commit for a queue that is processed up to `done`, and the progress beyond it."""
        offset = done if held.kept is None else min(done, held.kept)
        offset = max(offset, held.acknowledged or 0)
        expression, expression_type = held.give.filter
        own = Ahead(
            expression=expression, expression_type=expression_type, offset=done, leader_epoch=held.leader_epoch_at(done)
        )
        return offset, offsets_by_filter.merged(held.ahead, (own,), offset)

    # --- assignments ---

    def align(self, queues: Iterable[AssignedQueue]) -> Aligned:
        """Begin to drain the queues that are not listed, or are assigned again."""
        self.changes += 1
        listed = {assigned.queue: assigned for assigned in queues}
        changed = False
        taken = []
        for queue, held in self._held.items():
            assigned = listed.pop(queue, None)
            if assigned is not None and held.goes_on(assigned.start):
                held.assigned_epoch = max(held.assigned_epoch, assigned.assigned_epoch)
            following = assigned if assigned and assigned.assigned_epoch > held.assigned_epoch else None
            held.outdated |= following is not None
            if held.draining:  # drain it to its end: the application does not know of the assignments in between
                held.refiltered &= assigned is not None
                changed |= held.following != following
                held.following = following
            elif assigned is None or following:
                held.draining, held.following = True, following
                taken.append(queue)
        return Aligned(tuple(taken), tuple(listed.values()), changed or bool(taken or listed))

    def refilter(self, filter_of: Callable[[str], Filter | None]) -> tuple[Queue, ...]:
        """Begin to drain the queues that are read by another filter than the one that this returns for their topic.

        No commit passes what is committed now: the new filter may want what the former one has passed over since. None:
        the topic keeps its filter. Return the queues that began to drain.
        """
        self.changes += 1
        taken = []
        for queue, held in self._held.items():
            if filter_of(queue.topic) in (None, held.give.filter):
                continue
            held.kept = held.least
            if not held.draining:
                held.draining = held.refiltered = True
                taken.append(queue)
        return tuple(taken)

    def give(self, assigned: AssignedQueue, instance_id: str, own_filter: Filter, *, is_committed: bool = True) -> Give:
        """Add a queue that the client does not have, for this instance, to be read by its filter.

        `is_committed`: whether the coordinator is known to have the offset that it starts at.

        A coordinator that was down decides in the order of its log. It may revoke a queue and assign it again before it
        reads this client's first commit for it. Then the assignment has no offset, and ``last`` would skip the messages
        that arrived in between.
        """
        self.changes += 1
        start, left = assigned.start, self._left.get(assigned.queue)
        if left is not None and start.offset is None and start.policy != "first":
            start = Start(offset=left)  # it stays noted: this assignment may end before its reading begins
        else:
            self._left.pop(assigned.queue, None)
        give = Give(assigned.queue, start, assigned.assigned_epoch, instance_id, own_filter)
        # With both, the start is the lower one, and nothing is committed there.
        committed = assigned.start.offset if is_committed and not assigned.start.policy else None
        self._held[assigned.queue] = ClientQueue(give, assigned.assigned_epoch, committed, ahead=assigned.start.ahead)
        return give

    def release(
        self, queues: Iterable[Queue], *, starts_only: bool = False
    ) -> tuple[list[AssignedQueue], list[AssignedQueue]]:
        """Remove these queues.

        Args:
            queues: queues that the client has.
            starts_only: whether to continue later at the committed offsets, without the progress beyond them.

        Returns:
            The queues that are assigned again, and those that continue with another filter.
        """
        self.changes += 1
        removed = [self._held.pop(queue) for queue in queues]
        for held in removed:
            offset = held.least if starts_only else held.done
            if offset is not None:
                self._left[held.give.queue] = offset if held.kept is None else min(offset, held.kept)
        while len(self._left) > config.MAX_QUEUES:
            del self._left[next(iter(self._left))]
        following = [held.following for held in removed if held.following]
        refiltered = [held for held in removed if held.refiltered and not held.following]
        return following, [self._refiltered(held, starts_only=starts_only) for held in refiltered]

    def _refiltered(self, held: ClientQueue, *, starts_only: bool) -> AssignedQueue:
        """Return a queue that goes on with another filter, as if it were assigned now.

        It starts at the committed offset, without the messages behind it that are processed for the former filter.
        """
        start, offset = held.give.start, held.least if starts_only else held.done
        if offset is not None:
            offset, ahead = self._split(held, offset)
            start = Start(offset=offset, leader_epoch=held.leader_epoch_at(offset), ahead=ahead, done=start.done)
        return AssignedQueue(held.give.queue, held.assigned_epoch, start)

    def clear(self, *, starts_only: bool = False) -> tuple[Queue, ...]:
        """Remove all queues, and return them; see `release`."""
        queues = tuple(self._held)
        self.release(queues, starts_only=starts_only)
        return queues

    def forget_left(self, subscribed: Container[str]) -> None:
        """Forget where to continue in queues of topics that are not subscribed any more."""
        self._left = {queue: offset for queue, offset in self._left.items() if queue.topic in subscribed}

    # --- progress ---

    def start(self, give: Give, offset: int) -> None:
        """Note that reading of this assignment begins at this offset."""
        self.changes += 1
        held = self._by(give)
        if held is not None:
            held.least = held.done = offset
            held.leader_epochs = [(offset, give.start.leader_epoch if offset == give.start.offset else None)]

    def note_leader_epoch(self, give: Give, offset: int, leader_epoch: int | None) -> None:
        """Note that the messages of this assignment have another leader epoch from this offset on."""
        self.changes += 1
        held = self._by(give)
        if held is not None:
            held.leader_epochs = [entry for entry in held.leader_epochs if entry[0] < offset]
            held.leader_epochs.append((offset, leader_epoch))

    def leader_epoch_at(self, give: Give, offset: int) -> int | None:
        """Return the leader epoch of the message of an assignment before this offset; None if not known."""
        held = self._by(give)
        return None if held is None else held.leader_epoch_at(offset)

    def go_back(self, give: Give, offset: int, leader_epoch: int | None) -> bool:
        """Note that the log lost its tail from this offset on; return whether later messages had been processed.

        The log has other messages at their offsets now. `leader_epoch` is a lower bound of their leader epochs, above
        that of the last lost message; None: not known. By it, the commit that goes back differs from all earlier ones.
        """
        self.changes += 1
        held = self._by(give)
        if held is None or held.done is None:
            return False
        kept = [entry for entry in held.leader_epochs if entry[0] < offset]
        held.ahead = tuple(one for one in held.ahead if one.offset <= offset)  # the messages beyond it are other ones
        if held.done <= offset and (held.acknowledged or 0) <= offset:
            held.leader_epochs = kept or [(offset, held.leader_epoch_at(offset))]
            return False
        if leader_epoch is None:
            held.lost_end = max(held.done, held.acknowledged or 0, held.lost_end or 0)
        held.least = held.done = offset
        held.acknowledged = None
        held.since_epoch = leader_epoch
        held.leader_epochs = [(offset, leader_epoch)]
        if held.kept is not None and held.kept >= offset:
            held.kept = None
        return True

    def repeat_lost_commits(self) -> None:
        """Repeat commits that the coordinator accepts only after it has received that the log lost its tail."""
        self.changes += 1
        for held in self._held.values():
            if held.lost_end is not None:
                held.acknowledged = None

    def finish(self, give: Give, offset: int) -> bool:
        """Note that all messages below an offset are processed; return whether the client still has this assignment."""
        held = self._by(give)
        if held is None:
            return False
        held.done = offset
        return True

    def find(self, give: Give) -> ClientQueue | None:
        """Return the queue that the client has by this assignment; None if it has ended.

        The caller may write the progress of each message to `ClientQueue.done`, as `finish` does. After the assignment
        has ended, this has no effect.
        """
        return self._by(give)

    def describe(self, give: Give, offset: int, text: str) -> None:
        """Commit a text with this offset of an assignment."""
        self._texts[give.queue] = give, offset, text

    def keep(self, give: Give, offset: int | None) -> None:
        """Limit the commits of this assignment to an offset; None: no limit."""
        held = self._by(give)
        if held is not None and not held.is_limit_final:
            held.kept = offset

    def keep_for_the_next(self, topics: Set[str] | None) -> None:
        """Let no commit of a queue that drains pass what was read until now; of these topics, or of all.

        The client selects what it still reads of it without the filters of other members that it knew until now.
        """
        self.changes += 1
        for held in self._held.values():
            is_left = held.draining and not held.refiltered and held.done is not None
            if is_left and (topics is None or held.give.queue.topic in topics):
                held.kept, held.is_limit_final = held.done if held.kept is None else held.kept, True

    def keep_all(self, give: Give) -> int | None:
        """Limit the commits of this assignment to its present committed offset; return it, None if there is none."""
        held = self._by(give)
        if held is None or held.least is None:
            return None
        if not held.is_limit_final:
            held.kept = held.least
        return held.least

    def keep_committed(self, topics: Set[str] | None) -> None:
        """Limit the commits of all queues of these topics, or of all topics, to the present committed offsets."""
        self.changes += 1
        for queue, held in self._held.items():
            # Messages of a retry topic are delivered whatever the filter.
            if (topics is None or queue.topic in topics) and not has_failed_messages(queue.topic):
                held.kept = held.least

    def acknowledge(self, offsets: Iterable[CommittedOffset], epoch: int) -> None:
        """Note that these offsets, committed in that epoch, are acknowledged."""
        self.changes += 1
        for entry in offsets:
            held = self._held.get(entry.queue)
            if held is None or epoch < held.assigned_epoch or _is_before(entry.leader_epoch, held.since_epoch):
                continue
            held.least = held.acknowledged = max(held.acknowledged or 0, entry.offset)
            held.leader_epochs = _from(held.leader_epochs, entry.offset)
            if held.lost_end is not None and entry.offset > held.lost_end:
                held.lost_end = None
            if held.ahead or entry.ahead:
                held.ahead = offsets_by_filter.merged(held.ahead, entry.ahead, held.acknowledged)

    def forget_acknowledged(self, *, readable_only: bool = False) -> None:
        """Treat all offsets as not committed."""
        self.changes += 1
        for held in self._held.values():
            if not (readable_only and held.draining):
                held.acknowledged = None

    def _by(self, give: Give) -> ClientQueue | None:
        held = self._held.get(give.queue)
        # Called before each message: mostly `give` is the very object that is stored.
        return held if held is not None and (held.give is give or held.give == give) else None


def _is_before(leader_epoch: int | None, since: int | None) -> bool:
    """Return whether a commit was made before the log lost its tail, when leader epoch `since` began."""
    return since is not None and (leader_epoch is None or leader_epoch < since)


def _from(leader_epochs: list[tuple[int, int | None]], offset: int) -> list[tuple[int, int | None]]:
    """Leave out the entries that no commit after this offset needs."""
    passed = sum(1 for begin, _ in leader_epochs if begin < offset)
    return leader_epochs[max(passed - 1, 0) :]
