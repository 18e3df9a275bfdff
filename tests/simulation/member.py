"""A process of a world: the SDK's pure side, a producer, an inbox reader, and an application that handles messages."""

from collections import deque
from typing import TYPE_CHECKING, Any

from model import config
from model.client import Client, Dropped, Give, Output, Send, Take, Wishes
from model.events import AnyEvent, Commit, Heartbeat, Subscription
from model.queue import Queue

if TYPE_CHECKING:
    from world import World


class Reader:
    """One giving of a queue as the application reads it."""

    def __init__(self, give: Give) -> None:
        self.give = give
        self.next_offset = give.start.offset or 0
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
        self.number = number
        self.alive = True
        self.still_until_ms = 0
        self.cut_until_ms = 0
        self.deaf_until_ms = 0
        self.slow_ms = 0
        """How long the next message takes; 0: as usual."""
        self.leaving = False
        self.topics: tuple[str, ...] = world.wanted(name)
        self.version = 0
        self.client = Client(self.group_id, self.client_id, self._wishes())
        self.readers: dict[Queue, Reader] = {}
        self.busy: dict[Queue, Reader] = {}
        self._clock_ms = world.rng.randint(0, 10**9)
        self._lives = 0
        self._outgoing: deque[tuple[AnyEvent, int, int]] = deque()
        self._sending = False
        self._heard = len(world.broker.inbox.get(self.client_id, ()))
        self._timer_ms = -1

    # --- what happens to it ---

    def start(self) -> None:
        """Join the group."""
        self._join()

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
        self._send_at_once()
        self.die()

    def wish(self, topics: tuple[str, ...]) -> None:
        """Subscribe other topics."""
        if self.alive and topics != self.topics:
            self.topics = topics
            self.version += 1
            self._do(self.client.wish(self._wishes(), self.now_ms))

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
        deaf_ms = max(self.deaf_until_ms, self.cut_until_ms, self.world.broker.dark_until_ms) - self.world.now_ms
        if deaf_ms > 0:
            self.world.after(deaf_ms + self.world.broker.latency_ms(), self.when_awake, self.hear)
            return
        inbox = self.world.broker.inbox.get(self.client_id, [])
        while self.alive and self._heard < len(inbox):
            decision = inbox[self._heard]
            self._heard += 1
            self._do(self.client.hear(decision, self.now_ms))

    def _on_time(self) -> None:
        self._timer_ms = -1
        self._do(self.client.on_time(self.now_ms))

    def _join(self) -> None:
        self._lives += 1
        self._do(self.client.join(f"{self.client_id}.{self.number}.{self._lives}", self.now_ms))

    def _do(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Send(event, sent_ms):
                    self._outgoing.append((event, sent_ms, self.world.now_ms))
                    self._pump()
                case Give():
                    reader = Reader(output)
                    self.readers[output.queue] = reader
                    self.world.after(self.world.rng.choice((0, 3, 60)), self.when_awake, self._begin, reader)
                case Take(queues):
                    for queue in queues:
                        self.readers[queue].taken = True
                        if queue not in self.busy:
                            self.world.after(self.world.rng.choice((0, 5, 50)), self.when_awake, self._end, queue)
                case Dropped():
                    self._drop(output)
        self._set_timer()

    def _set_timer(self) -> None:
        due_ms = self.client.next_due_ms()
        if due_ms < config.FORGET_MS * 1_000 and (self._timer_ms < 0 or due_ms < self._timer_ms):
            self._timer_ms = due_ms
            self.world.after(max(due_ms - self.now_ms, 1), self.when_awake, self._on_time)

    def _drop(self, dropped: Dropped) -> None:
        self.world.note_dropped(self, dropped)
        for reader in self.readers.values():
            reader.is_over = True
        self.readers.clear()
        if dropped.comes_back and not self.leaving:
            self._join()
        elif dropped.reason != "left" or self.leaving:
            self.die()

    # --- the producer: in order, one after the other ---

    def _pump(self) -> None:
        if not self._sending and self._outgoing and self.alive:
            self._sending = True
            self.world.after(self.world.broker.latency_ms(), self._deliver)

    def _deliver(self, late: bool = False) -> None:
        world, broker = self.world, self.world.broker
        if not self._outgoing:
            self._sending = False
            return
        if self.alive and (away_ms := max(self.cut_until_ms, broker.dark_until_ms) - world.now_ms) > 0:
            world.after(away_ms + world.rng.choice((1, 20, 400)), self._deliver_if_alive)
            return
        if not self.alive and max(self.cut_until_ms, broker.dark_until_ms) > world.now_ms:
            return
        event, sent_ms, queued_ms = self._outgoing.popleft()
        if world.now_ms - queued_ms <= config.SESSION_TIMEOUT_MS:
            broker.append(event, world.now_ms)
            if self.alive and not late:
                world.after(broker.latency_ms(), self._acknowledge, event, sent_ms)
        self._sending = False
        self._pump()

    def _deliver_if_alive(self) -> None:
        """What waited for the broker dies with its process; only what is on its way arrives."""
        if self.alive:
            self._deliver()

    def _acknowledge(self, event: AnyEvent, sent_ms: int) -> None:
        deaf_ms = max(self.deaf_until_ms, self.cut_until_ms) - self.world.now_ms
        if deaf_ms > 0:
            self.world.after(deaf_ms, self._acknowledge, event, sent_ms)
        else:
            self.when_awake(self._take_acknowledgement, event, sent_ms)

    def _take_acknowledgement(self, event: AnyEvent, sent_ms: int) -> None:
        if isinstance(event, Heartbeat):
            self._do(self.client.acknowledged(sent_ms, self.now_ms))
        elif isinstance(event, Commit):
            self.client.committed(event)

    def _send_at_once(self) -> None:
        """Have the network deliver what was sent, though the process ends now; unless it is cut off."""
        while self._outgoing and max(self.cut_until_ms, self.world.broker.dark_until_ms) <= self.world.now_ms:
            self._deliver(late=True)

    def beat_late(self, later_ms: int) -> None:
        """Have one more heartbeat under way when the process dies."""
        outputs = self.client.wish(self._wishes(), self.now_ms)
        for output in outputs:
            if (
                isinstance(output, Send)
                and max(self.cut_until_ms, self.world.broker.dark_until_ms) <= self.world.now_ms
            ):
                self.world.after(later_ms, self.world.arrive, output.event)

    # --- the application ---

    def look(self, queue: Queue) -> None:
        """Hand out the next message of a queue, if there is one and it may be."""
        world, reader = self.world, self.readers.get(queue)
        if reader is None or queue in self.busy or self.leaving:
            return
        if reader.next_offset >= world.ends.get(queue, 0) or not self.client.may_hand_out(reader.give, self.now_ms):
            return
        self.busy[queue] = reader
        world.note_handed(self, reader)
        takes_ms, self.slow_ms = self.slow_ms or world.rng.randint(1, world.plan.handling_ms), 0
        world.after(takes_ms, self.when_awake, self._handled, queue)

    def _begin(self, reader: Reader) -> None:
        if reader.is_over or self.readers.get(reader.give.queue) is not reader:
            return
        if not self.leaving:
            self._do(self.client.started([(reader.give, reader.next_offset)], self.now_ms))
        self.look(reader.give.queue)

    def _handled(self, queue: Queue) -> None:
        reader = self.busy.pop(queue)
        self.world.note_done(self, reader)
        reader.next_offset += 1
        if not reader.is_over:
            self.client.done(reader.give, reader.next_offset)
            self._set_timer()
        if reader.taken and not reader.is_over:
            self._end(queue)
        elif not self.leaving:
            self.look(queue)
        self._leave_if_done()

    def _end(self, queue: Queue) -> None:
        """A queue is drained: say so; it may be given anew at once."""
        reader = self.readers.get(queue)
        if reader is not None and reader.taken and queue not in self.busy:
            del self.readers[queue]
            reader.is_over = True
            self._do(self.client.released([queue], self.now_ms))

    def _leave_if_done(self) -> None:
        if self.leaving and self.alive and not self.busy:
            if max(self.cut_until_ms, self.world.broker.dark_until_ms) <= self.world.now_ms:
                self.world.left_well.add(self.client.instance_id)
            self._do(self.client.leave(self.now_ms))
            self._send_at_once()
            self.die()

    def _wishes(self) -> Wishes:
        subscriptions = [Subscription(topic=topic, version=self.version) for topic in self.topics]
        return Wishes(subscriptions=subscriptions, consume_from="first", orderly=self.world.plan.orderly)
