"""The speed of a replay in plain Python, and the size and cost of the state of many members."""

from collections import deque
from itertools import cycle, islice

from msgspec import Struct

from bench.figures import Timing, both, digits, duration, measure, table, times
from bench.population import TOPIC, Population
from wakeroll_model import replay as model_replay
from wakeroll_model.config import HEARTBEAT_MS
from wakeroll_model.records import Record, read_event
from wakeroll_model.shard import Shard

MEMBERS = 3
QUEUES = 12
COMMITS = 6
"""A commit for so many heartbeats: one a minute."""
SECONDS = HEARTBEAT_MS // 1_000
BUSY_HEARTBEAT_S = 30
"""Between two heartbeats of a member of the large shard, as RocketMQ's clients have it."""


class Replayed(Struct, frozen=True):
    """A log of so many events, read and decided; times are of one event."""

    events: int
    groups: int
    decisions: int
    read: Timing
    """Decoding and checking alone: the floor."""
    replay: Timing


class Large(Struct, frozen=True):
    """A shard with many members, and a batch of one second of their heartbeats."""

    members: int
    groups: int
    size: int
    """Bytes of its state."""
    beats: int
    """Heartbeats of that second, each in another group as far as there are enough."""
    open: Timing
    apply: Timing
    """Of one heartbeat, its group's load included."""
    close: Timing
    """Of the state, with all groups that were touched."""

    @property
    def batch_ns(self) -> float:
        """The whole batch."""
        return self.open.median_ns + self.beats * self.apply.median_ns + self.close.median_ns


class Replay(Struct, frozen=True):
    """All of it."""

    replayed: Replayed
    large: Large


def run(events: int, groups: int, large_groups: int, large_members: int) -> Replay:
    """Measure a log of so many `events` over so many `groups`, and a shard of so many groups and members of each."""
    return Replay(_replay(events, groups), _large(large_groups, large_members))


def section(found: Replay) -> str:
    """Return the chapter of these figures."""
    log, large = found.replayed, found.large
    speed = table(
        (f"{log.events:,} events, {log.groups:,} groups", "per event", "events/s", "times the floor"),
        [
            ("decode and check alone", both(log.read), digits(1e9 / log.read.median_ns), "1"),
            (
                "`wakeroll_model.replay`",
                both(log.replay),
                digits(1e9 / log.replay.median_ns),
                times(log.replay, log.read),
            ),
        ],
    )
    weight = table(
        ("state of the shard", "bytes per member", "open", "per heartbeat", "close"),
        [
            (
                f"{large.size:,} bytes",
                digits(large.size / large.members),
                both(large.open),
                both(large.apply),
                both(large.close),
            )
        ],
    )
    return f"""\
The log contains the events of {log.groups:,} groups with {MEMBERS} members each: heartbeats every {SECONDS} s, one
commit per minute, one tick per second, and each second one client that leaves and rejoins. Replay is one process on one
core, like a shard; it makes {log.decisions:,} decisions.

{speed}

The second table is about one shard with {large.members:,} members in {large.groups:,} groups, and a batch of
{large.beats:,} heartbeats, each in another group. These are the heartbeats of one second if each member sends one per
{BUSY_HEARTBEAT_S} s. The whole batch takes {duration(large.batch_ns)} of Python. In a deployment, several shards on
several cores share this work.

{weight}
"""


def log_of(events: int, groups: int) -> list[Record]:
    """Return so many records of groups that live: they form, work, and each second one client leaves and comes back."""
    records: list[Record] = []
    population = Population(heard=lambda record, _: records.append(record))
    names = [f"group-{number}" for number in range(groups)]
    population.settle(names, MEMBERS, QUEUES)
    beats = cycle(population.everybody())
    a_second = max(groups * MEMBERS // SECONDS, 1)
    sent = 0
    for second in cycle(range(groups)):
        if len(records) >= events:
            return records[:events]
        population.pass_second()
        population.answer()
        for who in islice(beats, a_second):
            sent += 1
            population.append(population.beat(*who))
            commit = population.commit(*who, offset=sent)
            if sent % COMMITS == 0 and commit is not None:
                population.append(commit)
        group_id = names[second]
        client_id = population.clients(group_id)[0]
        population.leave(group_id, client_id)
        population.join(group_id, client_id)
    raise AssertionError("a cycle does not end")


def _replay(events: int, groups: int) -> Replayed:
    records = log_of(events, groups)
    decisions = sum(1 for _ in model_replay.replay(records, 1))

    def read_all(records: list[Record]) -> None:
        for record in records:
            read_event(record, 1)

    def replay_all(records: list[Record]) -> None:
        deque(model_replay.replay(records, 1), maxlen=0)

    read = measure(read_all, lambda: records, each=len(records))
    replay = measure(replay_all, lambda: records, each=len(records))
    return Replayed(len(records), groups, decisions, read, replay)


def _large(groups: int, members: int) -> Large:
    population = Population()
    population.settle_many([f"group-{number}" for number in range(groups)], members, members)
    everybody = sorted(population.everybody(), key=lambda who: (who[1], who[0]))  # group after group
    for who in everybody:  # the copied groups have not received a heartbeat yet
        population.append(population.beat(*who))
    body = population.shard.body()
    beats = max(len(everybody) // BUSY_HEARTBEAT_S, 1)
    records = [population.record(population.beat(*who)) for who in everybody[:beats]]

    def opened() -> Shard:
        return Shard(TOPIC, 0, 1, body, raises=True)

    def apply_all(shard: Shard) -> None:
        for record in records:
            shard.apply(record)

    def applied() -> Shard:
        shard = opened()
        apply_all(shard)
        return shard

    return Large(
        len(everybody),
        groups,
        len(body),
        beats,
        open=measure(lambda _: opened(), lambda: None),
        apply=measure(apply_all, opened, each=beats),
        close=measure(Shard.body, applied),
    )
