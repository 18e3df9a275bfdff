"""Limits of decisions: how many queues fit into one assignment or into those of a group, and what a rebalance lists."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from wakeroll_model import config
from wakeroll_model.config import Limits
from wakeroll_model.decisions import AssignedQueue, Start
from wakeroll_model.group import Group, Member
from wakeroll_model.queue import Queue

_encode = msgspec.json.Encoder().encode

_LONGEST_START = Start(policy="timestamp", ms=2**53)
_NAMELESS = AssignedQueue(Queue("", "", 2**31 - 1), 2**63 - 1, _LONGEST_START)
_WITHOUT_NAMES_BYTES = len(_encode(_NAMELESS)) + len(",")
_WITH_LEADER_EPOCH = AssignedQueue(Queue("", "", 2**31 - 1), 2**53, Start(offset=2**63 - 1, leader_epoch=2**31 - 1))
_SLICE_BYTES = len(',"slices":64,"slice":63')
UNCOUNTED_BYTES = len(_encode(_WITH_LEADER_EPOCH)) + len(",") - _WITHOUT_NAMES_BYTES
"""Bytes by which a queue may exceed its counted size because of a leader epoch. They are not counted: the number of
queues that fit must not differ when a log is replayed. `decision_sizes` adds them."""

MAX_QUEUE_BYTES = _WITHOUT_NAMES_BYTES + 249 + 2 * 255
"""Maximum bytes of a queue in an assignment: the longest topic, and the longest broker with each character escaped."""
ALWAYS_FIT = config.MAX_SHARE_BYTES // MAX_QUEUE_BYTES
"""Number of queues that fit into an assignment whatever their names are."""


def bytes_of(queue: Queue) -> int:
    """Return the maximum bytes of a queue in an assignment, for any epoch and start; see `UNCOUNTED_BYTES`."""
    size = _WITHOUT_NAMES_BYTES + len(queue.topic) + 2 * len(queue.broker)
    return size if queue.slices == 1 else size + _SLICE_BYTES


class Share:
    """The queues of one client, by their bytes in its assignment."""

    def __init__(self, queues: Iterable[Queue] = ()) -> None:
        """Begin with these queues, which fit."""
        self._bytes = sum(map(bytes_of, queues))

    def take(self, queue: Queue) -> bool:
        """Add a queue if it fits; return whether it does."""
        size = self._bytes + bytes_of(queue)
        if size > config.MAX_SHARE_BYTES:
            return False
        self._bytes = size
        return True


class AssignmentRoom:
    """Room in the assignments of a group's members, while queues are only added to those that they own.

    Revoked queues count too: they are in `revoke`, and the member lists them in its heartbeats until it releases them.
    """

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self._shares: dict[str, Share] = {}

    def take(self, client_id: str, queue: Queue) -> bool:
        """Return whether a member's assignment has room for one more queue, which the caller then assigns to it."""
        owned = self._members[client_id].owned
        if len(owned) < ALWAYS_FIT:
            return True
        if client_id not in self._shares:
            self._shares[client_id] = Share(owned)
        return self._shares[client_id].take(queue)


class BroadcastRoom:
    """How many more queues the members of a broadcasting group may have together, while queues come and go."""

    def __init__(self, group: Group, limits: Limits) -> None:
        """Count the queues that the members have now."""
        self.left = limits.max_broadcast * group.limit_times - held(group)
        """Number of queues; below 0 if the limit was lowered."""

    def take(self, queues: int) -> None:
        """Note that the members have this many more queues; fewer if the number is below 0."""
        self.left -= queues


def held(group: Group) -> int:
    """Return how many queues the members of a broadcasting group have together."""
    return sum(len(member.owned) for member in group.members.values())


def fitting(queues: Iterable[Queue]) -> Iterator[Queue]:
    """Yield queues until one does not fit into an assignment together with those before it."""
    share = Share()
    for queue in queues:
        if not share.take(queue):
            return
        yield queue


def withheld(group: Group, freed: Collection[Queue]) -> list[Queue]:
    """Return queues that may fit into their clients' assignments, which have lost the queues `freed`."""
    before = {group.freed[queue].client_id for queue in freed if queue in group.freed}
    relieved = {name for name in before if _was_full(group, name, len(freed))}
    if not relieved:
        return []
    return [queue for queue, name in group.target.items() if name in relieved and queue not in group.owners]


def _was_full(group: Group, client_id: str, freed: int) -> bool:
    """Return whether a member may have had no room before so many queues were freed."""
    member = group.members.get(client_id)
    return member is not None and len(member.owned) + freed >= ALWAYS_FIT


def first_claims(claims: Iterable[Queue], owned: Collection[Queue]) -> list[Queue]:
    """Return the queues for `revoke` among those that a client claims and does not own: the first ones, sorted.

    The others need not be listed: a client gives up all queues that are not in `queues`.
    """
    return sorted({queue for queue in claims if queue not in owned})[: config.MAX_CLAIMS]


def shortened(text: str) -> str:
    """Return a text cut to the longest detail."""
    return text if len(text) <= config.MAX_DETAIL else f"{text[: config.MAX_DETAIL - 3]}..."


def first_notes(notes: Sequence[str]) -> list[str]:
    """Return the notes that a rebalance lists, each shortened; the last one gives the number of notes left out."""
    if len(notes) <= config.MAX_NOTES:
        return [shortened(note) for note in notes]
    listed = config.MAX_NOTES - 1
    return [*map(shortened, notes[:listed]), f"and {len(notes) - listed} more notes"]
