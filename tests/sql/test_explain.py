"""Why a queue is whose it is: the chain of rows, in words."""

import pytest

from tests.support.control_log import START_MS
from tests.support.ledgers import Story, a_kick, write_ledger
from wakeroll.errors import InvalidUsage
from wakeroll_model.events import Ahead, Level, Subscription
from wakeroll_model.queue import Queue
from wakeroll_pipeline.questions.explain import Explanation, explain

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def asked(open_in, day):
    """The day's ledger, in each engine."""
    return open_in(day)


def told(explanation: Explanation) -> list[str]:
    """Return what an explanation tells, with seconds since the beginning of the story."""
    return [f"{(step.at_ms - START_MS) / 1_000:g} s: {step.what}" for step in explanation.steps]


def test_a_queue_that_went_to_a_joiner_has_its_whole_chain(asked):
    """Event → rebalance → hand-over → assignment: the question nobody else can answer."""
    explanation = explain(asked, "billing", Queue("orders", "", 7), START_MS + 10_000)

    assert explanation.answer == (
        "orders-7 of billing is owned by c2 since 2023-11-14T22:13:26.000Z (epoch 2), as of 2023-11-14T22:13:30.000Z"
    )
    assert told(explanation) == [
        "5 s: heartbeat of c2, c2 joined (orders)",
        "5 s: rebalance to epoch 2 by join: AVG shares 8 queues among 2 clients, 4 must move",
        "5 s: a revocation was sent to c1",
        "6 s: c1 released the queue",
        "6 s: the queue was assigned to c2, from its end offset",
    ]
    assert [step.where for step in explanation.steps] == [
        "wakeroll.groups-1@9",
        "wakeroll.groups-1@9",
        "",
        "wakeroll.groups-1@11",
        "wakeroll.groups-1@11",
    ]


def test_a_queue_of_a_crashed_client_was_expired(asked):
    """The newest state, without a time."""
    explanation = explain(asked, "billing", Queue("orders", "", 3))

    assert told(explanation) == [
        "76 s: tick, c2 expired (no heartbeat for 46000 ms)",
        "76 s: rebalance to epoch 5 by expire: AVG shares 8 queues among 1 client, 4 must move",
        "76 s: c2 expired: its session timed out without a heartbeat",
        "76 s: the queue was assigned to c3, from offset 200",
    ]


def test_a_new_queue_has_no_owner_before(asked):
    """A topic has grown; nobody had to give it up."""
    explanation = explain(asked, "billing", Queue("orders", "", 9))

    assert told(explanation) == [
        "90 s: route of orders",
        "90 s: rebalance to epoch 6 by route: AVG shares 10 queues among 1 client, 0 must move",
        "90 s: the queue was assigned to c3 as its first owner, from its first message",
    ]


def test_a_wrong_question_is_answered_by_what_there_is(asked):
    """Nobody knows all names by heart."""
    with pytest.raises(InvalidUsage, match="no group 'bill'; did you mean billing\\?"):
        explain(asked, "bill", Queue("orders", "", 0))
    with pytest.raises(InvalidUsage, match="orders-99 never had an owner in billing; the group has queues of orders"):
        explain(asked, "billing", Queue("orders", "", 99))
    with pytest.raises(InvalidUsage, match="orders-0 never had an owner in billing until 2023"):
        explain(asked, "billing", Queue("orders", "", 0), START_MS - 1_000)


@pytest.fixture(scope="module")
def watched(open_in, tmp_path_factory):
    """The ledger of a group of Kafka's that is watched: c2 joins, queues move, and the watching process ends."""
    story = Story()
    story.route("orders", 4, ends=100)
    story.configure("kafka.billing", strategy="PINNED", handover="eager", rebalance_interval_ms=1_000)
    story.pass_seconds(2)
    for client_id, numbers in (("c1", [0, 1, 2]), ("c2", [2, 3])):
        pins = {"queues": {"orders": numbers}}
        story.join("kafka.billing", client_id, "orders", keeps=True, strategy_params=pins)
        story.pass_seconds(2)
    story.restate("kafka.billing", "c1", strategy_params={"queues": {"orders": [0, 1]}})
    story.pass_seconds(2)
    story.crash("kafka.billing", "c2")
    story.pass_seconds(60)
    warehouse = tmp_path_factory.mktemp("watched") / "warehouse"
    write_ledger(warehouse, story)
    return open_in(warehouse)


