"""The source of views, the same for pages of the live state and of a past moment."""

import time

from wakeroll_model.shard import Shard
from wakeroll_pipeline.live.live_model import LiveModel
from wakeroll_pipeline.live.view_structs import GroupsView, GroupView, Health

Stamp = tuple[object, ...]
"""Version of a view: the view does not change as long as its stamp stays equal."""


class ViewSource:
    """The views of a model, which may be replaced by another one, as when the tables are read again."""

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
