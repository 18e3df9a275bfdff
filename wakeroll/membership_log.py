"""Lines of the log about one membership: joined, assigned, revoked, ended, left. Each change is one short line."""

import logging
from collections.abc import Iterable

from model.client_actions import Dropped, Give, Output, Take
from model.queue import Queue

log = logging.getLogger("wakeroll")

SHOWN = 5
"""Number of queues that a line names."""


def names_of(queues: Iterable[Queue]) -> str:
    """Return the names of the first few queues, and how many others there are.

    >>> names_of(Queue("orders", "", number) for number in range(7))
    'orders-0, orders-1, orders-2, orders-3, orders-4 and 2 others'
    """
    names = [str(queue) for queue in queues]
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} other{'s' * (more > 1)}" if more > 0 else "")


class MembershipLog:
    """Logs what happens to one member."""

    def __init__(self, group_id: str, client_id: str) -> None:
        """Begin; nothing is logged yet."""
        self._who = f"client {client_id!r} of group {group_id!r}"

    def joins(self, instance_id: str) -> None:
        """Note that an instance sends its first heartbeat."""
        log.info("%s joins as instance %s", self._who, instance_id)

    def changed(self, outputs: list[Output]) -> None:
        """Note which queues these actions of the client assign and revoke."""
        revoked = sorted(queue for output in outputs if isinstance(output, Take) for queue in output.queues)
        assigned = sorted(output.queue for output in outputs if isinstance(output, Give))
        for what, queues in (("revoked", revoked), ("assigned", assigned)):
            if queues:
                log.info("%s: %s queues: %d (%s)", self._who, what, len(queues), names_of(queues))

    def ended(self, dropped: Dropped, why: str) -> None:
        """Note that an instance ended, and its queues with it; `why` is a sentence."""
        count = len(dropped.queues)
        if not dropped.comes_back:
            log.warning("%s; %d of its queues dropped; it does not rejoin", why, count)
        else:
            log.log(logging.WARNING if count else logging.DEBUG, "%s; %d of its queues dropped; rejoining", why, count)

    def leaves(self) -> None:
        """Note that it leaves in good order."""
        log.info("%s leaves", self._who)
