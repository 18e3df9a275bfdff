"""Every limit and duration: its unit, its default, and why it is what it is."""

from collections.abc import Mapping

NEVER_MS = 2**62
"""A deadline that does not come."""

# --- the clock of a shard ---
TICK_MS = 1_000
"""The observer appends a tick to every control partition this often."""
LONGEST_STEP_MS = 5_000
"""More than this between two ticks is a dark log (broker or observer down), and does not count as silence."""
GRACE_MS = 15_000
"""After a dark log nobody expires for this long: the clients are reconnecting."""

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
LAST_INSTANCES = 8
"""Superseded instances kept a client: an idempotent producer delivers within minutes, restarts take seconds."""
GONE_MS = 600_000
"""How long the instances of a client that left are remembered, so that a late heartbeat does not bring it back."""
FORGET_MS = 7 * 24 * 3_600_000
"""An empty group is forgotten after this; its epoch is kept for ever, so that no epoch is used twice."""
MAX_EPOCH_JUMP = 1_000_000
"""A group's epoch is raised at most this far above its own by what a heartbeat shows: 11 days of a target a second."""
LAST_RESETS = 16
"""Request ids of resets kept a group, so that a repeated one is silent."""
REPLACEMENTS = 3
"""This many replacements of a client within `REPLACEMENTS_MS`: two processes may be fighting for its id."""
REPLACEMENTS_MS = 300_000
MAX_GONE_OFFSETS = 1_000
"""Clients that left a broadcasting group and whose offsets are kept: with a new name each start there is no end."""
MAX_CAUSES = 16
"""Causes listed in one `rebalance`; a burst of a thousand joins need not name them all."""

# --- long polling ---
PULL_TIMEOUT_MS = 20_000
"""How long a pull is held if it does not say: RocketMQ's pull consumers' brokerSuspendMaxTimeMillis."""
MAX_PULL_TIMEOUT_MS = 600_000
SKIP_MS = 5_000
"""A hold whose filter wants nothing of what arrives is woken after this, so that its offset can move on.  RocketMQ's
hold service does that at its 5 s check, if not on purpose."""
MAX_HOLDS_PER_QUEUE = 20_000
MAX_HOLDS_PER_SHARD = 100_000
"""Beyond these a pull is answered `overflow`; 100,000 in all is the limit of RocketMQ's PopLongPollingService."""
MAX_LAST_PULLS = 2 * MAX_HOLDS_PER_QUEUE
"""Lives of clients whose newest pull of a queue is remembered, so that a repeated one is silent."""

# --- bounds of an event ---
MAX_TOPICS = 1_000
"""Subscriptions of one client."""
MAX_QUEUES = 32_768
"""Queues in one event: an assignment of 10,000 is near 1 MiB, a record may have 8 MiB."""
MAX_PARAMS = 1_000
"""Parameters of a strategy, such as a room or a weight for each client."""
MAX_PROPERTIES = 256
"""Properties of a message that an arrival may tell."""
MAX_DEPTH = 32
"""Brackets in brackets; an event needs six.  So far below what a stack holds that no answer depends on the stack."""
RETRY_MS = 60_000
"""A group whose deadline the machine itself failed at is looked at again after this."""
MAX_RAW_BYTES = 4_096
"""Of a rejected record, this much is kept."""
MAX_DETAIL = 500
"""Characters of a rejection's detail."""

# --- topics ---
CONTROL_PARTITIONS = 4
"""Shards on one machine: each costs about 0.7 ms of Python and a Kafka read a batch."""
INBOX_PARTITIONS = 16
MAX_RECORD_BYTES = 8 * 1024 * 1024

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
