"""Every limit and duration: its unit, its default, and why it is what it is."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

NEVER_MS = 2**62
"""A deadline that does not come."""

# --- the clock of a shard ---
TICK_MS = 1_000
"""The observer appends a tick to every control partition this often."""
LONGEST_STEP_MS = 3_000
"""One tick counts for at most this."""
DARK_MS = 5_000
"""More than this between two ticks is a dark log (broker or observer down)."""
UNTIMED_STEP_MS = 1_000
"""A tick that does not say its observer's uptime counts for at most this: the log's own clock may be wrong."""
SLACK_MS = 2_000
"""A record between two ticks is at most this much later than the first one: a tick is dropped when it is older."""
GRACE_MS = 15_000
"""After a dark log nobody expires for this long: the clients are reconnecting."""
GRACE_EVERY_MS = 60_000
"""A grace begins at the earliest this long after the last one ended, so that a slow observer does not stop expiry."""
MAX_OBSERVERS = 16
"""Observers whose uptime a shard remembers; the one that was silent for longest is forgotten first."""
CLIENT_MARGIN_MS = LONGEST_STEP_MS + SLACK_MS
"""A client gives up this long before its session ends: so much older than it is a heartbeat may count.  It came just
before a tick that was SLACK_MS late and counts for LONGEST_STEP_MS, and the log's clock did not move meanwhile."""

# --- a group's settings, until `configure` changes them ---
HEARTBEAT_MS = 10_000
SESSION_TIMEOUT_MS = 45_000
"""As Kafka's group.consumer.session.timeout.ms: four heartbeats may be lost."""
REBALANCE_INTERVAL_MS = 20_000
"""As RocketMQ's `RebalanceService` waits between two runs."""
SETTLE_MS = 1_000
"""At most one new target in this time, as Kafka's group.consumer.assignment.interval.ms (KIP-1263)."""
REVOKE_TIMEOUT_MS = 30_000
COMMIT_INTERVAL_MS = 5_000
"""As Kafka's auto.commit.interval.ms: what a crash repeats at most."""
MAX_MEMBERS = 5_000
"""Beyond it a join is refused; the largest group whose rebalance has been measured."""
MIN_SESSION_MS = 2 * CLIENT_MARGIN_MS
"""The shortest session timeout; Kafka's group.min.session.timeout.ms is 6 s, and its broker has a clock of its own."""
MAX_SESSION_MS = 1_800_000
"""The longest session timeout: Kafka's group.max.session.timeout.ms, 30 minutes."""
BEATS_PER_SESSION = 3
"""A session holds at least this many heartbeat intervals, so that two heartbeats may be lost."""

PROFILES: Mapping[str, Mapping[str, str | int]] = {
    "wakeroll": {
        "handover": "cooperative",
        "heartbeat_ms": HEARTBEAT_MS,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
    },
    "rocketmq": {"handover": "eager", "heartbeat_ms": 30_000, "session_timeout_ms": 120_000},
}
"""Settings by one name.  RocketMQ's clients send a heartbeat every 30 s, and its broker's channelExpiredTimeout is
120 s; nobody waits for a queue's old owner."""

# --- locks, by RocketMQ's protocol ---
LOCK_MS = 60_000
"""A lock that is not renewed ends after this: RocketMQ's rebalance.lockMaxLiveTime at the broker."""

# --- what a group remembers ---
ENDED_MS = MAX_SESSION_MS
"""An instance that ended is remembered this long after it was heard last: a record may be late by a session."""
DEAF_SESSIONS = 2
"""A member that could have heard, and has not for so many sessions, is evicted: its client notices in less."""
WAITING_MS = 2 * HEARTBEAT_MS
"""An instance that waits for a client_id still waits if it was heard in this time: nobody told it another interval."""
MAX_RIVALS = 4
"""Instances that wait for one client_id and are remembered: those that came first."""
DUPLICATE_EVERY_MS = 300_000
"""A duplicate client_id is reported at most this often."""
FORGET_MS = 7 * 24 * 3_600_000
"""An empty group, and the offsets of a topic that it no longer uses, are forgotten after this (as in Kafka)."""
ERA_EPOCHS = 2**32
"""Epochs of one era: those of era E begin at (E - 1) * 2**32, so that an epoch says which era it is of."""
KEEP_ROUTE_MS = 3_600_000
"""A route that no observer has told for this long, and whose topic nobody of the shard subscribes, is forgotten."""
GONE_TOPIC_MS = 3_600_000
"""What a group has of a topic that is gone is forgotten after this: longer than any restart of its brokers."""
LAST_RESETS = 16
"""Request ids of resets kept a group, so that a repeated one is silent."""
MAX_CAUSES = 16
"""Causes listed in one `rebalance`; a burst of a thousand joins need not name them all."""

