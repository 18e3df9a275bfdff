"""The allocation strategies: what must hold of every one, and what RocketMQ's own classes answer."""

import doctest
import importlib
import json
import pkgutil
import re
from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wakeroll_model.strategies
from wakeroll_model import Queue
from wakeroll_model.strategies import (
    STRATEGIES,
    StrategyError,
    Whole,
    allocate,
    consistent_hash,
    find,
    is_whole,
    java_order,
    needs_of,
)
from wakeroll_model.strategies.java import sort_clients, sort_queues, text_of

GOLDEN = Path(__file__).parent.parent / "golden" / "rocketmq"

NAMES = sorted({*STRATEGIES, "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE", "MACHINE_ROOM_NEARBY-CONSISTENT_HASH"})
WITH_OTHER_AIMS = {"CONFIG", "MACHINE_ROOM", "PINNED", "POP"}
"""They leave queues out or give them to several, as they are told to."""
SHARE_ALL = sorted({*NAMES} - WITH_OTHER_AIMS)

QUEUES = st.lists(
    st.sampled_from([Queue(t, b, i) for t in ("orders", "payments") for b in ("", "b-1") for i in range(12)]),
    unique=True,
    min_size=1,
)
CLIENTS = st.lists(st.text("abcXYZ019-", min_size=1, max_size=4), unique=True, min_size=1, max_size=12)


def params_for(clients) -> dict[str, Any]:
    """Everything that any strategy must be told; each takes what it needs."""
    return {
        "inner": "AVG",
        "consumer_rooms": {client: f"room {len(client) % 3}" for client in clients},
        "broker_rooms": {"": "room 1", "b-1": "room 3"},
        "consumeridcs": ["hz"],
        "message_queue_list": [["b-1", 3], ["", 5]],
        "pop_share_queue_num": 1,
    }


def of(shares) -> list[Queue]:
    """Return all queues that were given, sorted; those given twice stand twice."""
    return sorted(queue for share in shares.values() for queue in share)


# --- every strategy ---


@given(queues=QUEUES, clients=CLIENTS)
def test_every_queue_has_exactly_one_owner(queues, clients):
    """Whatever the strategy: no queue is lost and none is consumed twice."""
    expected = sorted(queues)

    assert {name: of(allocate(name, queues, clients, params_for(clients))) for name in SHARE_ALL} == dict.fromkeys(
        SHARE_ALL, expected
    )


@given(queues=QUEUES, clients=CLIENTS)
def test_every_client_is_in_the_answer_and_nobody_else(queues, clients):
    """A client that gets nothing must be told so."""
    expected = sorted(clients)

    assert {name: sorted(allocate(name, queues, clients, params_for(clients))) for name in NAMES} == dict.fromkeys(
        NAMES, expected
    )


@given(queues=QUEUES, clients=CLIENTS, random=st.randoms(use_true_random=False))
def test_the_order_in_which_they_are_named_does_not_matter(queues, clients, random):
    """Members and routes come in any order; the same group must get the same answer."""
    params = params_for(clients)
    before = {name: allocate(name, queues, clients, params) for name in NAMES}
    random.shuffle(queues)
    random.shuffle(clients)

    assert {name: allocate(name, queues, clients, params) for name in NAMES} == before


@given(
    queues=QUEUES,
    subscriptions=st.dictionaries(
        st.sampled_from("abcd"), st.sets(st.sampled_from(["orders", "payments"])), min_size=1
    ),
)
def test_a_topic_is_shared_among_its_subscribers_only(queues, subscriptions):
    """RocketMQ gives queues to members that do not want them, and nobody consumes those."""
    params = params_for(subscriptions)
    answers = {name: allocate(name, queues, subscriptions, params, subscriptions=subscriptions) for name in NAMES}

    wanted = {topic for topics in subscriptions.values() for topic in topics}
    strays = [
        (name, client, queue)
        for name, shares in answers.items()
        for client, share in shares.items()
        for queue in share
        if queue.topic not in subscriptions[client]
    ]
    assert strays == []
    assert {name: of(answers[name]) for name in SHARE_ALL} == dict.fromkeys(
        SHARE_ALL, sorted(queue for queue in queues if queue.topic in wanted)
    )