def test_a_watched_queue_went_to_the_member_that_another_coordinator_named(watched):
    joined = told(explain(watched, "kafka.billing", Queue("orders", "", 3), START_MS + 5_000))
    assert joined == [
        "4 s: heartbeat of c2, c2 joined (orders)",
        "4 s: rebalance to epoch 3 by join: PINNED follows the assignment that was observed: 4 queues among 2 clients, "
        "0 must move",
        "4 s: the queue was assigned to c2 as its first owner, from its first message",
    ]

    moved = told(explain(watched, "kafka.billing", Queue("orders", "", 2), START_MS + 10_000))
    assert moved[:3] == ["2 s: c1 joined", "4 s: c2 joined", "7 s: tick"], "the reason is some seconds old"
    assert moved[3].startswith("7 s: rebalance to epoch 4 by timer: PINNED follows the assignment that was observed")
    assert moved[-1] == "7 s: the queue was assigned to c2, from its end offset"


def test_a_watched_member_that_expired_may_live(watched):
    """Only the watching process was silent: a member that is gone is unregistered by it."""
    expired = told(explain(watched, "kafka.billing", Queue("orders", "", 3)))

    assert "its heartbeats come from a process that watches its group; that process is silent" in expired[0]


@pytest.fixture(scope="module")
def filtered(open_in, tmp_path_factory):
    """The ledger of a group in a rolling deployment: its owner wants paid orders, and c2 wants refunded ones too."""
    story = Story()
    story.append(Level(level=3))
    story.route("orders", 1, ends=100)
    both = {"paid": "c1", "paid || refunded": "c2"}
    for expression, client_id in both.items():
        wanted = [Subscription(topic="orders", expression=expression)]
        story.join("billing", client_id, "orders", keeps=True, subscriptions=wanted)
        story.pass_seconds(2)
    ahead = (Ahead(expression="paid", offset=9),)
    story.commit("billing", 5, ahead=ahead)
    story.pass_seconds(1)
    warehouse = tmp_path_factory.mktemp("filtered") / "warehouse"
    write_ledger(warehouse, story)
    return open_in(warehouse)


def test_messages_that_are_kept_for_another_filter_are_named(filtered):
    """Otherwise the committed offset of a queue that is read to its end seems to be stuck."""
    *_, last = told(explain(filtered, "billing", Queue("orders", "", 0)))

    assert last == (
        "4 s: c1 committed offset 5 and processed the messages for TAG 'paid' to 9; those between that only other "
        "members' filters want are kept for them"
    )


@pytest.fixture(scope="module")
def kicked(open_in, tmp_path_factory):
    """The ledger of a group of which an operator kicked a member."""
    story = a_kick()
    story.pass_seconds(5)
    warehouse = tmp_path_factory.mktemp("kicked") / "warehouse"
    write_ledger(warehouse, story)
    return open_in(warehouse)


def test_a_queue_of_a_kicked_client_names_the_operator(kicked):
    """The chain shows who asked, why, and that the client released its queue itself."""
    event, rebalance, *rest = told(explain(kicked, "billing", Queue("orders", "", 1)))

    assert event.startswith("6 s: kick of c2, c2 leaving (kicked by mia: it hangs; if it lives, it hands 1 queue over")
    assert rebalance == "6 s: rebalance to epoch 3 by kick: AVG shares 2 queues among 1 client, 1 must move"
    assert [step.partition(" s: ")[2] for step in rest] == [
        "a revocation was sent to c2",
        "c2 released the queue",
        "the queue was assigned to c1, from its end offset",
    ]
