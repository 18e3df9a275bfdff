"""A port of this machine on which nothing listens, for as long as a test needs it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from wakeroll_pipeline.local.ports import HOST


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port that refuses every connection.

    A socket is bound to the port and does not listen: the kernel refuses connections, and no other process is given
    the port.  A port that was only released may be another test's server before the first connection is tried.
    """
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        yield int(holder.getsockname()[1])
