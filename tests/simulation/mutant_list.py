"""The mutants, by what they break."""

# ruff: noqa: E501 - source text stands as it stands in the module

from mutants import Mutant

M = Mutant
SMALL = {"chaos_ms": 120_000, "orderly": False, "eager": False}
ORDERED = {**SMALL, "orderly": True, "revoke_ms": 3_000, "only": ("slow", "slow", "crash", "restart", "leave", "wish")}
SLOW = {**SMALL, "revoke_ms": 3_000, "only": ("slow", "slow", "behind", "deaf", "leave", "crash", "route")}
COMING = {**SMALL, "handling_ms": 300, "only": ("leave", "crash", "route", "wish", "cut")}
AWAY = {**SMALL, "only": ("zombie", "cut", "deaf", "behind", "crash", "pause")}
LIVES = {**SMALL, "only": ("restart", "restart", "abort", "twin", "crash", "leave")}
CLOCK = {**SMALL, "session_ms": 6_000, "only": ("step", "step", "dark", "no ticks", "cut")}
LATE = {
    **SMALL,
    "settle_ms": 0,
    "only": ("late", "late", "late", "behind", "route", "route", "wish", "leave", "crash", "deaf"),
}
KILLED = {**SMALL, "only": ("kill", "kill", "late", "leave", "crash", "route")}

