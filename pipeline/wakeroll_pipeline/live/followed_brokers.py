"""The live model of a deployment while it is followed: for a page that stays open, or for one answer."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from msgspec import structs

from wakeroll.errors import NotReachable
from wakeroll_model.signing import Keys
from wakeroll_pipeline.kafka.rights_check import require_rights
from wakeroll_pipeline.live.end_queries import EndQueries
from wakeroll_pipeline.live.kafka_follower import KafkaFollower, Listener
from wakeroll_pipeline.live.live_model import LiveModel
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage import small_files

PATIENCE_S = 15.0
"""Time (s) after which an answer fails if the log cannot be read; brokers that are starting need some seconds."""
_LOOK_S = 0.05


class FollowedBrokers:
    """A model, and the threads that keep it up to date."""

    def __init__(self, model: LiveModel, follower: KafkaFollower, queries: EndQueries) -> None:
        """Combine the parts."""
        self.model = model
        self._follower = follower
        self._queries = queries

    def is_current(self) -> bool:
        """Return whether the log has been read to the ends that it had at the start, and the views show it."""
        facts = self.model.facts
        is_read = facts.is_begun and facts.read >= facts.to_read
        return is_read and self._follower.is_caught_up and not self.model.later_eras

    def wait_until_current(self, stop: threading.Event, patience_s: float = PATIENCE_S) -> bool:
        """Wait until the log has been read to its ends, query the brokers for the ends of the queues, and update views.

        Args:
            stop: ends the wait.
            patience_s: longest time without progress (s).

        Returns:
            False if `stop` was set before.

        Raises:
            NotReachable: the log cannot be read; the message gives the reason.
        """
        progress, since_s = -1, time.monotonic()
        while not self.is_current():
            if stop.wait(_LOOK_S):
                return False
            if self._follower.progress != progress:
                progress, since_s = self._follower.progress, time.monotonic()
            elif time.monotonic() - since_s > patience_s:
                trouble = self.model.facts.trouble
                reason = f"the last attempt: {trouble}" if trouble else "no record was received"
                raise NotReachable(f"cannot read the log for {patience_s:.0f} s; {reason}")
        self.model.refresh()  # the queries need to know the topics of the groups
        self._queries.query()
        self.model.refresh()
        return True


@contextmanager
def followed_brokers(
    settings: Settings,
    listener: Listener | None = None,
    beat: Callable[[str], object] = lambda _: None,
    keys: Keys | None = None,
) -> Iterator[FollowedBrokers]:
    """Follow the brokers of a deployment, from the newest snapshots in its tables, if there are any.

    Args:
        settings: settings of the deployment, which name the brokers.
        listener: receives the new decisions, in the thread that reads them.
        beat: receives the name of a thread whenever it begins a round; it is called in that thread.
        keys: verify signed records; None: those of the settings.

    Raises:
        InvalidUsage: Kafka's client rejects the settings, or the keys cannot be read.
        LoginFailed, AccessDenied: the brokers reject the login, or deny a right.
    """
    connection, keys = settings.connection, settings.read_keys() if keys is None else keys
    require_rights(connection, ["viewer"], must_answer=False)
    model = LiveModel(connection.topics, settings.partitions)
    model.facts = structs.replace(model.facts, is_begun=False)
    warehouse = settings.warehouse if small_files.exists(settings.warehouse) else None
    with ExitStack() as stack:
        follower = KafkaFollower(connection, model, keys, warehouse, listener, beat)
        queries = EndQueries(connection, model, beat)
        for thread in (follower, queries):
            thread.start()
            stack.callback(thread.stop)
        yield FollowedBrokers(model, follower, queries)
