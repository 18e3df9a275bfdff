"""A breakage for every rule: each must be found by the exploration, or its silence would mean nothing."""

# ruff: noqa: E501 - source text stands as it stands in the module

from dataclasses import dataclass

from tests.support.mutants.mutant import Mutant


@dataclass(frozen=True)
class Planted:
    """A mutant, where it shows, and what the exploration then says."""

    mutant: Mutant
    world: str
    says: str
    """Pattern of the sentence that names the broken rule."""
    depth: int = 4
    heal: bool = True
    """Whether the calm world is asked, too; it would speak first."""
    also: Mutant | None = None
    """Another one, where each is harmless alone."""


def _planted(
    name: str, rule: str, module: str, old: str, new: str, world: str, says: str, depth: int = 4,
    *, heal: bool = True, also: Mutant | None = None,
) -> Planted:  # fmt: skip
    return Planted(Mutant(name, rule, module, old, new, {}), world, says, depth, heal, also)


PLANTED = (
    _planted("no self-fence", "A queue is read by one process at most.", "client",
      "        return now_ms > self.patient_until_ms", "        return False", "E", "both read"),
    _planted("a loss of state is not waited out", "After a loss of state, too.", "handover",
      "    if group.loss is not None:\n        return NOBODY\n    room = assignment", "    room = assignment", "C", "both read"),
    _planted("released while it drains", "A queue is drained before another process has it.", "releases",
      "        if queue not in owned:\n            released[queue] =", "        if True:\n            released[queue] =", "E", "still drains", 5),
    _planted("receipt without draining", "A heartbeat shows all that is held.", "client",
      "            owned=self._holding.queues(),", "            owned=sorted(self._holding.readable()),", "E", "hides what it drains"),
    _planted("a history without a past", "Hand-overs form a chain.", "ownership",
      "    record(turn, queue, freed, client_id)", "    record(turn, queue, None, client_id)", "E", "the previous owner"),
    _planted("an epoch is used twice", "Every target has an epoch of its own.", "group_machine",
      "    group.epoch += 1\n    group.retargeted_ms", "    group.retargeted_ms", "E", "expected a higher one"),
    _planted("decisions skip a number", "Decisions are numbered one by one.", "shard",
      "            state.seq += 1\n", "            state.seq += 2\n", "E", "not numbered"),
    _planted("the map and the member disagree", "The parts of a group's state say the same.", "ownership",
      "        del member.owned[queue]\n", "", "E", "in the map or in the member"),
    _planted("an ended instance comes back", "A life that ended never acts again.", "membership",
      "    if ended := instances.find_ended(group, beat.client_id, beat.instance_id):", "    if ended := None:", "E", "life that ended|live instance .* has ended"),
    _planted("who goes keeps its queues", "The machine never fails.", "membership",
      "    freed = sharing_of(turn.group).leave(turn, client_id, how)\n", "    freed = NOTHING\n", "E", "machine fails|in the map or in the member"),
    _planted("offsets go back", "A committed offset only grows, but for a reset.", "commits",
      "        lost_tail = is_news and offset < before\n", "        is_news, lost_tail = True, False\n", "D", "was committed up to|expected more than", 5),
    _planted("done before it is done", "No message is left out.", "client_queues",
      "        held.done = offset\n        return True", "        held.done = offset + 1\n        return True", "D", "is not handled yet", 5),
    _planted("reading does not count", "What a process reads and may hand out counts.", "client_queues",
      "        held.done = offset\n        return True", "        held.done = offset\n        return False", "D", "does not count"),
    _planted("repeated decisions obeyed as new", "A repeated decision is silent.", "client",
      "        if place <= self._seen.get(shard, (0, 0)):", "        if False:", "E", "obeys a decision twice"),
    _planted("what is taken is read on", "A client reads what its newest assignment lists, and nothing else.", "client_queues",
      "            elif assigned is None or following:", "            elif following:", "E", "does not list"),
    _planted("what is given is not read", "A client reads all that its newest assignment lists.", "client",
      "        outputs += self._give(aligned.missing)\n", "", "A", "which its newest assignment lists"),
    _planted("commits under an old name", "What is sent is of the present life.", "client",
      "            instance_id=self.instance_id,\n            epoch=self.epoch,\n            offsets=news,",
      "            instance_id=\"a#0\",\n            epoch=self.epoch,\n            offsets=news,", "D", "of a life that is over"),
    _planted("the dead shut out the living", "Who is told to stay out has a living rival.", "instances",
      "    return since_ms >= 0 and member.seen_ms > since_ms + group.session_of(member) + 1", "    return True", "E", "told to stay out", 4, heal=False),
    _planted("nothing is told again", "From every state the calm world heals.", "releases",
      "    return Outcome(send=client, claims", "    return Outcome(claims", "A", "never well"),
    _planted("patience without end", "It heals in time.", "group",
      "        return member.seen_ms + self.session_of(member) + 1",
      "        return member.seen_ms + 5 * self.session_of(member) // 2", "E", "is the limit"),
    _planted("a silence counts as a minute", "Time counts as far as ticks show it.", "shard_clock",
      "line.at_ms + min(max(since_ms, 0), most_ms)", "line.at_ms + (60_000 if since_ms > 5_000 else max(since_ms, 0))", "G", "both read", 5),
    _planted("an old epoch is deaf", "A member is deaf after two sessions with evidence, and not before.", "rounds",
      "    return 0 <= member.lagging_since_ms < now_ms - LAGGING_SESSIONS * group.session_of(member)", "    return True", "F", "both read", 5, heal=False),
    _planted("newcomers to a broadcast get nothing", "Everybody reads all.", "broadcasting",
      "    _give(turn, client_id)\n    return sending(", "    return sending(", "H", "never well"),
    _planted("a kicked client comes back too early", "Who is kept out is no member before its time.", "kicks",
      "    if kicked is None or kicked.until_ms <= turn.moment.now_ms or", "    if kicked is None or kicked.until_ms <= turn.moment.now_ms + 20_000 or", "I", "was kicked", 3),
    _planted("a kick counts as death", "A kick takes nothing from an owner that may live.", "membership",
      "        if member.owned and group.mode == \"clustering\":", "        if False:", "I", "both read", 3),
    _planted("a new slice is assigned beside the former one", "A new slice waits for the owners of the former ones.",
      "handover", "        if group.sliced and slicing.owned_in_part(group, queue) is not None:", "        if False:",
      "K", "has messages in common", 2),
    _planted("a new slice waits for ever", "A new slice is assigned when the former ones are free.", "handover",
      "    new = [other for queue in freed for other in slicing.overlapping(group, queue) if other in group.target]",
      "    new = []", "K", "never well", 2),
    _planted("everything is answered", "A conversation ends.", "client",
      "        if changed or aligned.changed:", "        if True:", "E", "something to say", heal=False,
      also=Mutant("told at each heartbeat", "Nothing is told again without need.", "releases",
        "    if beat.epoch >= member.sent_epoch and member.owned.keys() == set(beat.owned):", "    if False:", {})),
)  # fmt: skip
