"""The allocation strategies: what must hold of every one, and what RocketMQ's own classes answer."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.queue import Queue
from model.strategies import STRATEGIES, StrategyError, allocate, java_order

GOLDEN = Path(__file__).parent.parent / "golden" / "rocketmq"

QUEUES = st.lists(
    st.builds(Queue, st.sampled_from(["orders", "payments"]), st.sampled_from(["", "b-1"]), st.integers(0, 40)),
    unique=True,
    max_size=40,
)
CLIENTS = st.lists(st.text("abcXYZ019-", min_size=1, max_size=4), unique=True, min_size=1, max_size=12)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@given(queues=QUEUES, clients=CLIENTS)
def test_every_queue_has_exactly_one_owner(name, queues, clients):
    """Whatever the strategy: no queue is lost and none is consumed twice."""
    shares = allocate(name, queues, clients)

    assert sorted(queue for share in shares.values() for queue in share) == sorted(queues)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@given(queues=QUEUES, clients=CLIENTS)
def test_every_client_is_in_the_answer_and_nobody_else(name, queues, clients):
    """A client that gets nothing must be told so."""
    assert sorted(allocate(name, queues, clients)) == sorted(clients)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@given(queues=QUEUES, clients=CLIENTS, random=st.randoms(use_true_random=False))
def test_the_order_in_which_they_are_named_does_not_matter(name, queues, clients, random):
    """Members and routes come in any order; the same group must get the same answer."""
    expected = allocate(name, queues, clients)
    random.shuffle(queues)
    random.shuffle(clients)

    assert allocate(name, queues, clients) == expected


@pytest.mark.parametrize("name", ["AVG", "AVG_BY_CIRCLE"])
@given(queues=QUEUES, clients=CLIENTS)
def test_an_even_strategy_gives_each_client_as_many_as_any_other_but_one(name, queues, clients):
    """A topic at a time: over several topics the first clients may get one more of each."""
    for topic in ("orders", "payments"):
        shares = allocate(name, [queue for queue in queues if queue.topic == topic], clients)
        sizes = sorted(len(share) for share in shares.values())
        assert sizes[-1] - sizes[0] <= 1


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@given(
    queues=QUEUES,
    subscriptions=st.dictionaries(
        st.sampled_from("abcd"), st.sets(st.sampled_from(["orders", "payments"])), min_size=1
    ),
)
def test_a_topic_is_shared_among_its_subscribers_only(name, queues, subscriptions):
    """RocketMQ gives queues to members that do not want them, and nobody consumes those."""
    shares = allocate(name, queues, subscriptions, subscriptions=subscriptions)

    strays = [
        (client, queue)
        for client, share in shares.items()
        for queue in share
        if queue.topic not in subscriptions[client]
    ]
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert strays == []
    assert sorted(queue for share in shares.values() for queue in share) == sorted(
        queue for queue in queues if queue.topic in wanted
    )


def test_a_strategy_that_nobody_knows_is_named_with_those_there_are():
    known = ", ".join(sorted(STRATEGIES))
    with pytest.raises(StrategyError, match=f"no strategy 'BEST'; there are: {known}"):
        allocate("BEST", [], ["a"])


# --- golden: what RocketMQ 5.5.0 answers ---


def golden_cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines()]


ALLOCATIONS = [case for case in golden_cases("allocation.jsonl") if not case["case"].startswith("error")]
COVERED = [case for case in ALLOCATIONS if case["strategy"] in STRATEGIES]


@pytest.mark.parametrize("case", COVERED, ids=lambda case: f"{case['id']}-{case['strategy']}-{case['case']}")
def test_a_strategy_answers_as_rocketmq_does(case):
    """Whoever moves over from RocketMQ keeps the assignment he had; a duplicate id included."""
    queues = [Queue(queue["topic"], queue["broker"], queue["queue_id"]) for queue in case["queues"]]

    shares = allocate(case["strategy"], queues, case["consumers"], case["params"], presorted=not case["sort"])

    # An id that is not a consumer was asked about too: it gets nothing.
    assert {
        client: [[queue.broker, queue.queue_id] for queue in shares.get(client, [])] for client in case["expected"]
    } == case["expected"]


def test_the_golden_cases_are_covered_as_far_as_strategies_exist(capsys):
    """A strategy that is added takes its cases with it; none may fall out silently."""
    by_strategy = Counter(case["strategy"] for case in COVERED)
    with capsys.disabled():
        print(
            f" [{len(COVERED)} of {len(ALLOCATIONS)} golden allocations: {dict(sorted(by_strategy.items()))}] ", end=""
        )

    assert {"AVG", "AVG_BY_CIRCLE"} <= by_strategy.keys()


@pytest.mark.parametrize("case", golden_cases("sort_order.jsonl"), ids=lambda case: str(case["id"]))
def test_names_sort_as_java_sorts_them(case):
    """By UTF-16 code units: "a10" before "a9", capitals first, an emoji before U+E000."""
    assert sorted(case["consumers"], key=java_order) == case["consumers_sorted"]
