"""The live model: all shards, their published decisions, and a summary of each group, updated as records arrive."""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from wakeroll.connection import Topics
from wakeroll_model.decisions import AnyDecision, Offset, Rejected, Wake
from wakeroll_model.events import UNREADABLE
from wakeroll_model.group import Group
from wakeroll_model.held_queue import HeldQueue
from wakeroll_model.partitioner import ControlPartition, partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard
from wakeroll_pipeline.live.decision_feed import DecisionFeed
from wakeroll_pipeline.live.end_history import EndHistory
from wakeroll_pipeline.live.group_facts import free_queues, owners_of, queues_of, summary_of
from wakeroll_pipeline.live.group_lags import GroupLags
from wakeroll_pipeline.live.group_page import GroupSources, group_view, member_rows
from wakeroll_pipeline.live.live_health import ShardFacts, SystemFacts, health_of
from wakeroll_pipeline.live.shard_follower import ShardFollower
from wakeroll_pipeline.live.view_structs import GroupState, GroupSummary, GroupsView, GroupView, Health

REVIEW_EVERY = 15
"""A group is reviewed in one of this many refreshes even if nothing happens, because its verdict depends on the time
too."""
_ALL = None
"""In place of a set of queues: everything about a group may have changed."""


class _Named(Struct):
    """The names in a record of a control topic."""

    type: str = ""
    topic: str = ""
    group_id: str = ""
    by: str = ""


_NO_LAG: Mapping[str, int | None] = {"lag_messages": None, "lag_unknown": 0, "catch_up_ms": None}

_names_of = msgspec.json.Decoder(_Named).decode


class TrackedGroup:
    """The lags and the summary of a group, which the model keeps beside the state of its shard."""

    __slots__ = ("free_since", "lags", "queues", "summary", "version")

    def __init__(self) -> None:
        self.lags = GroupLags()
        self.queues: list[Queue] = []
        self.free_since: dict[Queue, int] = {}
        """Queue without owner -> log time since which it has no owner."""
        self.summary: GroupSummary | None = None
        self.version = 0


