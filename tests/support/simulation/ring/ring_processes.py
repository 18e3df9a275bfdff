"""The processes of a world: applications that consume in every way that the SDK has, and one that produces."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from linecache import getline
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, Message

from tests.support.simulation.ring.ring_kafka import Network
from tests.support.simulation.ring.ring_subscriptions import Choices, Wanted
from tests.support.simulation.ring.ring_truth import Call, audience_of
from tests.support.simulation.ring.virtual_asyncio import VirtualLoop
from tests.support.simulation.ring.virtual_threads import NEVER_S, VirtualThread
from wakeroll import AsyncConsumer, Consumer, ConsumerFenced, DeadLetter, NotReachable, Producer, Retry, WakerollError
from wakeroll.errors import InvalidUsage
from wakeroll_model.queue import Queue

if TYPE_CHECKING:
    from tests.support.simulation.ring.ring_world import GroupPlan, RingWorld

CLOSE_S = 5.0
"""Timeout of `close`."""
SLACK_S = 3.0
"""How much longer than its timeouts a method may take, for the slices of waits."""
NEVER = 10**9
REFUSED_S = 30.0
"""How long an application waits until it joins again after a refusal (s); see docs/protocol.md."""
WAIT_S = 1.0
"""How long an application waits before it tries again (s)."""


class Crash(BaseException):
    """An exception of a handler that ends `run`."""


class Interrupt(KeyboardInterrupt):
    """Ctrl-C, or what a handler of a signal raises."""


class _LineTrace:
    """Raises after some lines of the SDK; its testing module stands in for Kafka's client, which is C.

    It does not raise where a ``with`` block ends, before its lock is released: no handler of a signal runs there.
    """

    def __init__(self, lines: int) -> None:
        self._left = lines
        self._lines: dict[int, int] = {}
        """Frame -> its last line."""

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        """Trace a frame of the SDK."""
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("wakeroll.") or name.startswith("wakeroll.testing"):
            return None
        if event == "line":
            self._left -= 1
            before = self._lines.get(id(frame), 0) if frame.f_lasti else 0
            self._lines[id(frame)] = frame.f_lineno
            is_an_end = frame.f_lineno < before and getline(
                frame.f_code.co_filename, frame.f_lineno
            ).lstrip().startswith(("with ", "async with "))
            if self._left <= 0 and not is_an_end:
                self._left = NEVER
                raise Interrupt(f"at {name}:{frame.f_lineno}")
        return self


class Process:
    """A process with one main thread, an address of its own, and the network behind it."""

    kind = "process"

    def __init__(self, world: "RingWorld", name: str) -> None:
        """Prepare; `start` starts the thread."""
        self.world = world
        self.name = name
        self.network = Network(name)
        self.address = world.new_address(self.network)
        self.rng = Random(f"{world.plan.seed} {name}")
        self.is_leaving = False
        """Whether the application was asked to end."""
        self.is_killed = False
        self.wanted_s = NEVER_S
        """Since when something is asked of it: to stop or to leave."""
        self.thread = VirtualThread(world.scheduler, self._main, name, process=name)

    @property
    def is_well(self) -> bool:
        """Whether it runs and was not asked to end."""
        return self.thread.is_alive() and not self.is_leaving and not self.is_killed

    def start(self) -> None:
        """Start the process."""
        self.thread.start()

    def leave(self) -> None:
        """Ask the application to end."""
        self.is_leaving = True
        self.wanted_s = min(self.wanted_s, self.world.scheduler.now_s)

    def kill(self) -> None:
        """End the process without a word, at once."""
        self.is_killed = True
        self.network.cut_until_s = NEVER_S
        self.world.scheduler.freeze(self.name, 1e12)
        self.world.truth.forget_calls(self.name)

    def _main(self) -> None:
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        """Let the process work on something else."""
        self.world.scheduler.sleep(seconds)

    def say(self, text: str) -> None:
        """Add a line to the story."""
        self.world.say(f"{self.name} {text}")

    def awaited(self, what: str, began_s: float, bound_s: float) -> None:
        """Judge whether something has ended in time; suspensions do not count, nor times without brokers before it."""
        now_s = self.world.scheduler.now_s
        away_s = sum(
            min(end, now_s) - max(begin, began_s)
            for begin, end in self.world.truth.frozen[self.name]
            if begin < now_s and end > began_s
        )
        if now_s - began_s - away_s > bound_s + SLACK_S:
            self.world.truth.find("no end", f"{self.name}: {what} took {now_s - began_s:.1f} s, at most {bound_s:g} s")


class ConsumerProcess(Process):
    """An application with a `Consumer`: it joins, consumes, and joins again when its consumer ends."""

    def __init__(self, world: "RingWorld", name: str, group: "GroupPlan", wanted: Wanted) -> None:
        super().__init__(world, name)
        self.group = group
        self.mode = world.modes[group.group_id]
        self.wanted = wanted
        """What it subscribes."""
        self.audience = audience_of(group.group_id, self.mode, name)
        """Name of those who share its messages; see `Truth.groups`."""
        self.consumer: Consumer | None = None
        self.fails = group.fails
        """Part of the attempts that fail."""
        self.hangs_s = 0.0
        """How long the next call takes."""
        self.crashes = False
        self.stops = False
        """Whether `stop` was called and `run` has not returned."""
        self.style = self.rng.choice(["close", "go on"])
        """What the application does after an interrupt."""
        self.lines = 0
        """After how many lines of the SDK a signal handler raises in the thread of the application; 0: it does not."""

    def leave(self) -> None:
        super().leave()
        self.stop()

    def stop(self) -> None:
        """Call `Consumer.stop`, as a handler of SIGTERM does."""
        if self.consumer is not None:
            self.wanted_s = min(self.wanted_s, self.world.scheduler.now_s)
            self.consumer.stop()

    @property
    def may_subscribe(self) -> bool:
        """Whether it has a consumer, and no call of its `subscribe` is under way."""
        choices = self.world.truth.choices.get(self.name)
        return self.consumer is not None and choices is not None and choices.is_settled

    def make(self) -> Consumer:
        """Create the consumer."""
        group = self.group
        return Consumer(group.group_id, self.wanted.choice(), self.address, **self.settings())

    def settings(self) -> dict[str, Any]:
        """Draw the arguments of `Consumer`; from here on, it has its present subscription, and no queues."""
        choices = self.world.truth.choices[self.name] = Choices(self.wanted)

        def begin(_: object, queues: list[Queue]) -> None:
            choices.assigned |= dict.fromkeys(queues, self.world.truth.moment())

        def end(_: object, queues: list[Queue]) -> None:
            for queue in queues:
                choices.assigned.pop(queue, None)

        return {
            "on_assigned": begin,
            "on_revoked": end,
            "on_lost": end,
            "client_id": self.name,
            "consume_from": "first",
            "mode": self.mode,
            "orderly": self.group.orderly,
            "strategy": self.group.strategy,
            "commit_interval": self.rng.choice([0.1, 2.0, 5.0]),
            "connect_timeout": 5.0,
        }

    def _main(self) -> None:
        while not self.is_leaving:
            try:
                self.consumer = self.make()
            except NotReachable as problem:
                self.say(f"cannot join: {problem}")
                self.sleep(WAIT_S)
                continue
            self.say("joins")
            try:
                with self._closing(self.consumer):
                    self.consume(self.consumer)
            except ConsumerFenced as problem:
                self.say(f"is fenced: {problem.reason}")
                if problem.reason == "refused":
                    self.sleep(REFUSED_S)
            except (Crash, Interrupt) as problem:
                self.say(f"ends by {problem!r}")
            except InvalidUsage as problem:
                self.world.truth.find("misuse", f"{self.name}: {problem}")
                return
            except WakerollError as problem:
                self.say(f"fails: {problem}")
                self.sleep(WAIT_S)
        self.say("has left")

    @contextmanager
    def _closing(self, consumer: Consumer) -> Iterator[None]:
        """Judge how long the end of a `with` block takes."""
        began_s = NEVER_S
        try:
            with consumer:
                try:
                    yield
                finally:
                    began_s = self.world.scheduler.now_s
        finally:
            self.consumer = None
            if not self.is_leaving:
                self.wanted_s = NEVER_S  # `stop` was called on this consumer, not on the next one
            if not self.world.scheduler.is_over:
                self.awaited("close()", began_s, CLOSE_S + 1.0)
                if self.is_leaving:
                    self.world.note_departure(self, began_s)

    def consume(self, consumer: Consumer) -> None:
        """Consume until the application is to leave."""
        raise NotImplementedError

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal handler raise after some lines of the SDK in this block, if that was drawn."""
        if not self.lines:
            yield
            return
        trace = _LineTrace(self.lines)
        self.lines = 0
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(None)

    # --- the application's handler ---

    def handle(self, messages: list[Message]) -> object:
        """Handle a batch as `run` wants it."""
        batch = list(messages)
        call = self.begin(batch)
        handled: list[Message] = []
        try:
            self.sleep(self.rng.choice([0.0, 0.01, 0.2, 1.0]))
            self.hang()
            result = self.outcome(batch, handled)
        finally:
            if not self.world.scheduler.is_over:
                self.world.truth.end(call, handled)
        return result

    def begin(self, batch: list[Message], asked: int = 0) -> Call:
        """Note that a batch is in hand, from a call that began at the moment `asked`; 0: `run` has it."""
        queue = Queue(batch[0].topic() or "", "", batch[0].partition() or 0)
        return self.world.truth.begin(
            self.name, self.audience, queue, batch, asked=asked, in_turn=isinstance(self, RunProcess)
        )

    def hang(self) -> None:
        """Take long, if that was drawn."""
        if self.hangs_s and not self.world.is_calm:
            seconds, self.hangs_s = self.hangs_s, 0.0
            self.sleep(seconds)

    def outcome(self, batch: list[Message], handled: list[Message]) -> object:
        """Draw what becomes of a batch."""
        rng, fails = self.rng, 0.0 if self.world.is_calm else self.fails
        if self.crashes:
            self.crashes = False
            raise Crash
        if rng.random() < fails / 3:
            raise LookupError("no such order")
        outcomes: list[Retry | DeadLetter] = []
        for at, message in enumerate(batch):
            draw = rng.random()
            if draw < fails / 2:
                outcomes.append(Retry(rng.choice([0, 1, 2]), batch[at:] if self.group.orderly else [message], "no"))
                if self.group.orderly:
                    break
            elif draw < fails * 0.6:
                outcomes.append(DeadLetter([message], "hopeless"))
            else:
                handled.append(message)
        return outcomes or None