# --- long polling ---
PULL_TIMEOUT_MS = 20_000
"""How long a pull is held if it does not say: RocketMQ's pull consumers' brokerSuspendMaxTimeMillis."""
MAX_PULL_TIMEOUT_MS = 600_000
SKIP_MS = 5_000
"""A hold whose filter wants nothing of what arrives is woken after this, so that its offset can move on.  RocketMQ's
hold service does that at its 5 s check, if not on purpose."""
REFRESH_MS = 60_000
"""An observer reports the end of each pulled queue at least this often, so that every wrong belief about it heals."""
CONFIRM_MS = 2_000
"""Two reports this far apart contradict what was said before the first of them.  A report is at most this old when it
is appended: an observer waits 1 s for a broker's answer, and its producer drops what is not taken within 1 s."""
HINT_MS = 60_000
"""An arrival that no observer reported is believed for this long, unless reports contradict it earlier: longer than
any client takes from a read that found nothing to its pull."""
REMEMBER_MS = 600_000
"""The newest pull of a life is remembered for this long after its answer, so that a repeated one is silent; then the
queue is forgotten, unless another life keeps it.  A repeated record comes at most a session late."""
FILTER_CHARACTERS = 32
"""An expression counts as its length and this: even the shortest must be looked at."""

MAX_TOLD = 64
"""Arrivals of one queue that a producer tells together; where its messages would need more, it says less of them."""
MAX_FILTERS_KEPT = 4 * 1024 * 1024
"""Characters of the expressions that a process keeps in readable form, 30 bytes each: those of four full shards."""

# --- signed records ---
SIGNED_FOR = {"operator": 100_000, "observer": 1_000_000}
"""Role -> a signature is void so many records above the end that its signer knew.  An operator asks for the end just
before; the observer's may be a minute old, or as old as an outage."""
MAX_SIGNERS = 256
"""Signers of one role that a shard remembers: each process of an operator is one, an observer has two or three."""

# --- bounds of an event ---
MAX_TOPICS = 1_000
"""Subscriptions of one client."""
MAX_QUEUES = 32_768
"""Queues in one event, such as `owned` in a heartbeat. An assignment has room for fewer: see MAX_SHARE_BYTES."""
MAX_PREFERENCES_BYTES = 256 * 1024
"""All of a heartbeat except `owned`: a group keeps it for each member."""
MAX_CONFIGURE_BYTES = 64 * 1024
"""One `configure` record: a shard keeps the settings of every group, also of empty ones."""
MAX_PULL_BYTES = 64 * 1024
"""One `pull` record."""
MAX_PARAMS = 1_000
"""Parameters of a strategy, such as a room or a weight for each client."""
MAX_PROPERTIES = 256
"""Properties of a message that an arrival may tell."""
MAX_DEPTH = 32
"""Brackets in brackets; an event needs six.  So far below what a stack holds that no answer depends on the stack."""
RETRY_MS = 60_000
"""A tick that the machine itself failed at is retried on the group after this."""
MAX_RAW_BYTES = 4_096
"""Of a rejected record, this much is kept."""
MAX_DETAIL = 500
"""Characters of a rejection's detail."""

# --- bounds of a decision: every decision fits into a record of its topic, whatever the events are ---
MAX_DECISION_BYTES = 4 * 1024 * 1024
"""No decision is larger: half of MAX_RECORD_BYTES, so that names, headers and batches of Kafka never matter."""
MAX_SHARE_BYTES = 7 * 512 * 1024
"""Room in an assignment for the queues of one client: 24,000 whose topic's name has 10 characters. It is less than
MAX_QUEUES, so a client can list in a heartbeat whatever it was assigned."""
MAX_CLAIMS = 256
"""Queues listed in `revoke` that the client claims and does not own."""
MAX_UNASSIGNED = 256
"""Queues listed in `unassigned` of a `rebalance`; `unassigned_count` counts all."""
MAX_NOTES = 64
"""Notes in one `rebalance`."""
MAX_ANSWERS = 1_000_000
"""Queues in one answer of a strategy, each as often as it is given: 1,000 clients with 1,000 queues each take 0.1 s."""
MAX_PARAM_VALUES = 1_000_000
"""Values in strategy parameters times topics: a strategy that shares one topic reads them once per topic."""

