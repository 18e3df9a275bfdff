"""Mutants of who is in a group: its lives, its sessions, its clock, and what is said of members at odds."""

# ruff: noqa: E501 - source text stands as it stands in the module

from mutants.mutant import Mutant
from mutants.worlds import AWAY, CLOCK, COMING, CONFIGURED, FIGHTS, FULL, LIVES, SMALL, STRATEGIES

M = Mutant

MUTANTS = (
    # --- lives ---
    M("superseded instance still heard", "A superseded instance is never heard again.",
      "membership", "    if beat.instance_id in (member.superseded if member else gone.instances if gone else ()):", "    if False:", LIVES),
    M("a late heartbeat brings back who left", "An unregistered instance is never heard again.",
      "membership", "        _remember(turn, event.client_id, [*member.superseded, member.instance_id])\n", "", LIVES),
    M("an old life's unregister counts", "Only its current instance unregisters a client.",
      "membership", "    elif member.instance_id == event.instance_id:", "    else:", LIVES),
    M("a new life is the old one", "A new instance supersedes at once; all that the old one held is free.",
      "membership", "    elif member.instance_id != beat.instance_id:", "    elif False:", LIVES),
    M("the replaced one keeps its queues", "What a replaced life held is free.",
      "membership", '    handover.free_all(turn, client_id, "replaced")\n', "", LIVES),
    M("the replaced one is not told", "A replaced life is fenced.", "membership",
      '    turn.say(_fenced(turn, client_id, old.instance_id, "replaced", by=beat.instance_id))\n', "", {**SMALL, "only": ("twin",) * 6}),
    M("replacements are not counted", "A name that is fought for is on record.", "conflicts",
      "    if len(member.replaced_ms) == config.REPLACEMENTS:", "    if False:", FIGHTS),
    M("replacements are forgotten", "Replacements count over all lives of five minutes.", "membership",
      "    member.replaced_ms = old.replaced_ms\n", "", FIGHTS),
    M("an intruder is not named", "A replaced life that goes on is on record.", "membership",
      "            conflicts.note_intruder(turn, beat, member)\n", "            pass\n", FIGHTS),
    # --- sessions ---
    M("nobody expires", "Who is silent for longer than the session leaves.",
      "membership", "    if silent and turn.moment.may_expire:", "    if False:", AWAY),
    M("half a session is enough", "Who is silent for longer than the session leaves, and nobody before.", "group",
      "        return member.seen_ms + max(member.session_ms, self.settings.session_timeout_ms) + 1",
      "        return member.seen_ms + max(member.session_ms, self.settings.session_timeout_ms) // 2 + 1", AWAY),
    M("a shorter session counts at once", "A shorter session counts only once the member has heard of it.", "group",
      "        return member.seen_ms + max(member.session_ms, self.settings.session_timeout_ms) + 1",
      "        return member.seen_ms + self.settings.session_timeout_ms + 1", CONFIGURED),
    M("a longer session stays", "A member that has shown the new session is judged by it.", "membership",
      "        member.session_ms = group.settings.session_timeout_ms\n", "        pass\n", {**AWAY, "session_ms": 6_000}),
    M("a heartbeat does not prove life", "Every heartbeat of the current instance proves life.",
      "membership", "    member.seen_ms = turn.moment.now_ms\n", "    pass\n", COMING),
    M("deadlines are not kept", "A tick looks at every group whose deadline has come.", "shard",
      "        state.deadlines[name] = entity.due_ms\n", "        state.deadlines.setdefault(name, entity.due_ms)\n", AWAY),
    M("who comes is no deadline", "A new member's session is a deadline.", "membership",
      "    group.remind(group.session_ends_ms(member))\n    _say", "    _say", AWAY),
    # --- the clock ---
    M("no grace", "After a dark log nobody expires for 15 s.",
      "clock", "                self.grace_until_ms = self.now_ms + config.GRACE_MS", "                pass",
      {**CLOCK, "only": ("dark",) * 6 + ("crash",) * 4 + ("zombie",) * 4}),
    M("expiry in the dark", "A log that was dark does not count as silence.",
      "clock", "        step = min(max(timestamp_ms - self.tick_ms, 0), config.LONGEST_STEP_MS)",
      "        step = max(timestamp_ms - self.tick_ms, 0)", {**CLOCK, "only": ("dark",) * 4 + ("lock",) * 16}),
    M("clock set back", "The shard's clock never falls.",
      "clock", "        self.now_ms = max(self.now_ms, self.at_tick_ms + step)", "        self.now_ms = timestamp_ms", CLOCK),
    # --- what they want ---
    M("a new subscription is no change", "A new or a removed topic is a change.",
      "membership", '        turn.ask("subscription")', "        pass", {**SMALL, "only": ("wish",) * 6}),
    M("subscriptions are not taken", "A member has what it subscribes now.", "membership",
      "    member.subscriptions = wanted\n", "", {**SMALL, "only": ("wish",) * 6}),
    M("wishes are not taken", "The strategy is what the oldest member wants now.", "membership",
      "    rethought = _take_wishes(member, beat)\n", "    rethought = False\n", {**SMALL, "only": ("prefer",) * 6}),
    M("the timer does not look", "What is no CHANGE takes effect at the timer's next look.", "group_machine",
      '        turn.ask("timer")', "        pass", {**SMALL, "only": ("prefer",) * 6}),
    M("other strategies are not named", "Who wants another strategy than the oldest member is on record.", "conflicts",
      "    if group.settings.strategy is None and member.strategy != oldest.strategy:", "    if False:", {**SMALL, "only": ("prefer", "prefer", "leave")}),
    M("nobody looks at the others when the oldest goes", "Members are compared with the oldest of now.", "membership",
      '        turn.ask("leave")\n        conflicts.review_all(turn)\n', '        turn.ask("leave")\n', {**STRATEGIES, "only": ("prefer", "prefer", "prefer", "leave", "leave", "leave", "wish")}),
    # --- who may come in ---
    M("a group has no bound", "A group has at most `max_members`.", "membership",
      "    if len(group.members) >= group.settings.max_members:", "    if False:", FULL),
    M("who comes again is one too many", "A full group keeps those who are in.", "membership",
      "    if len(group.members) >= group.settings.max_members:", "    if len(group.members) >= group.settings.max_members - 1:", FULL),
    M("both modes at once", "A group broadcasts or does not; it goes by its oldest member.", "membership",
      "    if beat.mode != _mode_for(turn, beat, member):", "    if False:", FULL),
)  # fmt: skip
