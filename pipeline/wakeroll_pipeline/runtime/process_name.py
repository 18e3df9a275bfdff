"""The name of this process, for people: its replica, its host and its process id."""

import os
import socket


def process_name(replica: str = "") -> str:
    """Return ``replica@host:pid``, or ``host:pid`` without a replica."""
    host = f"{socket.gethostname()}:{os.getpid()}"
    return f"{replica}@{host}" if replica else host
