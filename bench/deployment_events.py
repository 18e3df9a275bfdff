"""Events of a deployment, second by second: groups form, work and wait for messages; clients leave or crash."""

from collections import deque

from bench.population import START_MS, ControlTopic, Heard, Population, Who
from wakeroll_model.config import HEARTBEAT_MS
from wakeroll_model.decisions import Wake
from wakeroll_model.events import Arrival, Pull, Tick
from wakeroll_model.queue import Queue

QUEUES_TOPIC = "wakeroll.queues"
TOPICS = 100
"""That all groups share: as many groups read a topic as there are for each."""
QUEUES = 12
"""Of a topic."""
MOST_MEMBERS = 3
"""Groups have 1, 2 or 3 members, in turn."""
BEAT_S = HEARTBEAT_MS // 1_000
COMMIT_S = 30
"""A client commits this often, for those of its queues that have grown."""
GROWING = 20
"""Queues that get messages in a second, in turn."""
MESSAGES = 10
"""That they get."""
WAITING = 10
"""One group in so many waits for messages by long polling, each client in the first of its queues."""
TROUBLE = (("restart", 0), ("leave", 15), ("crash", 60))
"""What happens to a client in each second, in turn, and after how many seconds it is back."""


class Life:
    """Groups on the shards of both control topics.  Clients do what they are told within a second."""

    def __init__(self, groups: int, partitions: int, heard: Heard) -> None:
        """Start with the routes and the joins of everybody, in the first second.

        Args:
            groups: that there are.
            partitions: of each control topic.
            heard: is told of each record, and what was decided of it.
        """
        self._population = Population(partitions, heard)
        self._queues = ControlTopic(QUEUES_TOPIC, partitions)
        self._heard = heard
        self._names = [f"group-{number:04}" for number in range(groups)]
        self._ends: dict[Queue, int] = {}
        self._slots: list[list[Who]] = [[] for _ in range(COMMIT_S)]
        """Who commits in which second; and its heartbeats are in the same second of ten."""
        self._wanted: deque[Who] = deque()
        """Who waits for messages, and has no pull."""
        self._waiting: dict[str, Who] = {}
        """Request -> whose it is."""
        self._pulls = 0
        self._back: dict[int, list[Who]] = {}
        """Second -> who comes back in it."""
        self._begin()

    @property
    def topics(self) -> tuple[ControlTopic, ControlTopic]:
        """Both control topics, with their shards."""
        return self._population.topic, self._queues

    @property
    def second(self) -> int:
        """Seconds that have passed, by the log."""
        return (self._population.now_ms - START_MS) // 1_000

    def pass_second(self) -> None:
        """Let a second pass: ticks, what is due in it, and the answers to what was decided in the last one."""
        population = self._population
        population.pass_second()
        self._append_to_queues(Tick())
        population.answer()
        self._arrive()
        for slot in range(self.second % BEAT_S, COMMIT_S, BEAT_S):
            for who in self._slots[slot]:
                if population.knows(*who):
                    population.append(population.beat(*who))
        for who in self._slots[self.second % COMMIT_S]:
            population.commit_grown(who, self._ends)
        self._wait()
        self._disturb()

    def _begin(self) -> None:
        population = self._population
        for number in range(TOPICS):
            topic = f"orders-{number:02}"
            population.route(topic, QUEUES)
            self._ends |= {Queue(topic, "", queue_id): 0 for queue_id in range(QUEUES)}
        for number, group_id in enumerate(self._names):
            population.topics[group_id] = f"orders-{number % TOPICS:02}"
            for member in range(number % MOST_MEMBERS + 1):
                who = group_id, f"{group_id}-{member}"
                population.join(*who)
                self._slots[(number + member) % COMMIT_S].append(who)
                if number % WAITING == 0:
                    self._wanted.append(who)

    def _arrive(self) -> None:
        """Let queues grow, and the observer say so."""
        known = list(self._ends)
        first = self.second * GROWING
        for number in range(first, first + GROWING):
            queue = known[number % len(known)]
            self._ends[queue] += MESSAGES
            self._append_to_queues(Arrival(queue=queue, next_offset=self._ends[queue]))

    def _wait(self) -> None:
        """Let everybody wait who wants to, and lives, and owns a queue; the others try again in the next second."""
        wanted, self._wanted = self._wanted, deque()
        for who in wanted:
            queues = self._population.queues(*who)
            if not queues:
                self._wanted.append(who)
                continue
            self._pulls += 1
            request_id = f"{who[1]}-waits:{self._pulls}"
            self._waiting[request_id] = who
            self._append_to_queues(
                Pull(
                    request_id=request_id,
                    group_id=who[0],
                    client_id=who[1],
                    instance_id=f"{who[1]}-waits",
                    queue=queues[0],
                    from_offset=self._ends[queues[0]],
                )
            )

    def _disturb(self) -> None:
        """Let somebody restart, leave or crash, and those come back whose time it is."""
        population, second = self._population, self.second
        group_id = self._names[second % len(self._names)]
        who = group_id, f"{group_id}-0"
        if population.knows(*who):
            what, away_s = TROUBLE[second % len(TROUBLE)]
            if what == "leave":
                population.leave(*who)
            elif what == "crash":
                population.crash(*who)
            self._back.setdefault(second + away_s, []).append(who)
        for one in self._back.pop(second, ()):
            population.join(*one)

    def _append_to_queues(self, event: Arrival | Pull | Tick) -> None:
        for record, decisions in self._queues.append(event, self._population.now_ms):
            self._heard(record, decisions)
            self._wanted.extend(
                self._waiting.pop(decision.request_id) for decision in decisions if isinstance(decision, Wake)
            )
