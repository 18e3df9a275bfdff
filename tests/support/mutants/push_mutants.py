"""Small breakages of push consumption, each with the worlds that show it soon."""

from tests.support.mutants.mutant import Mutant
from wakeroll.push.failure_handling import RetryRules
from wakeroll.push.limits import PushLimits

M = Mutant
FAILURES, QUEUE = "wakeroll.push.failure_handling", "wakeroll.push.queue_work"
SEND_BACK, SLICES = "wakeroll.push.send_back", "wakeroll.sliced_reader"
MIXED = {"poison": 0.1, "limits": PushLimits(2, 3, 20, 10_000)}
SHARED = {
    **MIXED,
    "orderly": False,
    "rough": False,
    "keys": 7,
    "messages": 60,
    "fails": 0.4,
    "clients": 3,
    "rules": RetryRules(in_place=False, max_retries=1, handle_timeout=60.0),
}
IN_ORDER = {
    **MIXED,
    "orderly": True,
    "fails": 0.4,
    "rules": RetryRules(in_place=True, max_retries=1, handle_timeout=60.0, is_orderly=True),
}
DEAD_AT_ONCE = {**IN_ORDER, "rules": RetryRules(in_place=True, max_retries=0, handle_timeout=60.0, is_orderly=True)}
DELAYED = {
    **SHARED,
    "rules": RetryRules(in_place=False, max_retries=3, handle_timeout=60.0, retry_delays=(45, 100)),
    "steps": 4,
}
REFUSED = {**SHARED, "rough": True, "steps": 16}
NARROW = {**IN_ORDER, "limits": PushLimits(2, 3, 4, 10_000)}
CUT = {
    **SHARED,
    "fails": 0.0,
    "poison": 0.0,
    "slices": 8,
    "queues": 1,
    "steps": 16,
    "limits": PushLimits(2, 3, 4, 10_000),
}

MUTANTS = (
    M("a call fails for all its messages", "After an exception, only a message that fails alone has failed.", FAILURES,
      "        if len(failed) == 1:\n", "        if True:\n", SHARED),
    M("the call was an attempt", "A call of several messages that failed as a whole is no attempt.", FAILURES,
      "alone = [Part([message], batch.attempt) for", "alone = [Part([message], batch.attempt + 1) for", IN_ORDER),
    M("waiting is an attempt", "A message that waited behind a failed one has no attempt more.", FAILURES,
      "([Part(after, 1)] if after else [])", "([Part(after, again)] if after else [])", IN_ORDER),
    M("all that are named have failed", "In order, what is named behind a failed message has waited for it.", FAILURES,
      "                    return failed[: at + 1]", "                    return failed", IN_ORDER),
    M("behind a dead letter nothing comes again", "What waited behind a dead letter is handled.", FAILURES,
      "        if behind:", "        if False:", DEAD_AT_ONCE),
    M("those behind do not wait", "In order, messages after a failed one come after it.", FAILURES,
      "return [Part([first], again), *([Part(after, 1)] if after else [])]", "return [Part([first], again)]", IN_ORDER),
    M("one attempt too few", "A message is dead after `max_retries` retries, and not before.", FAILURES,
      "attempt > most", "attempt >= most", SHARED),
    M("alone, and all at once", "Messages of a lane are handled one after the other.", QUEUE,
      "        if batch.lane is None:\n            return new\n", "        if True:\n            return new\n", SHARED),
    M("alone, after the others", "They are handled before all that wait for their lane.", QUEUE,
      "self._waiting[batch.lane].extendleft(reversed(new[1:]))", "self._waiting[batch.lane].extend(new[1:])", SHARED),
    M("left to others", "Without order, a stopped queue still handles the messages of a failed call.", QUEUE,
      "(self._orderly or any(part.attempt > 1 for part in parts))", "True", SHARED),
    M("in any order of offset", "The position is that of the oldest message that is not processed.", QUEUE,
      "deque(sorted([*others, *new], key=_first))", "deque([*others, *new])", SHARED),
    M("uncounted", "What is read and not processed is counted.", QUEUE,
      "        self.messages += sum(len(part.messages) for part in parts) - len(batch.messages)\n", "", NARROW),
    M("the rest of a delay is forgotten", "A message that waits in several queues waits for its whole delay.", FAILURES,
      "level, wait_s - DELAYS_S[level - 1]))", "level, 0))", DELAYED),
    M("what is refused counts as processed", "The position does not pass a message that its topic refuses.", QUEUE,
      'self._leave(batch, "held")', 'self._leave(batch, "finished")', REFUSED),
    M("what is refused is forgotten", "A refused message is sent again.", SEND_BACK,
      "            self._held.append((time.monotonic() + HELD_AGAIN_S, letter, parcel))", "            pass", REFUSED),
    M("former slices are repeated", "What former slices have processed is not handed out again.", SLICES,
      "            if fresh and part.done:", "            if False:", CUT),
    M("a full slice is read on", "A slice gets no more than it has room for.", SLICES,
      "room = 0 if part.kept or part.is_held else", "room =", CUT),
    M("passed over and forgotten", "A slice that was passed over continues at its first message.", SLICES,
      "                    part.position = others[0].offset() or 0\n", "", CUT),
    M("never goes back", "The reader goes back to the slice that is behind.", SLICES,
      "not partition.at <= (lowest := min(wanted))", "not (lowest := min(wanted))", CUT),
    M("had it before", "A slice leaves out the messages that it has had.", SLICES,
      "            if fresh and position > first:", "            if False:", CUT),
    M("more than its part", "A slice gets no more at once than a queue does.", SLICES,
      "most - part.taken", "most * 100", CUT),
    M("kept, and counted as processed", "The position is not reported beyond what is kept.", SLICES,
      "part.position and not part.kept:\n                    part", "part.position:\n                    part", CUT),
    M("kept, and handed out again", "After a way back, what was kept is read again, not handed out besides.", SLICES,
      "        self.kept = []\n\n", "\n", CUT),
    M("behind, and read on", "A slice that was passed over gets nothing before the reader goes back.", SLICES,
      "if not begin <= position < end or part in lost:", "if not position < end or part in lost:", CUT),
)  # fmt: skip
