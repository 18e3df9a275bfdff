"""Do epochs and offsets go one way, and does only an owner commit?  Judged by the record."""

from collections.abc import Iterator

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.checks.evidence import Book, Evidence
from tests.support.simulation.groups.checks.roll import Roll
from wakeroll_model import invariants
from wakeroll_model.config import ERA_EPOCHS
from wakeroll_model.decisions import BY_THE_SLICES, Handover, Membership, Offset, Rebalance, Rejected
from wakeroll_model.events import Commit, Delete, Reset, Route
from wakeroll_model.queue import Queue
from wakeroll_model.topic_changes import BY as ROUTE

RULE = "offsets"


def check(evidence: Evidence) -> Iterator[Broken]:
    """3. Epochs only grow, offsets only grow but for resets; hand-overs form a chain."""
    for coordinator in evidence.world.coordinators:
        for era in coordinator.eras:
            for says in invariants.broken(coordinator.decided(era)):
                yield Broken("not growing", 0, says)
    for (scope, queue), offsets in evidence.offsets.items():
        before, shard = -1, ""
        for offset in offsets:
            if offset.shard != shard:  # what was committed may be lost
                before, shard = -1, offset.shard
            if offset.reset_by is None and offset.offset <= before:
                says = f"the committed offset of {queue} goes from {before} to {offset.offset}"
                yield Broken("not growing", evidence.at_ms(offset), says, queue, scope)
            before = -1 if offset.deleted else offset.offset
    yield from _commits_of_others(evidence)
    for book in evidence.books:
        yield from _resets(book)
        if book.era.number == 1:  # otherwise what was committed may be forgotten
            yield from _deletions(book)


def _commits_of_others(evidence: Evidence) -> Iterator[Broken]:
    """An offset is committed by the life that owns its queue, in the epoch it was given in or later.

    A reset gives the queue again, in its own epoch: a commit made before is never taken.  A broadcasting group has
    offsets of its clients, besides those from a time when it was none.
    """
    owner: dict[tuple[str, Queue, str], tuple[str, int]] = {}
    lives: dict[tuple[str, str | None], str] = {}
    shard = ""
    for decision in evidence.decisions:
        if decision.shard != shard:
            shard, owner, lives = decision.shard, {}, {}
        if isinstance(decision, Membership) and decision.change == "joined":
            lives[decision.group_id, decision.client_id] = decision.instance_id
        elif isinstance(decision, Handover):
            # After a loss of state, what is claimed counts as given before all epochs.
            given = 0 if decision.how == "first" and decision.epoch >= ERA_EPOCHS else decision.epoch
            owner[decision.group_id, decision.queue, "clustering"] = (
                lives.get((decision.group_id, decision.to), ""),
                given,
            )
        elif isinstance(decision, Offset):
            everybody = decision.group_id, decision.queue, decision.mode
            # A route sets right the offsets that there are, of some clients; an operator sets those of all.
            only_one = decision.group_id, decision.queue, f"{decision.mode} {decision.client_id}"
            by_route = decision.reset_by == ROUTE and decision.mode == "broadcasting"
            life, given = owner.get(everybody, ("", 0))
            if decision.reset_by == BY_THE_SLICES:
                continue
            if decision.reset_by is not None:
                owner[only_one if by_route else everybody] = life, decision.epoch
                continue
            given = max(given, owner.get(only_one, ("", 0))[1])
            at_ms, event = evidence.world.broker.appended[decision.cause.partition][decision.cause.offset]
            if decision.mode == "broadcasting":
                life = lives.get((decision.group_id, decision.client_id), "")
            if isinstance(event, Commit) and (event.instance_id != life or event.epoch < given):
                says = (
                    f"{event.instance_id} commits {decision.queue} in epoch {event.epoch}; it is {life}'s since {given}"
                )
                yield Broken(RULE, at_ms, says, decision.queue, decision.group_id)


def _resets(book: Book) -> Iterator[Broken]:
    """A reset takes a new epoch and sets every queue that it names, or none; a repeated one is silent."""
    routed = {one.topic: {queue.queue for queue in one.queues} for one in book.known(Route)}
    done = {(one.group_id, one.request_id) for one in book.known(Reset)}
    for page in book.pages:
        event = page.event
        if isinstance(event, Route):
            routed[event.topic] = {one.queue for one in event.queues}
        if not isinstance(event, Reset):
            continue
        offsets = [one for one in page.decisions if isinstance(one, Offset) and not one.deleted]
        set_to = list(dict.fromkeys((one.queue.whole, one.offset) for one in offsets))
        epochs = [one for one in page.decisions if isinstance(one, Rebalance) and one.trigger == "reset"]
        wanted = [(one.queue, one.offset) for one in event.offsets]
        known = all(queue in routed.get(queue.topic, {queue}) for queue, _ in wanted)
        if (event.group_id, event.request_id) in done or not known:
            wanted = []
        else:
            done.add((event.group_id, event.request_id))
        modes = {one.mode for one in page.decisions if isinstance(one, Offset)}
        if "broadcasting" in modes or (wanted and epochs and epochs[0].strategy == "BROADCASTING"):
            right = set(set_to) <= set(wanted)  # for each client that is known; there may be none
        else:
            right = set_to == wanted
        if not right or len(epochs) != bool(wanted):
            says = f"{event.request_id} wants {wanted}, and sets {set_to} in {len(epochs)} epochs"
            yield Broken(RULE, page.at_ms, says, event.offsets[0].queue, event.group_id)


def _deletions(book: Book) -> Iterator[Broken]:
    """A deletion takes a new epoch and deletes every offset that its queues have; not while a member subscribes them.

    A repeated one is silent.
    """
    roll, done = Roll(book), set[tuple[str, str]]()
    committed: dict[str, set[tuple[str, str, Queue]]] = {}
    """Group -> mode, client (of broadcasting) and queue of its committed offsets."""
    for page in book.pages:
        if isinstance(page.event, Delete):
            event, has = page.event, committed.get(page.event.group_id, set())
            topics = {queue.topic for queue in event.queues}
            readers = [name for name, one in roll.group(event.group_id).members.items() if one.topics & topics]
            is_refused = any(isinstance(one, Rejected) for one in page.decisions)
            is_repeated = (event.group_id, event.request_id) in done
            counts = not (is_refused or readers or is_repeated)
            gone = {_key(one) for one in page.decisions if isinstance(one, Offset)}
            modes = {mode for mode, _, _ in gone}
            wanted = {key for key in has if counts and key[0] in modes and key[2].whole in event.queues}
            epochs = sum(isinstance(one, Rebalance) for one in page.decisions)
            if gone != wanted or bool(gone) != counts or epochs != counts or (is_repeated and is_refused):
                says = f"{event.request_id} is to delete {wanted}, and deletes {gone} in {epochs} epochs; for {readers}"
                yield Broken(RULE, page.at_ms, says, event.queues[0], event.group_id)
            if counts:
                done.add((event.group_id, event.request_id))
        for one in page.decisions:
            if isinstance(one, Offset):
                of_group = committed.setdefault(one.group_id, set())
                (of_group.discard if one.deleted else of_group.add)(_key(one))
            elif isinstance(one, Membership) and one.change == "forgotten":
                committed.pop(one.group_id, None)
        roll.take(page)


def _key(offset: Offset) -> tuple[str, str, Queue]:
    return offset.mode, offset.client_id if offset.mode == "broadcasting" else "", offset.queue
