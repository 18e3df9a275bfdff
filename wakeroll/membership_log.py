"""Lines of the log about one membership: joined, assigned, revoked, ended, left. Each change is one short line."""

import logging

from wakeroll.name_lists import names_of
from wakeroll_model.client_actions import Dropped, Give, Output, Take
from wakeroll_model.decisions import OtherFilter

log = logging.getLogger("wakeroll")

_REMEMBERED = 100
"""Conflicts that are not logged again."""
_NAMED = 8
"""Maximum number of filters that a line names."""


class MembershipLog:
    """Logs what happens to one member."""

    def __init__(self, group_id: str, client_id: str) -> None:
        """Begin; nothing is logged yet."""
        self._conflicts: dict[str, None] = {}
        """Details of conflicts that were logged last, in order."""
        self._others: tuple[OtherFilter, ...] = ()
        """Filters of other members that were logged last."""
        self._who = f"client {client_id!r} of group {group_id!r}"

    def joins(self, instance_id: str) -> None:
        """Note that an instance sends its first heartbeat."""
        log.info("%s joins as instance %s", self._who, instance_id)

    def changed(self, outputs: list[Output]) -> None:
        """Log the queues that these actions of the client assign and revoke."""
        revoked = sorted(queue for output in outputs if isinstance(output, Take) for queue in output.queues)
        assigned = sorted(output.queue for output in outputs if isinstance(output, Give))
        for what, queues in (("revoked", revoked), ("assigned", assigned)):
            if queues:
                log.info("%s: %s queues: %d (%s)", self._who, what, len(queues), names_of(queues))

    def inspected(self) -> None:
        """Note that an operator has requested a report of the application."""
        log.info("%s: an operator asks what its application does; its process answers by itself", self._who)

    def pause_changed(self, is_paused: bool) -> None:
        """Note that an operator has paused or resumed the group."""
        what = "is paused by an operator: no message is handed out" if is_paused else "is resumed"
        log.info("%s: the group %s", self._who, what)

    def others_changed(self, others: tuple[OtherFilter, ...]) -> None:
        """Log the filters of other members that differ from this member's, if they changed."""
        if others == self._others:
            return
        self._others = others
        if not others:
            log.info("%s: the members have the same filters; no messages are kept for others", self._who)
            return
        named = [f"{other.topic or 'all topics'}: {other.expression_type} {other.expression!r}" for other in others]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        log.warning(
            "%s: other members have other filters (%s%s); messages that only they want are kept for them: no commit "
            "passes the first of these in a queue",
            self._who,
            ", ".join(named[:_NAMED]),
            more,
        )

    def conflict(self, detail: str) -> None:
        """Log a conflict between this member and its group, as the coordinator describes it; each text once."""
        if detail not in self._conflicts:
            self._conflicts[detail] = None
            if len(self._conflicts) > _REMEMBERED:
                del self._conflicts[next(iter(self._conflicts))]
            log.warning("the coordinator reports a conflict of %s: %s", self._who, detail)

    def ended(self, dropped: Dropped, why: str) -> None:
        """Note that an instance ended, and its queues with it; `why` is a sentence."""
        count = len(dropped.queues)
        if dropped.reason == "idle":
            log.debug("%s; %d of its queues dropped", why, count)
            return
        if not dropped.comes_back:
            log.warning("%s; %d of its queues dropped; it does not rejoin", why, count)
        else:
            log.log(logging.WARNING if count else logging.DEBUG, "%s; %d of its queues dropped; rejoining", why, count)

    def leaves(self) -> None:
        """Log that the member leaves by itself."""
        log.info("%s leaves", self._who)
