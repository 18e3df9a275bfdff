"""Broadcasting groups: every member has every queue of its topics, and nobody owns one.

There is no target and no hand-over; who comes and goes concerns nobody else (RocketMQ fires no CHANGE either since its
#8483), and each client has offsets of its own, as RocketMQ's have in their local files.
"""

from model import config
from model.decisions import Start
from model.group import Group, Member, OwnOffsets, Turn
from model.queue import Queue
from model.routes import Routes
from model.target import RETRY_PREFIX, Target

STRATEGY = "BROADCASTING"
"""What a `rebalance` of such a group says in place of a strategy."""


def welcome(turn: Turn, client_id: str, claims: list[Queue]) -> None:
    """Give a new member, or a new life of one, all queues of its topics.

    What it holds already, after a loss of the coordinator's state, it keeps, given in an epoch before all others.
    """
    group = turn.group
    member = group.members[client_id]
    group.epoch = max(group.epoch, 1)  # nothing is given in 0, which is before all others
    group.own_offsets.setdefault(client_id, OwnOffsets()).left_ms = -1
    if group.recovering_until_ms >= 0:
        member.owned |= {queue: 0 for queue in claims if queue.topic in member.subscriptions}
    give(turn, client_id)
    turn.tell.add(client_id)


def give(turn: Turn, client_id: str) -> None:
    """Let a member have what it should have now, and nothing else; tell it if that is news."""
    group = turn.group
    member = group.members[client_id]
    wanted = _wanted(member, turn.routes)
    if wanted == member.owned.keys():
        return
    own = group.own_offsets[client_id]
    # Not only what it has now: when a queue was added, the client may have been away, or the topic gone.
    known = member.owned.keys() | own.given
    consumed = {queue.topic for queue in known}
    own.given = sorted(known | wanted)
    for queue in member.owned.keys() - wanted:
        del member.owned[queue]
    for queue in sorted(wanted - member.owned.keys()):
        member.owned[queue] = group.epoch
        if queue.topic in consumed and queue not in known and queue not in own.offsets:
            own.added.append(queue)
    turn.tell.add(client_id)


def differs(turn: Turn) -> bool:
    """Return whether any member should have other queues than it has."""
    return any(_wanted(member, turn.routes) != member.owned.keys() for member in turn.group.members.values())


def target(group: Group, routes: Routes) -> Target:
    """Describe what all members have together; in this mode it is no plan."""
    found = Target(STRATEGY, {}, [], [])
    for topic in group.topics:
        queues = routes.queues(topic)
        found.queues += len(queues or ())
        if queues is None and not topic.startswith(RETRY_PREFIX):
            found.notes.append(f"{topic}: not routed yet")
    return found


def leave(turn: Turn, client_id: str) -> None:
    """A member goes; its offsets are kept for a week, or until too many others have gone after it."""
    group = turn.group
    group.members[client_id].owned.clear()
    own = group.own_offsets.get(client_id)
    if own is None:
        return
    own.left_ms = turn.moment.now_ms
    gone = [name for name, one in group.own_offsets.items() if one.left_ms >= 0]
    for name in sorted(gone, key=lambda name: group.own_offsets[name].left_ms)[: -config.MAX_GONE_OFFSETS]:
        del group.own_offsets[name]
    if client_id in group.own_offsets and not own.offsets:
        del group.own_offsets[client_id]
    group.remind(turn.moment.now_ms + config.FORGET_MS)


def forget(turn: Turn) -> None:
    """Forget the offsets of clients that left long ago."""
    group, now_ms = turn.group, turn.moment.now_ms
    for name in [name for name, own in group.own_offsets.items() if 0 <= own.left_ms <= now_ms - config.FORGET_MS]:
        del group.own_offsets[name]


def start(group: Group, client_id: str, queue: Queue) -> Start:
    """Where a member starts a queue: at its own committed offset, else by its consume_from."""
    own, member = group.own_offsets[client_id], group.members[client_id]
    if queue in own.offsets:
        return Start(offset=own.offsets[queue])
    return Start(policy="first") if queue in own.added else member.first_start


def _wanted(member: Member, routes: Routes) -> set[Queue]:
    """Return the queues of a member's topics; of a topic that was never routed, those it holds."""
    wanted: set[Queue] = set()
    for topic in member.subscriptions:
        queues = routes.queues(topic)
        wanted.update((queue for queue in member.owned if queue.topic == topic) if queues is None else queues)
    return wanted
