"""A client of a world: it reads its queues, and where it finds nothing it pulls and waits for its wake."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from tests.support.simulation.polling.message_queues import WISHES, OutOfRange, Wish
from tests.support.simulation.polling.polling_plan import GIVE_UP_MS, TIMEOUTS_MS
from wakeroll_model.decisions import Wake
from wakeroll_model.events import Cancel, Pull
from wakeroll_model.queue import Queue

if TYPE_CHECKING:
    from tests.support.simulation.polling.polling_world import World

OVERFLOW_MS = 1_000
"""Who could not be held comes again after this."""


@dataclass
class Reading:
    """How far a client has read one queue, and what it waits for."""

    queue: Queue
    position: int = 0
    ask_from: int = 0
    """Of the last wake, if reading after it found nothing."""
    waits_for: str = ""
    """The request that is not answered yet; empty while it reads, or does nothing."""
    has_read: dict[int, int] = field(default_factory=dict)
    """Numbers of messages, over all lives, and when each was read first."""
    blind: list[tuple[int, int]] = field(default_factory=list)
    """Where it may have missed messages: it had read up to the second offset when the queue was cut at the first."""


class Poller:
    """One client_id of a group, through all its lives; its positions are what it committed."""

    def __init__(self, world: "World", name: str, queues: list[Queue], rng: Random) -> None:
        self.name = name
        self.group_id, self.client_id = name.split("/")
        self.readings = {queue: Reading(queue) for queue in queues}
        self.deaf_until_ms = self.rough_until_ms = self.echo_until_ms = 0
        self.last_pull: Pull | None = None
        self._world, self._rng = world, rng
        self._wish = rng.choice(list(WISHES))
        self._life = self._number = 0
        self._rests = False

    @property
    def instance_id(self) -> str:
        """The present life's."""
        return f"{self.name}.{self._life}".replace("/", "-")

    # --- what always goes on ---

    def start(self) -> None:
        """Begin a life, or go on after a rest."""
        self._rests = False
        if self._life == 0:
            self._be_born()
        for reading in self.readings.values():
            self._after(self._rng.randint(1, 20), self._read, reading)

    def hear(self, wake: Wake) -> None:
        """Take a wake from the inbox; what answers none of the requests it waits for is old."""
        reading = self.readings.get(wake.queue)
        if reading is None or reading.waits_for != wake.request_id or self._world.now_ms < self.deaf_until_ms:
            return
        reading.waits_for = ""
        reading.ask_from = wake.next_offset
        if wake.reason == "truncated":
            reading.position = min(reading.position, wake.next_offset)
        self._after(OVERFLOW_MS if wake.reason == "overflow" else 1, self._read, reading)

    def _read(self, reading: Reading) -> None:
        if self._rests or reading.waits_for:
            return
        try:
            found, position = self._world.messages[reading.queue].read(reading.position)
        except OutOfRange:  # it was truncated, and nobody said so; nothing may be missed, so from the first again
            reading.position = reading.ask_from = 0
            self._after(5, self._read, reading)
            return
        for message in found:
            reading.has_read.setdefault(message.number, self._world.now_ms)
        reading.position = position
        if found:
            reading.ask_from = 0
            self._after(self._rng.choice((1, 20, 300)), self._read, reading)
        else:
            self._pull(reading)

    def _pull(self, reading: Reading) -> None:
        pull = self.next_pull(reading.queue, max(reading.position, reading.ask_from), self._wish)
        reading.waits_for, self.last_pull = pull.request_id, pull
        self._send(pull)
        self._after(pull.timeout_ms + GIVE_UP_MS, self._give_up, reading, pull.request_id)

    def next_pull(self, queue: Queue, from_offset: int, wish: Wish) -> Pull:
        """Return a pull with the next number of this life."""
        self._number += 1
        expression, expression_type = wish
        return Pull(
            request_id=f"{self.instance_id}:{self._number}",
            group_id=self.group_id,
            client_id=self.client_id,
            instance_id=self.instance_id,
            queue=queue,
            from_offset=from_offset,
            timeout_ms=self._rng.choice(TIMEOUTS_MS),
            expression=expression,
            expression_type=expression_type,
        )

    def _give_up(self, reading: Reading, request_id: str) -> None:
        if reading.waits_for == request_id:
            reading.waits_for = ""
            self._read(reading)

    # --- what happens to it ---

    def rest(self) -> None:
        """Cancel what it waits for, and do nothing."""
        self._rests = True
        for reading in self.readings.values():
            if reading.waits_for:
                names = {"group_id": self.group_id, "client_id": self.client_id}
                self._send(Cancel(request_id=reading.waits_for, queue=reading.queue, **names))
            reading.waits_for = ""

    def die(self, back_ms: int) -> None:
        """Die without a word; a new life comes later."""
        self._be_born()
        self._rests = True
        self._after(back_ms, self.start)

    def wish(self, number: int) -> None:
        """Want other messages, from the next pull on."""
        self._wish = list(WISHES)[number % len(WISHES)]

    def _be_born(self) -> None:
        self._life += 1
        self._number = 0
        for reading in self.readings.values():
            reading.waits_for, reading.ask_from = "", 0

    def _send(self, event: Pull | Cancel) -> None:
        self._world.send(event, is_rough=self._world.now_ms < self.rough_until_ms)

    def _after(self, later_ms: int, what: Callable[..., None], *details: Any) -> None:
        """Let something happen later, if it is still the same life."""
        life = self._life
        self._world.after(later_ms, lambda: what(*details) if life == self._life else None)
