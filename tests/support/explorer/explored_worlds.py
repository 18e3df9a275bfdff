"""The worlds that are explored: who is there, what may go wrong, and how often."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.explorer.explored_coordinator import GROUP
from wakeroll_model.client import Preferences
from wakeroll_model.config import SESSION_TIMEOUT_MS
from wakeroll_model.events import (
    AnyEvent,
    Configure,
    Kick,
    Matches,
    Reset,
    ResetOffset,
    Route,
    RoutedQueue,
    Subscription,
)
from wakeroll_model.queue import Queue

TOPIC = "orders"
PATTERN = "o.*"
ALL = (0, 1, 2)
"""Every process that there is."""
SHORT_S, BEAT_S, SESSION_S = 1, 10, SESSION_TIMEOUT_MS // 1000 + 1
"""A settle interval, a heartbeat interval, and a session timeout, passed."""


@dataclass(frozen=True)
class World:
    """One bounded world: the moves are those that have a budget, and those that need none."""

    name: str
    about: str
    processes: tuple[str, ...] = ("a", "b")
    """The client_id of each process; two may have the same."""
    running: tuple[int, ...] = ()
    """Those that are members, and have all they should have, when the exploration begins."""
    events: tuple[AnyEvent, ...] = ()
    """What the observer or an operator may say, each at most once, at any time."""
    ordered_events: bool = False
    """Whether they come in this order only."""
    route: Route = field(default_factory=lambda: route_of(2))
    """The topic when the exploration begins."""
    settings: Configure | None = None
    """How the group is configured before."""
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Move -> how often a path may have it; not at all without."""
    waits: tuple[tuple[int, tuple[int, ...]], ...] = ((SHORT_S, ()), (BEAT_S, ()), (SESSION_S, ()))
    """Seconds that may pass at once, and the processes whose records and decisions are not late meanwhile."""
    commits: bool = False
    """Whether applications read messages and commit."""
    orderly: bool = False
    broadcasting: bool = False
    knows_slices: bool = False
    """Whether the clients know slices; then partitions are cut into two at most."""
    pattern: str = ""
    """What the clients subscribe instead of the topic; an observer has told the group that the topic matches."""
    heals_in_s: int = 100
    """In the calm, all is well again after so many seconds."""
    depth: int = 6
    """Moves in CI."""
    long_depth: int = 9
    """Moves where there are minutes."""

    @property
    def preferences(self) -> Preferences:
        """What each client wants."""
        return Preferences(
            subscriptions=[] if self.pattern else [Subscription(topic=TOPIC)],
            pattern=self.pattern,
            mode="broadcasting" if self.broadcasting else "clustering",
            consume_from="first",
            orderly=self.orderly,
        )


def route_of(count: int, end: int | None = None) -> Route:
    """Return a route with so many queues, each with messages up to `end`; no queues: the topic is gone."""
    queues = [RoutedQueue(topic=TOPIC, broker="", queue_id=number, max_offset=end) for number in range(count)]
    return Route(topic=TOPIC, queues=queues, version=str(count or "gone"))


def matches_of(*topics: str) -> Matches:
    """Return an observer's list of the topics that match the pattern."""
    return Matches(group_id=GROUP, pattern=PATTERN, topics=list(topics))


def reset_to(offset: int, queue_id: int = 0) -> Reset:
    """Return an operator's reset of one queue."""
    offsets = [ResetOffset(queue=Queue(TOPIC, "", queue_id), offset=offset)]
    return Reset(request_id=f"to-{offset}", group_id=GROUP, offsets=offsets, by="ops")


def kick_of(client_id: str, keep_out_ms: int = 0) -> Kick:
    """Return an operator's kick."""
    return Kick(request_id=f"kick-{client_id}", group_id=GROUP, client_id=client_id, keep_out_ms=keep_out_ms, by="ops")


