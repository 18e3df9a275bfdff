"""The decisions topic of a coordinator without Spark."""

import threading

from tests.support.systems.coordinator_thread import PATIENCE_S, Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.connection import close_producer
from wakeroll_model.decisions import Membership
from wakeroll_model.replay import encode_decision


class Sink(threading.Thread):
    """Publishes what the coordinator decides, each batch twice: delivery is at least once."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__(name="sink", daemon=True)
        self._coordinator = coordinator
        self._topic = coordinator.connection.topics.decisions
        self._producer = coordinator.connection.producer()
        self._published = 0
        self._stopping = threading.Event()

    def run(self) -> None:
        """Publish until `stop`."""
        while not self._stopping.wait(0.01):
            batch = self._coordinator.decided[self._published :]
            for decision in [*batch, *batch]:
                key = getattr(decision, "group_id", None) or decision.shard
                self._producer.produce(self._topic, encode_decision(decision), key=key.encode())
            assert self._producer.flush(PATIENCE_S) == 0
            self._published += len(batch)

    def wait_for(self, kind: type, **fields: object) -> None:
        """Wait until a decision of this kind, with these fields, is on record."""

        def said() -> bool:
            published = self._coordinator.decided[: self._published]
            return any(
                isinstance(decision, kind) and all(getattr(decision, name) == fields[name] for name in fields)
                for decision in published
            )

        wait_until(said, f"{kind.__name__} with {fields} is on record")

    def leave(self, consumer: Consumer) -> None:
        """Have a consumer commit and leave; all of it is on record then."""
        assert consumer.commit(PATIENCE_S)
        consumer.close()
        self.wait_until_left(consumer.client_id)

    def wait_until_left(self, client_id: str) -> None:
        """Wait until it is on record that a client has left."""
        self.wait_for(Membership, client_id=client_id, change="left")

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        self.join()
        close_producer(self._producer, 0)  # its broker may end before this process
