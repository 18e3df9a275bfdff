"""A case for a strategy: topics and subscriptions, the evaluation of an answer, and the answers of Kafka's assignor."""

import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.figures import ROUNDS, Timing, summary
from bench.frame import NotMeasured
from wakeroll_model.queue import Queue
from wakeroll_pipeline.prerequisites import java_path
from wakeroll_pipeline.spark.jar_paths import broker_jars
from wakeroll_pipeline.spark.jar_sums import JarsMissing

SEED = 7
KAFKA = "Kafka's uniform"

_PROGRAM = Path(__file__).parent / "java" / "UniformBench.java"
_MODES = {"full": "sorted", "join": "join"}
"""What the program calls a mode -> what we call it.  Kafka's hash maps have no order, so nothing is sorted."""


class Case(Struct, frozen=True):
    """So many topics with so many queues each, and the clients, each with the numbers of the topics that it wants."""

    topics: int
    queues_each: int
    wanted: tuple[tuple[int, ...], ...]
    """Client by client; no topic numbers: all of them."""

    @property
    def name(self) -> str:
        """The case in a few words."""
        some = len(self.wanted[0])
        what = f"{self.topics:,} x {self.queues_each:,} queues, {len(self.wanted):,} clients"
        return f"{what} with {some} topics each" if some else what

    @property
    def queues(self) -> list[Queue]:
        """All queues in order.  A third of the brokers is in each room, for the strategies that look at rooms."""
        by_name = [
            Queue(topic_name(topic), f"r{number % 3}@b", number)
            for topic in range(self.topics)
            for number in range(self.queues_each)
        ]
        return sorted(by_name)

    @property
    def subscriptions(self) -> dict[str, list[str]] | None:
        """Client -> its topics; None when all want all."""
        if not any(self.wanted):
            return None
        return {client_name(i): [topic_name(topic) for topic in topics] for i, topics in enumerate(self.wanted)}

    @property
    def clients(self) -> list[str]:
        """All clients in order."""
        return [client_name(i) for i in range(len(self.wanted))]


class Shared(Struct, frozen=True):
    """One way to share a case, how long that took, and how good the answer is."""

    who: str
    """The strategy, ours or Kafka's."""
    case: str
    mode: str
    """sorted: from nothing, queues and clients in order; unsorted: in any order; join: one client more than before."""
    time: Timing
    smallest: int
    largest: int
    """Number of queues of a client."""
    squares: int
    """Sum of the squares of these numbers: the smaller, the more even."""
    moved: int | None
    """Queues that went from one client to another by "join"; None: of another mode, or a queue has several owners."""


def same_for_all(topics: int, queues_each: int, clients: int) -> Case:
    """Return a case in which every client wants every topic."""
    return Case(topics, queues_each, ((),) * clients)


def of_their_own(topics: int, queues_each: int, clients: int, each: int) -> Case:
    """Return a case in which every client wants some topics, chosen by a fixed seed; every topic is wanted."""
    chance = random.Random(SEED)
    wanted = [tuple(sorted(chance.sample(range(topics), each))) for _ in range(clients)]
    missing = set(range(topics)) - {topic for topics_of_one in wanted for topic in topics_of_one}
    assert not missing, f"nobody wants the topics {sorted(missing)}; choose another seed"
    return Case(topics, queues_each, tuple(wanted))


def judged(who: str, case: Case, mode: str, time: Timing, sizes: Iterable[int], moved: int | None) -> Shared:
    """Judge an answer by the clients' numbers of queues."""
    numbers = list(sizes)
    return Shared(who, case.name, mode, time, min(numbers), max(numbers), sum(size * size for size in numbers), moved)


def owners_of(shares: Mapping[str, Iterable[Queue]]) -> dict[Queue, str]:
    """Return queue -> its owner; of several owners, the last."""
    return {queue: client for client, share in shares.items() for queue in share}


def moves(before: Mapping[Queue, str], after: Mapping[Queue, str]) -> int:
    """Count the queues that went from one client to another.

    >>> queue = Queue("orders", "", 0)
    >>> moves({queue: "a"}, {queue: "b"}), moves({queue: "a"}, {}), moves({}, {queue: "a"})
    (1, 0, 0)
    """
    return Counter(after.get(queue, owner) != owner for queue, owner in before.items())[True]


def topic_name(number: int) -> str:
    """Return a topic's name; names sort as the numbers do."""
    return f"t-{number:03}"


def client_name(number: int) -> str:
    """Return a client's name; names sort as the numbers do."""
    return f"c-{number:04}"


class _Answer(Struct):
    mode: str
    ns: list[int]
    sizes: list[int]
    moved: int


def kafkas_answers(cases: list[Case], warmup_ms: int) -> tuple[list[Shared], str, str]:
    """Let the assignor share these cases, each after `warmup_ms` of practice.

    Returns:
        Its answers, its version, and why there are none: a sentence, or "".

    Raises:
        NotMeasured: the program cannot deal with this Kafka.
    """
    java = java_path()
    if java is None or not _can_compile(java):
        return [], "", "it needs a JDK, and here is none"
    try:
        jars = broker_jars()
    except JarsMissing:
        return [], "", "its JARs are not here; `wakeroll jars broker` fetches them"
    lines = "".join(_line(case, warmup_ms) for case in cases)
    command = [java, "-Xmx1g", "-cp", os.pathsep.join(str(jar) for jar in jars), str(_PROGRAM)]
    ended = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise NotMeasured(f"{_PROGRAM.name} ended with {ended.returncode}: {ended.stderr[-2_000:]}")
    answers = [msgspec.json.decode(line, type=_Answer) for line in ended.stdout.splitlines()]
    of_cases = [case for case in cases for _ in _MODES]
    found = [
        judged(
            KAFKA,
            case,
            _MODES[answer.mode],
            summary(answer.ns),
            answer.sizes,
            answer.moved if answer.mode == "join" else None,
        )
        for case, answer in zip(of_cases, answers, strict=True)
    ]
    return found, _version(jars), ""


def _line(case: Case, warmup_ms: int) -> str:
    members = ",".join("+".join(map(str, topics)) or "*" for topics in case.wanted)
    return f"{case.topics} {case.queues_each} {warmup_ms} {2 * ROUNDS} {members}\n"


def _can_compile(java: str) -> bool:
    """Whether this Java has a compiler, which a program in one source file needs."""
    asked = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False)
    return "jdk.compiler" in asked.stdout


def _version(jars: list[Path]) -> str:
    [version] = [found[1] for jar in jars if (found := re.fullmatch(r"kafka-group-coordinator-(\d.*)\.jar", jar.name))]
    return version
