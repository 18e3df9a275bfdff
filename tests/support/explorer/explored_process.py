"""The shipped client as a part of a state: a process with its outbox and its inbox.

A part is what the client object holds, with relative times; the records that its producer has not delivered; the
decisions that its reader has not read; and how far the application has read each queue.  Each step of a part is
computed once.  The application starts a queue at once, and drains it when the exploration says so.
"""

import pickle
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from tests.support.explorer.clockwork import NOW_MS
from tests.support.explorer.explored_coordinator import GROUP, SECOND_MS, Coordinator
from tests.support.explorer.intern import Pool
from wakeroll_model.client import NEVER_MS, Client, Preferences
from wakeroll_model.client_actions import Dropped, Give, Output, Send
from wakeroll_model.decisions import Assignment
from wakeroll_model.events import Commit, Heartbeat
from wakeroll_model.queue import Queue

UP, FROZEN, DEAD, OUT, LEFT, KICKED = "up", "frozen", "dead", "out", "left", "kicked"
"""A process runs, is suspended, has crashed, was told to stay out, has left, or was kicked."""
OVER = (DEAD, OUT, LEFT, KICKED)
"""Another one may start in its place."""

_TIMES = ("_sent_ms", "_commit_due_ms", "_acknowledged_ms", "_stated_ms", "_doubted_ms")
_DURATIONS = ("heartbeat_ms", "session_timeout_ms", "revoke_timeout_ms", "_session_before_ms", "_commit_interval_ms")
_NO_DESCRIPTION = {"_describes": None, "_describes_until_ms": None}
"""When a client would send its description; these clients have none."""
_OLD_MS = 120_000


class Part(NamedTuple):
    """A process between two steps."""

    client_id: str
    status: str
    lives: int
    """Lives begun; it numbers them."""
    client: int
    """Number of the client's state; -1: there is no process."""
    outbox: tuple[tuple[int, int], ...]
    """Event and its age in ms, oldest first."""
    inbox: tuple[int, ...]
    """Decisions, oldest first."""
    read: tuple[tuple[Queue, int], ...]
    """The next offset that the application wants of each queue it reads, sorted."""


class Step(NamedTuple):
    """What a step makes of a process."""

    after: int
    broken: tuple[str, ...] = ()
    begun: tuple[tuple[Queue, int], ...] = ()
    """Queues that the application begins to read, and from which offset."""


class View(NamedTuple):
    """What the rules ask of a process."""

    status: str
    client_id: str
    instance_id: str
    reads: frozenset[Queue]
    """What it may hand out now."""
    drains: frozenset[Queue]
    epoch: int


