"""Mutants of slices: a change of their number, while members work."""

from tests.support.mutants.mutant import Mutant
from tests.support.mutants.mutant_worlds import CUT, CUT_AND_FAR, CUT_AND_LOST, CUT_AND_RESET, CUT_OFTEN

M = Mutant

MUTANTS = (
    M(
        "a new slice does not wait",
        "A new slice waits for the owners of the former ones.",
        "handover",
        "        if group.sliced and slicing.owned_in_part(group, queue) is not None:",
        "        if False:",
        CUT,
    ),
    M(
        "a new slice waits for ever",
        "A new slice is assigned when the former ones are free.",
        "handover",
        "    new = [other for queue in freed for other in slicing.overlapping(group, queue) if other in group.target]",
        "    new = []",
        CUT,
    ),
    M(
        "a slice that was added is not known when its topic is whole again",
        "A queue that is added to a topic starts at its first message, whatever the number of slices.",
        "slicing",
        "(group.owners, group.target, group.offsets, group.done, group.added)",
        "(group.owners, group.target, group.offsets, group.done)",
        CUT,
    ),
    M(
        "the furthest slice counts",
        "A new slice starts at the lowest offset of those that it comes from.",
        "slicing",
        "    lowest = min(offsets,",
        "    lowest = max(offsets,",
        CUT,
    ),
    M(
        "what a former slice has done is not stored",
        "What former slices have done is not done again.",
        "slicing",
        "        if done:\n            group.done[piece] = done",
        "        if False:\n            pass",
        CUT,
    ),
    M(
        "what a former slice has done is not sent",
        "The owner of a new slice learns what is done of it.",
        "clustering_offsets",
        "            done=group.done.get(queue, ()),",
        "            done=(),",
        CUT,
    ),
    M(
        "the first commit forgets what is done",
        "What is done beyond a commit stays done.",
        "slicing",
        "    if left := tuple(one for one in known if one.offset > offset):",
        "    if left := ():",
        CUT_OFTEN,
    ),
    M(
        "a slice takes the offsets of the others",
        "Each of the new slices has the offset of the former one.",
        "slicing",
        "    pieces = cut(former[0], queue.slices) if former[0].slices < queue.slices else [queue]",
        "    pieces = [queue]",
        CUT,
    ),
    M(
        "a reset concerns the whole partition alone",
        "A reset of a partition concerns each of its slices.",
        "clustering",
        "    for piece in slicing.pieces(turn.group, turn.routes, queue):",
        "    for piece in (queue,):",
        CUT_AND_RESET,
    ),
    M(
        "a reset leaves what was done",
        "A reset wants messages again that former slices have done.",
        "clustering_offsets",
        "if other in group.offsets], why, by)\n        group.done.pop(queue, None)",
        "if other in group.offsets], why, by)",
        CUT_AND_RESET,
    ),
    M(
        "a part of a partition has an offset that nobody finds",
        "The offset of each part of a partition counts for the next owner, whatever its number.",
        "clustering_offsets",
        "    slicing.note(group, queue)  # a part",
        "    # a part",
        CUT_AND_RESET,
    ),
    M(
        "what a former slice has done beyond the end is not doubted",
        "Messages below a wrong commit of a former slice are not skipped for ever.",
        "slicing",
        "        furthest = max(one.offset for one in (lowest, *done))",
        "        furthest = lowest.offset",
        CUT_AND_FAR,
    ),
    M(
        "a slice is claimed beside its former ones",
        "No two slices with messages in common have owners.",
        "claims",
        "        if any(one in group.owners or one in group.freed for one in (queue, *others)):",
        "        if queue in group.owners or queue in group.freed:",
        CUT_AND_LOST,
    ),
)