MUTANTS = (
    # --- hand-over ---
    M("grants without waiting for the release", "A queue is given only when nobody holds it.",
      "handover", '        if group.settings.handover == "eager":', "        if True:", COMING),
    M("takes an older epoch for a release", "Released = a heartbeat with an epoch of at least that which asked.",
      "handover", "        if beat.epoch < revocation.epoch:", "        if beat.epoch < 0:", LATE),
    M("takes a receipt for a release", "A queue is released when a heartbeat does not list it any more.",
      "handover", "        if queue not in owned:", "        if True:", COMING),
    M("revoke timeout counts from the asking", "No deadline runs against a client for what it is not known to have received.",
      "group", "        return NEVER_MS if self.shown_ms < 0 else self.shown_ms + self.timeout_ms",
      "        return max(self.shown_ms, 1) + self.timeout_ms", SLOW),
    M("revoke timeout never comes", "What is not released in time is free.",
      "handover", "            if revocation.ends_ms <= now_ms:", "            if False:", SLOW),
    M("timeout in an ordered group", "In an ordered group a queue never comes free while its owner lives.",
      "handover", "    if group.is_ordered:\n        return\n", "", ORDERED),
    M("joiner not told", "A joiner is always told.", "handover",
      "    group.members[client_id].owned[queue] = group.epoch\n    turn.tell.add(client_id)",
      "    group.members[client_id].owned[queue] = group.epoch", COMING),
    M("not told to give up", "Who must give up a queue is told.", "handover",
      "group.settings.revoke_timeout_ms)\n        turn.tell.add(client_id)", "group.settings.revoke_timeout_ms)", COMING),
    M("not told again", "A member is told again if it shows an epoch behind the last one sent.",
      "handover", "    if beat.epoch < member.sent_epoch or member.owned.keys() != set(beat.owned):", "    if False:", AWAY),
    M("what comes free is given to nobody", "Grants that follow a release wait for nothing.",
      "handover", "    give_what_is_free(turn, turn.freed)\n", "", COMING),
    M("released queues go to their old owner", "A queue goes to its client in the target.", "handover",
      "        client_id = group.target.get(queue)\n        member",
      "        client_id = group.freed[queue].client_id if queue in group.freed else group.target.get(queue)\n        member", COMING),
    M("given in the epoch before", "A queue is given in the group's epoch.", "handover",
      "    group.members[client_id].owned[queue] = group.epoch\n", "    group.members[client_id].owned[queue] = group.epoch - 1\n", COMING),
    M("assigns what is asked back", "An assignment lists what its client may read.",
      "handover", "                    if queue not in member.revoking\n", "", COMING),
    # --- membership ---
    M("superseded instance still heard", "A superseded instance is never heard again.",
      "membership", "    if beat.instance_id in (member.superseded if member else gone.instances if gone else ()):", "    if False:", LIVES),
    M("a late heartbeat brings back who left", "An unregistered instance is never heard again.",
      "membership", "        _remember(turn, event.client_id, [*member.superseded, member.instance_id])\n", "", LIVES),
    M("an old life's unregister counts", "Only its current instance unregisters a client.",
      "membership", "    elif member.instance_id == event.instance_id:", "    else:", LIVES),
    M("a new life is the old one", "A new instance supersedes at once; all that the old one held is free.",
      "membership", "    elif member.instance_id != beat.instance_id:", "    elif False:", LIVES),
    M("nobody expires", "Who is silent for longer than the session leaves.",
      "membership", "    if silent and turn.moment.may_expire:", "    if False:", AWAY),
    M("half a session is enough", "Who is silent for longer than the session leaves, and nobody before.", "group",
      "        return member.seen_ms + max(member.session_ms, self.settings.session_timeout_ms) + 1",
      "        return member.seen_ms + max(member.session_ms, self.settings.session_timeout_ms) // 2 + 1", AWAY),
    M("a shorter session counts at once", "A shorter session counts only once the member has heard of it.", "group",
      "        return member.seen_ms + max(member.session_ms, self.settings.session_timeout_ms) + 1",
      "        return member.seen_ms + self.settings.session_timeout_ms + 1",
      {**SMALL, "session_ms": 45_000, "only": ("configure", "configure", "cut", "cut", "deaf", "behind", "zombie")}),
    M("a heartbeat does not prove life", "Every heartbeat of the current instance proves life.",
      "membership", "    member.seen_ms = turn.moment.now_ms\n", "    pass\n", COMING),
    M("a new subscription is no change", "A new or a removed topic is a change.",
      "membership", '        turn.ask("subscription")', "        pass", {**SMALL, "only": ("wish", "wish", "leave")}),
    M("who expires keeps its queues", "Expiry frees at once.", "membership",
      "    handover.free_all(turn, client_id, how)\n    del", "    del", AWAY),
    # --- the clock ---
    M("no grace", "After a dark log nobody expires for 15 s.",
      "clock", "                self.grace_until_ms = self.now_ms + config.GRACE_MS", "                pass", CLOCK),
    M("expiry in the dark", "A log that was dark does not count as silence.",
      "clock", "        step = min(max(timestamp_ms - self.tick_ms, 0), config.LONGEST_STEP_MS)",
      "        step = max(timestamp_ms - self.tick_ms, 0)", CLOCK),
    M("clock set back", "The shard's clock never falls.",
      "clock", "        self.now_ms = max(self.now_ms, self.at_tick_ms + step)", "        self.now_ms = timestamp_ms", CLOCK),
    # --- offsets ---
    M("commit goes backwards", "A committed offset never goes backwards.",
      "offsets", "        elif entry.offset > group.offsets.get(entry.queue, -1):", "        else:", COMING),
    M("anybody commits", "A commit is good only if it comes from the queue's owner.",
      "offsets", "    if owner != event.client_id:", "    if owner is None:", AWAY),
    M("an old life commits", "A commit is good only if it comes from the right instance.",
      "offsets", '    if event.instance_id not in ("", member.instance_id):', "    if False:", LIVES),
    M("a commit of an older giving counts", "A commit is good only from the epoch on that the queue was given in.",
      "offsets", " if event.epoch < given else \"\"", " if False else \"\"", SLOW),
    M("starts at the first message", "A queue starts at its committed offset.",
      "handover", "    if queue in group.offsets:", "    if False:", COMING),
    M("commits are taken in silence", "Every commit that advances an offset is on record.",
      "group_machine", "            offsets.commit(turn, event)", "            pass", COMING),
    # --- the client ---
    M("client hands out after Take", "What is asked back is handed out no more.",
      "client", "        if held is None or held.draining or self._is_silent(now_ms):",
      "        if held is None or self._is_silent(now_ms):", COMING),
    M("receipt without draining", "What drains is still held, and a heartbeat says so.", "client",
      "            owned=sorted(self._held),",
      "            owned=sorted(queue for queue, held in self._held.items() if not held.draining),", COMING),
    M("no self-fence", "A client gives up when no heartbeat was acknowledged for a session.",
      "client", "        return now_ms - self._acknowledged_ms > self.session_timeout_ms", "        return False", AWAY),
    M("self-fence counts from the acknowledgement", "The session counts from the sending of the heartbeat, not from its receipt.",
      "client", "            self._acknowledged_ms = max(self._acknowledged_ms, sent_ms)",
      "            self._acknowledged_ms = now_ms", AWAY),
    M("repeated decisions obeyed as new", "A repeated decision is silent.",
      "client", "        if decision.seq <= self._seen.get(decision.shard, 0):", "        if False:", KILLED),
    M("client obeys an older epoch", "An outdated assignment is not obeyed.",
      "client", " and decision.epoch >= self.epoch:", ":", KILLED),
    M("released without the last commit", "The final commit of a queue goes before its release.", "client",
      "        commits = self._commit(drained, now_ms, starts_only=not self._commits_itself)\n        again",
      "        commits: list[Output] = []\n        again", COMING),
    M("leaves without a commit", "Leaving commits what is done.", "client",
      "            commits = self._commit(self._held, now_ms, starts_only=not self._commits_itself)\n        self._leaving",
      "            pass\n        self._leaving", COMING),
    M("client ignores a fence", "Who is fenced drops everything.", "client",
      '                return self._drop("left" if self._leaving else decision.reason, decision.by)',
      "                return []", {**SMALL, "only": ("twin", "twin", "behind", "cut", "deaf", "zombie")}),
    M("client does not release", "What is drained is reported.", "client",
      "        return [*commits, self._heartbeat(now_ms), *(self._give(assigned) for assigned in again)]",
      "        return [*commits, *(self._give(assigned) for assigned in again)]", COMING),
    # --- the shard ---
    M("deadlines are not kept", "A tick looks at every group whose deadline has come.", "shard",
      "        state.deadlines[group_id] = group.due_ms\n", "        state.deadlines.setdefault(group_id, group.due_ms)\n", AWAY),
    M("a refused record is not answered", "Every event is processed or rejected with its reason.", "shard",
      "                decisions.append(event)", "                pass", {**SMALL, "only": ("junk",)}),
)  # fmt: skip

