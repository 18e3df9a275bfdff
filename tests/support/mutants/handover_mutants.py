"""Mutants of the hand-over: who must give up what, who gets what is free, and who is told."""

# ruff: noqa: E501 - source text stands as it stands in the module

from tests.support.mutants.mutant import Mutant
from tests.support.mutants.mutant_worlds import AWAY, COMING, CONFIGURED, LATE, ORDERED, SKIPPED, SLOW

M = Mutant

MUTANTS = (
    M("grants without waiting for the release", "A queue is given only when nobody holds it.",
      "handover", '    if group.settings.handover == "eager":', "    if True:", COMING),
    M("takes an older epoch for a release", "Released = a heartbeat with an epoch of at least that which asked.",
      "releases", "        if beat.epoch < revocation.epoch:", "        if beat.epoch < 0:", LATE),
    M("takes a receipt for a release", "A queue is released when a heartbeat does not list it any more.",
      "releases", "        if queue not in owned:", "        if True:", COMING),
    M("revoke timeout counts from the asking", "No deadline runs against a client for what it is not known to have received.",
      "group", "        return NEVER_MS if self.shown_ms < 0 else self.shown_ms + self.timeout_ms",
      "        return max(self.shown_ms, 1) + self.timeout_ms", SLOW),
    M("revoke timeout never comes", "What is not released in time is free.",
      "releases", "            if revocation.ends_ms <= now_ms:", "            if False:", SLOW),
    M("a shorter revoke timeout counts at once", "An owner may trust the longest timeout since it was asked.", "group_machine",
      "            revocation.timeout_ms = max(revocation.timeout_ms, settings.revoke_timeout_ms)",
      "            revocation.timeout_ms = settings.revoke_timeout_ms", {**SLOW, "revoke_ms": 30_000, "only": ("configure",) * 12 + ("slow",) * 12 + ("leave",) * 4 + ("wish",) * 4}),
    M("timeout in an ordered group", "In an ordered group a queue never comes free while its owner lives.",
      "releases", "    if group.is_ordered:\n        return NOTHING\n", "", ORDERED),
    M("owner not told", "Who gets a queue is told.", "handover",
      "        grant(turn, queue, client_id, group.epoch)\n        clients.add(client_id)",
      "        grant(turn, queue, client_id, group.epoch)", COMING),
    M("not told to give up", "Who must give up a queue is told.", "ownership",
      "timeout_ms, was_reset=missed)\n            owners.add(client_id)", "timeout_ms, was_reset=missed)", COMING),
    M("not told again", "A member is told again if it shows an epoch behind the last one sent.",
      "releases", "    client = frozenset((beat.client_id,)) if member.sent_epoch >= 0 else NOBODY\n", "    client = frozenset()\n", SKIPPED),
    M("what comes free is given to nobody", "Grants that follow a release wait for nothing.",
      "handover", "    clients = assign_free(turn, [*freed, *new, *assignment_limits.withheld(group, freed)])\n", "    clients = frozenset()\n", COMING),
    M("released queues go to their old owner", "A queue goes to its client in the target.", "handover",
      "        client_id = group.target.get(queue)\n        member",
      "        client_id = group.freed[queue].client_id if queue in group.freed else group.target.get(queue)\n        member", COMING),
    M("a queue goes to whoever was planned", "A queue goes only to who still wants its topic.", "handover",
      "        if queue.topic not in member.subscriptions:", "        if False:", {**COMING, "settle_ms": 15_000, "only": ("wish",) * 16 + ("slow",) * 8 + ("leave", "crash")}),
    M("given in the epoch before", "A queue is given in the group's epoch.", "handover",
      "        grant(turn, queue, client_id, group.epoch)\n", "        grant(turn, queue, client_id, group.epoch - 1)\n", COMING),
    M("assigns what is asked back", "An assignment lists what its client may read.",
      "assignments", "                    if queue not in member.revoking\n", "", COMING),
    M("who expires keeps its queues", "Expiry frees at once.", "membership",
      "    freed = sharing_of(turn.group).leave(turn, client_id, how)\n", "    freed = NOTHING\n", AWAY),
    M("settings are not told", "A member is told what its session is.", "assignments",
      "        client_id for client_id, member in group.members.items() if member.sent_epoch <= group.configured_epoch",
      "        client_id for client_id, member in group.members.items() if member.sent_epoch < -1", CONFIGURED),
)  # fmt: skip