class Processes:
    """The processes of all states, by number."""

    def __init__(
        self, coordinator: Coordinator, preferences: Preferences, *, commits: bool, knows_slices: bool = False
    ) -> None:
        """Begin without any.

        Args:
            coordinator: knows events and decisions by number.
            preferences: what each client wants.
            commits: whether the application reads and commits; without, it never begins to read what it is given.
            knows_slices: whether each client tells by what it cuts partitions.
        """
        self.parts: Pool[Part] = Pool()
        self._coordinator = coordinator
        self._preferences = preferences
        self._commits = commits
        self._slice_by = "" if knows_slices else None
        self._clients: Pool[bytes] = Pool()
        self._steps: dict[tuple[Any, ...], Step] = {}
        self._views: dict[int, View] = {}
        self._quiet: dict[int, int] = {}
        self._wills: dict[int, list[int]] = {}

    def nobody(self, client_id: str, first_life: int) -> int:
        """Return a process that does not run yet; its lives are numbered from `first_life` on."""
        return self._add(Part(client_id, DEAD, first_life - 1, -1, (), (), ()))

    # --- steps ---

    def start(self, part: int) -> Step:
        """Start a new process in the place of one that is over."""
        return self._step("start", part, self._start)

    def acknowledge(self, part: int) -> Step:
        """Take the oldest record from the outbox: the log has it, and the client hears so."""
        return self._step("acknowledge", part, self._acknowledge)

    def hear(self, part: int) -> Step:
        """Read the oldest decision of the inbox."""
        return self._step("hear", part, self._hear)

    def hear_twice(self, part: int) -> Step:
        """Read the whole inbox, and then all of it once more, as after a batch that was repeated."""
        return self._step("hear twice", part, self._hear_twice)

    def release(self, part: int, queue: Queue) -> Step:
        """Have the application be done with a queue that it must give up."""
        return self._step("release", part, lambda _, run: run.release(queue), queue)

    def read(self, part: int, queue: Queue) -> Step:
        """Have the application handle the next message of a queue."""
        return self._step("read", part, lambda _, run: run.read(queue), queue)

    def commit(self, part: int) -> Step:
        """Have the application commit what is done."""
        return self._step("commit", part, lambda _, run: run.do(run.client.commit(NOW_MS)))

    def leave(self, part: int) -> Step:
        """Leave in good order; what is under way may still arrive."""
        return self._step("leave", part, lambda _, run: run.leave())

    def wait(self, part: int, seconds: int) -> Step:
        """Let seconds pass; the client looks at its timers at the end of each."""
        return self._step("wait", part, lambda before, run: self._wait(before, run, seconds), seconds)

    def quiet_s(self, part: int) -> int:
        """Return the number of seconds until the client has something to do by itself."""
        if part not in self._quiet:
            found = self.parts[part]
            due_ms = self._load(found.client).next_due_ms() if found.client >= 0 and found.status == UP else NEVER_MS
            self._quiet[part] = max(1, -((NOW_MS - due_ms) // SECOND_MS))
        return self._quiet[part]

    def crash(self, part: int) -> int:
        """End a process in the middle of everything; what its producer has not delivered is gone."""
        before = self.parts[part]
        return self._add(before._replace(status=DEAD, client=-1, outbox=(), inbox=(), read=()))

    def last_will(self, part: int) -> list[int]:
        """Return the events of its last will, by number: what is sent for it if it dies now."""
        client = self.parts[part].client
        if client not in self._wills:
            will = self._load(client).last_will()
            events = [] if will is None else will.events({}, "SIGKILL")
            self._wills[client] = [self._coordinator.number(event) for event in events]
        return self._wills[client]

    def freeze(self, part: int) -> int:
        """Suspend a process: nothing of it runs."""
        return self._add(self.parts[part]._replace(status=FROZEN))

    def thaw(self, part: int) -> int:
        """Let a suspended process go on."""
        return self._add(self.parts[part]._replace(status=UP))

    def drop_record(self, part: int) -> int:
        """Lose the oldest record of the outbox."""
        before = self.parts[part]
        return self._add(before._replace(outbox=before.outbox[1:]))

    def drop_decision(self, part: int) -> int:
        """Lose the oldest decision of the inbox, for this reader."""
        before = self.parts[part]
        return self._add(before._replace(inbox=before.inbox[1:]))

    def tell(self, part: int, decision: int) -> int:
        """Put a decision into the inbox, if the process runs."""
        before = self.parts[part]
        if before.status not in (UP, FROZEN):
            return part
        return self._add(before._replace(inbox=(*before.inbox, decision)))

    # --- questions ---

    def view(self, part: int) -> View:
        """Return what the rules ask of a process."""
        if part not in self._views:
            self._views[part] = self._look(self.parts[part])
        return self._views[part]

    # --- inside ---

    def _look(self, part: Part) -> View:
        if part.client < 0:
            return View(part.status, part.client_id, "", frozenset(), frozenset(), -1)
        client = self._load(part.client)
        reads = frozenset(queue for queue, give in client.readable().items() if client.may_hand_out(give, NOW_MS))
        drains = frozenset(client.draining())
        return View(part.status, part.client_id, client.instance_id, reads, drains, client.epoch)

    def _step(self, name: str, part: int, what: Callable[[Part, "_Run"], None], *more: Any) -> Step:
        key = name, part, *more
        known = self._steps.get(key)
        if known is None:
            before = self.parts[part]
            client = self._load(before.client) if before.client >= 0 else None
            run = _Run(self._coordinator, before, client, reads=self._commits)
            what(before, run)
            known = self._steps[key] = Step(self._end(run), tuple(run.broken), tuple(run.begun))
        return known

    def _start(self, before: Part, run: "_Run") -> None:
        run.client = Client(GROUP, before.client_id, self._preferences, slice_by=self._slice_by)
        run.status = UP
        run.join()

    def _acknowledge(self, before: Part, run: "_Run") -> None:
        number, age_ms = run.outbox.pop(0)
        event = self._coordinator.events[number]
        if before.client < 0 or before.status != UP:
            return  # nobody is there to hear it; a suspended process hears too late
        if isinstance(event, Heartbeat):
            run.do(run.client.acknowledged(NOW_MS - age_ms, NOW_MS))
        elif isinstance(event, Commit):
            run.client.committed(event, NOW_MS - age_ms)

    def _hear(self, _: Part, run: "_Run") -> None:
        run.hear(run.inbox.pop(0), 1)

    def _hear_twice(self, before: Part, run: "_Run") -> None:
        for seq in range(1, len(before.inbox) + 1):
            run.hear(run.inbox.pop(0), seq)
        if run.status != UP:
            return
        heard, sent = picture(run.client), len(run.outbox)
        for seq, decision in enumerate(before.inbox, 1):
            run.hear(decision, seq, is_new=False)
        if heard != picture(run.client) or sent != len(run.outbox):
            run.broken.append(f"{before.client_id} obeys a decision twice")

    def _wait(self, before: Part, run: "_Run", seconds: int) -> None:
        for _ in range(seconds):
            run.outbox = [(number, min(age_ms + SECOND_MS, _OLD_MS)) for number, age_ms in run.outbox]
            if run.status == UP:
                run.now_ms += SECOND_MS
                run.do(run.client.on_time(run.now_ms))
        if before.client >= 0:
            _shift(run.client, seconds * SECOND_MS)

    def _end(self, run: "_Run") -> int:
        client = -1
        if run.client is not None and run.status in (UP, FROZEN):
            # Each decision that is new is heard with seq 1; only of which era it is counts.
            run.client._seen = {shard: (era, 0) for shard, (era, _) in run.client._seen.items()}
            client = self._clients.add(picture(run.client), pickle.dumps(run.client))
        inbox = tuple(run.inbox) if client >= 0 else ()
        read = tuple(sorted(run.positions.items())) if client >= 0 else ()
        before = run.before
        return self._add(Part(before.client_id, run.status, run.lives, client, tuple(run.outbox), inbox, read))

    def _load(self, client: int) -> Client:
        loaded: Client = pickle.loads(self._clients[client])
        return loaded

    def _add(self, part: Part) -> int:
        return self.parts.add(part, part)


class _Run:
    """One step being taken: the client at work, and what comes of it."""

    def __init__(self, coordinator: Coordinator, before: Part, client: Client | None, *, reads: bool) -> None:
        self.before = before
        self.client: Any = client
        self.status = before.status
        self.lives = before.lives
        self.outbox = list(before.outbox)
        self.inbox = list(before.inbox)
        self.positions = dict(before.read)
        self.begun: list[tuple[Queue, int]] = []
        self.broken: list[str] = []
        self.now_ms = NOW_MS
        self._coordinator = coordinator
        self._reads = reads

    def join(self) -> None:
        """Begin a life."""
        self.lives += 1
        self.do(self.client.join(f"{self.before.client_id}#{self.lives}", self.now_ms))

    def do(self, outputs: Iterable[Output]) -> None:
        """Carry out what the client wants."""
        gives = []
        for output in outputs:
            match output:
                case Send(event):
                    self._check(event)
                    self.outbox.append((self._coordinator.number(event), 0))
                case Give():
                    gives.append(output)
                case Dropped():
                    self.positions.clear()
                    if output.comes_back:
                        self.join()
                    else:
                        self.status = {"left": LEFT, "kicked": KICKED}.get(output.reason, OUT)
        if gives and self._reads and self.status == UP:
            self._begin(gives)

    def read(self, queue: Queue) -> None:
        """Handle the next message."""
        give = self.client.readable()[queue]
        self.positions[queue] += 1
        if not self.client.done(give, self.positions[queue]):
            self.broken.append(f"{self.before.client_id} reads {queue}, and it does not count")

    def release(self, queue: Queue) -> None:
        """Be done with a queue that must be given up."""
        self.positions.pop(queue, None)
        self.do(self.client.released([queue], self.now_ms))

    def leave(self) -> None:
        """Leave the group."""
        self.do(self.client.leave(self.now_ms))
        self.status = LEFT

    def hear(self, number: int, seq: int, *, is_new: bool = True) -> None:
        """Read a decision; seqs are counted from what was heard before."""
        if self.status != UP:
            return
        decision = self._coordinator.decisions[number]
        life = self.client.instance_id
        decision.seq = seq
        outputs = self.client.receive(decision, self.now_ms)
        decision.seq = 0
        self.do(outputs)
        if is_new and isinstance(decision, Assignment) and decision.instance_id == life == self.client.instance_id:
            self.judge(decision)

    def judge(self, assignment: Assignment) -> None:
        """Check that what is read now is what the newest assignment says."""
        client = self.client
        if client.epoch != assignment.epoch:
            return
        listed = {one.queue for one in assignment.queues} - set(assignment.revoke)
        for queue in sorted(client.readable().keys() - listed):
            self.broken.append(f"{self.before.client_id} reads {queue}, which its newest assignment does not list")
        claimed = {one.queue for one in assignment.queues if one.assigned_epoch == 0}
        for queue in sorted(listed - claimed - client.readable().keys() - set(client.draining())):
            self.broken.append(f"{self.before.client_id} leaves {queue}, which its newest assignment lists")

    def _begin(self, gives: list[Give]) -> None:
        starts = []
        for give in gives:
            offset = give.start.offset if give.start.offset is not None else 0  # all worlds consume from first
            self.positions[give.queue] = offset
            self.begun.append((give.queue, offset))
            starts.append((give, offset))
        self.do(self.client.started(starts, self.now_ms))

    def _check(self, event: Any) -> None:
        """Check what is sent: it is of the present life, and a heartbeat shows all that is held."""
        client = self.client
        if isinstance(event, Heartbeat | Commit) and event.instance_id != client.instance_id:
            self.broken.append(f"{self.before.client_id} sends a {type(event).__name__} of a life that is over")
        if isinstance(event, Heartbeat) and not set(event.owned) >= {*client.draining()}:
            self.broken.append(f"{self.before.client_id} sends a heartbeat that hides what it drains")


_encode = msgspec.msgpack.Encoder(enc_hook=vars).encode


def picture(client: Client) -> bytes:
    """Return bytes that are equal for clients that behave alike."""
    return _encode({**vars(client), "_refused": sorted(client._refused), "_preferences": None, **_NO_DESCRIPTION})


def _shift(client: Client, by_ms: int) -> None:
    """Shift the times of a client, in place."""
    known = {*_TIMES, *_DURATIONS, *_NO_DESCRIPTION}
    unknown = [name for name in vars(client) if name.endswith("_ms") and name not in known]
    if unknown:
        raise LookupError(f"explored_process.py does not say what a shift of time does to {unknown}")
    for name in _TIMES:
        setattr(client, name, max(getattr(client, name) - by_ms, NOW_MS - _OLD_MS))
