"""What may go wrong in a world of groups, or change."""

from random import Random
from typing import TYPE_CHECKING

from tests.support.simulation.frame.fault import Kind, between, one_of
from wakeroll_model.config import MIN_SESSION_MS

if TYPE_CHECKING:
    from tests.support.simulation.groups.group_plan import Plan

QUIET_MS = 20_000
"""Before the calm begins, nothing happens that would have to be waited for longer than the rules say."""


def _a_while(rng: Random, plan: "Plan") -> int:
    return rng.choice([500, plan.session_ms // 2, plan.session_ms + 5_000, 2 * plan.session_ms])


def _out_of_reach(rng: Random, plan: "Plan") -> int:
    session = plan.session_ms
    return rng.choice([2_000, session - 1_000, session + 500, session + 5_000, 2 * session, 60_000])


def _soon(rng: Random, _plan: "Plan") -> int:
    return rng.choice([10, 200, 1_000])


def _long_late(rng: Random, plan: "Plan") -> int:
    return rng.choice([1_000, plan.session_ms // 2, plan.session_ms - 1_000, 44_000])


def _sessions(rng: Random, plan: "Plan") -> int:
    """Two to six sessions."""
    return plan.session_ms * rng.randint(20, 60) // 10


def _behind(rng: Random, _plan: "Plan") -> int:
    return rng.choice([2_000, 8_000, 20_000, 60_000, 600_000 if rng.random() < 0.3 else 120_000])


KINDS = {
    # --- a client ends ---
    "crash": Kind("a client dies without a word and comes back under its name later", length_ms=_a_while),
    "restart": Kind(
        "a client dies and comes back at once; what it sent last arrives after the new life's first heartbeat",
        length_ms=_soon,
        amount=one_of(0, 500, 3_000),
        ends=False,
    ),
    "farewell": Kind(
        "the same, and what arrives late is the old life's unregister",
        length_ms=_soon,
        amount=one_of(500, 1_500, 3_000),
        ends=False,
    ),
    "last will": Kind(
        "a client dies, somebody sends its last will, and it comes back; what it sent itself may arrive afterwards",
        length_ms=_soon,
        amount=one_of(0, 100, 2_000),
        ends=False,
    ),
    "leave": Kind("a client ends its work, commits and unregisters, and comes back later", length_ms=_a_while),
    "abort": Kind("a client unregisters in the middle of its work, which is lost", length_ms=_a_while),
    "twice": Kind(
        "a client dies, and so does the process that is started in its place, and the next one; late heartbeats of them"
        " arrive",
        length_ms=one_of(10, 300, 2_000, 12_000),
        amount=one_of(100, 2_500, 20_000),
        ends=False,
    ),
    # --- two processes under one name ---
    "twin": Kind("a second process under the same client_id; the first one obeys its fence"),
    "fight": Kind(
        "two processes under one client_id, and who is replaced comes back as a new life, again and again",
        length_ms=one_of(10_000, 20_000),
        amount=one_of(500, 2_000, 4_000),
    ),
    # --- a client stands still, or is out of reach ---
    "zombie": Kind(
        "a client stands still for longer than its session, and goes on as if nothing had happened",
        length_ms=lambda rng, plan: plan.session_ms + rng.choice([100, 1_500, 20_000, 60_000]),
    ),
    "suspended": Kind(
        "a client stands still, another process is started in its place, and then the first one goes on",
        length_ms=lambda rng, plan: rng.choice(
            [2_000, plan.session_ms - 500, plan.session_ms + rng.choice([500, 9_000, 60_000])]
        ),
        amount=one_of(10, 1_000, 7_000),
    ),
    "pause": Kind("a client stands still for a while", length_ms=lambda rng, plan: rng.randint(300, plan.session_ms)),
    "cut": Kind(
        "a client is cut off from the broker both ways; what it sends is delivered afterwards, if not too old",
        length_ms=_out_of_reach,
    ),
    "deaf": Kind(
        "a client's inbox and acknowledgements do not come for a while; what it sends arrives", length_ms=_out_of_reach
    ),
    "unheard": Kind(
        "a client's inbox does not come for long; what it sends arrives and is acknowledged",
        length_ms=one_of(30_000, 150_000, 600_000),
    ),
    "moved": Kind(
        "a client stands still for most of its session, and is cut off when it goes on",
        length_ms=lambda rng, plan: plan.session_ms * rng.choice([60, 80, 95]) // 100,
        amount=lambda rng, plan: plan.session_ms * rng.choice([50, 90, 120]) // 100,
    ),
    "skip": Kind("assignments in a client's inbox are never read by it for a while", length_ms=one_of(2_000, 20_000)),
    "lost": Kind(
        "decisions for a client are lost for ever: of one kind, or any",
        length_ms=one_of(1_500, 10_000, 60_000),
        amount=between(0, 3),
    ),
    "late answer": Kind("one decision for a client comes after newer ones", length_ms=_long_late, ends=False),
    "straggler": Kind(
        "a heartbeat of a client, or a commit, arrives after newer records",
        length_ms=_long_late,
        amount=one_of(0, 1),
        ends=False,
    ),
    "slow": Kind(
        "a message is handled for longer than the revoke timeout",
        length_ms=lambda rng, plan: plan.revoke_ms + rng.randint(-1_000, 15_000),
        ends=False,
    ),
    # --- a client wants something else ---
    "wish": Kind("a client subscribes another set of topics", amount=one_of(1, 2, 3)),
    "prefer": Kind("a client wants another strategy; the oldest one's counts", amount=between(0, 99)),
    # --- the coordinator ---
    "kill": Kind(
        "the coordinator dies after it published a part of a batch, which is repeated", "world", amount=between(0, 100)
    ),
    "restore": Kind(
        "the coordinator's checkpoints are lost, and it goes on from an older state",
        "world",
        amount=one_of(0, 50, 90, 99),
    ),
    "loss": Kind(
        "the coordinator's state is lost: it begins a new era, with or without a snapshot, and with a part of its log",
        "world",
        length_ms=one_of(0, 30, 100),
        amount=one_of(-1, -1, 0, 50, 90, 100),
        ends=False,
    ),
    "behind": Kind("the coordinator stands still, and catches up in one batch", "world", length_ms=_behind, ends=False),
    "outage": Kind(
        "the coordinators stop in the middle of a hand-over for two to six sessions, with a batch published in part,"
        " and catch up in one batch or in many, while clients read slowly, and an operator switches the hand-over",
        length_ms=_sessions,
        amount=between(0, 999_999),
        ends=False,
    ),
    "late": Kind(
        "the inbox is delayed for everybody",
        "world",
        length_ms=one_of(2_000, 20_000),
        amount=one_of(500, 2_000, 8_000),
    ),
    "new inbox": Kind("the inbox is deleted and created again, and what nobody has read is lost", "world"),
    "echo": Kind(
        "what is published in a while comes once more, after newer decisions: from an executor taken for dead",
        "world",
        length_ms=one_of(5_000, 20_000),
        amount=one_of(300, 2_000, 9_000),
    ),
    # --- the log ---
    "dark": Kind(
        "nothing is appended to the log for a while, and nothing is read from the broker",
        "world",
        length_ms=one_of(2_000, 6_000, 15_000, 60_000),
    ),
    "no ticks": Kind(
        "all observers stop for a minute; then they continue, or start without memory",
        "world",
        one_of(60_000),
        one_of(0, 1),
    ),
    "observer": Kind("an observer begins, or one ends", "world", amount=between(0, 5)),
    "late ticks": Kind("ticks arrive late, and no more in order", "world", one_of(5_000, 30_000), one_of(300, 1_900)),
    "step": Kind(
        "the log's clock is set forth or back",
        "world",
        amount=one_of(-900, -3_000, -30_000, -600_000, 700, 1_500, 2_500, 4_000, 4_999, 30_000, 600_000),
    ),
    "fast": Kind("the log's clock runs fast for a while", "world", one_of(5_000, 60_000), one_of(10, 50, 150)),
    "junk": Kind("a record that is no event", "group"),
    # --- topics ---
    "route": Kind("queues are added to a topic, or removed", "topic", amount=one_of(-2, -1, 1, 2, 3)),
    "gone": Kind("a topic is gone, and comes back", "topic", length_ms=one_of(500, 3_000, 15_000)),
    "room": Kind("a queue's leader moves to another room, or to one that nobody knows", "topic"),
    "made again": Kind(
        "a topic is deleted and made again, at once or after a while", "topic", one_of(0, 0, 2_000, 40_000)
    ),
    "truncated": Kind("queues of a topic lose their last messages", "topic", amount=one_of(1, 10, 50)),
    "old route": Kind("a route of a topic arrives late", "topic", length_ms=_long_late, ends=False),
    "storm": Kind(
        "a topic changes many times in a second: queues, rooms, gone and back", "topic", length_ms=one_of(1_000, 3_000)
    ),
    # --- the operator ---
    "configure": Kind(
        "an operator sets a group's session and revoke timeout",
        "group",
        length_ms=one_of(MIN_SESSION_MS, 15_000, 45_000),
        amount=one_of(3_000, 20_000),
        ends=False,
    ),
    "strategy": Kind("an operator sets a group's strategy, maybe to one that fails", "group", amount=between(0, 99)),
    "reset": Kind("an operator sets a group's offsets, back or forth", "group", amount=between(0, 100)),
    "delete": Kind(
        "a group leaves a topic, an operator deletes offsets of it, soon or later, and the group comes back to it",
        "topic",
        length_ms=one_of(2_000, 10_000, 40_000),
    ),
    "kick": Kind(
        "an operator kicks a client, which lives or not, and keeps it out for a while",
        length_ms=one_of(0, 0, 5_000, 60_000),
        ends=False,
    ),
    "inspect": Kind("an operator asks a client what it does, which lives or not"),
    "rest": Kind("an operator pauses a group, and resumes it later", "group", one_of(500, 5_000, 30_000, 100_000)),
    "full": Kind(
        "a group may have no more members for a while than one or two", "group", one_of(3_000, 20_000), one_of(1, 2)
    ),
    # --- clients made by hand ---
    "lock": Kind(
        "a client speaks RocketMQ's protocol: it locks its queues, and one that is not its own",
        length_ms=one_of(4_000, 40_000, 100_000),
        amount=one_of(0, 1),
    ),
    "forged": Kind("a commit comes from somebody who does not own the queue, or did once", amount=one_of(0, 1, 2, 3)),
    "liar": Kind(
        "a client says what is not so: of its queues, its epoch, its session, or in another one's name",
        amount=between(0, 6),
    ),
    "far commit": Kind("a client commits beyond the end of its queue", amount=one_of(1, 30, 1_000, 10**9)),
    "other mode": Kind("a client that broadcasts wants into a group that does not, or the other way round", "group"),
}
"""Each happens at least once in every world that leaves nothing out."""
SLICED_KINDS = {
    **KINDS,
    "slices": Kind(
        "an operator cuts the partitions of a topic into so many slices for a group",
        "topic",
        amount=one_of(1, 2, 4),
    ),
}
"""Those of worlds in which partitions are cut into slices."""
