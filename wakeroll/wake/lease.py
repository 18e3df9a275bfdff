"""A lease for the work of a group: the coordinator assigns it to at most one of several processes."""

import os
from collections.abc import Callable

from wakeroll.argument_checks import about_of
from wakeroll.broker_check import look
from wakeroll.connection import Connection
from wakeroll.heartbeat_thread import Control
from wakeroll.inbox import Inbox
from wakeroll.last_will.executor_link import address_of
from wakeroll.last_will.member_will import will_for
from wakeroll.outbox import Outbox
from wakeroll_model.client import Client, Preferences
from wakeroll_model.decisions import Rejected, Wake
from wakeroll_model.events import Subscription
from wakeroll_model.queue import Queue


class Lease:
    """Membership in a group of wakeroll in which the owner of one queue has the lease. The queue is not read.

    So a lease has the guarantees of a queue: no two owners, and a new owner when the session of the old one has ended.
    """

    def __init__(
        self,
        connection: Connection,
        group_id: str,
        client_id: str,
        topic: str,
        timeout: float,
        on_answer: Callable[[Wake | Rejected], None],
    ) -> None:
        """Join the group.

        Args:
            connection: the brokers.
            group_id: the group of the processes that want the lease.
            client_id: the name of this process in that group.
            topic: an existing topic; the owner of its first queue has the lease.
            timeout: seconds to wait for a broker.
            on_answer: called in another thread with each decision that may answer a pull of this client.

        Raises:
            NotReachable: no broker answered in time, or it has no control plane.
        """
        self._queue = Queue(topic, "", 0)
        executor = address_of(True, os.environ)
        found = look(connection, [topic], timeout)
        inbox = Inbox(connection, client_id, found.partitions, timeout, found.topic_id)
        preferences = Preferences(subscriptions=[Subscription(topic=topic)])
        client = Client(group_id, client_id, preferences, None, about_of("", "", {}))
        will = will_for(client, connection, executor)
        self._control = Control(client, lambda: inbox, Outbox(connection, group_id), on_answer, will)
        self._control.join()

    def is_held(self) -> bool:
        """Return whether this process has the lease now.

        Raises:
            WakerollError: the coordinator removed this process.
        """
        self._control.check()
        give = self._control.view()[0].get(self._queue)
        return give is not None and self._control.may_hand_out(give)

    def move(self, topic: str) -> None:
        """Use the first queue of another topic as the lease; do nothing if it is used already."""
        if topic != self._queue.topic:
            self._queue = Queue(topic, "", 0)
            self._control.subscribe([Subscription(topic=topic)])

    def give_back(self) -> None:
        """Release the lease if the coordinator has revoked it."""
        if draining := self._control.view()[1]:
            self._control.released(draining)

    def close(self, timeout: float) -> None:
        """Leave the group; wait at most `timeout` seconds for Kafka."""
        self._control.leave(timeout)