WORLDS = {
    world.name: world
    for world in (
        World(
            "A",
            "two clients come and go; records and decisions are lost, late and repeated",
            budgets={"start": 3, "leave": 1, "crash": 1, "lose": 1, "miss": 1, "repeat": 1, "hear twice": 1},
            waits=((SHORT_S, ()), (BEAT_S, ALL), (SESSION_S, ()), (SESSION_S, (0,)), (SESSION_S, (1,))),
            depth=5,
            long_depth=7,
        ),
        World(
            "B",
            "a second process under one client_id, while the first one lives, is suspended, or has died",
            processes=("a", "a", "b"),
            running=(0, 2),
            budgets={"start": 2, "crash": 1, "die": 1, "freeze": 1, "miss": 1, "repeat": 1},
            waits=((SHORT_S, ()), (BEAT_S, ALL), (SESSION_S, ()), (SESSION_S, (1, 2)), (SESSION_S, (0, 2))),
            heals_in_s=200,
            depth=3,
            long_depth=5,
        ),
        World(
            "C",
            "the coordinator loses its state: an older snapshot or none, a log cut anywhere",
            running=(0,),
            budgets={"start": 1, "snapshot": 1, "cut": 1, "loss": 1, "crash": 1, "lose": 1, "repeat": 1},
            waits=((SHORT_S, ()), (BEAT_S, ALL), (BEAT_S, (1,)), (SESSION_S, (0,)), (SESSION_S, (1,))),
            heals_in_s=200,
            depth=4,
            long_depth=6,
        ),
        World(
            "D",
            "messages are read and committed, offsets are reset, the topic is made again",
            running=(0,),
            route=route_of(1, end=2),
            events=(reset_to(0), route_of(0), route_of(1, end=1)),
            budgets={"start": 1, "crash": 1, "die": 1, "lose": 1, "repeat": 1},
            waits=((SHORT_S, ()), (BEAT_S, ALL), (SESSION_S, (1,))),
            commits=True,
            depth=4,
            long_depth=6,
        ),
        World(
            "E",
            "an ordered group: nothing is taken from an owner that lives",
            running=(0,),
            orderly=True,
            budgets={"start": 1, "leave": 1, "crash": 1, "freeze": 1, "lose": 1, "miss": 1, "hear twice": 1},
            waits=((SHORT_S, ()), (SHORT_S, (0,)), (BEAT_S, ALL), (SESSION_S, (0,)), (SESSION_S, (1,))),
            depth=4,
            long_depth=6,
        ),
        World(
            "F",
            "queues are added and taken away, the operator changes the settings",
            running=(0, 1),
            events=(
                route_of(3),
                route_of(1),
                Configure(group_id=GROUP, session_timeout_ms=20_000, heartbeat_ms=5_000),
                Configure(group_id=GROUP, strategy="AVG_BY_CIRCLE"),
            ),
            budgets={"lose": 1, "miss": 1, "crash": 1},
            waits=((SHORT_S, ()), (BEAT_S, ()), (BEAT_S, ALL), (SESSION_S, (0,)), (SESSION_S, (1,))),
            depth=3,
            long_depth=5,
        ),
        World(
            "G",
            "the observer is silent for ten seconds, twice: what is late then is not counted as silence",
            running=(0,),
            budgets={"start": 1, "dark": 2, "crash": 1, "freeze": 1, "lose": 1, "miss": 1},
            waits=((SHORT_S, ()), (BEAT_S, ALL), (SESSION_S, (0,)), (SESSION_S, (1,))),
            depth=4,
            long_depth=6,
        ),
        World(
            "H",
            "a broadcasting group: everybody reads all",
            running=(0,),
            route=route_of(1, end=2),
            events=(route_of(2, end=2),),
            budgets={"start": 1, "leave": 1, "crash": 1, "lose": 1, "miss": 1, "cut": 1, "loss": 1},
            waits=((SHORT_S, ()), (BEAT_S, ALL), (SESSION_S, (0,)), (SESSION_S, (1,))),
            broadcasting=True,
            heals_in_s=200,
            depth=4,
            long_depth=6,
        ),
        World(
            "I",
            "an operator kicks one client, and another one that is kept out for half a minute",
            running=(0, 1),
            events=(kick_of("b", 30_000), kick_of("a")),
            budgets={"start": 2, "crash": 1, "die": 1, "freeze": 1, "miss": 1},
            waits=((SHORT_S, ()), (BEAT_S, ALL), (SESSION_S, (0,)), (SESSION_S, (1,))),
            depth=3,
            long_depth=5,
        ),
        World(
            "J",
            "clients subscribe a pattern; an observer lists its topic late, and it is deleted",
            running=(0,),
            pattern=PATTERN,
            events=(matches_of(), route_of(3), matches_of(TOPIC), route_of(0), matches_of()),
            ordered_events=True,
            budgets={"start": 1, "leave": 1, "crash": 1, "lose": 1, "miss": 1},
            waits=((SHORT_S, ()), (BEAT_S, ALL), (SESSION_S, (0,)), (SESSION_S, (1,))),
            depth=4,
            long_depth=6,
        ),
        World(
            "K",
            "partitions are cut into two slices, and are whole again, while the coordinator may lose its state",
            running=(0,),
            knows_slices=True,
            route=route_of(1),
            events=(Configure(group_id=GROUP, slices={TOPIC: 2}), Configure(group_id=GROUP, slices={TOPIC: 1})),
            ordered_events=True,
            budgets={"start": 1, "leave": 1, "crash": 1, "lose": 1, "miss": 1, "loss": 1},
            waits=((SHORT_S, ()), (BEAT_S, ALL), (SESSION_S, (0,)), (SESSION_S, (1,))),
            heals_in_s=200,
            depth=4,
            long_depth=6,
        ),
    )
}
"""Name -> world."""