@given(queues=QUEUES, clients=CLIENTS)
def test_an_even_strategy_gives_each_client_as_many_as_any_other_but_one(queues, clients):
    """A topic at a time: over several topics the first clients may get one more of each."""
    for name in ("AVG", "AVG_BY_CIRCLE"):
        for topic in {queue.topic for queue in queues}:
            shares = allocate(name, [queue for queue in queues if queue.topic == topic], clients)
            sizes = sorted(len(share) for share in shares.values())
            assert sizes[-1] - sizes[0] <= 1


@given(queues=QUEUES, clients=CLIENTS)
def test_a_room_with_clients_keeps_its_queues(queues, clients):
    """That is what it is for: traffic between rooms costs money; all others help where nobody is near."""
    params = params_for(clients)
    of_client, of_broker = params["consumer_rooms"], params["broker_rooms"]
    shares = allocate("MACHINE_ROOM_NEARBY-AVG", queues, clients, params)

    far = [
        (client, queue)
        for client, share in shares.items()
        for queue in share
        if of_broker[queue.broker] in of_client.values() and of_broker[queue.broker] != of_client[client]
    ]
    assert far == []


@given(queues=QUEUES, clients=CLIENTS.filter(lambda clients: len(clients) > 1))
def test_with_consistent_hash_a_client_that_leaves_moves_only_its_own_queues(queues, clients):
    """What AVG cannot do: everybody else keeps what he had; and the other way round for one that joins."""
    gone, *rest = clients
    before = allocate("CONSISTENT_HASH", queues, clients)
    after = allocate("CONSISTENT_HASH", queues, rest)

    assert [client for client in rest if not set(before[client]) <= set(after[client])] == []
    assert of({client: set(after[client]) - set(before[client]) for client in rest}) == sorted(before[gone])


@given(queues=QUEUES.filter(lambda queues: len(queues) > 1), clients=CLIENTS)
def test_with_consistent_hash_a_queue_that_goes_moves_no_other(queues, clients):
    gone, *rest = queues
    before = allocate("CONSISTENT_HASH", queues, clients)
    after = allocate("CONSISTENT_HASH", rest, clients)

    assert after == {client: [queue for queue in share if queue != gone] for client, share in before.items()}


def test_what_the_strategies_say_of_themselves_is_so():
    """The examples of their modules run."""
    results = [
        doctest.testmod(importlib.import_module(f"wakeroll_model.strategies.{found.name}"))
        for found in pkgutil.iter_modules(wakeroll_model.strategies.__path__)
    ]

    assert sum(result.attempted for result in results) > 0
    assert sum(result.failed for result in results) == 0


# --- how a strategy is found and asked ---


def test_a_strategy_that_nobody_knows_is_named_with_those_there_are():
    known = re.escape(", ".join(sorted(STRATEGIES.keys() - {"PINNED"})))
    with pytest.raises(StrategyError, match=f"no strategy 'BEST'; there are: {known}"):
        allocate("BEST", [], ["a"])


@pytest.mark.parametrize("name", ["AVG-AVG", "MACHINE_ROOM_NEARBY-", "MACHINE_ROOM_NEARBY-POP", "-AVG"])
def test_a_name_goes_on_with_another_only_where_that_means_something(name):
    """Else a slip of the pen would quietly be AVG, or a strategy would ask itself for ever."""
    with pytest.raises(StrategyError, match="no strategy"):
        find(name)
    with pytest.raises(StrategyError, match="no strategy 'POP' that works inside another"):
        allocate("POP", [Queue("orders", "", 0)], ["a"], {"inner": "POP"})


def test_a_strategy_says_what_it_needs_to_know():
    """Whoever runs it works out the rooms of 10,000 queues only for a strategy that looks at them."""
    assert needs_of("AVG") == needs_of("BEST") == ()
    assert needs_of("MACHINE_ROOM_NEARBY-AVG") == ("consumer_rooms", "queue_rooms")
    assert not is_whole("AVG")
    assert not is_whole("BEST")


