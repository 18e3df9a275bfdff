"""The programs on the pages for users of other clients are run as they stand, on a broker in memory."""

import inspect
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.testing import MemoryBroker
from wakeroll_model.group import GroupSettings

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("from-confluent-kafka.md", "from-aiokafka.md", "from-rocketmq.md", "processes.md")
PROGRAMS = [
    pytest.param(program, id=f"{page} {number}")
    for page in PAGES
    for number, program in enumerate(
        re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    )
]
WORKER = SimpleNamespace()
BEGINS: dict[str, Callable[[dict[str, Any]], object]] = {
    "post_worker_init": lambda names: names["post_worker_init"](WORKER),
    "begin": lambda names: names["begin"](),
    "work": lambda names: names["work"](0),
    "invoke": lambda names: names["print"](names["invoke"]({}, None)),
}
"""Name of a function -> what the platform does with it."""
ENDS: dict[str, Callable[[dict[str, Any]], object]] = {
    "worker_exit": lambda names: names["worker_exit"](None, WORKER),
    "end": lambda names: names["end"](),
    "consumer": lambda names: getattr(names["consumer"], "stop", print)(),
}


@pytest.fixture
def broker():
    with MemoryBroker() as broker:
        broker.create_topic("orders", queues=2)
        for number in range(3):
            broker.send("orders", f"order {number}", tags="paid")
        yield broker


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_receives_messages(broker, program):
    """What has an end ends by itself; a handler runs until its consumer stops."""
    source = program.replace("localhost:9092", broker.bootstrap).replace("timeout=5.0", "timeout=1.0")
    assert source != program
    printed: list[str] = []
    names: dict[str, Any] = {"__name__": "program", "print": lambda *words: printed.append(str(words))}
    problems: list[BaseException] = []

    def run() -> None:
        try:
            exec(compile(source, "program", "exec"), names)
            for name in BEGINS.keys() & names.keys():
                BEGINS[name](names)
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: problems or "order " in str(printed), "a message is printed")
    if "run(" in source or ".run," in source:
        for name in ENDS.keys() & names.keys():
            ENDS[name](names)
    thread.join(60)

    assert problems == []
    assert not thread.is_alive()


def test_the_table_of_timeouts_has_the_defaults_of_the_code():
    """Nobody looks for a wrong one there."""
    page = (DOCS / "processes.md").read_text(encoding="utf-8").partition("\n## Timeouts\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| (\d+) s \| (.+?) \|", page, flags=re.MULTILINE)
    assert len(rows) >= 10
    for name, seconds, where in rows:
        if name.endswith("_ms"):
            defaults = [getattr(GroupSettings(), name) / 1_000]
        else:
            methods = set(re.findall(r"`(\w+)`", where)) - {"Consumer"} or {"__init__"}
            defaults = [
                inspect.signature(getattr(Consumer, method)).parameters[name].default for method in sorted(methods)
            ]
        assert defaults == [float(seconds)] * len(defaults), (name, where)
