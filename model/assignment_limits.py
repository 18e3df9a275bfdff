"""What one decision may hold: how many queues fit into an assignment, and how much a rebalance may list."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from model import config
from model.decisions import AssignedQueue, Start
from model.group import Group, Member, Turn
from model.queue import Queue

_encode = msgspec.json.Encoder().encode

_LONGEST_START = Start(policy="timestamp", ms=2**53)
_NAMELESS = AssignedQueue(Queue("", "", 2**31 - 1), 2**63 - 1, _LONGEST_START)
_WITHOUT_NAMES_BYTES = len(_encode(_NAMELESS)) + len(",")

MAX_QUEUE_BYTES = _WITHOUT_NAMES_BYTES + 249 + 2 * 255
"""Most bytes of one queue in an assignment: the longest topic, and the longest broker with each character escaped."""
ALWAYS_FIT = config.MAX_SHARE_BYTES // MAX_QUEUE_BYTES
"""So many queues fit into an assignment whatever their names are."""


def bytes_of(queue: Queue) -> int:
    """Return the most bytes that a queue takes in an assignment, whatever its epoch and its start become."""
    return _WITHOUT_NAMES_BYTES + len(queue.topic) + 2 * len(queue.broker)


class Share:
    """The queues of one client, by the bytes that they take in its assignment."""

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
    """Room in the assignments of a group's members, while queues are only added to what they own.

    What a member must still give up counts too: it stands in `revoke`, and the member lists it in its heartbeats.
    """

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self._shares: dict[str, Share] = {}

    def take(self, client_id: str, queue: Queue) -> bool:
        """Return whether a member's assignment has room for one more queue, which the caller then gives to it."""
        owned = self._members[client_id].owned
        if len(owned) < ALWAYS_FIT:
            return True
        if client_id not in self._shares:
            self._shares[client_id] = Share(owned)
        return self._shares[client_id].take(queue)


def fitting(queues: Iterable[Queue]) -> Iterator[Queue]:
    """Yield queues until one does not fit into an assignment together with those before it."""
    share = Share()
    for queue in queues:
        if not share.take(queue):
            return
        yield queue


def withheld(turn: Turn) -> list[Queue]:
    """Return queues that their clients in the target may have room for, after they gave up others in this turn."""
    group = turn.group
    before = {group.freed[queue].client_id for queue in turn.freed if queue in group.freed}
    relieved = {name for name in before if _was_full(group, name, len(turn.freed))}
    if not relieved:
        return []
    return [queue for queue, name in group.target.items() if name in relieved and queue not in group.owners]


def _was_full(group: Group, client_id: str, freed: int) -> bool:
    """Whether a member may have had no room before so many queues were freed."""
    member = group.members.get(client_id)
    return member is not None and len(member.owned) + freed >= ALWAYS_FIT


def first_claims(claims: Iterable[Queue], owned: Collection[Queue]) -> list[Queue]:
    """Return what `revoke` lists of the queues that a client claims and does not own: the first ones, sorted.

    The rest needs no listing: a client gives up whatever does not stand in `queues`.
    """
    return sorted({queue for queue in claims if queue not in owned})[: config.MAX_CLAIMS]


def shortened(text: str) -> str:
    """Return a text that is no longer than a detail may be."""
    return text if len(text) <= config.MAX_DETAIL else f"{text[: config.MAX_DETAIL - 3]}..."


def first_notes(notes: Sequence[str]) -> list[str]:
    """Return what a rebalance lists of these notes, each shortened; the last one says how many are left out."""
    if len(notes) <= config.MAX_NOTES:
        return [shortened(note) for note in notes]
    listed = config.MAX_NOTES - 1
    return [*map(shortened, notes[:listed]), f"and {len(notes) - listed} more notes"]