def test_a_strategy_over_all_topics_is_asked_once_and_told_who_had_what(monkeypatch):
    """It gets topics that somebody wants, each client once, and what it answers is given on."""
    asked = []

    def assign_all(topics, subscribers, params, previous, /):
        asked.append((topics, subscribers, params, previous))
        return {"b": topics["orders"]}

    monkeypatch.setitem(STRATEGIES, "ALL", Whole(assign_all))
    orders, payments, refunds = (Queue(topic, "", 0) for topic in ("orders", "payments", "refunds"))
    subscriptions = {"a": {"orders", "payments"}, "b": ["orders"]}
    shares = allocate(
        "ALL",
        [refunds, payments, orders],
        ["b", "a", "b", "c"],
        {"x": 1},
        subscriptions=subscriptions,
        previous={orders: "a"},
    )

    assert is_whole("ALL")
    assert shares == {"a": [], "b": [orders], "c": []}
    assert asked == [
        (
            {"orders": [orders], "payments": [payments]},
            {"orders": ["a", "b"], "payments": ["a"]},
            {"x": 1},
            {orders: "a"},
        )
    ]
    assert allocate("ALL", [], ["a"]) == {"a": []}
    assert len(asked) == 1


def test_presorted_queues_and_clients_stay_in_the_order_given():
    """Also when topics alternate: the queues of each are taken together."""
    queues = [Queue("b", "", 1), Queue("a", "", 7), Queue("b", "", 0), Queue("a", "", 2)]
    shares = allocate("AVG", queues, ["z", "c"], presorted=True)

    assert shares == {"z": [Queue("b", "", 1), Queue("a", "", 7)], "c": [Queue("b", "", 0), Queue("a", "", 2)]}


# --- parameters and facts ---


def test_the_rooms_of_queues_serve_where_brokers_have_none():
    """Kafka's queues have no broker, but the rack of their leader; what a user says of a broker goes before it."""
    queues = [Queue("orders", "", 0), Queue("orders", "", 1), Queue("orders", "b-1", 0)]
    facts = {
        "consumer_rooms": {"a": "r1", "b": "r2"},
        "queue_rooms": dict(zip(queues, ["r2", "r1", "r2"], strict=True)),
    }

    nearby = allocate("MACHINE_ROOM_NEARBY-AVG", queues, ["a", "b"], {**facts, "broker_rooms": {"b-1": "r1"}})

    assert nearby == {"a": [queues[1], queues[2]], "b": [queues[0]]}


def test_a_configured_list_names_queues_in_any_way_and_each_topic_has_its_own():
    """JSON from a client, or queues from Python; a pair is a queue of whatever topic is shared."""
    listed = [
        Queue("orders", "", 0),
        {"topic": "orders", "queue_id": 1},
        ["", 2],
        {"topic": "x", "broker": "b", "queue_id": 3},
    ]
    queues = [Queue(topic, "", number) for topic in ("orders", "payments") for number in range(4)]

    shares = allocate("CONFIG", queues, ["a"], {"message_queue_list": listed})

    assert [str(queue) for queue in shares["a"]] == ["orders-0", "orders-1", "orders-2", "payments-2"]


TWO = [Queue("orders", "hz@b-1", 0), Queue("orders", "hz@b-1", 1)]
ROOMS = {"consumer_rooms": {"a": "r"}, "broker_rooms": {"hz@b-1": "r"}}


