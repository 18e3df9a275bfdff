"""Random histories of a few groups: what clients, operators and the observer might do, in any order and at any pace."""

from typing import Any

from hypothesis import strategies as st

from tests.support.control_log import ControlLog
from wakeroll_model.decisions import AnyDecision, Assignment
from wakeroll_model.events import (
    AnyEvent,
    Commit,
    CommittedOffset,
    Configure,
    Heartbeat,
    Route,
    RoutedQueue,
    Subscription,
    Tick,
    Unregister,
)
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard

GROUPS = ("billing", "shipping")
"""Both belong to partition 1 of 4."""
PARTITION = partition_of(b"billing", 4)
TOPICS = ("orders", "payments", "refunds")

_clients = st.sampled_from("abcd")
_lives = st.sampled_from([1, 1, 1, 2, 3])
_topics = st.sampled_from([["orders"], ["orders"], ["orders", "payments"], ["payments"], list(TOPICS), []])
_queues = st.builds(Queue, st.sampled_from(TOPICS), st.just(""), st.integers(0, 4))

_epochs = st.one_of(st.just("heard"), st.integers(-1, 9))
_offsets = st.tuples(_queues, st.integers(0, 99))

_settings = st.fixed_dictionaries(
    {},
    optional={
        "strategy": st.sampled_from(["AVG", "AVG_BY_CIRCLE", "NONE_SUCH"]),
        "session_timeout_ms": st.sampled_from([5_000, 15_000, 45_000, 90_000]),
        "rebalance_interval_ms": st.sampled_from([500, 5_000, 20_000]),
        "settle_ms": st.sampled_from([0, 1_000, 7_000]),
        "max_members": st.integers(1, 4),
        "handover": st.sampled_from(["cooperative", "cooperative", "eager"]),
        "revoke_timeout_ms": st.sampled_from([1_000, 10_000, 30_000]),
    },
)

_wishes = st.fixed_dictionaries(
    {},
    optional={
        "strategy": st.sampled_from(["AVG", "AVG_BY_CIRCLE", "NONE_SUCH"]),
        "weight": st.sampled_from([1.0, 2.0]),
        "mode": st.sampled_from(["clustering", "clustering", "broadcasting"]),
        "orderly": st.booleans(),
        "consume_from": st.sampled_from(["last", "first"]),
    },
)

BEGINNING = [
    ("billing", 0, ("route", "orders", 4)),
    ("billing", 0, ("route", "payments", 2)),
    ("billing", 0, ("beat", "a", 1, ["orders", "payments"], {})),
    ("billing", 2_000, ("beat", "b", 1, ["orders"], {})),
    ("shipping", 0, ("beat", "a", 1, ["orders"], {})),
]
"""Most of what can happen needs queues and somebody who owns them."""

_happenings = st.one_of(
    st.tuples(st.just("beat"), _clients, _lives, _topics, _wishes),
    st.tuples(st.just("receipt"), _clients, _lives),
    st.tuples(st.just("draining"), _clients, _lives, st.integers(0, 3)),
    st.tuples(st.just("stale beat"), _clients, _lives, st.integers(0, 3)),
    st.just(("all answer",)),
    st.tuples(st.just("odd beat"), _clients, _lives, st.integers(-1, 30), st.sets(_queues, max_size=3), _topics),
    st.tuples(st.just("commit"), _clients, st.integers(0, 3), _epochs, st.lists(_offsets, min_size=1, max_size=3)),
    st.tuples(st.just("leave"), _clients, _lives),
    st.tuples(st.just("route"), st.sampled_from(TOPICS), st.integers(0, 5)),
    st.tuples(st.just("configure"), _settings),
    st.tuples(st.just("ticks"), st.integers(1, 60)),
    st.tuples(st.just("dark"), st.sampled_from([-90_000, 20_000, 600_000])),
)

plans = st.lists(
    st.tuples(st.sampled_from(GROUPS), st.sampled_from([0, 1, 300, 900, 4_000]), _happenings), max_size=40
).map(lambda plan: [*BEGINNING, *plan])
"""Lists of (group, ms since the happening before, happening)."""


