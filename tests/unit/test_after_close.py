"""A closed object of the SDK: each method but `close` says so, instead of an empty or accidental answer."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Message

from wakeroll import Admin, AsyncConsumer, Consumer, DeadLetters, InvalidUsage, Producer
from wakeroll.testing import MemoryBroker
from wakeroll_model.queue import Queue

QUEUE = ("orders", 0)
ARGUMENTS: dict[type, tuple[Any, ...]] = {Consumer: ("billing", ["orders"]), DeadLetters: ("billing",)}
CALLS: dict[type, dict[str, tuple[Any, ...]]] = {
    Consumer: {
        "join": (),
        "assignment": (),
        "commit": (),
        "committed": (QUEUE,),
        "consume": (10, 0),
        "done": (),
        "end_offset": (QUEUE,),
        "fetch": (QUEUE, 0, 0),
        "first_offset": (QUEUE,),
        "lag": (),
        "offsets_for_times": ({},),
        "pause": ([],),
        "paused": (),
        "poll": (0,),
        "position": (QUEUE,),
        "put_back": (),
        "queue_of": (Message(topic="orders", partition=0, offset=0),),
        "refused": (),
        "resume": ([],),
        "run": (print,),
        "seek": (QUEUE, 0),
        "stop": (),
        "subscribe": (["orders"],),
        "subscription": (),
    },
    Producer: {"flush": (), "send": ("orders", b"1"), "send_and_wait": ("orders", b"1")},
    Admin: {
        "configure": ("billing",),
        "delete_group": ("billing",),
        "delete_offsets": ("billing", "orders"),
        "inspect": ("billing", "c1"),
        "kick": ("billing", "c1"),
        "pause": ("billing",),
        "plan_import": ("billing",),
        "plan_like": ("billing", "audit"),
        "plan_offsets": ("billing", {}, "to nothing"),
        "plan_reset": ("billing", "first"),
        "plan_skip": ("billing", Queue("orders", "", 0)),
        "readmit": ("billing", "c1"),
        "resume": ("billing",),
    },
    DeadLetters: {"drop": ([],), "get": (0,), "groups": (), "open": (), "resend": ([],)},
}
"""The methods, with arguments that are valid."""
OTHERS = {"close", "reset"}
"""The methods that need no such error, and `Admin.reset`, whose plan only `plan_reset` makes."""


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        yield broker


def methods_of(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}


def call(one: Any, name: str, arguments: tuple[Any, ...]) -> None:
    """Call a method, and use its result if that is a generator or a coroutine."""
    result = getattr(one, name)(*arguments)
    if name == "open":
        next(result)
    if asyncio.iscoroutine(result):
        asyncio.run(result)


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_every_method_of_a_closed_object_says_so(broker, kind):
    """`assignment` returned nothing, and `pause` and `stop` did nothing, as if all were well."""
    assert methods_of(kind) == CALLS[kind].keys() | (OTHERS & methods_of(kind))
    one = kind(*ARGUMENTS.get(kind, ()), broker.bootstrap)
    one.close()

    for name, arguments in CALLS[kind].items():
        with pytest.raises(InvalidUsage, match=rf"^this {kind.__name__} is closed; create a new one$"):
            call(one, name, arguments)


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_an_object_may_be_closed_again(broker, kind):
    """Also by the `with` block around it."""
    with kind(*ARGUMENTS.get(kind, ()), broker.bootstrap) as one:
        one.close()
    one.close()


def test_every_method_of_a_closed_async_consumer_says_so(broker):
    """It has the methods of `Consumer`, except `put_back`, and `join`: ``async with`` joins."""
    assert methods_of(AsyncConsumer) == CALLS[Consumer].keys() - {"put_back", "join"} | {"close"}

    async def handle(messages: list[Any]) -> None:
        pass

    async def main() -> None:
        async with AsyncConsumer("billing", ["orders"], broker.bootstrap) as one:
            await one.close()
            for name, arguments in CALLS[Consumer].items():
                if name not in ("put_back", "join"):
                    with pytest.raises(InvalidUsage, match=r"^this AsyncConsumer is closed; create a new one$"):
                        await getattr(one, name)(*((handle,) if name == "run" else arguments))
        await one.close()

    asyncio.run(main())


def test_a_callback_of_close_may_still_use_the_consumer(broker):
    """`on_revoked` finishes open work in `close`, and commits it."""
    broker.send("orders", b"1")
    seen = []

    def revoked(consumer: Consumer, _queues: list[Any]) -> None:
        seen.append((consumer.assignment(), consumer.refused(), consumer.commit()))

    with Consumer("billing", ["orders"], broker.bootstrap, consume_from="first", on_revoked=revoked) as consumer:
        while consumer.poll() is None:
            pass

    assert seen == [([], 0, True)]