UNSEEN = {
    "revoke timeout never comes": "every handler ends, so that the queue is released later all the same",
    "not told again": "the inbox loses nothing; needed only after a loss of the coordinator's state",
    "assigns what is asked back": "redundant: the client ignores what stands in `revoke` too",
    "a late heartbeat brings back who left": "one producer keeps order: nothing of a life follows its unregister",
    "an old life's unregister counts": "no world lets a replaced life unregister late yet",
    "nobody expires": "in the calm everybody is back, and supersedes its old life",
    "a new subscription is no change": "the next join makes the target that was not asked for",
    "no grace": "only five seconds of a dark log count, which is too little to expire who heartbeats again at once",
    "joiner not told": "redundant: a new target tells everybody who was never told",
    "expiry in the dark": "the 15 s of grace cover it: whoever lives is heard again before anybody may expire",
    "client does not release": "the next regular heartbeat releases it too, only later",
    "anybody commits": "a life that was replaced or expired has fenced itself before its commits arrive",
    "an old life commits": "the same; the owner's name and the epoch refuse the rest",
    "a commit of an older giving counts": "the same client's older giving has committed less, and offsets only grow",
    "self-fence counts from the acknowledgement": "acknowledgements are late by less than the coordinator's own lag",
    "repeated decisions obeyed as new": "redundant: an assignment is complete, and older epochs are not obeyed",
    "client obeys an older epoch": "redundant: a seq a shard tells what is outdated",
}
"""Mutants that no world has found so far, and why: the code is redundant there, or the worlds are too kind."""
