"""Every limit and duration: its unit, its default, and the reason for its value."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

NEVER_MS = 2**62
"""Value of a deadline that never comes, ms."""

# --- the clock of a shard ---
TICK_MS = 1_000
"""Interval at which the observer appends a tick to every control partition, ms."""
LONGEST_STEP_MS = 3_000
"""Longest time that one tick counts for, ms."""
DARK_MS = 5_000
"""Longest interval between two ticks of a healthy log, ms; a longer one is a dark log (broker or observer down)."""
UNTIMED_STEP_MS = 1_000
"""Longest time that a tick without its observer's uptime counts for, ms: the log's own clock may be wrong."""
SLACK_MS = 2_000
"""Longest time by which a record counts as later than the tick before it, ms; the observer drops ticks older than
this."""
GRACE_MS = 15_000
"""After a dark log no member expires for this long, ms: the clients are reconnecting."""
GRACE_EVERY_MS = 60_000
"""Shortest time from the end of one grace to the next, ms, so that a slow observer does not stop expiry."""
METADATA_MS = 300_000
"""How long a client of Kafka may take to receive metadata of new partitions, ms: default of
`topic.metadata.refresh.interval.ms` of librdkafka and of `metadata.max.age.ms` of the Java clients."""
MAX_OBSERVERS = 16
"""Maximum number of observers whose uptime a shard remembers; the one that was silent for longest is forgotten
first."""
CLIENT_MARGIN_MS = LONGEST_STEP_MS + SLACK_MS
"""A client stops this long before its session ends, ms: its heartbeat may be older by this time than the shard's clock
shows. The heartbeat may arrive just before a tick that was SLACK_MS late and counts for LONGEST_STEP_MS, although the
log's clock did not advance in between."""

# --- a group's settings, until `configure` changes them ---
HEARTBEAT_MS = 10_000
SESSION_TIMEOUT_MS = 45_000
"""Default of Kafka's group.consumer.session.timeout.ms: four heartbeats may be lost."""
REBALANCE_INTERVAL_MS = 20_000
"""Interval of the timer, ms; RocketMQ's `RebalanceService` waits as long between two runs."""
SETTLE_MS = 1_000
"""At most one new target in this time, ms; default of Kafka's group.consumer.assignment.interval.ms (KIP-1263)."""
REVOKE_TIMEOUT_MS = 30_000
COMMIT_INTERVAL_MS = 5_000
"""Default of Kafka's auto.commit.interval.ms: after a crash at most the messages of this time are repeated."""
MAX_MEMBERS = 5_000
"""Maximum number of members; further joins are rejected. It is the largest group whose rebalance has been measured."""
MIN_SESSION_MS = 2 * CLIENT_MARGIN_MS
"""Shortest session timeout, ms; Kafka's group.min.session.timeout.ms is 6 s, but its broker has a clock of its own."""
MAX_SESSION_MS = 1_800_000
"""Longest session timeout, ms; Kafka's group.max.session.timeout.ms, 30 minutes."""
BEATS_PER_SESSION = 3
"""A session contains at least this many heartbeat intervals, so that two heartbeats may be lost."""

PROFILES: Mapping[str, Mapping[str, str | int]] = {
    "wakeroll": {
        "handover": "cooperative",
        "heartbeat_ms": HEARTBEAT_MS,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
    },
    "rocketmq": {"handover": "eager", "heartbeat_ms": 30_000, "session_timeout_ms": 120_000},
}
"""Name -> the settings of that profile. RocketMQ's clients send a heartbeat every 30 s, its broker's
channelExpiredTimeout is 120 s, and a new owner does not wait for a queue's old owner."""

# --- locks, by RocketMQ's protocol ---
LOCK_MS = 60_000
"""A lock that is not renewed ends after this, ms: RocketMQ's rebalance.lockMaxLiveTime at the broker."""

