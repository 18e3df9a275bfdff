"""The causes of notifications: verdicts that begin, last and end. No I/O, and no clock."""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, field

from wakeroll_pipeline.live.view_structs import GroupSummary, GroupsView
from wakeroll_pipeline.notify.notify_file import Rules

_SEEN = ("live", "stale")
"""States of the view in which verdicts are known; they are not while it reads the log."""


Event = Literal["began", "ended", "lasts"]


class Cause(Struct, frozen=True):
    """A verdict of a group, or a notice about the control plane itself."""

    group_id: str
    """Name of the group; empty: the control plane."""
    verdict: str


class Notification(Struct, frozen=True, kw_only=True):
    """The event that a cause has begun, has ended, or still lasts."""

    event: Event
    group_id: str
    """Name of the group; empty: the control plane itself."""
    verdict: str
    """Verdict that began or ended; for the control plane, the name of its state, such as ``no-ticks``."""
    reason: str
    """Sentence with the reason of the verdict; after its end, with the present verdict."""
    since_ms: int
    """Time at which the cause was first found (epoch ms)."""
    at_ms: int
    """Time of this event (epoch ms)."""
    members: int | None = None
    """Number of members; None for the control plane, and for a group that does not exist any more. The same holds for
    the lag."""
    lag_messages: int | None = None


class Memory(Struct, kw_only=True):
    """The remembered state of a cause."""

    group_id: str
    verdict: str
    since_ms: int
    """Time since which the cause was found without a pause (epoch ms)."""
    gone_ms: int | None = None
    """Time since which the cause is not found any more (epoch ms); None while it is found."""
    sent_ms: int | None = field(default=None, name="told_ms")
    """When its beginning was last sent (epoch ms); None: never."""
    is_sent: bool = field(default=False, name="is_told")
    """Whether its beginning was sent and its end was not sent yet."""
    reason: str = ""


class Causes:
    """The present causes, and whether they were sent."""

    def __init__(self, known: Iterable[Memory] = ()) -> None:
        """Begin with the causes that an earlier process has remembered."""
        self._known = {Cause(one.group_id, one.verdict): one for one in known}

    @property
    def memory(self) -> list[Memory]:
        """The causes that were sent, for the next process."""
        return [one for one in self._known.values() if one.sent_ms is not None]

    def look(self, view: GroupsView, rules: Rules, now_ms: int) -> list[Notification]:
        """Compare a view with the known causes; return the notifications to send now, in the order of the view.

        While the view is not current, it still has the verdicts of an earlier moment: none begins or ends. A cause that
        begins and ends within `holds_ms` is not sent, and a recurring one is sent at most once in `interval_ms`.
        """
        if view.health.state not in _SEEN:
            return []
        groups = {one.group_id: one for one in view.groups}
        seen = {Cause("", one.kind): one.text for one in view.health.notices if one.level != "info"}
        if is_current := view.health.state == "live":
            seen |= {Cause(one.group_id, one.verdict): one.reason for one in view.groups}
        began = [self._begin(cause, reason, groups, rules, now_ms) for cause, reason in seen.items()]
        ended = [
            self._end(cause, groups, rules, now_ms)
            for cause in list(self._known)
            if cause not in seen and (is_current or not cause.group_id)
        ]
        return [one for one in (*ended, *began) if one is not None]

    def lasting(self, groups: Mapping[str, GroupSummary], rules: Rules, now_ms: int) -> list[Notification]:
        """Return the causes that were sent and have not ended, without those that are silenced now."""
        return [
            _notification("lasts", one, one.reason, groups, now_ms)
            for one in self._known.values()
            if one.is_sent and not rules.is_silent(one.group_id, one.verdict, now_ms)
        ]

    def _begin(
        self, cause: Cause, reason: str, groups: Mapping[str, GroupSummary], rules: Rules, now_ms: int
    ) -> Notification | None:
        known, is_watched = self._known.get(cause), rules.is_watched(cause.group_id, cause.verdict)
        if known is None:
            if not is_watched:
                return None
            known = self._known[cause] = Memory(group_id=cause.group_id, verdict=cause.verdict, since_ms=now_ms)
        elif known.gone_ms is not None:
            if not known.is_sent:
                known.since_ms = now_ms
            known.gone_ms = None
        known.reason = reason
        is_due = known.sent_ms is None or now_ms - known.sent_ms >= rules.interval_ms
        if known.is_sent or not is_due or not is_watched or now_ms - known.since_ms < rules.holds_ms:
            return None
        if rules.is_silent(cause.group_id, cause.verdict, now_ms):
            return None
        known.is_sent, known.sent_ms = True, now_ms
        return _notification("began", known, reason, groups, now_ms)

    def _end(self, cause: Cause, groups: Mapping[str, GroupSummary], rules: Rules, now_ms: int) -> Notification | None:
        known = self._known[cause]
        if known.gone_ms is None:
            known.gone_ms = now_ms
        if known.is_sent and now_ms - known.gone_ms >= rules.holds_ms:
            known.is_sent = False
            group = groups.get(cause.group_id)
            now = "it is over" if not cause.group_id else "the group is gone" if group is None else _now(group)
            return _notification("ended", known, now, groups, now_ms)
        if not known.is_sent and (known.sent_ms is None or now_ms - known.sent_ms >= rules.interval_ms):
            del self._known[cause]
        return None


def _now(group: GroupSummary) -> str:
    return f"now {group.verdict}: {group.reason}"


def _notification(
    event: Event, known: Memory, reason: str, groups: Mapping[str, GroupSummary], now_ms: int
) -> Notification:
    group = groups.get(known.group_id)
    return Notification(
        event=event,
        group_id=known.group_id,
        verdict=known.verdict,
        reason=reason,
        since_ms=known.since_ms,
        at_ms=now_ms,
        members=None if group is None else group.members,
        lag_messages=None if group is None else group.lag_messages,
    )
