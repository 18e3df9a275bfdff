"""The groups that have series of their own; their number is bounded, because any client may append names of groups."""

import threading
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

OTHER = "(other)"
"""Value of the label for all groups without series of their own. No group can have this name."""


class GroupChoice:
    """The chosen groups, for all metrics of a process. For any thread.

    The first groups are chosen in the order of their appearance. Later calls of `rank` choose again, by importance, so
    that invented names do not displace important groups.
    """

    def __init__(self, registry: CollectorRegistry, most: int) -> None:
        """Register the metrics of the choice.

        Args:
            registry: receives the metrics.
            most: maximum number of chosen groups, at least 1.
        """
        self.most = most
        self._chosen: set[str] = set()
        self._dropped: set[str] = set()
        self._lock = threading.Lock()
        self._in_use = Gauge(
            "wakeroll_metrics_label_values", "Groups that have series of their own.", ["label"], registry=registry
        ).labels("group")
        self._capped = Counter(
            "wakeroll_metrics_capped_updates",
            f'Updates of metrics that are counted under "{OTHER}", because the group has no series of its own.',
            ["label"],
            registry=registry,
        ).labels("group")

    def value(self, group_id: str) -> str:
        """Return the value of the label for a group: its name, or `OTHER` if it is not chosen."""
        with self._lock:
            if group_id not in self._chosen:
                if len(self._chosen) >= self.most:
                    self._capped.inc()
                    return OTHER
                self._chosen.add(group_id)
                self._in_use.set(len(self._chosen))
            return group_id

    def has(self, group_id: str) -> bool:
        """Return whether a group is chosen now."""
        with self._lock:
            return group_id in self._chosen

    def rank(self, group_ids: Iterable[str]) -> frozenset[str]:
        """Choose the first of all groups, which are sorted by importance; return them."""
        with self._lock:
            chosen = {group_id for group_id, _ in zip(group_ids, range(self.most), strict=False)}
            self._dropped |= self._chosen - chosen
            self._chosen = chosen
            self._in_use.set(len(chosen))
            return frozenset(chosen)

    def forget(self, group_id: str) -> None:
        """Make room for another group; the caller has removed the series of this one."""
        with self._lock:
            self._chosen.discard(group_id)
            self._in_use.set(len(self._chosen))

    def take_dropped(self) -> set[str]:
        """Return the groups that are not chosen any more, each only once; the caller removes their series."""
        if not self._dropped:
            return set()
        with self._lock:
            dropped, self._dropped = self._dropped - self._chosen, set()
            return dropped