@pytest.mark.parametrize(
    ("name", "params", "complaint"),
    [
        ("AVG", ["inner"], "the parameters of AVG are ['inner']; they must be an object of names and values"),
        ("CONSISTENT_HASH", {"virtual_node_cnt": "10"}, "virtual_node_cnt is '10'; it must be a whole number"),
        ("CONSISTENT_HASH", {"virtual_node_cnt": 1.5}, "virtual_node_cnt is 1.5; it must be a whole number"),
        ("CONSISTENT_HASH", {"virtual_node_cnt": True}, "virtual_node_cnt is True; it must be a whole number"),
        ("CONSISTENT_HASH", {"virtual_node_cnt": 1_001}, "is 1001 for 1 clients; expected at most 1000"),
        ("CONFIG", {"message_queue_list": {"orders": 1}}, "message_queue_list is {'orders': 1}; it must be a list"),
        ("CONFIG", {"message_queue_list": "orders"}, "message_queue_list is 'orders'; it must be a list of queues"),
        ("CONFIG", {"message_queue_list": [7]}, "message_queue_list has 7; a queue is an object of topic, broker"),
        ("CONFIG", {"message_queue_list": [["b", "7"]]}, "message_queue_list has ['b', '7']; a queue is"),
        ("CONFIG", {"message_queue_list": [{"topic": "t", "broker": 1, "queue_id": 1}]}, "message_queue_list has {"),
        ("CONFIG", {"message_queue_list": ["x" * 5_000]}, "message_queue_list has '" + "x" * 96 + "...; a queue"),
        ("MACHINE_ROOM", {}, "MACHINE_ROOM requires consumeridcs"),
        ("MACHINE_ROOM", {"consumeridcs": "hz"}, "consumeridcs is 'hz'; it must be a list of texts"),
        ("MACHINE_ROOM", {"consumeridcs": [["hz"]]}, "consumeridcs is [['hz']]; it must be a list of texts"),
        ("MACHINE_ROOM_NEARBY", {**ROOMS, "inner": ["AVG"]}, "no strategy ['AVG'] that works inside another"),
        ("MACHINE_ROOM_NEARBY-BEST", ROOMS, "no strategy 'BEST' that works inside another; there are: AVG, AVG_BY"),
        ("MACHINE_ROOM_NEARBY-AVG", {}, "machineRoomResolver is null"),
        ("MACHINE_ROOM_NEARBY-AVG", {**ROOMS, "consumer_rooms": ["r"]}, "consumer_rooms is ['r']; it must be an"),
        ("MACHINE_ROOM_NEARBY-AVG", {**ROOMS, "consumer_rooms": {"a": 7}}, "consumer_rooms has 7 for a; it must"),
        ("MACHINE_ROOM_NEARBY-AVG", {**ROOMS, "consumer_rooms": {}}, "Machine room is null for consumer id a"),
        (
            "MACHINE_ROOM_NEARBY-AVG",
            {**ROOMS, "broker_rooms": {"hz@b-1": ""}},
            "Machine room is null for mq MessageQueue [topic=orders, brokerName=hz@b-1, queueId=0]",
        ),
        ("POP", {"pop_share_queue_num": "1"}, "pop_share_queue_num is '1'; it must be a whole number"),
        ("POP", {"strategy": "BEST"}, "no strategy 'BEST' that works inside another"),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_named(name, params, complaint):
    """They come from a client's JSON: its group's operator reads this, and nothing else breaks."""
    with pytest.raises(StrategyError, match=re.escape(complaint)):
        allocate(name, TWO, ["a"], params)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab", max_size=2)
JSON = PLAIN | st.lists(PLAIN | st.lists(PLAIN, max_size=2), max_size=2)
JSON |= st.dictionaries(st.sampled_from(["a", "hz@b-1", "topic", "queue_id"]), JSON, max_size=2)


@given(params=st.dictionaries(st.sampled_from(sorted(params_for(["a"]))) | st.just("virtual_node_cnt"), JSON))
def test_whatever_a_client_sends_as_parameters_is_used_or_refused(params):
    """Nothing else may come of it: no other exception, nobody who is no member."""
    for name in NAMES:
        with suppress(StrategyError):
            assert set(allocate(name, TWO, ["a"], params)) == {"a"}


def test_a_ring_or_an_answer_that_would_hold_up_its_shard_is_refused():
    """A client names the strategy's parameters; the other groups must not wait for it."""
    clients = [f"c{number}" for number in range(1_001)]
    with pytest.raises(StrategyError, match=r"virtual_node_cnt is 100 for 1001 clients; expected .* 100000 in total"):
        allocate("CONSISTENT_HASH", TWO, clients, {"virtual_node_cnt": 100})
    with pytest.raises(StrategyError, match=r"pop_share_queue_num is 999 for 1001 queues; expected at most 1000000"):
        allocate("POP", [Queue("orders", "", i) for i in range(1_001)], clients, {"pop_share_queue_num": 999})


# --- golden: what RocketMQ 5.5.0 answers ---


def golden_cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines()]


def java_allocations() -> list[dict[str, Any]]:
    """Return the cases of RocketMQ's strategies and of its pop share, those in the form of these."""
    pops = [
        {
            **case,
            "strategy": "POP",
            "params": {"inner": case["strategy"], "pop_share_queue_num": case["pop_share_queue_num"]},
            "case": case["strategy"],
            "sort": True,
        }
        for case in golden_cases("pop_assignment.jsonl")
    ]
    return [*golden_cases("allocation.jsonl"), *pops]


def java_answers(case: dict[str, Any]) -> dict[str, Any]:
    """Return client that asks -> what Java answers it: [broker, queue_id], or the message that it throws.

    A null answer is nothing to RocketMQ's clients; an id that is null or not asked for stands as an empty one.
    """
    if "expected" in case:
        thrown = {asking: error["message"] for asking, error in case.get("errors", {}).items()}
        return {asking: share or [] for asking, share in case["expected"].items()} | thrown
    return {case.get("current") or "": case["result"] if "result" in case else case["error"]["message"]}


def our_answer(case: dict[str, Any], asking: str) -> list[list[Any]] | str:
    """Return what we give a client that asks, or the message of our refusal.

    Java is asked by one client, we for all members.  Who is none gets nothing, but by CONFIG, which looks at no
    members; and to refuse an empty id, it must be among them.
    """
    members = case.get("consumers") or []
    if asking not in members and (case["strategy"] == "CONFIG" or not asking):
        members = [*members, asking]
    queues = [queue_of(queue) for queue in case.get("queues") or []]
    try:
        shares = allocate(case["strategy"], queues, members, case["params"], presorted=not case.get("sort"))
    except StrategyError as error:
        return str(error)
    return [[queue.broker, queue.queue_id] for queue in shares.get(asking, [])]


def differences(case: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return client that asks -> (our answer, Java's), where ours is another; a refusal may say more than Java's."""
    pairs = {asking: (our_answer(case, asking), java) for asking, java in java_answers(case).items()}
    return {
        asking: (ours, java)
        for asking, (ours, java) in pairs.items()
        if not (java in ours if isinstance(ours, str) and isinstance(java, str) else ours == java)
    }


def queue_of(given: dict[str, Any]) -> Queue:
    return Queue(given["topic"], given["broker"], given["queue_id"])


@pytest.mark.parametrize("case", java_allocations(), ids=lambda case: f"{case['strategy']}-{case['id']}-{case['case']}")
def test_a_strategy_answers_as_rocketmq_does(case):
    """Whoever moves over from RocketMQ keeps the assignment he had; duplicate ids and refusals included."""
    assert differences(case) == {}


def test_all_golden_cases_are_answered_as_rocketmq_does(tell):
    """A strategy that is missing would show here: no case may fall out silently."""
    cases = java_allocations()
    right = Counter(case["strategy"] for case in cases if not differences(case))
    tell(f"{right.total()} of {len(cases)} golden answers: {dict(sorted(right.items()))}")

    assert right == Counter(case["strategy"] for case in cases)
    assert right.total() == 97


@pytest.mark.parametrize("case", golden_cases("sort_order.jsonl"), ids=lambda case: str(case["id"]))
def test_names_sort_as_java_sorts_them(case):
    """By UTF-16 code units: "a10" before "a9", capitals first, an emoji before U+E000; and numbers as numbers."""
    queues = sort_queues(queue_of(queue) for queue in case["queues"])
    texts = case["queue_text_of_first"]

    assert sort_clients(case["consumers"]) == case["consumers_sorted"] == sorted(case["consumers"], key=java_order)
    assert queues == [queue_of(queue) for queue in case["queues_sorted"]]
    assert [text_of(queue) for queue in queues[: len(texts)]] == texts


@given(st.data())
def test_few_queues_find_the_owner_that_the_whole_ring_gives_them(data):
    """A topic of few queues is shared without a ring, by the points of each client."""
    clients = data.draw(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=8, unique=True))
    count = data.draw(st.integers(1, 60))
    queues = [Queue("orders", "b", number) for number in range(data.draw(st.integers(1, 30)))]
    points, owners = consistent_hash._ring(tuple(clients), count)

    for queue in queues:
        at = consistent_hash._hash(text_of(queue))
        assert consistent_hash._nearest(clients, count, at) == owners[bisect_left(points, at) % len(points)]


def test_many_topics_with_clients_of_their_own_cost_the_points_of_each_client_once(monkeypatch):
    """Else one heartbeat with many topics would stop a shard for seconds."""
    hashed, hash_of = Counter[str](), consistent_hash._hash
    monkeypatch.setattr(consistent_hash, "_hash", lambda text: (hashed.update([text]), hash_of(text))[1])
    consistent_hash._points.cache_clear()
    clients = [f"c{number}" for number in range(6)]
    for topic in range(100):
        some = clients[: 1 + topic % 6]
        consistent_hash.assign([Queue(f"t{topic}", "", 0)], some, {"virtual_node_cnt": 1_000})

    assert sum(hashed.values()) == 6 * 1_000 + 100


# --- PINNED ---


def pinned(pins: object, *, previous: dict[Queue, str] | None = None, **subscriptions: list[str]) -> dict[str, list]:
    queues = [Queue(topic, "", number) for topic in ("orders", "sent") for number in range(3)]
    wanted = subscriptions or {"a": ["orders", "sent"], "b": ["orders", "sent"]}
    shares = allocate("PINNED", queues, wanted, {"pins": pins}, subscriptions=wanted, previous=previous)
    return {client: [str(queue) for queue in share] for client, share in shares.items()}


def test_a_pinned_queue_goes_to_the_member_that_states_it_and_others_stay_free():
    assert pinned({"a": {"orders": [2, 0]}, "b": {"sent": [1]}}) == {"a": ["orders-0", "orders-2"], "b": ["sent-1"]}
    assert pinned({}) == {"a": [], "b": []}


def test_a_queue_that_two_members_state_stays_where_it_was():
    """A snapshot of another coordinator may show a queue at two members; there are never two owners."""
    both = {"a": {"orders": [1]}, "b": {"orders": [1]}}

    assert pinned(both) == {"a": ["orders-1"], "b": []}
    assert pinned(both, previous={Queue("orders", "", 1): "b"}) == {"a": [], "b": ["orders-1"]}
    assert pinned(both, previous={Queue("orders", "", 1): "c"}) == {"a": ["orders-1"], "b": []}


def test_statements_about_topics_that_a_member_does_not_subscribe_are_ignored():
    pins = {"a": {"orders": [0], "sent": [0], "unknown": [7]}, "gone": {"orders": [1]}}

    assert pinned(pins, a=["orders"], b=["sent"]) == {"a": ["orders-0"], "b": []}


def test_a_queue_of_a_broker_is_stated_with_its_broker():
    queues = [Queue("orders", broker, 0) for broker in ("b1", "b2")]

    assert allocate("PINNED", queues, ["a"], {"pins": {"a": {"orders@b2": [0]}}}) == {"a": [queues[1]]}


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ("all", "a is 'all'; it must be an object of names and values"),
        ({"orders": 1}, "queues of a has 1 for orders; it must be a list of numbers"),
        ({"orders": ["1"]}, "queues of a has '1' for orders; it must be the number of a queue"),
        ({"orders": [True]}, "queues of a has True for orders; it must be the number of a queue"),
        ({"orders": [-1]}, "queues of a has -1 for orders; it must be the number of a queue"),
    ],
)
def test_an_invalid_statement_is_named(stated, problem):
    with pytest.raises(StrategyError) as raised:
        pinned({"a": stated})
    assert problem in str(raised.value)