class History:
    """A plan as it was lived: the records of the one shard, and what followed."""

    def __init__(self, plan: list[tuple[str, int, Any]], era: int = 1) -> None:
        """Live a plan; in a later era than the first, after a loss of state."""
        self.log = ControlLog(4)
        self.records: list[Record] = []
        self.decisions: list[AnyDecision] = []
        self.shard = Shard("wakeroll.groups", PARTITION, 4, era=era)
        self._now_ms = 0
        self._heard: dict[tuple[str, str], Assignment] = {}
        self._beats: dict[tuple[str, str], Heartbeat] = {}
        self._sent: dict[tuple[str, str], list[Heartbeat]] = {}
        for group_id, later_ms, happening in plan:
            self._now_ms += later_ms
            self._live(group_id, *happening)

    def append(self, event: AnyEvent) -> list[AnyDecision]:
        """Let one thing happen now; return what follows in this shard."""
        record = next(record for record in self.log.append(event, self._now_ms) if record.partition == PARTITION)
        self.records.append(record)
        decisions = self.shard.apply(record)
        self.decisions += decisions
        for decision in decisions:
            if isinstance(decision, Assignment):
                self._heard[decision.group_id, decision.instance_id] = decision
        return decisions

    def receipt(self, group_id: str, client_id: str, instance_id: str, still: int = 0) -> Heartbeat | None:
        """Return the heartbeat that shows the newest assignment, as an honest client sends it.

        It still holds so many of the queues that it must give up.
        """
        said, heard = self._beats.get((group_id, instance_id)), self._heard.get((group_id, instance_id))
        if said is None or heard is None:
            return None
        owned = sorted([*(assigned.queue for assigned in heard.queues), *heard.revoke[:still]])
        return Heartbeat(
            group_id=group_id,
            client_id=client_id,
            instance_id=instance_id,
            epoch=heard.epoch,
            owned=owned,
            subscriptions=said.subscriptions,
            strategy=said.strategy,
            weight=said.weight,
            orderly=said.orderly,
            consume_from=said.consume_from,
        )

    def all_answer(self, still: int = 0) -> None:
        """Let every member show what it was told, and hold nothing else but so many queues that it must give up."""
        for group_id in GROUPS:
            group = self.shard.group(group_id)
            for client_id, member in list(group.members.items()) if group else ():
                if beat := self.receipt(group_id, client_id, member.instance_id, still):
                    self._say(beat)

    def _live(self, group_id: str, what: str, *details: Any) -> None:
        """Let a client do something, else the world."""
        match [what, *details]:
            case "beat", client_id, life, topics, wishes:
                self._beat(group_id, client_id, life, subscriptions=_subscriptions(topics), **wishes)
            case "odd beat", client_id, life, epoch, owned, topics:
                said = {"epoch": epoch, "owned": sorted(owned), "subscriptions": _subscriptions(topics)}
                self._beat(group_id, client_id, life, **said)
            case "receipt", client_id, life:
                if beat := self.receipt(group_id, client_id, f"{client_id}{life}"):
                    self._say(beat)
            case "draining", client_id, life, still:
                if beat := self.receipt(group_id, client_id, f"{client_id}{life}", still):
                    self._say(beat)
            case "stale beat", client_id, life, before:
                said = self._sent.get((group_id, f"{client_id}{life}"), [])
                if len(said) > before:
                    self.append(said[-1 - before])
            case "commit", client_id, life, epoch, offsets:
                self._commit(group_id, client_id, life, epoch, offsets)
            case "leave", client_id, life:
                self.append(Unregister(group_id=group_id, client_id=client_id, instance_id=f"{client_id}{life}"))
            case _:
                self._turn(group_id, what, *details)

    def _turn(self, group_id: str, what: str, *details: Any) -> None:
        """Let the world go on: time, topics, the operator, everybody."""
        match [what, *details]:
            case ["all answer"]:
                self.all_answer()
            case ["all drain"]:
                self.all_answer(still=99)
            case "route", topic, count:
                queues = [RoutedQueue(topic=topic, broker="", queue_id=number) for number in range(count)]
                self.append(Route(topic=topic, queues=queues, version=str(count)))
            case "configure", settings:
                self.append(Configure(group_id=group_id, **settings))
            case "ticks", count:
                for _ in range(count):
                    self._now_ms += 1_000
                    self.append(Tick())
            case "dark", step_ms:
                self._now_ms = max(0, self._now_ms + step_ms)
                self.append(Tick())
            case _:
                raise AssertionError(f"nothing happens like this: {what}")

    def _beat(self, group_id: str, client_id: str, life: int, **said: Any) -> None:
        beat = Heartbeat(group_id=group_id, client_id=client_id, instance_id=f"{client_id}{life}", **said)
        self._beats[group_id, beat.instance_id] = beat
        self._say(beat)

    def _say(self, beat: Heartbeat) -> None:
        self._sent.setdefault((beat.group_id, beat.instance_id), []).append(beat)
        self.append(beat)

    def _commit(
        self, group_id: str, client_id: str, life: int, epoch: int | str, offsets: list[tuple[Queue, int]]
    ) -> None:
        instance_id = f"{client_id}{life}"
        if epoch == "heard":
            heard = self._heard.get((group_id, instance_id))
            epoch = heard.epoch if heard else -1
        committed = [CommittedOffset(queue=queue, offset=offset) for queue, offset in offsets]
        commit = Commit(
            group_id=group_id, client_id=client_id, instance_id=instance_id, epoch=int(epoch), offsets=committed
        )
        self.append(commit)


def _subscriptions(topics: list[str]) -> list[Subscription]:
    return [Subscription(topic=topic) for topic in topics]
