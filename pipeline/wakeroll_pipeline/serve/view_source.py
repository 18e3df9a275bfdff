"""Sources of views: the pages do not know whether a view is live, or the state at a moment of the past."""

import time
from typing import Protocol

from msgspec import structs

from wakeroll.epoch_ms import EpochMs
from wakeroll_model.shard import Shard
from wakeroll_pipeline.live.live_model import LiveModel
from wakeroll_pipeline.live.view_structs import GroupsView, GroupView, Health, Notice

Stamp = tuple[object, ...]
"""A view does not change as long as its stamp stays equal."""


class ViewSource(Protocol):
    """Produces views. Any thread may call it."""

    def health(self) -> Health:
        """Return whether the views are current."""

    def groups(self) -> GroupsView:
        """Return all groups, sorted by name."""

    def group(self, group_id: str) -> GroupView | None:
        """Return one group; None if there is no such group."""

    def shard_of(self, group_id: str) -> Shard | None:
        """Return a copy of the shard of a group; None if there is no such group, or its state is not known."""

    def groups_stamp(self) -> Stamp:
        """Return the stamp of the list of groups."""

    def group_stamp(self, group_id: str) -> Stamp:
        """Return the stamp of one group."""


class LiveSource:
    """The views of a live model, which may be replaced by another one, as when the tables are read again."""

    def __init__(self, model: LiveModel) -> None:
        """Begin with a model."""
        self.model = model

    def health(self) -> Health:
        """Return whether the views are current."""
        return self.model.health(time.monotonic())

    def groups(self) -> GroupsView:
        """Return all groups, sorted by name."""
        return self.model.groups_view(time.monotonic())

    def group(self, group_id: str) -> GroupView | None:
        """Return one group; None if there is no such group."""
        return self.model.group_view(group_id, time.monotonic())

    def shard_of(self, group_id: str) -> Shard | None:
        """Return a copy of the shard of a group; None if there is no such group, or its state is not known."""
        return self.model.shard_of(group_id)

    def groups_stamp(self) -> Stamp:
        """Return the stamp of the list of groups."""
        return id(self.model), self.model.list_version

    def group_stamp(self, group_id: str) -> Stamp:
        """Return the stamp of one group."""
        return id(self.model), self.model.group_version(group_id)


class MomentSource:
    """The views at a moment of the past; they never change."""

    def __init__(self, model: LiveModel, at_ms: int, records: int, took_s: float) -> None:
        """Show a model that was rebuilt.

        Args:
            model: the state at the moment.
            at_ms: the moment in log time (epoch ms).
            records: number of records that were replayed.
            took_s: time that this took (s).
        """
        self.model = model
        notice = Notice(
            kind="past",
            level="info",
            text=f"this is the state at {EpochMs(at_ms)}, rebuilt in {took_s:.1f} s from the snapshots before it and "
            f"{records:,} later records",
        )
        known = model.health(0.0)
        others = [one for one in known.notices if one.kind != "ledger"]
        self._health = structs.replace(
            known, state="past", as_of_ms=int(at_ms), tick_age_ms={}, notices=[notice, *others]
        )

    def health(self) -> Health:
        """Return the moment, and how it was rebuilt."""
        return self._health

    def groups(self) -> GroupsView:
        """Return all groups, sorted by name."""
        return structs.replace(self.model.groups_view(0.0), health=self._health)

    def group(self, group_id: str) -> GroupView | None:
        """Return one group; None if there was no such group."""
        view = self.model.group_view(group_id, 0.0)
        return None if view is None else structs.replace(view, health=self._health)

    def shard_of(self, group_id: str) -> Shard | None:
        """Return a copy of the shard of a group; None if there was no such group, or its state is not known."""
        return self.model.shard_of(group_id)

    def groups_stamp(self) -> Stamp:
        """Return the stamp of the list of groups: it is always the same."""
        return ()

    def group_stamp(self, group_id: str) -> Stamp:
        """Return the stamp of one group: it is always the same."""
        return (group_id,)
