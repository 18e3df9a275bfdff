"""The leases of processes, on a real broker."""

import uuid
from contextlib import ExitStack

import pytest

from tests.support.waiting import wait_until
from wakeroll.connection import Connection, Topics
from wakeroll_pipeline.kafka.control_topics import ensure_lease_topic
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.runtime.lease_keeper import LeaseKeeper, LeaseLost
from wakeroll_pipeline.runtime.process_locks import ProcessLocks
from wakeroll_pipeline.settings import Settings

LEASE_MS = 1_500


@pytest.fixture
def connection(broker) -> Connection:
    connection = Connection(broker.bootstrap, topics=Topics(f"leases-{uuid.uuid4().hex[:6]}"))
    ensure_lease_topic(connection)
    ensure_lease_topic(connection)  # it exists
    return connection


def keeper(connection: Connection, name: str, lease_ms: int = LEASE_MS) -> LeaseKeeper:
    return LeaseKeeper(connection, name, lease_ms, ["record", "coordinate.groups"])


def test_a_process_that_ends_hands_its_lease_over_at_once(connection):
    """With a lease of five minutes: nobody waits for its end."""
    first = keeper(connection, "a@one:1", 300_000)
    with ExitStack() as its_life:
        its_life.enter_context(first)
        wait_until(lambda: first["record"].state == "held", "the first one has the lease")
        with keeper(connection, "b@two:2", 300_000) as second:
            assert second["record"].state == "waiting"
            assert second["record"].holder == "a@one:1"
            its_life.close()
            wait_until(lambda: second["record"].state == "held", "the second one has the lease")
            second["record"].confirm()
            assert second["record"].term > first["record"].term
    with pytest.raises(LeaseLost, match="has released the lease 'record'"):
        first["record"].confirm()


def test_a_process_that_dies_is_replaced_after_its_lease(connection):
    first = keeper(connection, "a@one:1")
    first.__enter__()
    lease = first["record"]
    wait_until(lambda: lease.state == "held", "the first one has the lease")
    first._stop.set()  # it renews no more, and releases nothing: so far as the others can see, it was killed
    with keeper(connection, "b@two:2") as second:
        wait_until(lambda: second["record"].state == "held", "the second one has the lease")
        assert lease.state == "doubtful"
        assert second["record"].term > lease.term
        first._stop.clear()
        while first["record"].state == "doubtful":
            first._receive()

        for question in (lease.confirm, lease.is_confirmed, ProcessLocks(Settings(), ExitStack(), [lease]).confirm):
            with pytest.raises(LeaseLost, match="has lost the lease 'record' to b@two:2"):
                question()
    first.__exit__(None, None, None)


def test_who_only_asks_whether_it_has_the_lease_never_waits_for_a_broker(connection):
    """The loop of `run` asks: if it waited during an outage, the process would count as stuck, and be restarted."""
    with keeper(connection, "a@one:1") as first:
        lease = first["record"]
        wait_until(lease.is_confirmed, "the lease is held")
        first._stop.set()  # as if its renewals did not return
        wait_until(lambda: lease.state == "doubtful", "the lease is in doubt")

        assert not lease.is_confirmed()


def create_again(connection: Connection) -> None:
    """Delete the topic of the leases, and create it again."""
    cluster, topic = Cluster(connection), connection.topics.leases
    before = cluster.racks([topic])[topic].topic_id
    admin = connection.admin()
    admin.delete_topics([topic])[topic].result()

    def is_another() -> bool:
        ensure_lease_topic(connection)
        return cluster.racks([topic])[topic].topic_id not in (before, "")

    wait_until(is_another, "the topic exists again")


def test_a_topic_that_is_created_again_ends_the_leases_in_the_one_before(connection):
    """Its terms begin again: a process of the log before must not take a lease from one that has it in the new log."""
    with keeper(connection, "a@one:1") as first:
        lease = first["record"]
        wait_until(lease.is_confirmed, "the lease is held")
        lease.prove()
        first._stop.set()  # it is suspended
        first._thread.join()
        create_again(connection)
        with keeper(connection, "b@two:2") as second:
            wait_until(lambda: second["record"].state == "held", "the second one has the lease")
            assert second["record"].log != lease.log
            first._stop.clear()
            wait_until(lambda: first._contend() or lease.state == "lost", "the first one notices")
            with pytest.raises(LeaseLost, match="has lost the lease 'record'"):
                lease.prove()
            first._stop.set()
            second["record"].confirm()
            second["record"].prove()


def test_a_holder_proves_its_lease_in_the_topic_that_exists(connection):
    """It was suspended after its claim; nobody has claimed the lease in the new topic yet."""
    with keeper(connection, "a@one:1", 300_000) as first:
        lease = first["record"]
        wait_until(lease.is_confirmed, "the lease is held")
        create_again(connection)

        with pytest.raises(LeaseLost, match="whose topic was deleted or has lost records"):
            lease.prove()


@pytest.mark.operate
def test_a_standby_waits_in_the_topic_that_was_created_again(tmp_path):
    """The brokers were restarted before, so the new topic has lower leader epochs, which Kafka's clients ignore."""
    with EmbeddedBroker(tmp_path / "broker") as its:
        connection = Connection(its.bootstrap)
        ensure_lease_topic(connection)
        its.stop()
        its.start()
        with keeper(connection, "a@one:1") as first, keeper(connection, "b@two:2") as second:
            leases = first["record"], second["record"]
            wait_until(lambda: [one.state for one in leases].count("held") == 1, "one has the lease")
            holder, standby = sorted(leases, key=lambda one: one.state != "held")
            before = holder.log

            create_again(connection)

            wait_until(lambda: holder.state == "lost", "the holder notices")
            wait_until(lambda: standby.state == "held", "the standby has the lease")
            standby.prove()
            assert standby.log not in (before, "")
