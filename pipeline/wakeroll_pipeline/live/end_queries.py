"""A thread that queries the brokers for the ends of the queues of all groups, so that lags are only seconds old.

Routes report every end once per minute. If the brokers do not answer, as without the right to describe a topic, the
ends are those of the routes.
"""

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaException

from wakeroll.connection import Connection, is_legal
from wakeroll.errors import NotReachable
from wakeroll_model.queue import Queue
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.live.live_model import LiveModel

log = logging.getLogger(__name__)

EVERY_S = 2.0
"""Minimum interval between two queries (s)."""
QUEUES_PER_S = 5_000
"""With more queues than `EVERY_S` allows at this rate, the queries are less frequent."""
PATIENCE_S = 5.0
"""Longest wait for an answer (s)."""


class EndQueries(threading.Thread):
    """Queries the ends of the queues that the groups of a model follow."""

    def __init__(
        self, connection: Connection, model: LiveModel, beat: Callable[[str], object] = lambda _: None
    ) -> None:
        """Create the client; no query is sent before `start`.

        Args:
            connection: the brokers.
            model: receives the ends.
            beat: receives the name of this thread in each round, even if the brokers cannot be reached.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        super().__init__(name="end-queries", daemon=True)
        self._model = model
        self._beat = beat
        self._stop_requested = threading.Event()
        self._cluster = Cluster(connection, patience_s=PATIENCE_S, stop=self._stop_requested)
        self._trouble = Trouble(log, "the ends of the queues can be queried again")

    def stop(self) -> None:
        """End the thread, and wait for its end."""
        self._stop_requested.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Query until `stop`."""
        pause_s = EVERY_S
        while not self._stop_requested.wait(pause_s):
            self._beat(self.name)
            began_s = time.monotonic()
            queues = self.query()
            pause_s = max(EVERY_S, queues / QUEUES_PER_S, time.monotonic() - began_s)

    def query(self) -> int:
        """Query the ends once, and note them in the model; return the number of queues."""
        queues = [queue for queue in self._model.followed_queues() if not queue.broker and is_legal(queue.topic)]
        try:
            ends = self._cluster.ends((queue.topic, queue.queue_id) for queue in queues)
            self._trouble.ended()
        except (NotReachable, KafkaException) as problem:
            self._trouble.began(f"cannot query the ends of the queues: {problem}; those of the routes are used")
            ends = {}
        with self._model.lock:
            found = {Queue(topic, "", number): end for (topic, number), end in ends.items()}
            self._model.note_ends(found, self._model.now_ms)
        return len(queues)
