"""BALANCED and SPREAD: nothing is more even, and with that nothing moves fewer queues.

Judged three ways: by bounds that were worked out for what Kafka's own assignors were asked, by trying every sharing of
a small group, and for larger ones by looking for an exchange, however long, that would be better.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wakeroll_model.balance import levels, quotas
from wakeroll_model.balance.hand_out import hand_out
from wakeroll_model.balance.regions import NOBODY, regions
from wakeroll_model.balance.transport import Offer
from wakeroll_model.queue import Queue
from wakeroll_model.strategies import avg, balanced, spread

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka" / "cases.jsonl"
ROOT = Path(__file__).parent.parent.parent

BOTH = pytest.mark.parametrize("strategy", [balanced, spread], ids=lambda module: module.NAME)

Shares = Mapping[str, Sequence[Queue]]


class Group(NamedTuple):
    """What a strategy is asked about."""

    topics: dict[str, list[Queue]]
    subscribers: dict[str, list[str]]
    previous: dict[Queue, str]

    @property
    def wanted(self) -> list[Queue]:
        return [queue for topic, queues in self.topics.items() if self.subscribers[topic] for queue in queues]

    def may_keep(self, queue: Queue) -> str | None:
        """Return who had a queue, if it still subscribes to its topic."""
        owner = self.previous.get(queue)
        return owner if owner in self.subscribers[queue.topic] else None


def group_of(sizes: Mapping[str, int], subscribers: Mapping[str, Sequence[str]] | Sequence[str]) -> Group:
    """Return a group that nobody has consumed in before; subscribers of all topics, or of each."""
    of_topic = subscribers if isinstance(subscribers, Mapping) else dict.fromkeys(sizes, subscribers)
    topics = {topic: [Queue(topic, "", i) for i in range(size)] for topic, size in sizes.items()}
    return Group(topics, {topic: list(of_topic[topic]) for topic in sizes}, {})


def ask(strategy: Any, group: Group) -> dict[str, list[Queue]]:
    answer: dict[str, list[Queue]] = strategy.assign_all(group.topics, group.subscribers, {}, group.previous)
    return answer


def owners(shares: Shares) -> dict[Queue, str]:
    return {queue: client for client, queues in shares.items() for queue in queues}


def cost(group: Group, owner_of: Mapping[Queue, str]) -> tuple[int, int]:
    """Return the sum of squares of the clients' numbers of queues, and the moves; smaller is better."""
    moved = sum(group.may_keep(queue) not in (None, owner) for queue, owner in owner_of.items())
    return sum(size**2 for size in Counter(owner_of.values()).values()), moved


def is_spread(group: Group, owner_of: Mapping[Queue, str]) -> bool:
    """Whether the numbers of queues of each topic differ by 1 at most among its subscribers."""
    numbers = Counter((queue.topic, owner) for queue, owner in owner_of.items())
    sizes = [[numbers[topic, client] for client in clients] for topic, clients in group.subscribers.items() if clients]
    return all(max(of_topic) - min(of_topic) <= 1 for of_topic in sizes)


def grown(seed: int, topics: int = 6, clients: int = 8, queues: int = 9) -> Group:
    """Return a group in the middle of its life: clients have gone, queues have come, somebody had too much."""
    random = Random(seed)
    names = [f"c{i}" for i in range(random.randint(1, clients))]
    sizes = {f"t{i}": random.randint(0, queues) for i in range(random.randint(1, topics))}
    wanted_by = random.randint(1, len(names))
    group = group_of(sizes, {topic: sorted(random.sample(names, random.randint(0, wanted_by))) for topic in sizes})
    # The first few had most of it; "gone" is nobody any more.
    had = [*names[:2] * random.randint(0, 8), *names, "gone"]
    for queue in chain.from_iterable(group.topics.values()):
        if random.random() < 0.9:
            group.previous[queue] = random.choice(had)
    return group


SEEDS = st.integers(0, 2**32)
"""Of groups: to let hypothesis draw each queue's owner would take longer than all the rest."""
GROUPS = SEEDS.map(grown)


# --- what Kafka's assignors were asked ---


def golden_cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


