"""Ports of this machine for embedded brokers."""

import random
import socket

HOST = "127.0.0.1"
PORTS = range(21_000, 31_000)
"""Ports below those that systems assign to outgoing connections: a client that waits for its broker to restart must
never get the broker's own port."""


def free_ports(count: int, but: int | None = None) -> list[int]:
    """Return different ports that no process uses now; fewer than `count` if there are no more.

    Args:
        count: number of ports.
        but: a port to leave out.
    """
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(found) == count:
            break
        if port != but and is_free(port):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    """Return whether a process can listen on a port."""
    with socket.socket() as probe:
        # Java sets this option too: closing connections of the last broker then do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