# --- the memory of a group ---
ENDED_MS = MAX_SESSION_MS
"""An ended instance is remembered for this long after its last record, ms: a record may be late by a session."""
LAGGING_SESSIONS = 2
"""A member that did not receive its assignment for this many sessions, although it could have, is evicted; its client
detects the lag earlier."""
EVIDENCE_ROUNDS = 3
"""An assignment counts as published when a member has shown a round this far above that of the assignment. With n
coordinators, n + 1 rounds prove it, even if each of them died in the middle of a batch; see docs/decisions/0023. Each
round takes a heartbeat interval if nothing else happens in the group."""
WAITING_MS = 2 * HEARTBEAT_MS
"""A waiting instance counts as alive for this long after its last heartbeat, ms; it always uses the default
interval."""
MAX_RIVALS = 4
"""Maximum number of remembered instances that wait for one client_id; the first ones are kept."""
DUPLICATE_EVERY_MS = 300_000
"""Minimum time between two reports of a duplicate client_id, ms."""
FORGET_MS = 7 * 24 * 3_600_000
"""Default of `forget_after_ms`: that of Kafka's offsets.retention.minutes, ms."""
ERA_EPOCHS = 2**32
"""Epochs per era: those of era E begin at (E - 1) * 2**32, so an epoch shows its era."""
KEEP_ROUTE_MS = 3_600_000
"""A route is forgotten if no observer repeated it for this long (ms) and no group of the shard subscribes its topic."""
ABSENT_ROUTE_MS = 60_000
"""The route of a topic without queues is forgotten if no observer repeated it for this long (ms; they repeat it every
30 s) and no group of the shard subscribes it: the topic may exist by now."""
GONE_TOPIC_MS = 3_600_000
"""State of a deleted topic is forgotten after this time, ms, which is longer than any restart of its brokers."""
MAX_FILTERS = 8
"""Maximum different filters of a topic whose messages and offsets are kept apart; further ones count as ``*``: then
messages are kept, and delivered again, rather than lost."""
FEW_QUEUES = 2_000
"""Maximum queues in an assignment that has offsets by filter, and more than one entry for the filters of other members:
an assignment with more queues has no room for them."""
MAX_OTHERS_BYTES = 65_536
"""Maximum bytes of other members' filters in an assignment, as JSON; instead of more, one entry is for all topics."""
MAX_AHEAD_BYTES = 1_048_576
"""Maximum bytes of the offsets by filter that a group keeps, as JSON; without one, messages are delivered again."""
MAX_AHEAD_SENT_BYTES = 65_536
"""Maximum bytes of offsets by filter in an assignment or in a commit, as JSON."""
LAST_RESETS = 16
"""Number of remembered request ids of operators per group: a repeated request has no effect."""
MAX_KICKS = 100
"""Maximum number of clients of a group that are kicked, or kept out, at the same time."""
MAX_KEEP_OUT_MS = 24 * 3_600_000
"""A kicked client is kept out for at most this long, ms."""
MAX_CAUSES = 16
"""Maximum number of causes listed in one `rebalance`; a burst of a thousand joins need not list them all."""

# --- long polling ---
PULL_TIMEOUT_MS = 20_000
"""Default timeout of a pull, ms: RocketMQ's pull consumers' brokerSuspendMaxTimeMillis."""
MAX_PULL_TIMEOUT_MS = 600_000
SKIP_MS = 5_000
"""A hold is woken this long (ms) after the first arrival that its filter does not match, so that its offset advances.
RocketMQ's hold service does that at its 5 s check, as a side effect."""
REFRESH_MS = 60_000
"""An observer reports the end of each pulled queue at least this often, ms, so that every wrong end is corrected."""
CONFIRM_MS = 2_000
"""Two reports this far apart (ms) contradict an end that was named before the first of them. A report is at most this
old when it is appended: an observer waits 1 s for a broker's answer, and its producer drops records after 1 s."""
HINT_MS = 60_000
"""A producer's arrival counts for this long, ms, unless reports contradict it earlier. The value is longer than any
client takes from a read that found nothing to its pull."""
REMEMBER_MS = 600_000
"""The newest pull of an instance is remembered for this long after its answer, ms, so that a repeated one gets no
second answer. Then the queue is forgotten, unless another instance still uses it. A repeated record is at most a
session late."""
FILTER_CHARACTERS = 32
"""Fixed part of the cost of an expression, beside its length, in characters: even the shortest must be evaluated."""

MAX_TOLD = 64
"""Maximum arrivals of a queue that a producer sends together; beyond this it describes the messages in less detail."""
MAX_FILTERS_KEPT = 4 * 1024 * 1024
"""Maximum number of characters of the expressions that a process keeps parsed, at 30 bytes each: as many as four full
shards have."""

# --- signed records ---
SIGNED_FOR = {"operator": 100_000, "observer": 1_000_000}
"""Role -> number of records after the signer's known end of the partition at which its signature expires. An operator
queries the end just before; the observer's value may be a minute old, or as old as an outage."""
MAX_SIGNERS = 256
"""Maximum number of signers of one role that a shard remembers: each process of an operator is one, an observer has two
or three."""

MAX_KEYS = 1_000
"""Maximum number of keys on record: each tenant has one or two, each role of the deployment a few."""

