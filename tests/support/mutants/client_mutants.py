"""Mutants of the client: what it hands out, what it reports, and when it gives up."""

# ruff: noqa: E501 - source text stands as it stands in the module

from tests.support.mutants.mutant import Mutant
from tests.support.mutants.mutant_worlds import AWAY, COMING, ECHO, KICKED, OVERTAKEN, RESET, SMALL

M = Mutant

MUTANTS = (
    M("an inbox that was created again counts as read", "An inbox that ends before the position has another log.",
      "wakeroll.log_position", "        if end < self.next_offset:", "        if False:",
      {**SMALL, "session_ms": 10_000, "chaos_ms": 240_000, "only": ("storm",) * 6 + ("new inbox", "crash") * 2}),
    M("client hands out after Take", "What is asked back is handed out no more.",
      "client_queues", "        return held is not None and not held.draining", "        return held is not None", COMING),
    M("receipt without draining", "What drains is still held, and a heartbeat says so.", "client",
      "            owned=self._holding.queues(),", "            owned=sorted(self._holding.readable()),", COMING),
    M("no self-fence", "A client gives up when no heartbeat was acknowledged for a session.",
      "client", "        return now_ms > self.patient_until_ms", "        return False", AWAY),
    M("a client gives up as late as the coordinator", "A client gives up before its session ends.", "client",
      "        return until_ms - min(config.CLIENT_MARGIN_MS, self.session_timeout_ms // 2)",
      "        return until_ms + 1_000", {**SMALL, "session_ms": 10_000, "only": ("cut", "moved", "step", "zombie") * 5}),
    M("self-fence counts from the acknowledgement", "The session counts from the sending of the heartbeat, not from its receipt.",
      "client", "            self._acknowledged_ms = max(self._acknowledged_ms, sent_ms)",
      "            self._acknowledged_ms = now_ms", {**SMALL, "session_ms": 20_000, "only": ("moved",) * 8 + ("deaf",) * 4}),
    M("repeated decisions obeyed as new", "A repeated decision is silent.",
      "client", "        if place <= self._seen.get(shard, (0, 0)):", "        if False:", ECHO),
    M("client obeys an older epoch", "An outdated assignment is not obeyed.",
      "client", " and decision.epoch >= self.epoch:", ":", ECHO),
    M("released without the last commit", "The final commit of a queue goes before its release.", "client",
      "        commits = self._commit(now_ms, drained, starts_only=not self._commits_itself)\n        again",
      "        commits: list[Output] = []\n        again", COMING),
    M("leaves without a commit", "Leaving commits what is done.", "client",
      "            commits = self._commit(now_ms, starts_only=not self._commits_itself)\n        self._leaving",
      "            pass\n        self._leaving", COMING),
    M("client ignores a fence", "Who is fenced drops everything.", "client",
      '                return self._drop("left" if self._leaving else decision.reason, decision.by)',
      "                return []", KICKED),
    M("client does not release", "What is drained is reported.", "client",
      "        return [*commits, *released, *self._give(again), *gives]",
      "        return [*commits, *self._give(again), *gives]", COMING),
    M("client does not begin again", "What is given again is drained, and begun where it is said.", "client_queues",
      "            following = assigned if assigned and assigned.assigned_epoch > held.assigned_epoch else None", "            following = None", RESET),
    M("client reads on after a reset", "What is given again is begun again.", "client_queues",
      "            elif assigned is None or following:", "            elif assigned is None:", RESET),
    M("what was given again is committed", "How far the giving before a reset came counts no more.", "client_queues",
      "            if offset is None or held.outdated:", "            if offset is None:", RESET),
    M("first offsets are not put on record", "Where a queue was begun is on record.", "client",
      "        return self._commit(now_ms, starts_only=True)", "        return []", {**COMING, "consume_from": "last", "handling_ms": 20}),
    M("a queue that comes back is begun by the policy", "Who has read a queue goes on where it was.", "client_queues",
      'if left is not None and start.offset is None and start.policy != "first":', "if False:", OVERTAKEN),
    M("what is handed out counts as done", "Only what is done is committed.", "client_queues",
      "        held.done = offset\n        return True", "        held.done = offset + 1\n        return True", COMING),
)  # fmt: skip
