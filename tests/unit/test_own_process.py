"""Forks: objects with clients of Kafka refuse to work in a forked process, which has none of their threads."""

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator

import pytest

from wakeroll import Admin, AsyncConsumer, Consumer, DeadLetters, InvalidUsage, Producer, Queue
from wakeroll.reset import ResetPlan
from wakeroll.testing import MemoryBroker

REFUSED, ENDED_QUIETLY = 7, 0


@pytest.fixture
def broker():
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        yield broker


def in_a_fork(call: Callable[[], object]) -> tuple[int, str]:
    """Call in a forked process; return its exit code and the sentence of a refusal."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            call()
            code = ENDED_QUIETLY
        except InvalidUsage as problem:
            os.write(writer, str(problem).encode())
            code = REFUSED
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as told:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told.read()


CALLS = {
    Consumer: [lambda one: one.poll(0), lambda one: one.run(print), lambda one: one.fetch(("orders", 0), 0, 0)],
    Producer: [
        lambda one: one.send("orders", b"1"),
        lambda one: asyncio.run(one.send_and_wait("orders", b"1")),
        lambda one: one.flush(),
    ],
    Admin: [
        lambda one: one.plan_reset("billing", "first", topic="orders"),
        lambda one: one.configure("billing", strategy="SPREAD"),
    ],
    DeadLetters: [lambda one: list(one.open()), lambda one: one.resend("all"), lambda one: one.drop([1])],
}
ARGUMENTS = {Consumer: ("billing", ["orders"]), Producer: (), Admin: (), DeadLetters: ("billing",)}


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_a_fork_is_told_to_create_its_own(broker, kind):
    """Otherwise a producer accepts messages that are never sent, and the others wait for ever."""
    with kind(*ARGUMENTS[kind], broker.bootstrap) as one:
        for call in CALLS[kind]:
            code, sentence = in_a_fork(lambda call=call: call(one))
            assert (code, sentence.split(" was created in process ")[0]) == (REFUSED, f"this {kind.__name__}")
            assert sentence.endswith("is a fork: create a new one")
        assert in_a_fork(one.close) == (ENDED_QUIETLY, "")


async def handle(_messages: object) -> None:
    """Process everything."""


VALUES = {
    "group_id": "billing",
    "client_id": "c1",
    "topic": "orders",
    "topics": ["orders"],
    "queue": Queue("orders", "", 0),
    "where": "first",
    "other": "audit",
    "asked": "to nothing",
    "queues": [],
    "queue_id": 0,
    "offset": 0,
    "offsets": {},
    "first": 0,
    "end": 0,
    "times": {},
    "handler": handle,
    "message": None,
    "slices": 2,
    "value": b"1",
    "number": 0,
    "numbers": [0],
    "seconds": 1,
    "condition": bool,
    "plan": ResetPlan("billing", "first", ()),
}
"""Argument without a default -> a valid value."""
MORE = {"Admin.delete_offsets": {"topic": "orders"}}
"""Arguments that a method needs although they have defaults."""
NEEDS_NOTHING = {"close", "DeadLetters.groups"}
"""Methods that a fork may call: they need nothing of the other process."""


def methods_of(kind: type) -> Iterator[tuple[str, Callable[[object], object]]]:
    """Yield the public methods of a class, with a call of each."""
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name[0] == "_" or NEEDS_NOTHING & {name, f"{kind.__name__}.{name}"}:
            continue
        given = [
            VALUES[one.name]
            for one in list(inspect.signature(method).parameters.values())[1:]
            if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        more = MORE.get(f"{kind.__name__}.{name}", {})
        yield name, lambda one, name=name, given=given, more=more: getattr(one, name)(*given, **more)


def completed(result: object) -> object:
    """Return what a call returns, with all that a generator yields, or the result of a coroutine."""
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    return list(result) if inspect.isgenerator(result) else result


def outcomes_in_a_fork(kind: type, one: object, run: Callable[[object], object] = completed) -> dict[str, str]:
    """Call every method in a fork, and return the sentence of each refusal without the numbers of the processes."""
    found = {}
    for name, call in methods_of(kind):
        code, sentence = in_a_fork(lambda call=call: run(call(one)))
        found[name] = sentence.split(" was created in process ")[0] if code == REFUSED else f"ended with {code}"
    return found


@pytest.mark.parametrize("kind", [Consumer, Producer, Admin, DeadLetters], ids=lambda kind: kind.__name__)
def test_every_method_refuses_a_fork(broker, kind):
    """A method that a later release adds is tested too."""
    with kind(*ARGUMENTS[kind], broker.bootstrap) as one:
        found = outcomes_in_a_fork(kind, one)

    assert found == dict.fromkeys(found, f"this {kind.__name__}")


def test_every_method_of_a_broker_in_memory_refuses_a_fork(broker):
    found = outcomes_in_a_fork(MemoryBroker, broker)

    assert found == dict.fromkeys(found, "this MemoryBroker")
    assert in_a_fork(broker.close) == (ENDED_QUIETLY, "")
    assert broker.send("orders", b"1") == (Queue("orders", "", 0), 0)


def test_every_method_of_an_async_consumer_refuses_a_fork(broker):
    def awaited(result: object) -> object:
        asyncio._set_running_loop(None)
        return asyncio.new_event_loop().run_until_complete(result) if inspect.isawaitable(result) else result

    async def main() -> dict[str, str]:
        async with AsyncConsumer("billing", ["orders"], broker.bootstrap) as one:
            return outcomes_in_a_fork(AsyncConsumer, one, awaited)

    found = asyncio.run(main())

    assert {name: told for name, told in found.items() if told not in ("this AsyncConsumer", "this Consumer")} == {}


def test_a_producer_goes_on_in_its_own_process(broker):
    with Producer(broker.bootstrap) as producer:
        assert in_a_fork(lambda: producer.send("orders", b"fork"))[0] == REFUSED
        producer.send("orders", b"parent")

        assert producer.flush()
    with Consumer("readers", ["orders"], broker.bootstrap, consume_from="first") as consumer:
        found = consumer.poll(10)
        assert found is not None
        assert found.value() == b"parent"
        assert consumer.poll(0) is None


def test_an_async_consumer_refuses_a_fork_too(broker):
    async def main() -> list[tuple[int, str]]:
        def ended(call: Callable[[], Awaitable[object]]) -> object:
            asyncio._set_running_loop(None)
            return asyncio.new_event_loop().run_until_complete(call())

        async with AsyncConsumer("billing", ["orders"], broker.bootstrap) as one:
            await one.poll(0)
            return [in_a_fork(lambda: ended(one.poll)), in_a_fork(lambda: ended(one.close))]

    polled, closed = asyncio.run(main())

    assert polled[0] == REFUSED
    assert polled[1].startswith("this AsyncConsumer was created in process ")
    assert closed == (ENDED_QUIETLY, "")


def test_an_async_consumer_may_join_in_a_fork_of_the_process_that_prepared_it(broker):
    """As with a server that imports the application once, and then forks its workers."""
    prepared = AsyncConsumer("billing", ["orders"], broker.bootstrap)

    async def main() -> None:
        async with prepared as one:
            await one.poll(0)

    assert in_a_fork(lambda: asyncio.run(main())) == (ENDED_QUIETLY, "")
