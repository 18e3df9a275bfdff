"""What a process sends: in order, one record after the other, and acknowledged if it is in reach."""

from collections import deque
from typing import TYPE_CHECKING

from wakeroll_model import config
from wakeroll_model.client_actions import Send
from wakeroll_model.events import Commit, Heartbeat, Unregister

if TYPE_CHECKING:
    from tests.support.simulation.groups.client_process import Process

Said = Heartbeat | Unregister | Commit


class Producer:
    """The producer of one process; it ends with it, but for what is under way."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._world = process.world
        self._outgoing: deque[tuple[Send, int]] = deque()
        """What is to be sent, and since when in world time."""
        self._sending = False
        self._straggler: tuple[type[Said], int] | None = None

    def straggle(self, kind: type[Heartbeat] | type[Commit], later_ms: int) -> None:
        """Let the next record of a kind arrive so much later, after others."""
        self._straggler = kind, later_ms

    @property
    def unsent(self) -> list[Send]:
        """What has not reached the broker yet, in order."""
        return [send for send, _ in self._outgoing]

    @property
    def is_cut(self) -> bool:
        """Whether nothing reaches the broker now."""
        return self._away_ms > 0

    @property
    def _away_ms(self) -> int:
        return max(self._process.cut_until_ms, self._world.broker.dark_until_ms) - self._world.now_ms

    def send(self, send: Send) -> None:
        """Append this after all that was sent before."""
        self._outgoing.append((send, self._world.now_ms))
        self._pump()

    def flush(self) -> None:
        """Have the network deliver what was sent, though the process ends now; unless it is cut off."""
        while self._outgoing and not self.is_cut:
            self._deliver(acknowledge=False)

    def _pump(self) -> None:
        if not self._sending and self._outgoing and self._process.alive:
            self._sending = True
            self._world.after(self._world.broker.latency_ms(), self._deliver)

    def _deliver(self, acknowledge: bool = True) -> None:
        world, process = self._world, self._process
        if not self._outgoing:
            self._sending = False
            return
        if self.is_cut:
            if process.alive:
                world.after(self._away_ms + world.rng.choice((1, 20, 400)), self._deliver_if_alive)
            return
        send, since_ms = self._outgoing.popleft()
        if self._straggler is not None and isinstance(send.event, self._straggler[0]):
            world.after(self._straggler[1], world.append, send.event)
            self._straggler = None
            world.seen.straggled.add(send.event.instance_id)
        elif world.now_ms - since_ms <= config.SESSION_TIMEOUT_MS:
            world.broker.append(send.event, world.now_ms)
            if process.alive and acknowledge:
                world.after(world.broker.latency_ms(), self._acknowledge, send)
        self._sending = False
        self._pump()

    def _deliver_if_alive(self) -> None:
        """What waited for the broker dies with its process; only what is on its way arrives."""
        if self._process.alive:
            self._deliver()

    def _acknowledge(self, send: Send) -> None:
        process = self._process
        away_ms = max(process.deaf_until_ms, process.cut_until_ms) - self._world.now_ms
        if away_ms > 0:
            self._world.after(away_ms, self._acknowledge, send)
        else:
            process.when_awake(process.take_acknowledgement, send)