class RunProcess(ConsumerProcess):
    """An application that calls `Consumer.run`."""

    kind = "run"

    def consume(self, consumer: Consumer) -> None:
        group, rng = self.group, self.rng
        while not self.is_leaving:
            stop_timeout = rng.choice([4.0, 40.0])
            handler: Any = self.handle if rng.random() < 0.7 else self.handle_async
            try:
                with self.interruptible():
                    consumer.run(
                        handler,
                        workers=rng.choice([1, 2, 4]),
                        batch_size=rng.choice([1, 3, 8]),
                        prefetch=rng.choice([4, 20, 100]),
                        max_retries=group.max_retries,
                        handle_timeout=group.handle_timeout_s,
                        stop_timeout=stop_timeout,
                    )
            except Interrupt as problem:
                if self.style == "close":
                    raise
                self.say(f"calls run again after {problem!r}")
                continue
            finally:
                self.world.truth.give_up_calls(self.name)
            self.say("run returns")
            if self.wanted_s < NEVER_S:
                self.awaited("run() after stop()", self.wanted_s, stop_timeout + 2.0)
                self.wanted_s = self.world.scheduler.now_s if self.is_leaving else NEVER_S

    async def handle_async(self, messages: list[Message]) -> object:
        """Handle a batch in an event loop."""
        batch = list(messages)
        call = self.begin(batch)
        handled: list[Message] = []
        try:
            await asyncio.sleep(self.rng.choice([0.0, 0.01, 0.2, 1.0]))
            if self.hangs_s and not self.world.is_calm:
                seconds, self.hangs_s = self.hangs_s, 0.0
                await asyncio.sleep(seconds)
            return self.outcome(batch, handled)
        finally:
            if not self.world.scheduler.is_over:
                self.world.truth.end(call, handled)


