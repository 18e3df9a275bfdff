"""Mutants of targets, offsets and locks: strategies, routes, commits, resets, and what RocketMQ's clients ask for."""

# ruff: noqa: E501 - source text stands as it stands in the module

from mutants.mutant import Mutant
from mutants.worlds import (
    COMING,
    EVERYBODY,
    FORGED,
    JUNK,
    LOCKS,
    RESET,
    ROUTES,
    STRATEGIES,
)

M = Mutant

MUTANTS = (
    # --- the target ---
    M("no settle interval", "There is at most one new target in a settle interval.", "group_machine",
      "    if group.retargeted_ms >= 0 and now_ms - group.retargeted_ms < group.settings.settle_ms:", "    if False:", {**ROUTES, "settle_ms": 3_000}),
    M("routes are not looked at", "Queues that are added or removed change the target.", "group_machine",
      '            turn.ask("route")', "            pass", ROUTES),
    M("a removed queue stays", "A queue that is gone is nobody's.", "routes",
      "        return None if route is None else sorted({routed.queue for routed in route.queues})",
      "        return None if route is None or not route.queues else sorted({routed.queue for routed in route.queues})", {**ROUTES, "only": ("gone",) * 6}),
    M("the oldest member's strategy counts all the same", "A configured strategy goes before the members' own.", "target",
      "    if group.settings.strategy is not None:", "    if False:", STRATEGIES),
    M("a strategy gives to whom it likes", "A queue goes only to who subscribes its topic.", "target",
      "            if queue not in wanted or client_id not in may[queue.topic]:", "            if queue not in wanted:", STRATEGIES),
    M("a strategy that fails takes all away", "Where a strategy fails, the last target stays.", "target",
      "        shares = _last_shares(group, shared)", "        shares = {}", STRATEGIES),
    # --- commits ---
    M("commit goes backwards", "A committed offset never goes backwards.",
      "offsets", "        elif entry.offset > committed.get(entry.queue, -1):", "        else:", FORGED),
    M("anybody commits", "A commit is good only if it comes from the queue's owner.", "offsets",
      "    if member is None or owner != event.client_id:", '''    if member is not None and owner not in (None, event.client_id):
        return ""
    if member is None or owner is None:''', FORGED),
    M("an old life commits", "A commit is good only if it comes from the right instance.",
      "offsets", '    if event.instance_id not in ("", member.instance_id):', "    if False:", FORGED),
    M("a commit of an older giving counts", "A commit is good only from the epoch on that the queue was given in.",
      "offsets", " if event.epoch < given else \"\"", " if False else \"\"", FORGED),
    M("starts at the first message", "A queue starts at its committed offset.",
      "handover", "    if queue in group.offsets:", "    if False:", COMING),
    M("commits are taken in silence", "Every commit that advances an offset is on record.",
      "group_machine", "            offsets.commit(turn, event)", "            pass", COMING),
    M("an added queue starts like any other", "A queue added to a topic that is consumed starts at first.", "offsets",
      "            group.added[queue] = group.epoch", "            pass", {**ROUTES, "consume_from": "last"}),
    # --- resets ---
    M("a reset does not give anew", "After a reset, a commit that was under way is too old.", "offsets",
      "            member.owned[queue] = group.epoch\n            member.reset", "            member.reset", RESET),
    M("a reset is not told", "A queue's owner is told of a reset.", "offsets",
      "            turn.tell.add(owner)\n", "            pass\n", RESET),
    M("a reset that is said twice counts twice", "A repeated reset is silent.", "offsets",
      "    if event.request_id in group.resets:", "    if False:", RESET),
    M("a reset is not kept", "A reset is where the next owner starts.", "offsets",
      "    group.offsets[queue] = entry.offset\n", "", RESET),
    M("a reset takes no epoch", "A reset has an epoch of its own.", "offsets",
      "    group.epoch += 1\n    if not group.members and", "    if not group.members and", RESET),
    M("a reset of what is given up is undone", "What was reset while it is given up is not committed any more.", "offsets",
      "            member.revoking[queue].was_reset = True", "            pass", {**RESET, "handling_ms": 300, "only": ("reset",) * 9 + ("leave", "crash", "route", "route", "slow", "slow")}),
    M("a reset may name anything", "A reset names queues that are there, or sets none.", "offsets",
      "    if unknown:", "    if False:", {**RESET, "only": ("reset",) * 20}),
    # --- broadcasting ---
    M("who is away is not reset", "In broadcasting a reset sets the offsets of every client that is known.", "offsets",
      "            for client_id in sorted(group.own_offsets):", "            for client_id in sorted(group.members)[:1]:", EVERYBODY),
    M("offsets of one's own are forgotten", "In broadcasting a client goes on where it has been itself.", "broadcast",
      "    if queue in own.offsets:", "    if False:", EVERYBODY),
    M("a broadcasting client has others' offsets", "In broadcasting each client has offsets of its own.", "broadcast",
      "        return Start(offset=own.offsets[queue])", "        return Start(offset=max(one.offsets.get(queue, 0) for one in group.own_offsets.values()))", EVERYBODY),
    M("in broadcasting an added queue starts like any other", "A queue added to a topic that is consumed starts at first.", "broadcast",
      "            own.added.append(queue)", "            pass", {**EVERYBODY, "consume_from": "last", "only": ("route",) * 6}),
    M("a broadcasting client is given nothing new", "In broadcasting everybody has every queue of its topics.", "group_machine",
      "            broadcast.give(turn, client_id)", "            pass", {**EVERYBODY, "only": ("route",) * 6}),
    M("who subscribes anew is given nothing", "In broadcasting a new subscription is served at once.", "membership",
      "    if changed and group.is_broadcasting:", "    if False:", {**EVERYBODY, "only": ("wish",) * 6}),
    # --- locks ---
    M("anybody may lock", "A lock is the queue's owner's.", "locks",
      "or group.owners.get(queue) != event.client_id:", "or False:", LOCKS),
    M("an old life may lock", "A lock is the owner's present life's.", "locks",
      "member is None or member.instance_id != event.instance_id or", "member is None or",
      {**LOCKS, "only": ("lock",) * 9 + ("twin", "restart", "zombie", "zombie", "fight")}),
    M("who must give up may lock", "What must be given up is locked no more.", "locks",
      "    return queue not in member.revoking or isinstance(event, events.Unlock)", "    return True", {**LOCKS, "revoke_ms": 30_000, "only": ("lock",) * 9 + ("slow",) * 4 + ("leave", "crash", "route", "route")}),
    M("a lock lasts", "A lock ends after a minute.", "locks",
      "if held.until_ms <= turn.moment.now_ms)", "if False)", LOCKS),
    M("a lock is not renewed", "Who locks again has its minute again.", "locks",
      "            group.locks[queue] = Held(event.client_id, until_ms)\n", "            group.locks.setdefault(queue, Held(event.client_id, until_ms))\n", LOCKS),
    M("a lock outlives its owner", "A lock ends when the queue comes free.", "handover",
      "    locks.end(turn, queue)\n", "", LOCKS),
    M("anybody may unlock", "A lock is given back by its holder.", "locks",
      "        if queue in locks and locks[queue].client_id == event.client_id and _owns(turn, event, queue):",
      "        if queue in locks:", LOCKS),
    # --- the shard ---
    M("a refused record is not answered", "Every event is processed or rejected with its reason.", "shard",
      "                decisions.append(event)", "                pass", JUNK),
    M("a new reader's topics are not noted", "A route reaches every group that subscribes its topic.", "shard",
      "        if decisions:  # a subscription never changes without one\n", "        if False:\n", ROUTES),
)  # fmt: skip