# --- bounds of an event ---
MAX_TOPICS = 1_000
"""Maximum subscriptions of one client."""
MAX_PATTERN = 1_024
"""Maximum characters of a pattern of topics; an observer evaluates it in a time that grows with its length alone."""
UNUSED_PATTERNS = 8
"""Maximum number of unused patterns whose topics a group remembers, because members may use one again."""
MAX_SLICED_TOPICS = 100
"""Maximum topics of a group that are cut into slices."""
MAX_QUEUES = 32_768
"""Maximum queues in an event, such as `owned` in a heartbeat. An assignment has room for fewer: see MAX_SHARE_BYTES."""
MAX_PREFERENCES_BYTES = 256 * 1024
"""Largest heartbeat without `owned`, bytes: a group stores it for each member."""
MAX_CONFIGURE_BYTES = 64 * 1024
"""Largest `configure` record, bytes: a shard stores the settings of every group, also of empty ones."""
MAX_PULL_BYTES = 64 * 1024
"""Largest `pull` record, bytes."""
MAX_LABELS = 8
"""Maximum labels in the description of a client."""
MAX_ABOUT_BYTES = 512
"""Maximum bytes of the description of a client, as JSON. It counts towards no limit of a group or shard, so that no
decision depends on it; this bounds it."""
MAX_LONG_CALLS = 8
"""Maximum calls of its handler that a heartbeat lists because they have lasted long."""
MAX_REPORT = 16_000
"""Maximum characters of what a client reports about itself."""
MAX_PARAMS = 1_000
"""Maximum parameters of a strategy, such as a room or a weight for each client."""
MAX_PROPERTIES = 256
"""Maximum properties of a message in an arrival."""
MAX_DEPTH = 32
"""Deepest nesting of brackets; an event needs six. It is so far below the stack's limit that no answer depends on the
stack."""
RETRY_MS = 60_000
"""Pause before the next tick of a group whose tick failed inside the machine, ms."""
MAX_RAW_BYTES = 4_096
"""Maximum number of bytes of a rejected record that are kept."""
MAX_DETAIL = 500
"""Maximum characters of a rejection's detail."""

# --- bounds of a decision: every decision fits into a record of its topic, for any events ---
MAX_FAILURES = 256
"""Maximum entries in one report of failed messages."""
MAX_ERROR = 256
"""Maximum characters of an error in a report of failed messages."""
MAX_DECISION_BYTES = 4 * 1024 * 1024
"""Largest decision, bytes: half of MAX_RECORD_BYTES, so that names, headers and Kafka's batches never matter."""
MAX_SHARE_BYTES = 7 * 512 * 1024
"""Room in an assignment for the queues of one client, bytes: 24,000 queues whose topic's name has 10 characters. This
is less than MAX_QUEUES, so a client can list in a heartbeat all queues that it was assigned."""
MAX_CLAIMS = 256
"""Maximum number of queues in `revoke` that the client claims and does not own."""
MAX_UNASSIGNED = 256
"""Maximum number of queues listed in `unassigned` of a `rebalance`; `unassigned_count` counts all."""
MAX_NOTES = 64
"""Maximum number of notes in one `rebalance`."""
MAX_ANSWERS = 1_000_000
"""Maximum queues in one answer of a strategy, repetitions counted: 1,000 clients with 1,000 queues each take 0.1 s."""
MAX_PARAM_VALUES = 1_000_000
"""Maximum values in strategy parameters times topics: a strategy that assigns one topic per call reads them once per
topic."""