@BOTH
@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: str(case["case"]))
def test_a_golden_case_is_as_even_as_can_be_with_the_fewest_moves(strategy, case):
    """The bounds are exact: below them is nothing, and Kafka's own uniform assignor misses them in some cases."""
    members = case["members"]
    subscriptions = [case["subscribed"][i] for i in case["subscription_of"]]
    subscribers = {
        topic: [member for member, its_topics in zip(members, subscriptions, strict=True) if topic in its_topics]
        for topic in case["topics"]
    }
    group = group_of(case["topics"], subscribers)
    for topic, had in case["previous"].items():
        group.previous.update({Queue(topic, "", i): members[owner] for i, owner in enumerate(had) if owner >= 0})

    owner_of = owners(ask(strategy, group))

    best = case["best"]["balance_first" if strategy is balanced else "topic_spread_first"]
    assert sorted(owner_of) == sorted(group.wanted)
    assert cost(group, owner_of) == (best["sum_sq"], best["moved"])
    assert strategy is balanced or is_spread(group, owner_of)


# --- what is best ---


@BOTH
@given(group=SEEDS.map(partial(grown, topics=3, clients=3, queues=3)))
def test_of_all_sharings_of_a_small_group_none_is_better(strategy, group):
    """Every one is tried."""
    queues = group.wanted[:7]
    small = Group(
        {topic: [queue for queue in its_queues if queue in queues] for topic, its_queues in group.topics.items()},
        group.subscribers,
        group.previous,
    )
    sharings = [
        dict(zip(queues, choice, strict=True))
        for choice in product(*(group.subscribers[queue.topic] for queue in queues))
    ]

    answer = owners(ask(strategy, small))

    allowed = [sharing for sharing in sharings if strategy is balanced or is_spread(small, sharing)]
    assert answer in allowed
    assert cost(small, answer) == min(cost(small, sharing) for sharing in allowed)


@BOTH
@settings(max_examples=400)  # a sharing that is nearly the best is found by few of them
@given(group=GROUPS)
def test_no_exchange_however_long_would_be_better(strategy, group):
    """What cannot be improved by handing queues round, one each, is the best there is: costs are convex."""
    shares = ask(strategy, group)

    assert list(better_exchanges(group, shares, keeps_spread=strategy is spread)) == []


def better_exchanges(group: Group, shares: Shares, *, keeps_spread: bool) -> Iterator[str]:
    """Yield exchanges after which the shares would be more even, or as even with fewer moves."""
    sizes = {client: len(queues) for client, queues in shares.items()}
    moves = cheapest_steps(group, owners(shares), keeps_spread=keeps_spread)
    for via, giver, taker in product(sizes, repeat=3):
        if (giver, via) in moves and (via, taker) in moves:
            longer = moves[giver, via] + moves[via, taker]
            moves[giver, taker] = min(longer, moves.get((giver, taker), longer))
    for (giver, taker), more_moves in moves.items():
        gain = sizes[giver] - sizes[taker] - 1 if giver != taker else 0
        if gain > 0 or (gain == 0 and more_moves < 0):
            yield f"{giver} hands on to {taker}: {sizes[giver]} and {sizes[taker]} queues, {more_moves} more moves"


def cheapest_steps(group: Group, owner_of: Mapping[Queue, str], *, keeps_spread: bool) -> dict[tuple[str, str], int]:
    """Return (giver, taker) -> the moves added, if that client hands a queue of some topic to the other."""
    steps: dict[tuple[str, str], int] = {}
    for topic, queues in group.topics.items():
        clients = group.subscribers[topic]
        has = Counter(owner_of[queue] for queue in queues if clients)
        had = Counter(group.may_keep(queue) for queue in queues)
        size = len(queues) // len(clients) if clients else 0
        for giver, taker in product(clients, repeat=2):
            if giver == taker or not has[giver] or (keeps_spread and (has[giver] == size or has[taker] > size)):
                continue
            added = (has[giver] <= had[giver]) - (has[taker] < had[taker])
            steps[giver, taker] = min(added, steps.get((giver, taker), added))
    return steps


