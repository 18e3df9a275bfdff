"""The process that watches Kafka's own consumer groups and puts them on record, without an effect on any consumer."""

import logging
import re
import threading
from collections.abc import Collection

from msgspec import Struct

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll.monotonic_clock import now_ms
from wakeroll_model.decisions import Rejected
from wakeroll_model.signing import Keys
from wakeroll_model.watched_group import HEARTBEAT_MS, WatchedGroup
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka_watch.event_log import EventLog
from wakeroll_pipeline.kafka_watch.group_names import PREFIX, group_name
from wakeroll_pipeline.kafka_watch.group_reader import AT_ONCE, GroupReader, Reading
from wakeroll_pipeline.kafka_watch.watched_decisions import WatchedDecisions

log = logging.getLogger(__name__)

INTERVAL_MS = 5_000
"""Default interval between two descriptions of a group: the default commit interval of Kafka's consumers, ms."""
WITHOUT_MEMBERS_MS = 60_000
"""Interval for a group without members, ms: only an operator, or a consumer without membership, changes its offsets."""
_SLICE_S = 0.1
_PAUSE_S = 1.0


class WatchRules(Struct, frozen=True, kw_only=True):
    """Which groups to watch, and how."""

    groups: re.Pattern[str]
    """Matches the whole names of Kafka's groups."""
    prefix: str = PREFIX
    """Begins the names of the groups here."""
    interval_ms: int = INTERVAL_MS

    @property
    def heartbeat_ms(self) -> int:
        """Interval of the heartbeats of watched members: at least one description is between two of them."""
        return max(HEARTBEAT_MS, 2 * self.interval_ms)