# --- limits on the state of a shard ---
MEMBER_BYTES = 256
"""Fixed part of the stored size of a client, beside its preferences, bytes: its names, epochs and times. Without it,
a limit in bytes would not bound the number of clients that subscribe nothing."""
Count = Annotated[int, Meta(ge=1, le=10_000_000)]


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of a deployment on the state of a shard: settings of the observer, which sends them with each tick.

    They are in the log, so a replay uses the limits that were set at that time.
    """

    max_groups: Annotated[
        Count, Meta(description="maximum number of groups per shard, including empty ones that it remembers")
    ] = 50_000
    max_group_bytes: Annotated[
        int,
        Meta(
            ge=MAX_PREFERENCES_BYTES,
            le=2**30,
            description="maximum size of the stored heartbeats and settings per group (bytes)",
        ),
    ] = 32 * 1024 * 1024
    max_shard_bytes: Annotated[
        int,
        Meta(
            ge=MAX_PREFERENCES_BYTES,
            le=2**30,
            description="maximum size of the stored heartbeats and settings per shard (bytes)",
        ),
    ] = 256 * 1024 * 1024
    max_ended: Annotated[Count, Meta(description="maximum number of ended instances that a group remembers")] = 10_000
    max_gone_offsets: Annotated[
        Count, Meta(description="maximum number of clients whose offsets a broadcasting group keeps after they left")
    ] = 1_000
    max_broadcast: Annotated[
        int,
        # One route changes the assignments of all members: at 95 bytes per queue, one record leads to 10 MB of
        # decisions.
        Meta(
            ge=1, le=1_000_000, description="maximum number of queues of all members of a broadcasting group together"
        ),
    ] = 100_000
    max_growth: Annotated[
        int,
        Meta(
            ge=1,
            le=2**53,
            description="maximum distance of a committed offset from the end in the newest route (messages)",
        ),
    ] = 100_000_000
    max_pulled_queues: Annotated[
        Count, Meta(description="maximum number of queues per shard that are pulled or were in the last ten minutes")
    ] = 50_000
    max_holds_per_queue: Annotated[Count, Meta(description="maximum number of held pulls per queue")] = 20_000
    # As many as RocketMQ's PopLongPollingService holds.
    max_holds_per_shard: Annotated[Count, Meta(description="maximum number of held pulls per shard")] = 100_000
    max_lives_per_queue: Annotated[
        Count, Meta(description="maximum number of instances per queue whose last answered pull is remembered")
    ] = 20_000
    max_lives_per_shard: Annotated[
        Count, Meta(description="maximum number of instances per shard whose last answered pull is remembered")
    ] = 100_000
    # These two bound the cost of an arrival: each part of a condition is evaluated once, and has at least two
    # characters.
    max_filters_per_queue: Annotated[
        int,
        Meta(
            ge=0,
            le=2**30,
            description="maximum length of the different expressions of held pulls per queue (characters)",
        ),
    ] = 128 * 1024
    max_filters_per_shard: Annotated[
        int,
        Meta(
            ge=0,
            le=2**30,
            description="maximum length of the different expressions of held pulls per shard (characters)",
        ),
    ] = 1024 * 1024
    forget_after_ms: Annotated[
        int,
        Meta(
            ge=3_600_000,
            le=366 * 24 * 3_600_000,
            description="time after which an empty group, a client that left a broadcasting group, and a topic that "
            "its group no longer uses are forgotten with their offsets, from feature level 3 on (ms)",
        ),
    ] = FORGET_MS


DEFAULT_LIMITS = Limits()

# --- topics ---
CONTROL_PARTITIONS = 4
"""Default number of shards on one machine: each costs about 0.7 ms of Python and one Kafka read per batch."""
INBOX_PARTITIONS = 16
MAX_RECORD_BYTES = 8 * 1024 * 1024

# --- the state of a shard ---
LARGE_STATE_BYTES = 256 * 1024 * 1024
"""Size of a shard's state above which `run` and `doctor` warn, bytes: each batch writes all of it, and Spark's state
store accepts at most 2 GiB per value."""

# --- retention of the ledger's tables, by the log's time, at least ---
KEEP_EVENTS_MS = 30 * 24 * 3_600_000
"""Retention of events, ms. A month can be replayed, because incidents are often examined weeks later. With ticks and
heartbeats this is the largest table."""
KEEP_DECISIONS_MS = 90 * 24 * 3_600_000
"""Retention of decisions, ms; longer than that of events, because a decision is small and can be understood without
them."""
KEEP_SNAPSHOTS = 3
"""Number of the newest snapshots of each shard that are kept, however old they are: if one is damaged, the next start
uses the one before it."""
KEEP_SNAPSHOTS_MS = 24 * 3_600_000
"""All snapshots are kept for this long, ms, and after that the last one of each day, and the last one of each
`SNAPSHOT_SPAN` records of a shard: a replay starts from the nearest one."""
SNAPSHOT_SPAN = 250_000
"""Maximum number of records of a shard between two older snapshots. So an earlier moment is computed in some seconds,
and snapshots take a fraction of the records' space, even if a shard has thousands of members."""
SNAPSHOT_RECORDS = 50_000
"""Records between two snapshots. A reader of the state applies the records since a snapshot, and those of the seconds
before it was in its table: 2 to 15 us for a heartbeat that changes nothing, 20 to 30 us for a record that does."""
KEEP_VERSIONS_MS = 3_600_000
"""Time that a version of a table stays readable after the next one, ms. With a commit every 5 s, the log of an hour has
3,000 files, and each append lists them all. With a day's files an append takes some seconds instead of 0.7 s."""
KEEP_RESULTS_MS = 30 * 24 * 3_600_000
"""Retention of the stored results of `check` and of replaced checkpoints, ms: the same as of events, because they are
about these."""
UPKEEP_MS = 600_000
"""Interval of maintenance, ms. To compact 120 files into one costs as much as seven appends, and 20 files hardly
less."""

# --- several coordinators ---
LEASE_MS = 10_000
"""Duration of a lease, ms. A standby takes over after this time; a holder whose renewals do not reach the brokers for
so long stops."""
REPLICA_OVERLAP_MS = 150_000
"""A new replica publishes the decisions of this last period again, ms. Kafka's producer drops a record after two
minutes. So for decisions before this period, the copies in the inbox were published too, or their batch failed and is
repeated."""