# --- what a shard may hold ---
Count = Annotated[int, Meta(ge=1, le=10_000_000)]


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a deployment lets a shard hold: settings of the observer, which tells every shard with each tick.

    They stand in the log, so a replay decides by the limits of then.
    """

    max_groups: Annotated[Count, Meta(description="groups of a shard, with the empty ones that it remembers")] = 50_000
    max_group_bytes: Annotated[
        int,
        Meta(ge=MAX_PREFERENCES_BYTES, le=2**30, description="kept of the heartbeats and settings of one group"),
    ] = 32 * 1024 * 1024
    max_shard_bytes: Annotated[
        int,
        Meta(ge=MAX_PREFERENCES_BYTES, le=2**30, description="kept of the heartbeats and settings of all its groups"),
    ] = 256 * 1024 * 1024
    max_ended: Annotated[Count, Meta(description="ended instances that a group remembers")] = 10_000
    max_gone_offsets: Annotated[
        Count, Meta(description="clients that left a broadcasting group, and whose offsets are kept")
    ] = 1_000
    max_broadcast: Annotated[
        int,
        # One route changes the assignments of all: at 95 bytes a queue, one record leads to 10 MB of decisions.
        Meta(ge=1, le=1_000_000, description="queues that the members of a broadcasting group have together"),
    ] = 100_000
    max_growth: Annotated[
        int,
        Meta(ge=1, le=2**53, description="messages that a queue may have more than its newest route said"),
    ] = 100_000_000
    max_pulled_queues: Annotated[
        Count, Meta(description="queues of a shard that somebody pulls, or did in the last ten minutes")
    ] = 50_000
    max_holds_per_queue: Annotated[Count, Meta(description="pulls that wait for one queue")] = 20_000
    # As many as RocketMQ's PopLongPollingService holds.
    max_holds_per_shard: Annotated[Count, Meta(description="pulls that wait in one shard")] = 100_000
    max_lives_per_queue: Annotated[
        Count, Meta(description="instances whose newest pull of a queue is answered and remembered")
    ] = 20_000
    max_lives_per_shard: Annotated[Count, Meta(description="the same, of all queues of a shard together")] = 100_000
    # These two bound the cost of an arrival: each part of a condition is evaluated once, and has two characters.
    max_filters_per_queue: Annotated[
        int, Meta(ge=0, le=2**30, description="characters of the different expressions that wait for one queue")
    ] = 128 * 1024
    max_filters_per_shard: Annotated[
        int, Meta(ge=0, le=2**30, description="the same, of all queues of a shard together")
    ] = 1024 * 1024


DEFAULT_LIMITS = Limits()

# --- topics ---
CONTROL_PARTITIONS = 4
"""Shards on one machine: each costs about 0.7 ms of Python and a Kafka read a batch."""
INBOX_PARTITIONS = 16
MAX_RECORD_BYTES = 8 * 1024 * 1024

# --- the state of a shard ---
LARGE_STATE_BYTES = 256 * 1024 * 1024
"""From here on `run` and `doctor` warn: each batch writes all of it, and Spark's state store takes 2 GiB a value."""

# --- how long the ledger keeps what it has; by the log's time, at least ---
KEEP_EVENTS_MS = 30 * 24 * 3_600_000
"""A month can be replayed: of an incident people ask weeks later.  Ticks and heartbeats make this the largest table."""
KEEP_DECISIONS_MS = 90 * 24 * 3_600_000
"""Longer than the events: a decision is small, and says by itself who, what, when and why."""
KEEP_SNAPSHOTS_MS = 24 * 3_600_000
"""Of a day all snapshots are kept, of those before it the last of each day: a replay goes on from the nearest one."""
KEEP_VERSIONS_MS = 3_600_000
"""How long a version of a table can be read after the next one.  At a commit each 5 s the log of an hour has 3,000
names, and each append looks through all of them; through those of a day, an append of 0.7 s takes some seconds."""
UPKEEP_MS = 600_000
"""Between two rounds of upkeep.  To make one file of 120 costs as much as seven appends, and of 20 hardly less."""
