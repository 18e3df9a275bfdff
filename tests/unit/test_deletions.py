"""An operator deletes groups and offsets that no member uses; a consumer that joins later begins without them."""

from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until
from wakeroll import Admin, Consumer, InvalidUsage
from wakeroll.testing import MemoryBroker
from wakeroll_model.queue import Queue

FIRST, SECOND = Queue("orders", "", 0), Queue("orders", "", 1)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders", 2)
        for number in range(6):
            broker.send("orders", b"%d" % number, queue=number % 2)
        yield broker


@pytest.fixture
def admin(broker: MemoryBroker) -> Iterator[Admin]:
    with Admin(broker.bootstrap) as admin:
        yield admin


def read_all(consumer: Consumer) -> list[bytes]:
    values: list[bytes] = []

    def read() -> None:
        if (message := consumer.poll(0.01)) is not None:
            values.append(message.value())

    wait_until(lambda: len(values) == 6, "it reads all messages", between=read)
    return sorted(values)


def test_a_group_and_its_offsets_are_deleted_only_when_nobody_uses_them(broker, admin):
    """The errors name the members; afterwards a consumer begins at the first messages again."""
    with Consumer("billing", ["orders"], broker.bootstrap, client_id="c1", consume_from="first") as consumer:
        expected = read_all(consumer)
        with pytest.raises(InvalidUsage, match=r"\(delete\): group 'billing' has 1 member: c1; wait until it is empty"):
            admin.delete_group("billing")
        with pytest.raises(InvalidUsage, match=r"\(delete\): orders is subscribed by 1 member: c1; stop them first"):
            admin.delete_offsets("billing", "orders")

    assert admin.delete_offsets("billing", queue=SECOND) == {(SECOND, ""): 3}
    assert admin.delete_offsets("billing", "orders", reason="unused") == {(FIRST, ""): 3}
    with pytest.raises(
        InvalidUsage, match=r"\(delete\): group 'billing' has no committed offset of orders-0, orders-1"
    ):
        admin.delete_offsets("billing", "orders")
    assert admin.delete_group("billing", reason="unused", by="mia") == "deleted by mia: unused"
    with pytest.raises(InvalidUsage, match=r"\(delete\): there is no group 'billing'"):
        admin.delete_group("billing")

    with Consumer("billing", ["orders"], broker.bootstrap, client_id="c1", consume_from="first") as consumer:
        assert read_all(consumer) == expected


def test_the_arguments_of_a_deletion_are_checked(admin):
    with pytest.raises(InvalidUsage, match="name either a topic or a queue"):
        admin.delete_offsets("billing")
    with pytest.raises(InvalidUsage, match="name either a topic or a queue"):
        admin.delete_offsets("billing", "orders", queue=FIRST)
    with pytest.raises(InvalidUsage, match="group 'billing' has no committed offsets of nothing, and there is no such"):
        admin.delete_offsets("billing", "nothing")
    with pytest.raises(InvalidUsage, match="reason"):
        admin.delete_group("billing", reason="x" * 256)
