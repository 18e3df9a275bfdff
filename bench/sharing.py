"""A case for a strategy: topics and subscriptions, and the evaluation of an answer of wakeroll or of Kafka."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from bench.measure import Timing
from wakeroll_model.queue import Queue

SEED = 7


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
