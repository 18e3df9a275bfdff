"""A shard that is saved and loaded between records decides what one decides that goes on."""

import msgspec

from wakeroll_model import Queue
from wakeroll_model.events import Commit, CommittedOffset, Event, Heartbeat, Route, RoutedQueue, Subscription, Tick
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.shard import Shard

ORDERS = Queue("orders", "", 0)


def route(end, version="1"):
    queue = RoutedQueue(topic="orders", broker="", queue_id=0, max_offset=end)
    return Route(topic="orders", queues=[queue], version=version, topic_id="x")


def test_doubts_that_come_and_go_in_silence_are_indexed():
    """A group in doubt hears every route once, though it was saved and loaded since the doubt began."""
    names = {"group_id": "billing", "client_id": "c1", "instance_id": "i1"}
    events: list[Event] = [
        route(100),
        Heartbeat(**names, subscriptions=[Subscription(topic="orders")]),
        Commit(**names, epoch=1, offsets=[CommittedOffset(queue=ORDERS, offset=90)]),
        route(80),  # a doubt begins, and nothing is decided
        route(100),  # it ends
        route(80),
        route(100),
        route(80),
        Tick(),
        route(80, version="2"),
        Tick(),
        Tick(),
    ]
    goes_on = Shard("wakeroll.groups", 0, 1, raises=True)
    body = goes_on.body()
    for offset, event in enumerate(events):
        key = None if isinstance(event, Route | Tick) else b"billing"
        record = Record("wakeroll.groups", 0, offset, 1_000 * offset, key, msgspec.json.encode(event))
        loaded = Shard("wakeroll.groups", 0, 1, body, raises=True)
        said = [encode_decision(decision) for decision in loaded.apply(record)]
        body = loaded.body()
        assert said == [encode_decision(decision) for decision in goes_on.apply(record)], event
