"""The name of the operator who makes a request, for the record."""

import getpass
import socket


def this_user() -> str:
    """Return the user and host of this process, like ``mia@ops-1``; a user without a name is ``somebody``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"[:255]
