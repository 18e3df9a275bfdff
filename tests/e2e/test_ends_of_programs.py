"""Programs that end without `close`, at any moment: they end at once and in silence, and their member leaves."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running_processes import ROOT
from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import PATIENCE_S, wait_until
from wakeroll_model.decisions import Membership

pytestmark = pytest.mark.e2e

MESSAGES = 20

BEGIN = """
import asyncio, atexit, logging, sys, threading, time
atexit.register(time.sleep, 1)  # called after the consumers have left: daemon threads run that long without a group
from wakeroll import AsyncConsumer, Consumer

bootstrap, prefix, group_id, topic = sys.argv[1:]
settings = {"prefix": prefix, "client_id": group_id + "-member", "consume_from": "first", "commit_interval": None}
arguments = group_id, [topic], bootstrap
is_called = threading.Event()
# With `-X dev`, asyncio reports each step that took 0.1 s, as it may on a busy machine.
logging.getLogger("asyncio").addFilter(lambda record: not record.msg.startswith("Executing "))
"""
"""What each program begins with. Nothing is committed before a consumer leaves."""

ENDS = {
    "after poll": """
consumer = Consumer(*arguments, **settings)
while consumer.poll(30).offset() < 10:
    pass
""",
    "in sys.exit, in a function": """
def main():
    consumer = Consumer(*arguments, **settings)
    while consumer.poll(30).offset() < 10:
        pass
    sys.exit()

main()
""",
    "while a daemon thread polls": """
consumer = Consumer(*arguments, **settings)

def poll():
    while True:
        if (message := consumer.poll(30)) is not None and message.offset() == 10:
            is_called.set()

threading.Thread(target=poll, daemon=True).start()
is_called.wait()
""",
    "while a daemon thread runs": """
consumer = Consumer(*arguments, **settings)
threading.Thread(target=consumer.run, args=[lambda _: is_called.set()], daemon=True).start()
is_called.wait()
""",
    "while a call of the handler does not return": """
consumer = Consumer(*arguments, **settings)

def handle(messages):
    is_called.set()
    threading.Event().wait()

threading.Thread(target=consumer.run, args=[handle], daemon=True).start()
is_called.wait()
""",
    "while an async handler waits": """
consumer = Consumer(*arguments, **settings)

async def handle(messages):
    is_called.set()
    await asyncio.sleep(1_000)

threading.Thread(target=consumer.run, args=[handle], daemon=True).start()
is_called.wait()
""",
    "while another thread runs until it is stopped": """
consumer = Consumer(*arguments, **settings)

def handle(messages):
    is_called.set()
    if messages[-1].offset() == 19:
        consumer.stop()

threading.Thread(target=consumer.run, args=[handle]).start()
is_called.wait()
""",
    "while a daemon thread fetches": """
consumer = Consumer(*arguments, **settings)
consumer.poll(30)
threading.Thread(target=consumer.fetch, args=[(topic, 0), 20, 600], daemon=True).start()
""",
    "while a daemon thread joins": """
threading.Thread(target=Consumer, args=arguments, kwargs=settings, daemon=True).start()
""",
    "with an event loop that is not closed": """
async def main():
    consumer = AsyncConsumer(*arguments, **settings)
    await consumer.__aenter__()
    while (await consumer.poll(30)).offset() < 10:
        pass
    return consumer

consumer = asyncio.new_event_loop().run_until_complete(main())
""",
    "with asyncio.run, which cancels a poll": """
async def main():
    consumer = AsyncConsumer(*arguments, **settings)
    await consumer.__aenter__()

    async def poll():
        while True:
            await consumer.poll(30)

    polling = asyncio.create_task(poll())
    await asyncio.sleep(0.5)

asyncio.run(main())
""",
    "with asyncio.run, which cancels a run": """
async def main():
    consumer = AsyncConsumer(*arguments, **settings)
    await consumer.__aenter__()
    is_called = asyncio.Event()

    async def handle(messages):
        is_called.set()

    running = asyncio.create_task(consumer.run(handle))
    await is_called.wait()

asyncio.run(main())
""",
    "with asyncio.run, which cancels a fetch": """
async def main():
    consumer = AsyncConsumer(*arguments, **settings)
    await consumer.__aenter__()
    fetching = asyncio.create_task(consumer.fetch((topic, 0), 20, 600))
    await asyncio.sleep(0.5)

asyncio.run(main())
""",
    "with asyncio.run, which cancels a join": """
async def main():
    joining = asyncio.create_task(AsyncConsumer(*arguments, **settings).__aenter__())
    await asyncio.sleep(0)

asyncio.run(main())
""",
    "with a task that is cancelled while it leaves": """
async def main():
    consumer = AsyncConsumer(*arguments, **settings)
    await consumer.__aenter__()
    await consumer.poll(30)
    leaving = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)

asyncio.run(main())
""",
}


@pytest.fixture(scope="module")
def topic(coordinator: Coordinator) -> str:
    name = coordinator.topic(1)
    coordinator.produce(name, 0, MESSAGES)
    return name


@pytest.mark.parametrize("program", ENDS)
def test_a_program_ends_and_its_member_leaves(coordinator, topic, group_id, tmp_path: Path, program: str):
    """Python's own rule holds: it waits for threads that are no daemons."""
    file = tmp_path / "program.py"
    file.write_text(BEGIN + ENDS[program])
    connection = coordinator.connection
    arguments = [connection.bootstrap, connection.topics.prefix, group_id, topic]

    ended = subprocess.run(
        [sys.executable, "-X", "dev", str(file), *arguments],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")

    def changes() -> list[str]:
        return [
            decision.change
            for decision in coordinator.decided.copy()
            if isinstance(decision, Membership)
            and decision.group_id == group_id
            and decision.change in ("joined", "left", "expired")
        ]

    if any(beat.group_id == group_id for beat in coordinator.beats(f"{group_id}-member")):
        wait_until(lambda: changes()[-1:] in (["left"], ["expired"]), "it is no member any more", state=changes)
        assert changes() == ["joined", "left"]
