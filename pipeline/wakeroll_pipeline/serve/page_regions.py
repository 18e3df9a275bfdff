"""The regions of the pages: parts of HTML that are rendered once per change, however many browsers show them."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping

from msgspec import structs

from wakeroll_model.strategies import pinned
from wakeroll_pipeline.live.live_model import LiveModel, ViewSource
from wakeroll_pipeline.live.verdicts import KINDS
from wakeroll_pipeline.live.view_structs import GroupsView, GroupView
from wakeroll_pipeline.serve.page_queries import GroupQuery, GroupsQuery, TopicsQuery, slice_of
from wakeroll_pipeline.serve.templating import environment
from wakeroll_pipeline.serve.what_if_query import WhatIfQuery, strategy_names

MOST_CACHED = 256
"""Maximum number of rendered pages that are kept; each has about 60 kB."""
MOST_COLUMNS = 20
"""Maximum number of members in the matrix, which would be too wide with more; then the table of queues names owners."""

Regions = Mapping[str, str]
"""Name of a region -> its HTML."""
_Key = tuple[object, ...]
Stamp = tuple[object, ...]
"""Version of a view: the view does not change as long as its stamp stays equal."""

TOPICS_REGIONS = ("status", "topics")
GROUPS_REGIONS = ("status", "filters", "groups")
GROUP_REGIONS = (
    "status", "head", "queues", "members", "matrix", "lanes", "rebalances", "whatif", "holds", "failures", "rejections",
    "settings",
)  # fmt: skip


class PageRegions:
    """Renders the regions of pages, and keeps them until the view or the query changes."""

    def __init__(self, source: ViewSource, at: str = "", *, may_change: bool = False, deployment: str = "") -> None:
        """Render views of a source.

        Args:
            source: the views.
            at: the moment of the views, as in every link; empty for the present.
            may_change: whether the views offer changes; the pages of changes then identify the user.
            deployment: name of the deployment, if the site shows several; every link begins with it.
        """
        self.source = source
        self.at = at
        self.deployment = deployment
        self._may_change = may_change
        self._environment = environment()
        self._cached: OrderedDict[_Key, tuple[Stamp, Regions]] = OrderedDict()

    @property
    def model(self) -> LiveModel:
        """The current model."""
        return self.source.model

    def groups(self, query: GroupsQuery) -> Regions:
        """Return the regions of the list of groups."""
        model = self.model
        return self._once(("groups", query), stamp_of(model), lambda: self._groups(model.groups_view(), query))

    def topics(self, query: TopicsQuery) -> Regions:
        """Return the regions of the list of topics."""
        model = self.model
        return self._once(("topics", query), stamp_of(model), lambda: self._topics(model.groups_view(), query))

    def group(self, group_id: str, query: GroupQuery) -> Regions | None:
        """Return the regions of the page of a group; None if there is no such group."""
        model = self.model
        stamp = stamp_of(model, group_id)
        return (
            self._once(("group", group_id, query), stamp, lambda: self._group(model.group_view(group_id), query))
            or None
        )

    def page(self, name: str, **values: object) -> str:
        """Return a whole page by the name of its template."""
        return self._environment.get_template(name).render(at=self.at, deployment=self.deployment, **values)

    def now(self) -> tuple[int, str]:
        """Return the log time of the views (epoch ms), and the state of their health."""
        health = self.model.health()
        return health.as_of_ms, health.state

    def parts(self, templates: Mapping[str, str], **values: object) -> Regions:
        """Render regions that are not kept; the argument is name of a region -> its template."""
        values["health"] = self.model.health()
        return {name: self.page(template, **values) for name, template in templates.items()}

    def _once(self, key: _Key, stamp: Stamp, render: Callable[[], Regions]) -> Regions:
        known = self._cached.get(key)
        if known is not None and known[0] == stamp:
            self._cached.move_to_end(key)
            return known[1]
        regions = render()
        self._cached[key] = (stamp, regions)
        self._cached.move_to_end(key)
        if len(self._cached) > MOST_CACHED:
            self._cached.popitem(last=False)
        return regions

    def _groups(self, view: GroupsView, query: GroupsQuery) -> Regions:
        matching = query.matching(view.groups)
        counts = Counter(one.verdict for one in matching)
        values = {
            "health": view.health,
            "query": query,
            "shown": slice_of(query.ordered(query.of_verdict(matching)), query.page),
            "counts": [(kind, counts[kind]) for kind in KINDS if counts[kind] or kind == query.verdict],
            "all": len(matching),
            "attention": sum(number for kind, number in counts.items() if kind not in ("healthy", "empty")),
            "known": len(view.groups),
        }
        return self._render("groups", GROUPS_REGIONS, values)

    def _topics(self, view: GroupsView, query: TopicsQuery) -> Regions:
        shown = slice_of(query.rows(view.groups), query.page)
        values = {"health": view.health, "query": query, "shown": shown, "known": len(view.groups)}
        return self._render("topics", TOPICS_REGIONS, values)

    def _group(self, view: GroupView | None, query: GroupQuery) -> Regions:
        if view is None:
            return {}
        queues = query.queues(view.queues)
        names = {one.name for one in queues.rows}
        lanes = [one for one in view.lanes if one.queue in names]
        values = {
            "health": view.health,
            "query": query,
            "view": view,
            "group": view.summary,
            "queues": queues,
            "members": query.of_members(view.members),
            "lanes": lanes,
            "columns": sorted(one.client_id for one in view.members) if len(view.members) <= MOST_COLUMNS else [],
            "what_if": WhatIfQuery(),
            "strategies": strategy_names(),
            "clients": {name: place for place, name in enumerate(sorted(one.client_id for one in view.members))},
            "may_kick": self._may_change and view.summary.strategy != pinned.NAME,
        }
        return self._render("group", GROUP_REGIONS, values)

    def _render(self, page: str, names: tuple[str, ...], values: Mapping[str, object]) -> Regions:
        return {
            name: self._environment.get_template("status.html" if name == "status" else f"{page}/{name}.html").render(
                at=self.at, deployment=self.deployment, **values
            )
            for name in names
        }


def stamp_of(model: LiveModel, group_id: str | None = None) -> Stamp:
    """Return the stamp of a group, or of the list of groups; ticks change the health without a visible effect."""
    version = model.list_version if group_id is None else model.group_version(group_id)
    return id(model), version, structs.replace(model.health(), as_of_ms=0, tick_age_ms={})
