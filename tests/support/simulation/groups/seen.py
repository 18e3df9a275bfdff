"""What was seen in a world with one's own eyes: what applications had in hand, and what clients did."""

from dataclasses import dataclass, field

from wakeroll_model.client_actions import Dropped
from wakeroll_model.decisions import Start
from wakeroll_model.events import Commit
from wakeroll_model.queue import Queue


@dataclass(slots=True)
class Handling:
    """One message in the hands of one application: what the checkers judge."""

    scope: str
    """Who shares the queue: a group, or in broadcasting one client of it."""
    queue: Queue
    offset: int
    client_id: str
    life: str
    given: int
    from_ms: int
    to_ms: int = -1
    """-1: never done, for the process died or the world ended."""
    lost_ms: int = -1
    """When the process died with it."""


@dataclass(slots=True)
class Giving:
    """A queue that was given to a life, and where it began to read."""

    scope: str
    queue: Queue
    life: str
    given: int
    start: Start
    offset: int
    """Of the first message that it may hand out."""
    at_ms: int
    read: Queue
    """The queue as it was given, if `queue` is a cell of it."""
    under_way: tuple[Commit, ...]
    """Commits of its process that the broker did not have yet when it began to read: none of them is of this giving."""


@dataclass
class Seen:
    """All of it, in order of time."""

    handlings: list[Handling] = field(default_factory=list)
    givings: list[Giving] = field(default_factory=list)
    drops: list[tuple[int, str, str, Dropped]] = field(default_factory=list)
    """When, who, which life, how."""
    darkness: list[tuple[int, int]] = field(default_factory=list)
    """When there were no ticks, from and to."""
    left_well: set[str] = field(default_factory=set)
    """Lives that ended their work, committed and unregistered, with the broker at hand."""
    handed_after_take: list[tuple[int, str, Queue, str]] = field(default_factory=list)
    """When, which group, what, which life."""
    not_reported: list[tuple[int, str, Queue, str]] = field(default_factory=list)
    """Queues that were drained, and no heartbeat said so at once: when, which group, what, which life."""
    strangers: set[str] = field(default_factory=set)
    """Instances made by hand: no process stands behind them."""
    made_again: list[tuple[int, str]] = field(default_factory=list)
    """Topics that were deleted, and when."""
    truncated: set[Queue] = field(default_factory=set)
    """Queues that have lost messages."""
    far_commits: set[tuple[str, Queue]] = field(default_factory=set)
    """(scope, queue) of what was committed beyond its end."""
    eager: set[str] = field(default_factory=set)
    """Groups whose hand-overs were switched to eager, or from eager to cooperative."""
    published_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    """Shard with its era and seq of a decision -> when it was first in an inbox."""
    straggled: set[str] = field(default_factory=set)
    """Lives of which a commit arrived after newer ones."""