class PollProcess(ConsumerProcess):
    """An application that calls `Consumer.poll` or `consume`, and may mark messages as done in any order."""

    kind = "poll"

    def __init__(self, world: "RingWorld", name: str, group: "GroupPlan", wanted: Wanted) -> None:
        super().__init__(world, name, group, wanted)
        self.way = Random(f"{world.plan.seed} way of {name}").choice(["poll", "consume", "marks"])
        self.seeks = False
        """Whether it is to go back in one of its queues."""
        self._open: list[tuple[float, Call, Message]] = []
        """Messages at work, each with the time at which it is done."""

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "marks_done": self.way == "marks"}

    def consume(self, consumer: Consumer) -> None:
        turn = {"poll": self._poll, "consume": self._consume, "marks": self._mark}[self.way]
        try:
            while not self.is_leaving:
                try:
                    self._seek(consumer)
                    turn(consumer)
                except Interrupt as problem:
                    if self.style == "close":
                        raise
                    self.say(f"polls again after {problem!r}")
            self._finish(consumer, NEVER_S)
        finally:
            if not self.world.scheduler.is_over:
                for _, call, _message in self._open:
                    self.world.truth.end(call, [])
            self._open = []

    def _seek(self, consumer: Consumer) -> None:
        """Go back in a queue or a slice, or in all slices of a partition, if that was drawn."""
        queues = consumer.assignment() if self.seeks else []
        if queues:
            self.seeks = False
            queue = self.rng.choice([self.rng.choice(queues), self.rng.choice(queues).whole])
            consumer.seek(queue, self.rng.randint(0, consumer.position(queue)))

    def _poll(self, consumer: Consumer) -> None:
        rng = self.rng
        timeout = rng.choice([0.0, 0.3, 1.0, 5.0])
        began_s, asked = self.world.scheduler.now_s, self.world.truth.moment()
        with self.interruptible():
            message = consumer.poll(timeout)
        self.awaited("poll()", began_s, timeout + 12.0)
        if message is None:
            self.sleep(0.05)
            return
        call, handled = self.begin([message], asked), list[Message]()
        try:
            self.sleep(rng.choice([0.0, 0.01, 0.2, 1.0]))
            self.hang()
            if self.world.is_calm or rng.random() >= self.fails / 2:
                handled.append(message)
        finally:
            if not self.world.scheduler.is_over:
                self.world.truth.end(call, handled)
        if not handled:
            consumer.put_back()
        elif rng.random() < 0.1:
            consumer.commit(rng.choice([0.0, 1.0]))

    def _consume(self, consumer: Consumer) -> None:
        """Handle a batch of messages of several queues."""
        rng = self.rng
        timeout = rng.choice([0.0, 0.3, 1.0, 5.0])
        began_s, asked = self.world.scheduler.now_s, self.world.truth.moment()
        with self.interruptible():
            batch = consumer.consume(rng.choice([1, 3, 20]), timeout)
        self.awaited("consume()", began_s, timeout + 12.0)
        if not batch:
            self.sleep(0.05)
            return
        calls = [(self.begin([message], asked), message) for message in batch]
        is_handled = False
        try:
            self.sleep(rng.choice([0.0, 0.01, 0.2, 1.0]))
            self.hang()
            is_handled = self.world.is_calm or rng.random() >= self.fails / 2
        finally:
            if not self.world.scheduler.is_over:
                for call, message in calls:
                    self.world.truth.end(call, [message] if is_handled else [])
        if not is_handled:
            consumer.put_back()
        elif rng.random() < 0.2:
            self._commit(consumer, rng.choice(batch))

    def _commit(self, consumer: Consumer, message: Message) -> None:
        """Commit in one of the ways that there are; everything that was delivered is handled."""
        queue, offset = Queue(message.topic() or "", "", message.partition() or 0), message.offset() or 0
        match self.rng.randrange(4):
            case 0:
                consumer.commit(self.rng.choice([0.0, 1.0]))
            case 1:
                consumer.commit(1.0, message=message)
            case 2:
                consumer.commit(1.0, offsets={queue: offset})
            case 3:
                consumer.commit(1.0, asynchronous=True, on_commit=lambda *_: self.say("a commit has ended"))

    def _mark(self, consumer: Consumer) -> None:
        """Begin with more messages, and finish some that were begun before, in another order."""
        rng, scheduler, asked = self.rng, self.world.scheduler, self.world.truth.moment()
        with self.interruptible():
            batch = consumer.consume(rng.choice([1, 3]), rng.choice([0.0, 0.3]))
        for message in batch:
            self._open.append((scheduler.now_s + rng.choice([0.0, 0.3, 1.0]), self.begin([message], asked), message))
        self.hang()
        self.sleep(rng.choice([0.01, 0.2]))
        with self.interruptible():
            self._finish(consumer, scheduler.now_s)
        if rng.random() < 0.1:
            consumer.commit(rng.choice([0.0, 1.0]))

    def _finish(self, consumer: Consumer, until_s: float) -> None:
        """Finish the messages that are due."""
        due = [one for one in self._open if one[0] <= until_s]
        self.rng.shuffle(due)
        for one in due:
            self._open.remove(one)
            self.world.truth.end(one[1], [one[2]])
            consumer.done(one[2])


