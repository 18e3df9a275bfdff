"""Lines of the log about one membership: joined, assigned, revoked, ended, left. Each change is one short line."""

import logging

from model.client_actions import Dropped, Give, Output, Take
from wakeroll.name_lists import names_of

log = logging.getLogger("wakeroll")


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