def test_an_exchange_that_would_be_better_is_found():
    """The judge of the test above is not blind: uneven shares, and a needless move, are seen."""
    group = group_of({"t0": 1, "t1": 1}, ["a", "b"])
    [zero], [one] = group.topics.values()
    group.previous.update({zero: "a", one: "b"})

    uneven = better_exchanges(group, {"a": [zero, one], "b": []}, keeps_spread=False)
    needless = better_exchanges(group, {"a": [one], "b": [zero]}, keeps_spread=False)
    best = better_exchanges(group, {"a": [zero], "b": [one]}, keeps_spread=False)

    assert list(uneven) == ["a hands on to b: 2 and 0 queues, -1 more moves"]
    assert "a hands on to a: 1 and 1 queues, -2 more moves" in needless
    assert list(best) == []


@given(
    had=st.lists(st.integers(NOBODY, 6), min_size=1, max_size=60),
    clients=st.integers(7, 9),
)
def test_quotas_are_as_good_as_the_flow_where_everybody_subscribes_to_everything(had, clients):
    """Two ways to the same optimum: the short one is for the most frequent groups."""
    by_quota = quotas.share(had, clients)

    stays = Counter(client for client in had if client != NOBODY)
    [numbers] = levels.share([Offer(len(had), len(had), (1 << clients) - 1, dict(stays))], [0] * clients)
    by_flow = hand_out(had, numbers)
    for one in (by_quota, by_flow):
        assert (
            max(Counter(one).values()) - min(Counter({**dict.fromkeys(range(clients), 0), **Counter(one)}).values())
            <= 1
        )
    kept = [sum(now == before for now, before in zip(one, had, strict=True)) for one in (by_quota, by_flow)]
    assert kept[0] == kept[1]


# --- what always holds ---


@BOTH
@given(group=GROUPS)
def test_every_queue_goes_to_exactly_one_of_its_subscribers(strategy, group):
    """A queue of a topic that nobody wants goes to nobody."""
    shares = ask(strategy, group)

    assert sorted(chain.from_iterable(shares.values())) == sorted(group.wanted)
    assert all(client in group.subscribers[queue.topic] for queue, client in owners(shares).items())


@BOTH
@given(group=GROUPS)
def test_every_client_is_in_the_answer_and_its_queues_are_in_order(strategy, group):
    """Who gets nothing must be told so; and the same share must look the same."""
    shares = ask(strategy, group)

    assert sorted(shares) == sorted(set(chain.from_iterable(group.subscribers.values())))
    assert all(queues == sorted(queues) for queues in shares.values())


@BOTH
@given(group=GROUPS, seed=SEEDS)
def test_the_order_in_which_they_are_named_decides_nothing(strategy, group, seed):
    """Topics, members and owners come out of dictionaries."""
    expected = ask(strategy, group)

    def shuffled(items: Collection[Any]) -> list[Any]:
        return Random(seed).sample(list(items), len(items))

    members = {topic: shuffled(clients) for topic, clients in group.subscribers.items()}
    other = Group(*(dict(shuffled(named.items())) for named in (group.topics, members, group.previous)))

    assert ask(strategy, other) == expected


@BOTH
@given(group=GROUPS)
def test_asked_again_nothing_moves(strategy, group):
    """The timer asks every 20 s."""
    shares = ask(strategy, group)

    assert ask(strategy, group._replace(previous=owners(shares))) == shares


@given(group=GROUPS)
def test_spread_spreads_every_topic(group):
    assert is_spread(group, owners(ask(spread, group)))


@given(group=GROUPS)
def test_to_spread_every_topic_costs_no_evenness_where_all_subscribe_to_all(group):
    """So in such a group there is no reason to choose BALANCED but fewer moves."""
    alike = group._replace(subscribers={topic: ["c0", "c1", "c2"] for topic in group.topics})

    assert cost(alike, owners(ask(spread, alike)))[0] == cost(alike, owners(ask(balanced, alike)))[0]


# --- single cases ---