class AsyncProcess(ConsumerProcess):
    """An application of asyncio that polls an `AsyncConsumer`."""

    kind = "async"

    def __init__(self, world: "RingWorld", name: str, group: "GroupPlan", wanted: Wanted) -> None:
        super().__init__(world, name, group, wanted)
        self._cancel: Callable[[], None] | None = None

    def stop(self) -> None:
        """Do nothing: the program looks by itself."""

    def cancel(self) -> None:
        """Cancel the task that polls."""
        if self._cancel is not None:
            self._cancel()

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(self.world.scheduler)) as runner:
            runner.run(self._program())
        self.say("has left")

    async def _program(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.is_leaving:
            task = asyncio.ensure_future(self._consume())
            self._cancel = lambda task=task: loop.call_soon_threadsafe(task.cancel)
            try:
                await task
            except asyncio.CancelledError:
                self.say("was cancelled")
            except NotReachable as problem:
                self.say(f"cannot join: {problem}")
                await asyncio.sleep(WAIT_S)
            except ConsumerFenced as problem:
                self.say(f"is fenced: {problem.reason}")
                if problem.reason == "refused":
                    await asyncio.sleep(REFUSED_S)
            except InvalidUsage as problem:
                self.world.truth.find("misuse", f"{self.name}: {problem}")
                return
            except WakerollError as problem:
                self.say(f"fails: {problem}")
                await asyncio.sleep(WAIT_S)
            finally:
                self._cancel = None

    async def _consume(self) -> None:
        group, rng = self.group, self.rng
        async with AsyncConsumer(group.group_id, self.wanted.choice(), self.address, **self.settings()) as consumer:
            self.say("joins")
            while not self.is_leaving:
                asked = self.world.truth.moment()
                try:
                    message = await asyncio.wait_for(
                        consumer.poll(rng.choice([0.0, 0.3, 1.0])), rng.choice([None, 0.001, 0.1])
                    )
                except TimeoutError:
                    continue
                if message is None:
                    await asyncio.sleep(0.05)
                    continue
                call = self.begin([message], asked)
                handled: list[Message] = []
                try:
                    await asyncio.sleep(rng.choice([0.0, 0.01, 0.2, 1.0]))
                    handled.append(message)
                finally:
                    if not self.world.scheduler.is_over:
                        self.world.truth.end(call, handled)


class ProducerProcess(Process):
    """An application that sends messages, each with a value of its own."""

    kind = "producer"

    def __init__(self, world: "RingWorld", name: str, topics: list[str], messages: int) -> None:
        super().__init__(world, name)
        self.left = messages
        """Messages to be sent."""
        self._topics = topics
        self._sent = 0

    @property
    def is_done(self) -> bool:
        """Whether it has sent all that it was to send."""
        return not self.thread.is_alive() or self.is_killed

    def _main(self) -> None:
        while self.left and not self.is_leaving:
            try:
                with Producer(self.address, connect_timeout=5.0) as producer:
                    while self.left and not self.is_leaving:
                        self._send(producer)
            except NotReachable:
                self.sleep(WAIT_S)
            except WakerollError as problem:
                self.say(f"fails: {problem}")
                self.sleep(WAIT_S)

    def _send(self, producer: Producer) -> None:
        rng = self.rng
        acknowledged: list[bool] = []
        count = rng.choice([1, 3, 8])
        for _ in range(min(count, self.left)):
            topic, value = rng.choice(self._topics), f"{self.name}-{self._sent}".encode()
            self._sent += 1
            self.left -= 1

            def note(error: KafkaError | None, message: Message, topic: str = topic, value: bytes = value) -> None:
                acknowledged.append(error is None)
                if error is None:
                    place = topic, message.partition() or 0, message.offset() or 0, value
                    self.world.truth.acknowledged.add(place)

            key = rng.choice(self.world.plan.keys)
            producer.send(topic, value, key=key, tags=rng.choice(["paid", "refunded", ""]), on_delivery=note)
        timeout = rng.choice([1.0, 10.0])
        began_s = self.world.scheduler.now_s
        if producer.flush(timeout) and not all(acknowledged):
            self.world.truth.find("flush", f"{self.name}: flush() returned True, but a message was lost")
        self.awaited("flush()", began_s, timeout)
        self.sleep(rng.choice([0.0, 0.5, 3.0]))
