"""Broker, observer and driver die one after the other, while consumers consume and others wait: a whole system.

The wakes of those who wait come from a tap, since nobody tells of these messages.  KILLS=20 kills the driver twenty
times, with the observer or without, and each time after a number of messages that is drawn from SEED; for every change
one is enough.  In the end the checkpoints are lost.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.support.running_processes import run_process
from tests.support.systems.fleet import Fleet, make_topic
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll import Consumer, NotReachable
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.operate]

SENT = "sent"
WAIT_S = 3.0
KILLS = int(os.environ.get("KILLS", "1"))
WAKEROLL = str(Path(sys.executable).with_name("wakeroll"))


until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)


class Waiting:
    """Somebody who waits for the paid ones among the messages of a queue, again and again."""

    def __init__(self, fleet: Fleet, threads: ThreadPoolExecutor) -> None:
        topics = {SENT: "paid"}
        connection = fleet.settings.connection
        self.consumer = Consumer("audit", topics, connection.bootstrap, prefix=connection.topics.prefix)
        self.found: list[Message] = []
        self.enough = threading.Event()
        self.fetches = 0
        self.unreachable = 0
        """Fetches that failed because no broker answered."""
        self.done: Future[None] = threads.submit(self._wait)

    def _wait(self) -> None:
        offset = 0
        with self.consumer:
            while not self.enough.is_set():
                try:
                    messages, offset = self.consumer.fetch((SENT, 0), offset, WAIT_S)
                except NotReachable:
                    self.unreachable += 1  # the broker is dead; what is there is read later
                    continue
                self.found += messages
                self.fetches += 1


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that a test may kill."""
    with EmbeddedBroker(tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
def restore(fragile, wakeroll, monkeypatch) -> Callable[[Settings], str]:
    """`wakeroll restore`, on the Spark of this process, which spares one of its own; returns what it prints."""

    def restore(settings: Settings) -> str:
        for name, value in settings.environment().items():
            monkeypatch.setenv(name, value)
        code, said, complaint = wakeroll("restore", "--bootstrap", fragile.bootstrap)
        assert code == 0, said + complaint
        return said

    return restore


def ask(settings: Settings, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command about a deployment, in a process of its own."""
    return run_process([WAKEROLL, command, "--bootstrap", settings.bootstrap], **settings.environment())


def refusal(settings: Settings) -> str:
    """Return why a `run` of this deployment does not begin."""
    done = ask(settings, "run")
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_whatever_dies_nothing_is_lost_and_whoever_waits_is_answered_once(fragile, spark, restore, tmp_path):
    """The log is the truth: whatever died, the next one decides what the first would have decided."""
    seed = int(os.environ.get("SEED", str(random.randrange(10**6))))
    print(f"KILLS={KILLS} SEED={seed}")
    moments = random.Random(seed)
    with Fleet(fragile.bootstrap, tmp_path) as fleet, ThreadPoolExecutor(1) as threads:
        settings = fleet.settings
        make_topic(settings.connection, SENT, 1)
        producer = settings.connection.producer()
        waiting = Waiting(fleet, threads)
        paid: list[bytes] = []

        def send() -> None:
            """Send a message that is wanted, behind one that is not."""
            for tags in (b"refunded", b"paid"):
                producer.produce(SENT, b"%s %d" % (tags, len(paid)), headers=[("TAGS", tags)])
            assert producer.flush(60) == 0
            paid.append(b"paid %d" % len(paid))

        def all_found() -> bool:
            if waiting.done.done():
                waiting.done.result()
            return [message.value() for message in waiting.found] == paid

        tap = Child(
            "wakeroll tap",
            [WAKEROLL, "tap", SENT, "--bootstrap", fragile.bootstrap],
            log=settings.logs / "tap.log",
            env={**os.environ, **settings.environment()},
            grace_s=90,
        )
        with tap:
            tap.wait_until(lambda: "publishing arrivals of" in tap.log_tail(), PATIENCE_WITH_SPARK_S)
            send()
            until(all_found, "the first message")

            fragile.kill()
            unreachable = waiting.unreachable
            until(lambda: waiting.unreachable > unreachable, "a fetch fails because the broker is dead")
            fragile.start()
            send()
            until(all_found, "the message after the broker's death")

            for _ in range(KILLS):
                more = len(fleet.traffic.produced) + moments.randrange(800)
                until(lambda more=more: len(fleet.traffic.produced) >= more, "so many more messages are produced")
                observer_is_dead = moments.random() < 0.5
                if observer_is_dead:
                    fleet.system.observer.kill()
                fleet.system.jobs.kill()
                send()
                fleet.system.jobs.start()
                fleet.wait_until_decided()
                until(all_found, "the message after the driver's death")
                if observer_is_dead:
                    fleet.system.observer.start()
            assert "already decides from this checkpoint; stop it first" in refusal(settings)
            checked = ask(settings, "doctor")
            assert checked.returncode == 0, checked.stdout

            fleet.system.observer.kill()
            fetches = waiting.fetches
            # Without ticks nothing ends by the log's clock: fetches end by their own.
            until(lambda: waiting.fetches >= fetches + 3, "fetches end while there is no clock")
            fleet.system.observer.start()
            send()
            until(all_found, "the message after the observer's death")

            waiting.enough.set()
            waiting.done.result(PATIENCE_WITH_SPARK_S)
            fleet.system.check()
            assert tap.is_running, tap.log_tail()
        fleet.wait_until_consumed()
        until(lambda: "snapshots of 8 shards" in fleet.system.jobs.log_tail(), "snapshots")

    for child in (fleet.system.observer, fleet.system.jobs):
        assert child.returncode == 0, child.log_tail()
    said = [json.loads(row.json) for row in fleet.check(spark)]
    answers = Counter(one["request_id"] for one in said if one["kind"] == "wake")
    assert answers
    assert set(answers.values()) == {1}

    shutil.rmtree(settings.checkpoints)
    assert "run `wakeroll restore` first" in refusal(settings)
    assert "8 of 8 shards continue in their era" in restore(settings)
