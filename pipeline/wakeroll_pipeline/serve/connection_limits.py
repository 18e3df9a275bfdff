"""Limits of the page's connections: clients that send nothing must not use up what a process may open.

uvicorn limits requests, not connections. A connection costs a file descriptor as soon as it is accepted, also if its
client never sends a request.
"""

import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Longest time from the connection, or from the last answer, to the end of the next request's head (s)."""
AT_ONCE = 32
"""Connections that are accepted before the first of them is looked at: asyncio accepts as many in a row as may wait."""
MAX_CONNECTIONS = 512
"""Connections at once; fewer if this process may open fewer than twice as many files."""


def most_connections() -> int:
    """Return how many connections this process may have: half of its file descriptors, for it needs others too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(min(MAX_CONNECTIONS, soft // 2), 1)


class LimitedProtocol(H11Protocol):
    """A connection. If there are too many, the one that waits for a request for the longest time is closed."""

    def connection_made(self, transport: Any) -> None:
        """Take a new connection, and make room for it."""
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > most_connections():
            idle = [one for one in self.connections if isinstance(one, LimitedProtocol) and one.is_idle]
            # This one is idle too. It is closed if all others are answered at the moment.
            min(idle, key=lambda one: one.idle_since_s).give_up()

    @property
    def is_idle(self) -> bool:
        """Whether the head of the next request has not arrived."""
        return self.cycle is None or self.cycle.response_complete

    def on_response_complete(self) -> None:
        """Await the next request of this connection."""
        super().on_response_complete()
        self._await_head()

    def give_up(self) -> None:
        """Close the connection without an answer."""
        self.connections.discard(self)
        self.transport.abort()

    def _await_head(self) -> None:
        self.idle_since_s = self.loop.time()
        self.loop.call_at(self.idle_since_s + HEAD_S, self._check, self.idle_since_s)

    def _check(self, since_s: float) -> None:
        """Close the connection if nothing has arrived since then, or only a part of a head."""
        if self.is_idle and since_s == self.idle_since_s and not self.transport.is_closing():
            self.give_up()
