"""Everything of deploy/compose.yaml is started at once, and the brokers come later: how soon it works then."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support.probes import probe
from tests.support.systems.compose_processes import ComposedServices
from tests.support.systems.fleet import make_topic
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll import Consumer, NotReachable
from wakeroll.connection import Connection
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.ports import HOST, free_ports

pytestmark = [pytest.mark.operate, pytest.mark.e2e, pytest.mark.spark]

until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)
LATE_S = 40
"""How much later the broker comes. The longest pause of a client between two attempts to connect is 10 s, and a process
that waits for its start makes new clients in each attempt; so a longer delay, such as two minutes, changes nothing."""


def consumer_of(bootstrap: str) -> Consumer | None:
    """Return a consumer; None if there is no control plane yet, so that its supervisor would start it again."""
    try:
        return Consumer("billing", ["orders"], bootstrap)
    except NotReachable:
        return None


def test_everything_begins_by_itself_when_the_broker_comes(tmp_path: Path, tell: Callable[[str], None]):
    """No process has to be started again. Seconds are printed, because they depend on what else this machine does."""
    broker_port, *ports = free_ports(5)
    services = dict(zip(("observe", "observe-2", "run", "serve"), ports, strict=True))
    bootstrap = f"{HOST}:{broker_port}"
    composed = ComposedServices(tmp_path, {"KAFKA_BOOTSTRAP": bootstrap}, services)
    assert composed.names == ["keys", *services]
    keys = composed.process("keys")
    keys.start()
    wait_until(lambda: not keys.is_running, "the keys are made", state=keys.log_tail)
    assert keys.returncode == 0
    broker = EmbeddedBroker(tmp_path / "broker", port=broker_port)
    with ExitStack() as stack:
        stack.callback(broker.stop)
        processes = [stack.enter_context(composed.process(name)) for name in services]
        for name, port in services.items():
            until(lambda port=port: probe(port, "/readyz").startswith("503"), f"{name} waits for the broker")
        began_s = time.monotonic()
        wait_until(lambda: time.monotonic() - began_s >= LATE_S, "the broker is late")
        started = [process.pid for process in processes]
        broker.start()
        answers_s = time.monotonic()

        def state() -> str:
            return "\n".join(f"{process.name}: {process.log_tail()}" for process in processes)

        def since() -> float:
            return time.monotonic() - answers_s

        connection = Connection(bootstrap)
        make_topic(connection, "orders", 4)
        found = until(lambda: consumer_of(bootstrap), "the control plane has its topics", state=state)
        consumer = stack.enter_context(found)
        topics_s = since()
        until(consumer.assignment, "the consumer has queues", between=lambda: consumer.poll(0.1), state=state)
        decided_s = since()
        for name, port in services.items():
            until(lambda port=port: probe(port, "/readyz").startswith("200"), f"{name} is ready", state=state)
        tell(
            f"seconds after the broker's answer: {topics_s:.1f} the topics, {decided_s:.1f} the first assignment, "
            f"{since():.1f} all are ready; load average {os.getloadavg()[0]:.1f}"
        )
        assert [process.pid for process in processes] == started
        assert all(process.is_running for process in processes)
