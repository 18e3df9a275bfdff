"""Does a new target come when it must, and not more often than it may?"""

from collections.abc import Iterator

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.checks.evidence import Book, Evidence
from tests.support.simulation.groups.checks.roll import Roll
from wakeroll_model.decisions import WITHOUT_TARGET, Membership, Rebalance
from wakeroll_model.events import Configure

CHANGES = ("joined", "left", "died", "expired", "kicked", "leaving", "resubscribed")
GONE = ("left", "died", "expired", "kicked")


def check(evidence: Evidence) -> Iterator[Broken]:
    """6a. A change has its target at once, or when the settle interval is over; there is never more than one in it.

    From level 3 on, the first member of a group that was empty may have its target at once in any case.
    """
    for book in evidence.books:
        yield from _follow(book)


def _follow(book: Book) -> Iterator[Broken]:
    roll = Roll(book)
    last_ms: dict[str, int] = {}
    """Group -> the shard's clock at its last target."""
    clients: dict[str, int] = {}
    """Group -> members at its last target."""
    waiting: dict[str, str] = {}
    """Group -> what asks for a target."""
    for page in book.pages:
        was_empty = {group_id for group_id, group in roll.groups.items() if not group.members}
        was_broadcasting = {group_id: group.is_broadcasting for group_id, group in roll.groups.items()}
        roll.take(page)
        asked, first = set[str](), set[str]()
        if isinstance(page.event, Configure):
            waiting.setdefault(page.event.group_id, "settings changed")
            asked.add(page.event.group_id)
        targets = [one for one in page.decisions if isinstance(one, Rebalance) and one.trigger not in WITHOUT_TARGET]
        left_alone = {one.group_id for one in targets if one.clients == 0}
        left_alone |= {one.group_id for one in page.decisions if isinstance(one, Membership) and one.change in GONE}
        for decision in page.decisions:
            if isinstance(decision, Membership) and decision.change in CHANGES:
                group = roll.group(decision.group_id)
                concerned = group.is_broadcasting if group.members else was_broadcasting.get(decision.group_id, False)
                if not concerned:
                    asked.add(decision.group_id)
                    waiting.setdefault(decision.group_id, f"{decision.instance_id} {decision.change}")
                is_alone = len(group.members) == 1 and (
                    clients.get(decision.group_id) == 0 or decision.group_id in left_alone | was_empty
                )
                if decision.change == "joined" and is_alone:
                    first.add(decision.group_id)
        for target in targets:
            settle_ms = roll.group(target.group_id).number("settle_ms")
            passed_ms = page.clock_ms - last_ms.get(target.group_id, -settle_ms)
            if passed_ms < settle_ms and target.group_id not in first:
                says = f"epoch {target.epoch} comes {passed_ms} ms after the last target; settle is {settle_ms}"
                yield Broken("unsettled", page.at_ms, says, None, target.group_id)
            last_ms[target.group_id], clients[target.group_id] = page.clock_ms, target.clients
            waiting.pop(target.group_id, None)
        for group_id, why in list(waiting.items()):
            settle_ms = roll.group(group_id).number("settle_ms")
            may = page.clock_ms >= last_ms.get(group_id, -settle_ms) + settle_ms
            if may and (page.is_tick or group_id in asked):
                yield Broken("no target", page.at_ms, f"{why}, and no target follows", None, group_id)
                del waiting[group_id]
