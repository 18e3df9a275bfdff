"""A process of a world: the SDK's pure side, an inbox reader, and an application that handles messages."""

from typing import TYPE_CHECKING, Any

from tests.support.simulation.groups.client_producer import Producer
from wakeroll.log_position import LogPosition
from wakeroll_model import config, slices
from wakeroll_model.client import Client, Preferences
from wakeroll_model.client_actions import Dropped, Give, Inspected, Output, PauseChanged, Send, Take
from wakeroll_model.decisions import Assignment
from wakeroll_model.events import About, Commit, GroupEvent, Heartbeat, LongCall, Subscription, Unregister
from wakeroll_model.queue import Queue

if TYPE_CHECKING:
    from tests.support.simulation.groups.group_world import World


class Reader:
    """One giving of a queue as the application reads it."""

    def __init__(self, give: Give) -> None:
        self.give = give
        self.next_offset = -1
        """-1: it is not known yet where to begin."""
        self.taken = False
        """Nothing more may be handed out; it ends when what was handed out is done."""
        self.is_over = False
        """It is somebody else's: nothing of it counts any more."""


class Process:
    """One process that uses a client; it may die, stand still, or be cut off."""

    def __init__(self, world: "World", name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.group_id, _, self.client_id = name.partition("/")
        self.scope = world.plan.scope(self.group_id, self.client_id)
        self.number = number
        self.alive = True
        self.still_until_ms = 0
        self._unheard_since_ms = config.NEVER_MS
        self.cut_until_ms = 0
        self.deaf_until_ms = 0
        self.skips_until_ms = 0
        self.unheard_until_ms = 0
        self.lags_until_ms = 0
        """Until then it reads its inbox slowly, but not so slowly that it would be deaf."""
        self.lag_percent = 0
        """By how much of its session."""
        self.fights_until_ms = 0
        self.slow_ms = 0
        """How long the next message takes; 0: as usual."""
        self.leaving = False
        self.topics: tuple[str, ...] = world.wanted(name)
        self.version = 0
        slice_by = "" if world.plan.slices else None
        self.client = Client(self.group_id, self.client_id, self._wishes(), about=self.about, slice_by=slice_by)
        self.readers: dict[Queue, Reader] = {}
        self.busy: dict[Queue, Reader] = {}
        self.producer = Producer(self)
        self._clock_ms = world.rng.randint(0, 10**9)
        self.lives = 0
        self.past_lives: list[str] = []
        """All its lives, the present one last."""
        self._inbox = LogPosition(self._end_of_inbox(), 0)
        self._timer_ms = -1

    # --- what happens to it ---

    def join(self) -> None:
        """Join the group as a new life, if it is not in it."""
        if not self.client.instance_id and not self.leaving:
            self.lives += 1
            life = f"{self.client_id}.{self.number}.{self.lives}"
            self.past_lives.append(life)
            self._do(self.client.join(life, self.now_ms))

    def die(self) -> None:
        """Stop in the middle of everything; what is on its way to the broker may still arrive."""
        self.alive = False
        for queue in list(self.busy):
            self.world.note_lost(self, queue)

    def finish(self) -> None:
        """Hand out nothing more, and leave when all is done."""
        self.leaving = True
        self._leave_if_done()

    def abort(self) -> None:
        """Leave now, whatever is being handled."""
        self._do(self.client.leave(self.now_ms))
        self.producer.flush()
        self.die()

    def wish(self) -> None:
        """Say what is wanted now: other topics, or another strategy."""
        topics = self.world.wanted(self.name)
        if self.alive:
            if topics != self.topics:
                self.topics = topics
                self.version += 1
            self._do(self.client.set_preferences(self._wishes(), self.now_ms))

    @property
    def former_lives(self) -> list[str]:
        """The lives that are over."""
        return [life for life in self.past_lives if not self.alive or life != self.client.instance_id]

    def last_word(self) -> GroupEvent:
        """Return the unregister of the present life, which a dying process may have under way."""
        return Unregister(group_id=self.group_id, client_id=self.client_id, instance_id=self.client.instance_id)

    def true_beat(self) -> Heartbeat | None:
        """Return what a heartbeat would say now; None while it is out."""
        outputs = self.client.set_preferences(self._wishes(), self.now_ms)
        self._do([one for one in outputs if isinstance(one, Dropped)])  # it was silent for too long
        beats = [one.event for one in outputs if isinstance(one, Send)]
        return next((beat for beat in beats if isinstance(beat, Heartbeat)), None)

    def beat_late(self, later_ms: int) -> None:
        """Have one more heartbeat under way when the process dies; it cannot overtake what was sent before."""
        unsent = self.producer.unsent
        for output in [*unsent, *self.client.set_preferences(self._wishes(), self.now_ms)]:
            if isinstance(output, Send) and not self.producer.is_cut:
                self.world.after(later_ms, self.world.append, output.event)

    @property
    def now_ms(self) -> int:
        """The process's own clock."""
        return self.world.now_ms + self._clock_ms

    def when_awake(self, what: Any, *details: Any) -> None:
        """Run something of this process now, or when it goes on; never if it is dead."""
        if not self.alive:
            return
        if self.world.now_ms < self.still_until_ms:
            later_ms = self.still_until_ms - self.world.now_ms + self.world.rng.choice((0, 1, 30))
            self.world.after(later_ms, self.when_awake, what, *details)
        else:
            what(*details)

    # --- the SDK's threads ---

    def hear(self) -> None:
        """Read the inbox."""
        until_ms = max(self.deaf_until_ms, self.unheard_until_ms, self.cut_until_ms, self.world.broker.dark_until_ms)
        deaf_ms = until_ms - self.world.now_ms
        if deaf_ms > 0:
            self._unheard_since_ms = min(self._unheard_since_ms, self.world.now_ms)
            self.world.after(deaf_ms + self.world.broker.latency_ms(), self.when_awake, self.hear)
            return
        if self.world.now_ms - self._unheard_since_ms > self.client.session_timeout_ms:
            self._do(self.client.give_up())  # as the SDK's thread that watches the inbox
        self._unheard_since_ms = config.NEVER_MS
        while self.alive and self._inbox.next_offset < self._end_of_inbox():
            offset = self._inbox.next_offset
            number = self.world.inbox_begins.get(self.client_id, 0) + offset
            if (waits_ms := self._lags_ms(number)) > 0:
                self.world.after(waits_ms, self.when_awake, self.hear)
                return
            decision = self.world.inbox[self.client_id][number]
            self._inbox.read(offset, None, self.world.now_ms)
            if not (isinstance(decision, Assignment) and self.world.now_ms < self.skips_until_ms):
                self._do(self.client.receive(decision, self.now_ms))

    def watch_inbox(self) -> None:
        """Compare the position with the end of the inbox, as the SDK does every 5 s."""
        if self.world.now_ms < max(self.deaf_until_ms, self.unheard_until_ms, self.cut_until_ms):
            self.world.after(5_000, self.when_awake, self.watch_inbox)
        elif self._inbox.look(0, self._end_of_inbox(), self.world.now_ms):
            self._inbox = LogPosition(0, self.world.now_ms)
            self._do(self.client.start_over())
            self.hear()

    def _end_of_inbox(self) -> int:
        begin = self.world.inbox_begins.get(self.client_id, 0)
        return len(self.world.inbox.get(self.client_id, ())) - begin

    def _lags_ms(self, number: int) -> int:
        """Return how much later it reads a decision of its inbox."""
        if self.world.now_ms >= self.lags_until_ms:
            return 0
        came_ms = self.world.came_ms[self.client_id][number]
        return came_ms + self.client.session_timeout_ms * self.lag_percent // 100 - self.world.now_ms

    def take_acknowledgement(self, send: Send) -> None:
        """Kafka has what was sent."""
        if isinstance(send.event, Heartbeat):
            self._do(self.client.acknowledged(send.sent_ms, self.now_ms))
        elif isinstance(send.event, Commit):
            self.client.committed(send.event, send.sent_ms)

    def _on_time(self) -> None:
        self._timer_ms = -1
        self._do(self.client.on_time(self.now_ms))

    def _do(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Send():
                    self.producer.send(output)
                case Give():
                    reader = Reader(output)
                    self.readers[output.queue] = reader
                    self.world.after(self.world.rng.choice((0, 3, 60)), self.when_awake, self._begin, reader)
                case Take(queues):
                    for queue in queues:
                        self.readers[queue].taken = True
                        if queue not in self.busy:
                            self.world.after(self.world.rng.choice((0, 5, 50)), self.when_awake, self._end, queue)
                case Inspected():
                    self._do(self.client.report(f"at work on {len(self.busy)} queues", self.now_ms))
                case PauseChanged():
                    for queue in list(self.readers):
                        self.look(queue)
                case Dropped():
                    self._drop(output)
        self._set_timer()

    def _set_timer(self) -> None:
        due_ms = self.client.next_due_ms()
        if due_ms < config.NEVER_MS and (self._timer_ms < 0 or due_ms < self._timer_ms):
            self._timer_ms = due_ms
            self.world.after(max(due_ms - self.now_ms, 1), self.when_awake, self._on_time)

    def _drop(self, dropped: Dropped) -> None:
        self.world.note_dropped(self, dropped)
        for reader in self.readers.values():
            reader.is_over = True
        self.readers.clear()
        if dropped.comes_back and not self.leaving:
            self.join()
        elif dropped.reason == "duplicate" and self.world.now_ms < self.fights_until_ms:
            self.world.after(self.world.rng.choice((500, 3_000)), self.when_awake, self.join)
        elif dropped.reason != "left" or self.leaving:
            self.die()
            if dropped.reason in ("refused", "kicked"):  # its supervisor starts it again until it is let in
                self.world.after(3_000, self.world.start, self.name)

    # --- the application ---

    def look(self, queue: Queue) -> None:
        """Hand out the next message of a queue, if there is one and it may be."""
        world, reader = self.world, self.readers.get(queue)
        if reader is None or reader.next_offset < 0 or queue in self.busy or self.leaving or self.client.is_paused:
            return
        if world.plan.slices:
            self._pass_over(reader)
        is_there = reader.next_offset < world.ends.get(queue.whole, 0)
        if not is_there or not self.client.may_hand_out(reader.give, self.now_ms):
            return
        self.busy[queue] = reader
        world.note_handed(self, reader)
        self.client.handling = [_long_call(one, self.now_ms) for one in self.busy.values()] if self.slow_ms else []
        takes_ms, self.slow_ms = self.slow_ms or world.rng.randint(1, world.plan.handling_ms), 0
        world.after(takes_ms, self.when_awake, self._handled, queue)

    def _pass_over(self, reader: Reader) -> None:
        """Pass over messages of other slices, and those that former slices have done."""
        give, before = reader.give, reader.next_offset
        while reader.next_offset < self.world.ends.get(give.queue.whole, 0):
            cell = self.world.plan.cell_of(give.queue, reader.next_offset)
            is_mine = slices.container(cell, give.queue.slices) == give.queue
            if is_mine and reader.next_offset >= _done_below(give, cell):
                break
            reader.next_offset += 1
        if reader.next_offset > before and not reader.is_over:
            self.client.done(give, reader.next_offset)
            self._set_timer()

    def _begin(self, reader: Reader) -> None:
        """Find out where to begin, put it on record, and read."""
        give = reader.give
        if reader.is_over or self.leaving or self.readers.get(give.queue) is not reader:
            return
        others = slices.overlapping(give.queue, (1, 2, 4)) if self.world.plan.slices else ()
        if any(other in self.readers or other in self.busy for other in others):  # an eager hand-over: drain it first
            self.world.after(20, self.when_awake, self._begin, reader)
            return
        end = self.world.ends.get(give.queue.whole, 0)
        by_policy = None if give.start.policy is None else end * (give.start.policy == "last")
        reader.next_offset = min(one for one in (give.start.offset, by_policy) if one is not None)
        self.world.note_given(self, reader)
        self._do(self.client.started([(give, reader.next_offset)], self.now_ms))
        self.look(give.queue)

    def _handled(self, queue: Queue) -> None:
        reader = self.busy.pop(queue)
        self.world.note_done(self, reader)
        reader.next_offset += 1
        if not reader.is_over:
            self.client.done(reader.give, reader.next_offset)
            self._set_timer()
        present = self.readers.get(queue)  # what was in hand may be of a former life
        if present is not None and present.taken:
            self._end(queue)
        elif not self.leaving:
            self.look(queue)
        self._leave_if_done()

    def _end(self, queue: Queue) -> None:
        """A queue is drained: say so; it may be given again at once."""
        reader = self.readers.get(queue)
        if reader is not None and reader.taken and queue not in self.busy:
            del self.readers[queue]
            reader.is_over = True
            outputs = self.client.released([queue], self.now_ms)
            self.world.note_released(self, queue, outputs)
            self._do(outputs)

    def _leave_if_done(self) -> None:
        if not self.leaving or not self.alive or self.busy:
            return
        self._do(self.client.on_time(self.now_ms))  # it may be out already, and not know
        if self.alive:
            if not self.producer.is_cut:
                self.world.seen.left_well.add(self.client.instance_id)
            self._do(self.client.leave(self.now_ms))
            self.producer.flush()
            self.die()

    @property
    def about(self) -> About | None:
        """How it describes itself: each process of a client is of another version, and some do not tell."""
        return About(host=f"pod-{self.number}", app_version=str(self.number)) if self.number % 4 else None

    def _wishes(self) -> Preferences:
        plan = self.world.plan
        named, pattern = self.topics, ""
        if plan.by_pattern:  # every third client names one of its topics too, which the pattern matches as well
            named, pattern = self.topics[: int(self.name[-1]) % 3 == 0], "|".join(self.topics)
            self.world.observer.note_pattern(self.group_id, pattern)
        return Preferences(
            subscriptions=[Subscription(topic=topic, version=self.version) for topic in named],
            pattern=pattern,
            consume_from=plan.consume_from,
            orderly=plan.orderly,
            mode="broadcasting" if plan.broadcasts(self.group_id) else "clustering",
            strategy=self.world.preferred(self.name),
            room=f"r{int(self.name[-1]) % 2}",
        )


def _done_below(give: Give, cell: Queue) -> int:
    """Return the offset below which the messages of a cell were done by former slices."""
    done = [one.offset for one in give.start.done if slices.container(cell, one.slices).slice == one.slice]
    return max(done, default=0)


def _long_call(reader: Reader, since_ms: int) -> LongCall:
    offset = max(reader.next_offset, 0)
    return LongCall(queue=reader.give.queue, first_offset=offset, last_offset=offset, since_ms=since_ms)
