"""A strategy with a typing error: named at once by every interface, instead of a group that waits for its queues."""

import asyncio

import pytest
from typer.testing import CliRunner

from tests.support.waiting import wait_until
from wakeroll import Admin, AsyncConsumer, Consumer, InvalidUsage, NotReachable
from wakeroll.testing import MemoryBroker
from wakeroll_model.strategies import STRATEGIES
from wakeroll_pipeline.cli import app

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ("NOPE", r"^no strategy 'NOPE'; there are: AVG, .*SPREAD.*; allow_unknown_strategy=True accepts one"),
        ("avg", r"^no strategy 'avg' \(did you mean AVG\?\); there are: AVG, "),
        ("SPRAED", r"did you mean SPREAD\?"),
        ("MACHINE_ROOM_NEARBY-AVGG", r"did you mean MACHINE_ROOM_NEARBY-AVG\?\); there are: AVG, "),
    ],
)
def test_a_consumer_refuses_a_strategy_that_does_not_exist(strategy, sentence):
    """The coordinator would assign nothing, and the consumer would wait for ever without a word."""
    with pytest.raises(InvalidUsage, match=sentence):
        Consumer("billing", ["orders"], NOWHERE, strategy=strategy)


async def _join() -> None:
    async with AsyncConsumer("billing", ["orders"], NOWHERE, strategy="NOPE"):
        pass


def test_every_class_of_the_sdk_refuses_it():
    """Also the members of a test, where nobody would find the reason either."""
    with pytest.raises(InvalidUsage, match="no strategy 'NOPE'"):
        asyncio.run(_join())
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        with pytest.raises(InvalidUsage, match="no strategy 'NOPE'"):
            broker.join("billing", ["orders"], print, strategy="NOPE")
        with Admin(broker.bootstrap) as admin, pytest.raises(InvalidUsage, match="no strategy 'NOPE'"):
            admin.configure("billing", strategy="NOPE")


def test_a_strategy_of_a_newer_coordinator_is_accepted_if_that_is_asked_for():
    with pytest.raises(NotReachable):
        Consumer("billing", ["orders"], NOWHERE, strategy="NEWER", allow_unknown_strategy=True, connect_timeout=0.2)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_of_this_release_is_accepted(strategy):
    with pytest.raises(NotReachable):
        Consumer("billing", ["orders"], NOWHERE, strategy=strategy, connect_timeout=0.1)


def test_configure_refuses_it_in_the_words_of_a_command():
    answer = CliRunner().invoke(
        app.app_for(("configure",)), ["configure", "billing", "--strategy", "NOPE", "--bootstrap", NOWHERE]
    )

    assert isinstance(answer.exception, InvalidUsage)
    assert str(answer.exception).startswith("no strategy 'NOPE'; there are: AVG, ")
    assert str(answer.exception).endswith("; --allow-unknown-strategy accepts one that only a newer coordinator has")


def test_the_log_of_a_client_shows_once_that_the_coordinator_does_not_have_its_strategy(caplog):
    """A strategy of a newer release, before the coordinator is upgraded: the consumer waits, and says why."""
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        with Consumer(
            "billing", ["orders"], broker.bootstrap, client_id="a", strategy="NEWER", allow_unknown_strategy=True
        ) as consumer:
            wait_until(lambda: consumer.poll(0.05) or lines(caplog), "the line")

    [line] = lines(caplog)
    assert line.startswith("the coordinator reports a conflict of client 'a' of group 'billing': no strategy 'NEWER'")
    assert line.endswith("; the group keeps its last target")


def test_the_log_of_a_client_shows_how_it_differs_from_its_group(caplog):
    """The coordinator uses the strategy of the oldest member; the others were never told."""
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        broker.join("billing", ["orders"], print, client_id="a", strategy="AVG")
        broker.join("billing", ["orders"], print, client_id="b", strategy="SPREAD")
        wait_until(lambda: lines(caplog), "the line")

    assert lines(caplog) == [
        "the coordinator reports a conflict of client 'b' of group 'billing': strategy SPREAD differs from AVG of a"
    ]


@pytest.mark.parametrize(("named", "sizes"), [("AVG", [4, 2]), (None, [3, 3])])
def test_a_consumer_that_names_no_strategy_takes_that_of_its_group_or_spreads_a_new_one(caplog, named, sizes):
    """A rolling deployment of a release with another default must not change how a running group is shared."""
    topics = ["orders", "sent"]
    with MemoryBroker() as broker:
        for topic in topics:
            broker.create_topic(topic, queues=3)  # AVG gives the first member two of each topic
        with (
            Consumer("billing", topics, broker.bootstrap, client_id="a", strategy=named) as one,
            Consumer("billing", topics, broker.bootstrap, client_id="b") as other,
        ):
            wait_until(
                lambda: [len(one.assignment()), len(other.assignment())] == sizes,
                "the queues are shared",
                between=lambda: (one.poll(0.05), other.poll(0.05)),
            )

    assert lines(caplog) == []


def test_parameters_without_a_strategy_are_refused():
    with pytest.raises(InvalidUsage, match="strategy_params were given without a strategy"):
        Consumer("billing", ["orders"], NOWHERE, strategy_params={"a": 1})


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "reports a conflict" in text]