class GroupWatcher:
    """Watches all matching groups, or its share of them if several processes do. For one thread."""

    def __init__(self, connection: Connection, keys: Keys, rules: WatchRules, timeout: float = 10.0) -> None:
        """Create the clients.

        Args:
            connection: the brokers, which have both the groups and the control topics.
            keys: the last operator key among them signs resets and settings.
            rules: which groups to watch.
            timeout: seconds to wait for a broker.

        Raises:
            InvalidUsage: Kafka's client rejects the settings, or there is no operator key.
        """
        self._rules = rules
        self._prefix = connection.topics.prefix
        self._log = EventLog(connection, keys, timeout)
        self._reader = GroupReader(connection, timeout)
        self._feed = WatchedDecisions(connection, f"{rules.prefix} {rules.groups.pattern}", timeout)
        self._feed.lost = self._drop_lost
        self._watched: dict[str, WatchedGroup] = {}
        """Name here -> group that this process watches."""
        self._names: dict[str, str] = {}
        """Kafka group -> its name here."""
        self._due: dict[str, tuple[int, bool]] = {}
        """Kafka group -> when it is described next, and whether it had no members at the last time."""
        self._problems: dict[str, str] = {}
        """Kafka group -> why it is not watched now."""
        self._rejections: set[tuple[str | None, str]] = set()
        """Groups and rules of rejections that were logged."""
        self._outage = Trouble(log, "Kafka's groups can be read again")
        self._gaps = Trouble(log, "all brokers list their groups again")

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop` is set. No member leaves then: another process, or this one later, continues."""
        due_ms = 0
        try:
            while not stop.is_set():
                try:
                    self._hear(_SLICE_S)
                    if now_ms() >= due_ms:
                        due_ms = now_ms() + self._rules.interval_ms
                        self._look(stop)
                    self._outage.ended()
                except NotReachable as problem:
                    self._outage.began(f"Kafka's groups are not watched: {problem}; retrying")
                    stop.wait(_PAUSE_S)
        finally:
            self._log.close(_PAUSE_S)
            self._feed.close()

    def _hear(self, timeout: float) -> None:
        """Process the decisions about watched groups."""
        for decision in self._feed.read(self._watched, timeout):
            if isinstance(decision, Rejected):
                self._report(decision)
            group = self._watched.get(decision.group_id or "")
            if group is None:
                continue
            self._log.append(group.hear(decision, now_ms()))
            if group.is_forgotten:
                self._watched[group.group_id] = WatchedGroup(group.group_id, self._rules.heartbeat_ms)
        self._log.serve()

    def _look(self, stop: threading.Event) -> None:
        """Describe the groups that are due, and append what follows."""
        due = self._list()
        for first in range(0, len(due), AT_ONCE):
            if stop.is_set():
                return
            for kafka_group, reading in self._reader.read(dict(due[first : first + AT_ONCE])).items():
                self._see(kafka_group, reading)
            self._hear(0)

    def _list(self) -> list[tuple[str, bool]]:
        """Return the groups that are due, each with whether it has no members.

        A group that was watched and is not listed any more may have been deleted, or its broker did not answer.
        """
        listing = self._reader.list()
        if listing.problem:
            self._gaps.began(f"some groups may be missing: {listing.problem}")
        else:
            self._gaps.ended()
            self._forget_all_but(listing.is_empty)
        found = {name: is_empty for name, is_empty in listing.is_empty.items() if self._is_wanted(name)}
        found |= {name: False for name in self._names if name not in found and self._has_members(name)}
        mine = sorted((name, is_empty) for name, is_empty in found.items() if self._feed.has(self._name(name)))
        now = now_ms()
        return [(name, is_empty) for name, is_empty in mine if self._is_due(name, now, is_empty=is_empty)]

    def _forget_all_but(self, listed: Collection[str]) -> None:
        """Forget groups that Kafka has deleted, when their members are on record as gone: names may never come back."""
        for kafka_group in self._names.keys() - listed:
            if not self._has_members(kafka_group):
                self._watched.pop(self._names.pop(kafka_group), None)
                self._due.pop(kafka_group, None)
                self._problems.pop(kafka_group, None)

    def _is_wanted(self, kafka_group: str) -> bool:
        """Return whether a group must be watched; those of wakeroll itself are not.

        Kafka accepts commits of old clients under an empty name, and its client raises an error for it.
        """
        is_own = kafka_group.startswith((f"{self._prefix}.offset-mirror", f"{self._prefix}.watch-kafka."))
        return bool(kafka_group) and not is_own and self._rules.groups.fullmatch(kafka_group) is not None

    def _is_due(self, kafka_group: str, now: int, *, is_empty: bool) -> bool:
        due_ms, was_empty = self._due.get(kafka_group, (now, is_empty))
        watched = self._watched.get(self._name(kafka_group))
        is_settled = watched is None or watched.is_settled
        if now < due_ms and is_empty and was_empty and is_settled:
            return False
        self._due[kafka_group] = (now + WITHOUT_MEMBERS_MS, is_empty)
        return True

    def _see(self, kafka_group: str, reading: Reading) -> None:
        problem = reading.problem
        if reading.is_mirror and not self._has_members(kafka_group):
            problem = "its offsets are copies of those of wakeroll's own group (observe --mirror-offsets)"
        self._note_problem(kafka_group, problem)
        name = self._name(kafka_group)
        if problem or reading.seen is None or not self._feed.has(name):
            return
        if name not in self._watched:
            self._watched[name] = WatchedGroup(name, self._rules.heartbeat_ms)
            log.info("group %s is watched as %s", kafka_group, name)
        self._log.append(self._watched[name].see(reading.seen, now_ms()))

    def _name(self, kafka_group: str) -> str:
        if kafka_group not in self._names:
            self._names[kafka_group] = group_name(kafka_group, self._rules.prefix)
        return self._names[kafka_group]

    def _has_members(self, kafka_group: str) -> bool:
        watched = self._watched.get(self._name(kafka_group))
        return watched is not None and watched.has_members

    def _drop_lost(self) -> None:
        """Forget the groups that another process watches from now on."""
        for name in [name for name in self._watched if not self._feed.has(name)]:
            del self._watched[name]
        self._due.clear()

    def _note_problem(self, kafka_group: str, problem: str) -> None:
        """Log once why a group is not watched, and when it is watched again."""
        if problem and self._problems.get(kafka_group) != problem:
            log.warning("group %s is not watched: %s", kafka_group, problem)
        elif not problem and self._problems.get(kafka_group):
            log.info("group %s is watched again", kafka_group)
        self._problems[kafka_group] = problem

    def _report(self, rejected: Rejected) -> None:
        if (rejected.group_id, rejected.rule) not in self._rejections:
            self._rejections.add((rejected.group_id, rejected.rule))
            log.warning(
                "the coordinator rejected a record about %s (%s): %s", rejected.group_id, rejected.rule, rejected.detail
            )
