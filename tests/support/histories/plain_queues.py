"""Long polling as one would write it without a thought of what it costs: lists that are looked through, no index.

The machine must answer the same.  It is written from `docs/protocol.md`, and takes only names and numbers from `model`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from wakeroll_model import config
from wakeroll_model.events import AnyEvent, Arrival, Cancel, Pull, Tick

Life = tuple[str, str, str]


@dataclass
class Held:
    """A pull that waits."""

    pull: Pull
    since_ms: int
    skipped_ms: int | None = None

    @property
    def life(self) -> Life:
        """Whose it is."""
        return life_of(self.pull)

    @property
    def number(self) -> int:
        """Of the request."""
        return number_of(self.pull)


@dataclass(frozen=True)
class Answer:
    """How a pull ends."""

    request_id: str
    group_id: str
    client_id: str
    queue: str
    reason: str
    next_offset: int
    held_ms: int


@dataclass
class PlainQueue:
    """One queue that is known."""

    holds: list[Held] = field(default_factory=list)
    lives: dict[Life, tuple[int, int]] = field(default_factory=dict)
    """Of each life that does not wait: its newest pull, and when that was answered; the oldest answer first."""
    closed: list[tuple[int, int]] = field(default_factory=list)
    """(ms, offset) of the reports of the last window that was closed."""
    open: list[tuple[int, int]] = field(default_factory=list)
    """Of the one that is not."""
    hint: tuple[int, int] | None = None

    @property
    def end(self) -> int:
        """Where observers say that it ends."""
        return max((offset for _, offset in [*self.closed, *self.open]), default=0)

    def filters(self, *more: Pull) -> int:
        """Return what all different expressions but ``*`` cost."""
        wishes = {(one.expression, one.expression_type) for one in [*(held.pull for held in self.holds), *more]}
        return sum(len(expression) + config.FILTER_CHARACTERS for expression, _ in wishes if expression != "*")

    def reported_or_hinted(self, now_ms: int) -> int:
        """Return where it ends, by reports and by a hint that is not too old."""
        if self.hint is not None and now_ms - self.hint[0] < config.HINT_MS:
            return max(self.end, self.hint[1])
        return self.end


class PlainQueues:
    """All queues of a shard."""

    def __init__(self, wants: Callable[[Pull, Arrival], bool]) -> None:
        """Know none; `wants` says whether a pull's client may want a message that arrived."""
        self.known: dict[str, PlainQueue] = {}
        self.limits = config.DEFAULT_LIMITS
        self._wants = wants

    def happen(self, event: AnyEvent, now_ms: int) -> list[Answer]:
        """Return the answers to what happened, queue by queue."""
        match event:
            case Pull():
                return self._pull(event, now_ms)
            case Cancel():
                return self._cancel(event, now_ms)
            case Arrival():
                return self._arrive(event, now_ms)
            case Tick():
                self.limits = event.limits or self.limits
                return [answer for key in sorted(self.known) for answer in self._tick(key, now_ms)]
        raise AssertionError(f"{event} is no event of queues")

    def holds(self) -> int:
        """Return how many pulls are held."""
        return sum(len(queue.holds) for queue in self.known.values())

    def lives(self) -> int:
        """Return how many lives that do not wait are remembered."""
        return sum(len(queue.lives) for queue in self.known.values())

    def _pull(self, pull: Pull, now_ms: int) -> list[Answer]:
        queue, new = self.known.get(pull.queue.key), Held(pull, now_ms)
        if queue is None:
            if len(self.known) >= self.limits.max_pulled_queues or self.lives() >= self.limits.max_lives_per_shard:
                return [self._answer(PlainQueue(), new, "overflow", now_ms)]
            return [self._end(pull.queue.key, new, "unknown", now_ms)]
        newest = max(
            [queue.lives.get(new.life, (-1, 0))[0]] + [old.number for old in queue.holds if old.life == new.life]
        )
        if new.number <= newest:
            return []
        answers = [
            self._end(pull.queue.key, old, "superseded", now_ms)
            for old in list(queue.holds)
            if old.life[:2] == new.life[:2]
        ]
        others = sum(other.filters() for other in self.known.values() if other is not queue)
        if queue.reported_or_hinted(now_ms) > pull.from_offset:
            answers.append(self._end(pull.queue.key, new, "arrival", now_ms))
        elif (
            len(queue.holds) >= self.limits.max_holds_per_queue
            or self.holds() >= self.limits.max_holds_per_shard
            or queue.filters(pull) > self.limits.max_filters_per_queue
            or others + queue.filters(pull) > self.limits.max_filters_per_shard
        ):
            answers.append(self._end(pull.queue.key, new, "overflow", now_ms))
        else:
            queue.lives.pop(new.life, None)
            queue.holds.append(new)
        return self._forget(pull.queue.key, answers)

    def _cancel(self, cancel: Cancel, now_ms: int) -> list[Answer]:
        key = cancel.queue.key
        whose = cancel.group_id, cancel.client_id, cancel.request_id
        answers = [
            self._end(key, held, "cancelled", now_ms)
            for held in (list(self.known[key].holds) if key in self.known else [])
            if (held.pull.group_id, held.pull.client_id, held.pull.request_id) == whose
        ]
        return self._forget(key, answers)

    def _arrive(self, arrival: Arrival, now_ms: int) -> list[Answer]:
        key = arrival.queue.key
        queue = self.known.get(key)
        if queue is None:
            return []
        confirmed: tuple[int, int] | None = None
        if arrival.observer:
            queue.open.append((now_ms, arrival.next_offset))
            first_ms = queue.open[0][0]
            if now_ms - first_ms >= config.CONFIRM_MS:
                confirmed = first_ms, max(offset for _, offset in queue.open)
                queue.closed, queue.open = queue.open, [(now_ms, arrival.next_offset)]
                if queue.hint is not None and queue.hint[0] <= first_ms and queue.hint[1] > confirmed[1]:
                    queue.hint = None
        elif queue.hint is None or now_ms - queue.hint[0] >= config.HINT_MS or arrival.next_offset > queue.hint[1]:
            queue.hint = now_ms, arrival.next_offset
        answers = []
        for held in list(queue.holds):
            pull = held.pull
            if confirmed is not None and held.since_ms <= confirmed[0] and pull.from_offset > confirmed[1]:
                answers.append(self._end(key, held, "truncated", now_ms))
            elif pull.from_offset < arrival.next_offset:
                if self._wants(pull, arrival):
                    answers.append(self._end(key, held, "arrival", now_ms))
                elif held.skipped_ms is None:
                    held.skipped_ms = now_ms
        return self._forget(key, answers)

    def _tick(self, key: str, now_ms: int) -> list[Answer]:
        queue, answers = self.known[key], []
        for held in list(queue.holds):
            if held.since_ms + held.pull.timeout_ms <= now_ms:
                answers.append(self._end(key, held, "timeout", now_ms))
            elif held.skipped_ms is not None and held.skipped_ms + config.SKIP_MS <= now_ms:
                answers.append(self._end(key, held, "skipped", now_ms))
        for life, (_, at_ms) in list(queue.lives.items()):
            if at_ms + config.REMEMBER_MS <= now_ms:
                del queue.lives[life]
        return self._forget(key, answers)

    def _end(self, key: str, held: Held, reason: str, now_ms: int) -> Answer:
        queue = self.known.setdefault(key, PlainQueue())
        if held in queue.holds:
            queue.holds.remove(held)
        queue.lives.pop(held.life, None)
        queue.lives[held.life] = held.number, now_ms
        return self._answer(queue, held, reason, now_ms)

    def _answer(self, queue: PlainQueue, held: Held, reason: str, now_ms: int) -> Answer:
        pull = held.pull
        next_offset = pull.from_offset
        if queue.open and pull.from_offset > queue.reported_or_hinted(now_ms):
            next_offset = queue.end
        next_offset = max(next_offset, queue.end)
        if reason == "truncated":
            next_offset = min(offset for _, offset in queue.closed)
        names = pull.request_id, pull.group_id, pull.client_id, pull.queue.key
        return Answer(*names, reason, next_offset, now_ms - held.since_ms)

    def _forget(self, key: str, answers: list[Answer]) -> list[Answer]:
        """Forget the oldest lives of a queue that are too many, and the queue with the last one."""
        queue = self.known.get(key)
        while (
            queue
            and queue.lives
            and (len(queue.lives) > self.limits.max_lives_per_queue or self.lives() > self.limits.max_lives_per_shard)
        ):
            del queue.lives[next(iter(queue.lives))]
        if queue and not queue.lives and not queue.holds:
            del self.known[key]
        return answers


def life_of(pull: Pull) -> Life:
    """Return whose pull it is."""
    return pull.group_id, pull.client_id, pull.instance_id


def number_of(pull: Pull) -> int:
    """Return its number."""
    return int(pull.request_id.rpartition(":")[2])
