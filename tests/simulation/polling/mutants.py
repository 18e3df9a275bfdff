"""Small breakages of long polling, each with faults that show it soon."""

# ruff: noqa: E501 - source text stands as it stands in the module

from mutants.mutant import Mutant

M = Mutant
CALM = {"chaos_ms": 40_000, "pace_ms": 500, "only": ()}
QUIET = {**CALM, "pace_ms": 2_000}
FILTERED = {**CALM, "pace_ms": 200, "look_ms": 60_000, "knowledge": (7,)}
LIVES = {**CALM, "only": ("crash", "cancel", "rough pulls", "rough pulls")}
CROWDS = {**CALM, "only": ("crowd", "crowd", "crowd", "kill")}
CUT = {**CALM, "only": ("truncate", "truncate", "rough arrivals")}
LATE = {**FILTERED, "only": ("rough arrivals", "rough arrivals", "rough arrivals", "rough arrivals")}
JUNK = {**CALM, "only": ("junk", "misread", "crash")}

MUTANTS = (
    # --- a pull comes ---
    M("data is there, and it is held", "What came between the read and the pull is not missed.", "queue_machine",
      "    if queue.next_offset > pull.from_offset:", "    if False:", LIVES),
    M("held for what it has read", "An arrival concerns a pull only if its message is at or after the offset.", "queue_machine",
      "    if queue.next_offset > pull.from_offset:", "    if queue.next_offset >= pull.from_offset > 0:", CALM),
    M("superseded is not answered", "A newer pull of a client ends its older one.", "queue_machine",
      '        decisions.append(_wake(queue, before, "superseded", now_ms))\n', "", LIVES),
    M("a pull does not supersede", "A client has one pull at a queue.", "queue_machine",
      "        queue.holds[who] = hold\n        queue.due_ms = min(queue.due_ms, hold.until_ms)",
      "        queue.holds[who + pull.request_id] = hold\n        queue.due_ms = min(queue.due_ms, hold.until_ms)", LIVES),
    M("a superseded pull still takes its place", "Who pulls again needs no more room than before.", "queue_machine",
      "        places += 1\n", "        places -= 9\n", CROWDS),
    M("numbers are not compared", "A pull whose number is not above the last one of its instance is silent.", "queue_machine",
      "    if number <= last:", "    if False:", LIVES),
    M("an overtaken pull is forgotten", "A silent pull leaves the last number as it is.", "queue_machine",
      "    queue.last[life] = max(last, number)\n", "    queue.last[life] = number\n", LIVES),
    M("lives are one", "Numbers count up within an instance.", "queue_machine",
      '    life = f"{who} {instance_id}"', '    life = f"{who} life"', LIVES),
    M("groups are one", "Clients of the same name in two groups are two.", "queue_machine",
      '    who, number = f"{pull.group_id}@{pull.client_id}", int(text)', '    who, number = f"group@{pull.client_id}", int(text)', CALM),
    M("another's request is taken", "A request_id begins with its instance.", "queue_machine",
      "    if instance_id != pull.instance_id:", "    if False:", JUNK),
    M("an unreadable wish is held", "An expression that cannot be read is refused.", "queue_machine",
      "        return [_refusal(pull, str(error))]", "        pass", JUNK),
    # --- too many ---
    M("overflow is not answered", "The newest is answered `overflow` rather than held.", "queue_machine",
      '        decisions.append(_wake(queue, hold, "overflow", now_ms))', "        pass", CROWDS),
    M("a queue has no bound", "A queue holds so many, and no more.", "queue_machine",
      "places < 1 or len(queue.holds) >= config.MAX_HOLDS_PER_QUEUE", "places < 1", CROWDS),
    M("a shard has no bound", "A shard holds so many, and no more.", "queue_machine",
      "places < 1 or len(queue.holds)", "len(queue.holds)", CROWDS),
    M("a shard counts what comes only", "What a shard counts as held is what its queues hold.", "shard",
      "        state.held += self._machine.held(entity) - held", "        state.held += max(0, self._machine.held(entity) - held)", CROWDS),
    # --- a cancel ---
    M("cancel is not answered", "A cancelled pull has its answer.", "queue_machine",
      '            return [_wake(queue, hold, "cancelled", now_ms)]', "            return []", LIVES),
    M("a cancelled pull stays", "Who has been answered is not held.", "queue_machine",
      '            del queue.holds[who]\n            return [_wake(queue, hold, "cancelled"', '            return [_wake(queue, hold, "cancelled"', LIVES),
    # --- an arrival ---
    M("an arrival wakes nobody", "An arrival wakes whom it concerns.", "queue_machine",
      '                decisions.append(_wake(queue, hold, "arrival", now_ms))\n                continue\n', "                pass\n", CALM),
    M("woken and held", "None is woken twice.", "queue_machine",
      '                decisions.append(_wake(queue, hold, "arrival", now_ms))\n                continue\n',
      '                decisions.append(_wake(queue, hold, "arrival", now_ms))\n', CALM),
    M("the filter is ignored", "An arrival wakes only who may want its message.", "queue_machine",
      "            if wants[wish]:", "            if True:", FILTERED),
    M("one wish for all", "Each is asked for what it wants itself.", "queue_machine",
      "            wish = hold.expression, hold.expression_type", '            wish = "", ""', FILTERED),
    M("tags are not looked at", "What an arrival tells is used.", "queue_machine",
      "    return matches(subscription, arrival.tags_code, arrival.tags, arrival.properties)",
      "    return matches(subscription, arrival.tags_code, None, arrival.properties)", FILTERED),
    M("an old arrival wakes", "An arrival wakes by its own offset, not by how far the queue is.", "queue_machine",
      "        if arrival.next_offset > hold.from_offset:", "        if queue.next_offset > hold.from_offset:", LATE),
    M("an old arrival counts downwards", "What is told of a queue's end only counts upwards.", "queue_machine",
      "        queue.next_offset = max(queue.next_offset, arrival.next_offset)", "        queue.next_offset = arrival.next_offset", LATE),
    M("whom it does not concern is lost", "The others go back.", "queue_machine",
      "        queue.holds[who] = hold\n    return decisions", "    return decisions", FILTERED),
    M("the last come first", "They go back in their order.", "queue_machine",
      "    for who, hold in taken.items():", "    for who, hold in reversed(taken.items()):", CALM),
    # --- a truncation ---
    M("truncated does not follow down", "After a truncation the queue's end is where it says.", "queue_machine",
      "        queue.next_offset = arrival.next_offset\n    else:", "        pass\n    else:", CUT),
    M("truncated concerns nobody", "A truncation wakes everybody.", "queue_machine",
      '            decisions.append(_wake(queue, hold, "truncated", now_ms))\n            continue\n', "            pass\n", CUT),
    M("truncated does not go back", "After a truncation a client goes back to the new end.", "queue_machine",
      'queue.next_offset if reason == "truncated" else max(', "max(", CUT),
    # --- time passes ---
    M("timeout is ignored", "A pull is answered at its deadline.", "queue_machine",
      "        if hold.until_ms <= now_ms:", "        if False:", QUIET),
    M("timeout comes a tick late", "A pull is answered on the first tick at or after its deadline.", "queue_machine",
      "        if hold.until_ms <= now_ms:", "        if hold.until_ms <= now_ms - 1_000:", QUIET),
    M("skipped never", "Whom an arrival skipped is woken five seconds later.", "queue_machine",
      "        elif 0 <= hold.skipped_ms <= now_ms - config.SKIP_MS:", "        elif False:", FILTERED),
    M("skipped counts anew", "It is the first arrival that counts.", "queue_machine",
      "            if hold.skipped_ms < 0:", "            if True:", FILTERED),
    M("a skip is no deadline", "No deadline comes too late.", "queue_machine",
      "                queue.due_ms = min(queue.due_ms, now_ms + config.SKIP_MS)\n", "", FILTERED),
    M("a hold is no deadline", "No deadline comes too late.", "queue_machine",
      "        queue.due_ms = min(queue.due_ms, hold.until_ms)\n", "        pass\n", QUIET),
    M("the next deadline is not looked for", "No deadline comes too late.", "queue_machine",
      "    queue.due_ms = min((_due_ms(hold) for hold in queue.holds.values()), default=NEVER_MS)", "    queue.due_ms = NEVER_MS", QUIET),
    # --- the answer ---
    M("the answer goes back", "A wake's offset is never below the one that was asked for.", "queue_machine",
      "max(queue.next_offset, hold.from_offset)", "queue.next_offset", CUT),
    M("held is counted from nothing", "A wake says how long it was held.", "queue_machine",
      "held_ms=now_ms - hold.since_ms", "held_ms=hold.until_ms - hold.since_ms", CALM),
)  # fmt: skip