@pytest.mark.parametrize("topics", [1, 2, 7])
def test_two_clients_share_n_topics_of_five_queues_evenly(topics):
    """RocketMQ's #1945: AVG begins each topic with the first client, which gets 3 of every 5."""
    group = group_of({f"t{i}": 5 for i in range(topics)}, ["a", "b"])
    of_avg = [avg.assign(queues, ["a", "b"], {}) for queues in group.topics.values()]

    assert [sum(len(shares[client]) for shares in of_avg) for client in ("a", "b")] == [3 * topics, 2 * topics]
    shares = ask(spread, group)
    assert [len(shares[client]) for client in ("a", "b")] == [-(-5 * topics // 2), 5 * topics // 2]
    assert is_spread(group, owners(shares))


@BOTH
def test_who_joins_gets_its_share_and_nothing_else_moves(strategy):
    """AVG would move nearly everything (RocketMQ's #1334)."""
    clients = [f"c{i:02}" for i in range(20)]
    sizes = {f"t{i}": 50 for i in range(10)}
    before = owners(ask(strategy, group_of(sizes, clients)))

    group = group_of(sizes, [*clients, "new"])._replace(previous=before)
    shares = ask(strategy, group)

    assert len(shares["new"]) == 500 // 21
    assert cost(group, owners(shares))[1] == 500 // 21


@BOTH
def test_when_a_client_leaves_only_its_queues_go_to_others(strategy):
    clients = [f"c{i:02}" for i in range(7)]
    sizes = {f"t{i}": 13 for i in range(5)}
    before = owners(ask(strategy, group_of(sizes, clients)))

    group = group_of(sizes, clients[:3] + clients[4:])._replace(previous=before)

    assert cost(group, owners(ask(strategy, group)))[1] == 0


@BOTH
def test_a_client_gives_up_some_of_each_topic(strategy):
    """If it gave up the last ones, the newcomer would get one topic alone, with all of its peaks."""
    group = group_of({f"t{i}": 4 for i in range(4)}, ["a", "b"])
    group.previous.update(dict.fromkeys(group.wanted, "a"))

    shares = ask(strategy, group)

    assert [Counter(queue.topic for queue in shares[client]) for client in "ab"] == [
        {"t0": 2, "t1": 2, "t2": 2, "t3": 2}
    ] * 2


def test_balance_goes_before_spread_or_spread_before_balance():
    """Where subscriptions differ one has to give way: `a` can only have half of its topic, or all of it."""
    group = group_of({"t0": 2, "t1": 2}, {"t0": ["a", "b"], "t1": ["b"]})

    assert {client: len(queues) for client, queues in ask(balanced, group).items()} == {"a": 2, "b": 2}
    assert {client: len(queues) for client, queues in ask(spread, group).items()} == {"a": 1, "b": 3}


@BOTH
def test_a_topic_elsewhere_changes_nothing(strategy):
    """Who shares no topic with them, not even by others, must not make two clients move anything."""
    group = group_of({"t0": 5, "t1": 4}, ["a", "b"])
    more = group_of({"t0": 5, "t1": 4, "u": 90}, {"t0": ["a", "b"], "t1": ["a", "b"], "u": ["c", "d"]})

    assert ask(strategy, more).items() > ask(strategy, group).items()


def test_topics_that_share_a_client_by_others_are_one_region():
    """t0 and t2 have no client in common; t1 has one of each."""
    group = group_of({"t0": 1, "t1": 1, "t2": 1, "u": 1}, {"t0": "a", "t1": "ab", "t2": "b", "u": "c"})

    found = regions(group.topics, group.subscribers, ["a", "b", "c"], {})

    assert [(region.clients, len(region.queues)) for region in found] == [(["a", "b"], 3), (["c"], 1)]


def test_the_answer_does_not_hang_on_the_hash_seed():
    """A retried batch runs in another process, and must decide the same."""
    script = """
from wakeroll_model.queue import Queue
from wakeroll_model.strategies import balanced, spread, weighted
names = [f"client-{i}" for i in range(9)]
topics = {f"t{t}": [Queue(f"t{t}", "", i) for i in range(7)] for t in range(6)}
subscribers = {topic: sorted({names[i * 7 % (t + 4)] for i in range(t + 2)}) for t, topic in enumerate(topics)}
previous = {queue: names[(queue.queue_id * 3) % 5] for queues in topics.values() for queue in queues}
for strategy in (balanced, spread, weighted):
    print(strategy.assign_all(topics, subscribers, {}, previous))
"""
    answers = [
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]

    assert answers[0] == answers[1]
    assert answers[0].count("client-8") == 3
