"""Stories about Kafka's own groups: what its record says, one step after the other, and what is on record here."""

from typing import Any

from wakeroll_model.coordinator_log.kafka_events import (
    AnyKafkaEvent,
    AssignedMember,
    Committed,
    CurrentSeen,
    Described,
    Generation,
    GroupEpoch,
    MemberSeen,
    SeenMember,
    TargetEpoch,
    TargetSeen,
    encode_event,
)
from wakeroll_model.coordinator_log.kafka_group import KafkaGroup
from wakeroll_model.decisions import AnyDecision, Handover, Membership, Offset, Rebalance, Rejected
from wakeroll_model.events import CommittedOffset, Route, RoutedQueue
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard

GROUP = "billing"
START_MS = 1_790_000_000_000


class KafkaStory:
    """One group on one shard. Time passes by a second with each step."""

    def __init__(self) -> None:
        self.shard = Shard("wakeroll.kafka", 0, 1, raises=True)
        self.now_ms = START_MS
        self.decisions: list[AnyDecision] = []
        self.records: list[Record] = []

    @property
    def group(self) -> KafkaGroup:
        group = self.shard.group(GROUP)
        assert isinstance(group, KafkaGroup)
        return group

    def tell(self, event: AnyKafkaEvent, *, later: int = 1_000) -> list[str]:
        """Apply an event, and return what followed from it, in words."""
        self.now_ms += later
        record = Record("wakeroll.kafka", 0, len(self.records), self.now_ms, GROUP.encode(), encode_event(event))
        self.records.append(record)
        decisions = self.shard.apply(record)
        self.decisions += decisions
        return [words(one) for one in decisions]

    def route(self, topic: str, queues: int) -> None:
        """Tell what brokers say about a topic."""
        routed = [RoutedQueue(topic=topic, broker="", queue_id=number) for number in range(queues)]
        route = Route(topic=topic, queues=routed, version=str(queues))
        self.now_ms += 1_000
        record = Record("wakeroll.kafka", 0, len(self.records), self.now_ms, None, encode_event(route))
        self.records.append(record)
        assert self.shard.apply(record) == []

    def said(self, kind: type) -> list[Any]:
        return [one for one in self.decisions if isinstance(one, kind)]

    # --- classic groups ---

    def generation(self, number: int, *members: AssignedMember, **fields: Any) -> list[str]:
        its = {"protocol_type": "consumer", "assignor": "range" if members else "", "leader": "a-1"} | fields
        return self.tell(Generation(group_id=GROUP, generation=number, members=list(members), **its))

    def described(self, *members: AssignedMember) -> list[str]:
        return self.tell(Described(group_id=GROUP, assignor="range", members=list(members)))

    # --- KIP-848 ---

    def member(self, name: str, **fields: Any) -> list[str]:
        return self.tell(of_consumer(MemberSeen, member_id=name, member=seen(name, **fields)))

    def gone(self, name: str) -> list[str]:
        """Tell what the broker writes when a member leaves: three records are deleted."""
        told = self.tell(of_consumer(CurrentSeen, member_id=name), later=0)
        told += self.tell(of_consumer(TargetSeen, member_id=name), later=0)
        return told + self.tell(of_consumer(MemberSeen, member_id=name), later=0)

    def epoch(self, number: int, **fields: Any) -> list[str]:
        return self.tell(of_consumer(GroupEpoch, epoch=number, **fields), later=0)

    def target(self, number: int, **queues: list[int]) -> list[str]:
        for name, its in queues.items():
            assert self.tell(of_consumer(TargetSeen, member_id=name, queues={"orders": its}), later=0) == []
        return self.tell(of_consumer(TargetEpoch, epoch=number), later=0)

    def current(self, name: str, epoch: int, has: list[int], revoking: list[int] | None = None) -> list[str]:
        its = {"queues": {"orders": has}, "revoking": {"orders": revoking} if revoking else {}}
        return self.tell(of_consumer(CurrentSeen, member_id=name, epoch=epoch, **its))

    def committed(self, offset: int, queue_id: int = 0) -> list[str]:
        one = CommittedOffset(queue=Queue("orders", "", queue_id), offset=offset)
        return self.tell(Committed(group_id=GROUP, offsets=[one]))


def of_consumer(kind: Any, **fields: Any) -> Any:
    return kind(group_id=GROUP, protocol="consumer", **fields)


def seen(name: str, **fields: Any) -> SeenMember:
    its = {"client_id": name, "member_id": name, "topics": ["orders"]} | fields
    return SeenMember(**its)


def has(name: str, *numbers: int, topic: str = "orders", **fields: Any) -> AssignedMember:
    return AssignedMember(member=seen(name, **fields), queues={topic: list(numbers)} if numbers else {})


def words(decision: AnyDecision) -> str:
    """Return a decision in a few words."""
    match decision:
        case Rebalance():
            notes = f" ({'; '.join(decision.notes)})" if decision.notes else ""
            free = f", {decision.unassigned_count} free" if decision.unassigned_count else ""
            return (
                f"{decision.epoch}: {decision.trigger}, {decision.clients} members, {decision.moved} moved{free}{notes}"
            )
        case Membership():
            return f"{decision.client_id or 'the group'} {decision.change}"
        case Handover():
            return f"{decision.queue.queue_id}: {decision.from_ or '-'} > {decision.to or '-'} {decision.how}"
        case Offset():
            by = f" by {decision.reset_by}" if decision.reset_by else ""
            return f"{decision.queue.queue_id} at {decision.offset} of {decision.client_id or '-'}{by}"
        case Rejected():
            return f"rejected: {decision.detail}"
    return type(decision).__name__
