"""Is a queue taken from nobody too early, and from nobody too late?"""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.simulation.frame.broken import Broken
from tests.support.simulation.groups.checks.evidence import Book, Evidence, Page
from wakeroll_model.config import REVOKE_TIMEOUT_MS, SLACK_MS
from wakeroll_model.decisions import Assignment, Handover, Rejected
from wakeroll_model.events import Configure, Heartbeat
from wakeroll_model.queue import Queue

TOLERANCE_MS = 100
"""How far two ticks, or a record and its append, may be from where they should be."""


@dataclass
class Asked:
    """A queue that its owner must give up."""

    life: str
    epoch: int
    """Of the assignment that asked first."""
    timeout_ms: int
    """The longest revoke timeout that its group has had since: the owner may trust that."""
    shown: Page | None = None
    """The first heartbeat that shows it was heard."""


def check(evidence: Evidence) -> Iterator[Broken]:
    """4d. A timeout counts from when the log shows that its client has heard; then it comes, but not in order."""
    for book in evidence.books:
        following = _Following(evidence, book)
        for page in book.pages:
            yield from following.take(page)


class _Following:
    """Who was asked for what, page after page of a partition."""

    def __init__(self, evidence: Evidence, book: Book) -> None:
        self._evidence = evidence
        self._owners: dict[tuple[str, Queue], str | None] = {}
        self._asked: dict[tuple[str, str, Queue], Asked] = {}
        """By group, client and queue."""
        self._timeout_ms: dict[str, int] = {}
        """Group -> its revoke timeout as it is now."""
        for event in book.known(Configure):
            if isinstance(event.revoke_timeout_ms, int):
                self._timeout_ms[event.group_id] = event.revoke_timeout_ms

    def take(self, page: Page) -> Iterator[Broken]:
        """Go on by a page, and say what is wrong with it."""
        match page.event:
            case Heartbeat() as beat:
                self._hear(page, beat)
            case Configure(group_id=group_id, revoke_timeout_ms=int(timeout_ms)):
                self._configure(group_id, timeout_ms)
        for decision in page.decisions:
            if isinstance(decision, Assignment):
                self._ask(decision)
            elif isinstance(decision, Handover):
                yield from self._hand_over(page, decision)
        if page.is_tick and not self._evidence.plan.orderly:
            yield from self._too_late(page)

    def _hear(self, page: Page, beat: Heartbeat) -> None:
        if any(isinstance(one, Rejected) and one.rule == "epoch" for one in page.decisions):
            return  # it shows an epoch that was never given
        for (group_id, client_id, queue), one in self._asked.items():
            is_its_own = (group_id, client_id, one.life) == (beat.group_id, beat.client_id, beat.instance_id)
            if is_its_own and one.shown is None and beat.epoch >= one.epoch and queue in beat.owned:
                one.shown = page

    def _configure(self, group_id: str, timeout_ms: int) -> None:
        self._timeout_ms[group_id] = timeout_ms
        for (asked_group, *_), one in self._asked.items():
            if asked_group == group_id:
                one.timeout_ms = max(one.timeout_ms, timeout_ms)

    def _ask(self, assignment: Assignment) -> None:
        group_id, client_id = assignment.group_id, assignment.client_id
        for queue in assignment.revoke:
            if self._owners.get((group_id, queue)) == client_id:
                one = Asked(assignment.instance_id, assignment.epoch, self._timeout_ms.get(group_id, REVOKE_TIMEOUT_MS))
                self._asked.setdefault((group_id, client_id, queue), one)

    def _hand_over(self, page: Page, handover: Handover) -> Iterator[Broken]:
        group_id, queue = handover.group_id, handover.queue
        is_held = self._owners.get((group_id, queue)) is not None  # else it came free before, and goes on now
        self._owners[group_id, queue] = handover.to
        asked = self._asked.pop((group_id, handover.from_ or "", queue), None)
        if handover.how != "timeout" or not is_held:
            return
        if asked is None or asked.shown is None:
            says = f"{queue} is taken from {handover.from_} without a sign that it was heard"
            yield Broken("too early", page.at_ms, says, queue, group_id)
            return
        since_ms = asked.shown.at_ms
        counted_ms = page.at_ms - since_ms - self._evidence.dark_ms(since_ms, page.at_ms)
        if counted_ms < asked.timeout_ms - SLACK_MS - TOLERANCE_MS:
            says = f"{queue} is taken from {handover.from_} after {counted_ms} ms of {asked.timeout_ms}"
            yield Broken("too early", page.at_ms, says, queue, group_id)

    def _too_late(self, page: Page) -> Iterator[Broken]:
        for (group_id, client_id, queue), one in self._asked.items():
            if one.shown is not None and page.clock_ms > one.shown.clock_ms + one.timeout_ms:
                waits_ms = page.clock_ms - one.shown.clock_ms
                text = f"{client_id} has heard {waits_ms} ms ago that it must give up {queue}, and still has it"
                yield Broken("too late", page.at_ms, text, queue, group_id)
