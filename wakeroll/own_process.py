"""The process that created an object with clients of Kafka, which do not work after a fork: it copies no threads."""

import os

from wakeroll.errors import InvalidUsage


class OwnProcess:
    """Refuses the use of an object in a forked process, where it would wait for ever, or lose messages."""

    def __init__(self, name: str) -> None:
        """Note the current process; `name` is the class of the object."""
        self._name = name
        self._pid = os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether this is the process that created the object."""
        return os.getpid() == self._pid

    def require(self) -> None:
        """Refuse a call in another process.

        Raises:
            InvalidUsage: this process is a fork of the one that created the object.
        """
        if not self.is_current:
            raise InvalidUsage(
                f"this {self._name} was created in process {self._pid}; process {os.getpid()} is a fork: create a new "
                "one"
            )
