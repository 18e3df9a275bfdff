"""Limits of the page's connections, so that clients without requests do not use up the process's file descriptors.

uvicorn limits requests, not connections. A connection costs a file descriptor as soon as it is accepted, also if its
client never sends a request.
"""

import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Longest time from the connection, or from the last answer, to the end of the next request's head (s)."""
AT_ONCE = 32
"""Number of connections that may be accepted before the first one is handled: asyncio accepts all waiting ones in a
row."""
MAX_CONNECTIONS = 512
"""Maximum number of connections at once; less if this process may open fewer than twice as many files."""


def most_connections() -> int:
    """Return the maximum number of connections of this process: half of its file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(min(MAX_CONNECTIONS, soft // 2), 1)


class LimitedProtocol(H11Protocol):
    """A connection. If there are too many, the one that has waited longest for a request is closed."""

    def connection_made(self, transport: Any) -> None:
        """Register a new connection, and make room for it."""
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
        """Begin to wait for the next request of this connection."""
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
        """Close the connection if no complete head of a request has arrived since."""
        if self.is_idle and since_s == self.idle_since_s and not self.transport.is_closing():
            self.give_up()