class LiveModel:
    """The state of all groups. One thread applies records; any thread may ask for views."""

    def __init__(
        self, topics: Topics, partitions: int, source: Literal["live", "ledger"] = "live", only: str | None = None
    ) -> None:
        """Begin without shards.

        Args:
            topics: names of the control topics.
            partitions: number of partitions of each.
            source: ``live`` if the brokers are followed, ``ledger`` if the tables are read once.
            only: the only group with a summary and a view; None: all groups.
        """
        self.topics = topics
        self.partitions = partitions
        self.source: Literal["live", "ledger"] = source
        self.lock = threading.RLock()
        self.version = 0
        """Grows with every change of a view."""
        self.list_version = 0
        """`version` at the last change of the list of groups."""
        self.feed = DecisionFeed()
        self.shards: dict[ControlPartition, ShardFollower] = {}
        self.later_eras: dict[str, int] = {}
        """Shard whose coordinator has begun a later era than the model's -> the later era."""
        self.ends: dict[Queue, EndHistory] = {}
        self.facts = SystemFacts(source=source, as_of_ms=0, is_begun=source == "ledger")
        """Facts from the reader of the log: progress and trouble."""
        self.only = only
        self._by_name: dict[str, ShardFollower] = {}
        self._groups: dict[str, TrackedGroup] = {}
        self._readers: dict[str, set[str]] = {}
        """Topic -> groups that follow it."""
        self._queues: dict[str, tuple[Queue, ...]] = {}
        """Topic -> its queues by the newest route."""
        self._dirty: dict[str, set[Queue] | None] = {}
        self._touched: set[str] = set()
        """Groups with changes of details only that no summary shows, such as the time of a heartbeat."""
        self._turn = 0
        self._forgetting = 0

    # --- input ---

    def put_shard(self, follower: ShardFollower) -> None:
        """Add a shard, or replace it by one that begins with another state."""
        with self.lock:
            self.shards[follower.place] = self._by_name[follower.name] = follower
            self.later_eras.pop(follower.name, None)
            for topic in follower.shard.routes.topics:
                self._note_route(follower, topic, follower.at_ms)
            if follower.is_of_groups:
                gone = [name for name in self._groups if self._home(name) is follower and not self._has(name)]
                self._dirty.update(dict.fromkeys((*follower.shard.names(), *gone), _ALL))

    def apply(self, record: Record, now_s: float) -> None:
        """Apply a record of a control topic, received at a moment of the monotonic clock (s)."""
        follower = self.shards[record.topic, record.partition]
        decisions = follower.apply(record, now_s)
        if follower.kind == "queues":
            self._note_queue(follower, record, decisions)
            return
        for decision in decisions:
            self._touch(decision)
        if record.key is None:
            if b'"route"' in (record.value or b""):
                self._note_route(follower, _names(record).topic, record.timestamp_ms)
            return
        group_id = record.key.decode(errors="replace")
        if b'"by"' in (record.value or b"") and not any(isinstance(one, Rejected) for one in decisions):
            self._note_operator(group_id, record)
        if follower.is_learning:
            self._dirty[group_id] = _ALL
        else:
            self._touched.add(group_id)

    def note_decision(self, partition: int, decision: AnyDecision, published_ms: int) -> bool:
        """Add a published decision, read from this partition; return False if it is a repetition."""
        if not self.feed.note(partition, decision, published_ms):
            return False
        name, _, era = decision.shard.rpartition(".")
        follower = self._by_name.get(name)
        if follower is not None and follower.compare(decision) == "later-era":
            self.later_eras[name] = int(era)
        if group_id := getattr(decision, "group_id", None):
            if isinstance(decision, Offset | Wake):
                self._touched.add(group_id)
            else:
                self._dirty.setdefault(group_id, set())
        return True

    def note_ends(self, ends: Mapping[Queue, int], at_ms: int) -> None:
        """Add end offsets that the brokers reported at a log time (epoch ms)."""
        for queue, end in ends.items():
            self._note_end(queue, end, at_ms)

    def followed_queues(self) -> list[Queue]:
        """Return the queues of the topics that any group follows."""
        with self.lock:
            return [
                queue for topic, readers in self._readers.items() if readers for queue in self._queues.get(topic, ())
            ]

    # --- the summaries ---

    def refresh(self, *, review_all: bool = False, only_lags: bool = False) -> bool:
        """Update changed groups, and some others, whose verdict may depend on the time; return whether any changed.

        Call it about once per second: then a busy group costs one update per second, however many records it has.

        Args:
            review_all: whether to update all other groups too, as at the end of an archived log.
            only_lags: whether to follow the lags only, as before the end of an archived log, where no summary is
                needed.
        """
        with self.lock:
            now_ms = self.now_ms
            due, self._dirty = self._dirty, {}
            touched, self._touched = self._touched, set()
            self._turn = (self._turn + 1) % REVIEW_EVERY
            for number, (name, tracked) in enumerate(self._groups.items()):
                if (review_all or (number % REVIEW_EVERY == self._turn and not only_lags)) and (
                    tracked.summary is None or tracked.summary.verdict != "empty"
                ):
                    due.setdefault(name, set())
            before = self.version
            for name, queues in due.items():
                self._update(name, queues, now_ms, only_lags=only_lags)
            for name in (touched - due.keys()) & self._groups.keys():
                self.version += 1
                self._groups[name].version = self.version
            self._forgetting = (self._forgetting + 1) % 600
            if self._forgetting == 0:
                self.feed.forget(self._groups)
            return self.version != before

    def _update(self, name: str, changed: set[Queue] | None, now_ms: int, *, only_lags: bool) -> None:
        """Update a group's lags and, unless `only_lags`, its summary; forget it if its shard has forgotten it."""
        if self.only not in (None, name):
            return
        follower, group = self._home(name), self._group(name)
        if follower is None or group is None:
            if self._groups.pop(name, None) is not None:
                for readers in self._readers.values():
                    readers.discard(name)
                self.version += 1
                self.list_version = self.version
            return
        tracked = self._groups.get(name)
        if tracked is None:
            tracked, changed = TrackedGroup(), _ALL
            self._groups[name] = tracked
        if changed is _ALL:
            routes = follower.shard.routes
            tracked.queues = queues_of(group, routes)
            tracked.lags.keep(tracked.queues)
            self._follow(name, group, tracked.queues)
            was = tracked.free_since
            tracked.free_since = {
                queue: was.get(queue) or (group.freed[queue].at_ms if queue in group.freed else now_ms)
                for queue in free_queues(group, tracked.queues)
            }
            tracked.lags.update(group, tracked.queues, self.ends, now_ms)
        elif changed:
            its = changed & set(tracked.queues)
            if group.sliced:  # an end is that of a whole queue
                its |= {one for one in tracked.queues if one.whole in changed}
            tracked.lags.update(group, its, self.ends, now_ms)
        if only_lags:
            return
        summary = summary_of(
            group,
            tracked.queues,
            tracked.lags,
            self.feed.of(name),
            tracked.free_since,
            now_ms,
            follower.shard.now_ms,
        )
        if summary != tracked.summary or changed is _ALL:
            self.version += 1
            tracked.version = self.version
        if summary != tracked.summary:
            tracked.summary = summary
            self.list_version = self.version

    def _follow(self, name: str, group: Group, queues: Iterable[Queue]) -> None:
        """Note the topics that concern a group."""
        topics = {*group.topics, *(queue.topic for queue in queues)}
        for topic, readers in self._readers.items():
            if topic not in topics:
                readers.discard(name)
        for topic in topics:
            self._readers.setdefault(topic, set()).add(name)

    def _touch(self, decision: AnyDecision) -> None:
        """Note the group that a decision of the model concerns."""
        group_id = getattr(decision, "group_id", None)
        if not group_id:
            return
        if not isinstance(decision, Offset):
            self._dirty[group_id] = _ALL
        elif self._dirty.get(group_id, ()) is not _ALL:
            queues = self._dirty.setdefault(group_id, set())
            assert queues is not None, "it was just checked"
            queues.add(decision.queue)

    def _note_route(self, follower: ShardFollower, topic: str, at_ms: int) -> None:
        """Note the queues and the ends in a topic's newest route."""
        route = follower.shard.routes.get(topic)
        if route is None or not follower.is_of_groups:
            return
        queues = follower.shard.routes.queues(topic) or ()
        if self._queues.get(topic) != queues:
            self._queues[topic] = queues
            for name in self._readers.get(topic, ()):
                self._dirty[name] = _ALL
        for routed in route.queues:
            if routed.max_offset is not None:
                self._note_end(routed.queue, routed.max_offset, at_ms, routed.min_offset)

    def _note_operator(self, group_id: str, record: Record) -> None:
        """Remember the operator of an accepted request."""
        names = _names(record)
        if names.type in ("configure", "reset", "kick", "pause", "inspect") and names.by:
            self.feed.of(group_id).note_operator((record.topic, record.partition, record.offset), names.by)

    def _note_queue(self, follower: ShardFollower, record: Record, decisions: list[AnyDecision]) -> None:
        """Note the end of a queue from the state of its long polling, and the groups whose pulls changed."""
        for decision in decisions:
            if group_id := getattr(decision, "group_id", None):
                self._touched.add(group_id)
        if record.key is None:
            return
        names = _names(record)
        if names.type == "pull":
            self._touched.add(names.group_id)
        held = follower.shard.queue(record.key.decode(errors="replace"))
        if held is not None and held.end.reported:
            self._note_end(held.queue, held.end.reported_or_hinted(follower.shard.now_ms), record.timestamp_ms)

    def _note_end(self, queue: Queue, end: int, at_ms: int, first: int | None = None) -> None:
        """Note the end of a queue, and its first offset if that is known."""
        history = self.ends.get(queue)
        if history is None:
            history = self.ends[queue] = EndHistory()
        is_other = first is not None and first != history.first
        if first is not None:
            history.first = first
        if history.note(end, at_ms) or is_other:
            for name in self._readers.get(queue.topic, ()):
                queues = self._dirty.setdefault(name, set())
                if queues is not _ALL:
                    queues.add(queue)

    # --- views ---

    @property
    def now_ms(self) -> int:
        """Log time of the newest record, epoch ms; 0 before the first."""
        return max((follower.at_ms for follower in self.shards.values()), default=0)

    def health(self) -> Health:
        """Return whether the views are current."""
        now_s = time.monotonic()
        with self.lock:
            shards = [_facts(follower, now_s) for follower in self.shards.values()]
            facts = msgspec.structs.replace(self.facts, as_of_ms=self.now_ms, shards=shards)
        return health_of(facts)

    def groups_view(self) -> GroupsView:
        """Return all groups, sorted by name."""
        with self.lock:
            summaries = [one.summary for _, one in sorted(self._groups.items()) if one.summary is not None]
        return GroupsView(health=self.health(), groups=summaries)

    def group_view(self, group_id: str) -> GroupView | None:
        """Return one group; None if there is no such group."""
        health = self.health()
        with self.lock:
            sources = self._sources(group_id)
            return None if sources is None else group_view(sources, health)

    def states(self) -> list[GroupState]:
        """Return the members of all groups, sorted by shard and group, without their lags."""
        with self.lock:
            shards = [one.shard for one in self.shards.values() if one.is_of_groups]
            found = [(shard, self._sources(group_id)) for shard in shards for group_id in shard.names()]
            return [
                GroupState(
                    shard=shard.name,
                    group_id=sources.group.group_id,
                    epoch=sources.group.epoch,
                    members=[msgspec.structs.replace(one, **_NO_LAG) for one in member_rows(sources)],
                )
                for shard, sources in found
                if sources is not None
            ]

    def _sources(self, group_id: str) -> GroupSources | None:
        """Return the sources of the view of a group; None if there is no such group. The caller has the lock."""
        tracked, follower, group = self._groups.get(group_id), self._home(group_id), self._group(group_id)
        if tracked is None or follower is None or group is None or tracked.summary is None:
            return None
        return GroupSources(
            group=group,
            owners=owners_of(group),
            summary=tracked.summary,
            queues=tracked.queues,
            lags=tracked.lags,
            history=self.feed.of(group_id),
            since_ms=self.feed.since_ms,
            now_ms=self.now_ms,
            skew_ms=follower.skew_ms,
            held_queue=self._held_queue,
        )

    def names(self) -> list[str]:
        """Return the names of all groups, sorted."""
        with self.lock:
            shards = [one.shard for one in self.shards.values() if one.is_of_groups]
            return sorted(name for shard in shards for name in shard.names() if self._has(name))

    def group_version(self, group_id: str) -> int:
        """Return the version of the model at the last change of a group; -1 if there is no such group."""
        tracked = self._groups.get(group_id)
        return -1 if tracked is None else tracked.version

    def shard_of(self, group_id: str) -> Shard | None:
        """Return a copy of the shard of a group; None if there is no such group, or its shard only learns."""
        with self.lock:
            follower = self._home(group_id)
            if follower is None or follower.is_learning or not self._has(group_id):
                return None
            return follower.shard.copy()

    def held_pulls(self) -> int:
        """Return the number of held pulls."""
        with self.lock:
            return sum(follower.shard.load.pulls for follower in self.shards.values())

    def offsets_of(self, group_id: str) -> list[tuple[Queue, int | None, int | None]]:
        """Return each queue of a group with its committed offset and its lag in messages, if one of them is known."""
        with self.lock:
            tracked = self._groups.get(group_id)
            lags = {} if tracked is None else tracked.lags.queues
            of_queues = [(queue, lag.committed, lag.lag) for queue, lag in sorted(lags.items())]
        return [one for one in of_queues if one[1:] != (None, None)]

    def _held_queue(self, queue: Queue) -> tuple[HeldQueue | None, int]:
        """Return the state of a queue in long polling, and the skew of its shard."""
        place = self.topics.queues, partition_of(queue.key.encode(), self.partitions)
        follower = self.shards.get(place)
        return (None, 0) if follower is None else (follower.shard.queue(queue.key), follower.skew_ms)

    def _home(self, group_id: str) -> ShardFollower | None:
        partition = partition_of(group_id.encode(), self.partitions)
        return self.shards.get((self.topics.groups, partition)) or self.shards.get((self.topics.kafka, partition))

    def _group(self, group_id: str) -> Group | None:
        follower = self._home(group_id)
        group = None if follower is None else follower.shard.group(group_id)
        return None if group is None or group.is_forgotten else group

    def _has(self, group_id: str) -> bool:
        return self._group(group_id) is not None


class ViewSource:
    """Has the model of the views; another model replaces it, for example when the tables are read again."""

    def __init__(self, model: LiveModel) -> None:
        self.model = model


def _names(record: Record) -> _Named:
    try:
        return _names_of(record.value or b"")
    except UNREADABLE:
        return _Named()


def _facts(follower: ShardFollower, now_s: float) -> ShardFacts:
    received_s = follower.tick_received_s
    return ShardFacts(
        name=follower.name,
        tick_age_ms=None if not received_s else round((now_s - received_s) * 1_000),
        pending=follower.progress.pending,
        pending_ms=round(follower.progress.waiting_s(now_s) * 1_000),
        is_learning=follower.is_learning,
        is_different=follower.progress.is_different and not follower.is_learning,
        refuses_all_ticks=received_s is None and follower.refused_signatures > 0,
    )
