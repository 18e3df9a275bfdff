"""The figures of a soak, and their chapter."""

from msgspec import Struct

from bench.machine import Machine
from bench.text_tables import Columns, table, table_of, whole_ms
from bench.timings import Latency


class Window(Struct, frozen=True):
    """A part of a soak."""

    until_s: float
    """End of the window, since the first minute began."""
    clients: int
    """At the end."""
    load: float
    """Load average of the last minute, at the end."""
    heartbeat: Latency
    """From a heartbeat's append to that of its assignment, by the broker's clock."""
    memory_mib: dict[str, float]
    """Process -> memory at the end, with its children; shared pages are divided among those that share them."""
    home_files: int
    home_mib: float
    """Files and size of the tables."""
    checkpoint_files: int
    checkpoint_mib: float
    delivery: Latency = Latency(0, 0, 0)
    """From the time of a message to its handling, of first deliveries."""
    repeated: int = 0
    """Messages that were handled again."""

    @property
    def sentence(self) -> str:
        """What is known of the window while the soak runs: deliveries are judged at its end."""
        memory = ", ".join(f"{name} {mib:,.0f}" for name, mib in self.memory_mib.items())
        heartbeat, files = self.heartbeat, self.home_files + self.checkpoint_files
        return (
            f"{self.clients} clients, load {self.load:.1f}; heartbeat to assignment p50 {heartbeat.p50_ms:,.0f} ms, "
            f"p99 {heartbeat.p99_ms:,.0f} ms; {files:,} files; MiB: {memory}"
        )


class Occurred(Struct, frozen=True):
    """A fault."""

    at_s: float
    """Since the first minute began."""
    kind: str
    detail: str


class Claim(Struct, frozen=True):
    """Something that a soak must show."""

    what: str
    holds: bool
    found: str


class Soak(Struct, frozen=True):
    """What `soak` found."""

    machine: Machine
    minutes: float
    every_s: float
    """Time between two faults."""
    seed: int
    clients: int
    groups: int
    queues: int
    """At the end."""
    per_second: int
    """Messages of all topics together."""
    ready_s: float
    """From the start of the first process until every queue had an owner."""
    windows: list[Window]
    faults: list[Occurred]
    stored: int
    """Messages in the topics."""
    deliveries: int
    repeated: int
    rebalances: dict[str, int]
    """Trigger -> number."""
    claims: list[Claim]
    per_process: int = 1
    """Clients of a process; they share its connections to Kafka."""

    @property
    def broken(self) -> list[Claim]:
        """The claims that do not hold."""
        return [claim for claim in self.claims if not claim.holds]


_WINDOWS: Columns[Window] = (
    ("until, min", lambda one: f"{one.until_s / 60:.1f}"),
    ("clients", lambda one: f"{one.clients:,}"),
    ("load", lambda one: f"{one.load:.1f}"),
    ("assignment p50", lambda one: whole_ms(one.heartbeat.p50_ms)),
    ("p99", lambda one: whole_ms(one.heartbeat.p99_ms)),
    ("delivery p50", lambda one: whole_ms(one.delivery.p50_ms)),
    ("p99", lambda one: whole_ms(one.delivery.p99_ms)),
    ("repeated", lambda one: f"{one.repeated:,}"),
    ("files of tables", lambda one: f"{one.home_files:,}"),
    ("MiB", lambda one: f"{one.home_mib:,.1f}"),
    ("files of checkpoints", lambda one: f"{one.checkpoint_files:,}"),
    ("MiB", lambda one: f"{one.checkpoint_mib:,.1f}"),
)
_CLAIMS: Columns[Claim] = (
    ("claim", lambda one: one.what),
    ("found", lambda one: one.found),
    ("holds", lambda one: "yes" if one.holds else "**no**"),
)


def section(found: Soak) -> str:
    """Return the chapter of these figures."""
    kinds = dict.fromkeys(one.kind for one in found.faults)
    counts = {kind: sum(one.kind == kind for one in found.faults) for kind in kinds}
    faults = ", ".join(f"{kind} ({count})" for kind, count in sorted(counts.items()))
    rebalances = ", ".join(f"{trigger} {count:,}" for trigger, count in found.rebalances.items())
    names = list(found.windows[-1].memory_mib) if found.windows else []
    memory = [
        (f"{one.until_s / 60:.1f}", *(f"{one.memory_mib.get(name, 0):,.0f}" for name in names)) for one in found.windows
    ]
    return f"""\
`make soak` runs the whole system for {found.minutes:g} minutes on one machine: a broker, two coordinators
(`run --replica a` and `b`, which also record), two observers, `serve`, a producer of {found.per_second} messages per
second, and {found.clients} consumers of the SDK in {found.groups} groups, with {found.queues} queues at the end.
{found.per_process} consumers run in each process, and share its Kafka connections: one producer, two consumers that
read and one for queries. With connections of its own, each would have nine threads of librdkafka.
A fault begins every {found.every_s:g} s; the order is that of seed {found.seed}. Everything was ready
{found.ready_s:.0f} s after the start. Faults: {faults}. Rebalances by trigger: {rebalances}.

{table_of(_CLAIMS, found.claims)}

*Assignment* is the time from a heartbeat's append to that of its assignment, by the broker's clock. *Delivery* is the
time from a message's timestamp to its handling, including the times in which a killed or suspended consumer still
owned its queue (sessions of 15 s). Of {found.stored:,} messages, {found.repeated:,} deliveries were repetitions.

{table_of(_WINDOWS, found.windows)}

Memory in MiB; shared pages are divided among the processes that share them:

{table(("until, min", *names), memory)}

Measured on {found.machine.measured} with {found.machine.sentence_with_load}
"""
