"""Ends of members as the coordinator knows them, and the offset at which the next member begins."""

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import PATIENCE_S
from wakeroll import Consumer
from wakeroll_model.decisions import Membership


def ends_of(coordinator: Coordinator, client_id: str) -> list[tuple[str, str]]:
    """Return each end of a member: how it left, and how its process had ended."""
    return [
        (decision.change, decision.detail if decision.change == "died" else "")
        for decision in coordinator.decided.copy()
        if isinstance(decision, Membership)
        and decision.client_id == client_id
        and decision.change in ("died", "left", "expired")
    ]


def next_offset(coordinator: Coordinator, group_id: str, topic: str, client_id: str) -> int:
    """Return the offset of the first message that another member gets."""
    connection = coordinator.connection
    with Consumer(
        group_id,
        [topic],
        connection.bootstrap,
        prefix=connection.topics.prefix,
        client_id=client_id,
        consume_from="first",
    ) as consumer:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        consumer.put_back()
        return message.offset() or 0
