"""A shard with one group, its log, and clients that do as they were told: for tests of what happens over time."""

from tests.support.control_log import TOPIC, ControlLog
from wakeroll_model.decisions import AnyDecision, Assignment
from wakeroll_model.events import Commit, CommittedOffset, Event, Heartbeat, Route, RoutedQueue, Subscription, Tick
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard


class World:
    """A shard of groups that is alone in its topic, its log, and clients that say what they were told last."""

    def __init__(self) -> None:
        """Begin with the topics `orders` and `payments`, of two queues each."""
        self.log, self.now_ms, self.records = ControlLog(1), 0, list[Record]()
        self.shard = Shard(TOPIC, 0, 1, raises=True)
        self.told: dict[str, Assignment] = {}
        self.decisions: list[AnyDecision] = []
        self.route()

    def route(self) -> None:
        """Tell which queues there are."""
        for topic in ("orders", "payments"):
            queues = [RoutedQueue(topic=topic, broker="", queue_id=number) for number in range(2)]
            self.append(Route(topic=topic, queues=queues, version="2"))

    def append(self, event: Event) -> list[AnyDecision]:
        """Append an event; return what is decided, and let clients hear it."""
        [record] = self.log.append(event, self.now_ms)
        self.records.append(record)
        decisions = self.shard.apply(record)
        self.decisions += decisions
        for decision in decisions:
            if isinstance(decision, Assignment):
                self.told[decision.instance_id] = decision
        return decisions

    def beat(self, instance: str, *topics: str, again: bool = False, **says: object) -> list[AnyDecision]:
        """Let an instance, whose client_id is its first letter, say what it knows; `again`: as if it knew nothing."""
        told = None if again else self.told.get(instance)
        knows = (
            {}
            if told is None
            else {
                "epoch": told.epoch,
                "session_timeout_ms": told.session_timeout_ms,
                "owned": [assigned.queue for assigned in told.queues],
            }
        )
        wants = [Subscription(topic=topic) for topic in topics or ("orders",)]
        names = {"group_id": "billing", "client_id": instance[0], "instance_id": instance}
        return self.append(Heartbeat(**names, subscriptions=wants, **(knows | says)))

    def pass_time(self, duration_ms: int) -> list[AnyDecision]:
        """Tick every second; return what is decided."""
        begin = len(self.decisions)
        for _ in range(duration_ms // 1_000):
            self.now_ms += 1_000
            self.append(Tick(observer="o", uptime_ms=self.now_ms))
        return self.decisions[begin:]

    def join(self, *instances: str) -> None:
        """Let instances join and have their share."""
        for _ in range(4):
            for instance in instances:
                self.beat(instance)
            self.pass_time(1_000)

    def lose_state(self, *, first: int = 0) -> None:
        """Go on without any state, with what is left of the log: from this offset on."""
        self.shard = Shard(TOPIC, 0, 1, era=2, quiet_until=self.shard.offset + 1, raises=True)
        for record in self.records[first:]:
            assert self.shard.apply(record) == []

    def members(self) -> list[str]:
        return [member.instance_id for member in self.shard.group("billing").members.values()]


def commit(world: World, instance: str, queue: Queue, offset: int, epoch: int | None = None) -> list[AnyDecision]:
    """Commit in this epoch; if it is None, in that of the instance's last assignment."""
    names = {"group_id": "billing", "client_id": instance[0], "instance_id": instance}
    entry = CommittedOffset(queue=queue, offset=offset)
    shown = world.told[instance].epoch if epoch is None else epoch
    return world.append(Commit(**names, epoch=shown, offsets=[entry]))


def work(world: World, *instances: str, seconds: int, **says: object) -> None:
    """Let instances beat each second."""
    for _ in range(seconds):
        for instance in instances:
            world.beat(instance, **says)
        world.pass_time(1_000)
