"""docs/strategies.md: its pictures are what the strategies answer, and none of them is left out."""

import doctest
import re
from collections.abc import Mapping
from pathlib import Path

from wakeroll_model import Queue
from wakeroll_model.assignment_chart import rows_of, text_of
from wakeroll_model.strategies import STRATEGIES, allocate

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text(encoding="utf-8")


def queues(topic: str, count: int, *brokers: str) -> list[Queue]:
    """Make the queues of a topic, so many on each broker."""
    return [Queue(topic, broker, number) for broker in (brokers or ("",)) for number in range(count)]


def owners(shares: Mapping[str, list[Queue]]) -> dict[Queue, str]:
    """Turn an answer around: queue -> its client."""
    return {queue: client for client, share in shares.items() for queue in share}


def show(shares: Mapping[str, list[Queue]], before: Mapping[Queue, str] | None = None) -> None:
    """Print a line a client, a mark a queue: has it, has it now, has it not."""
    for client, row in rows_of(shares, before).items():
        print(f"{client:<3}", text_of(row))


def test_the_pictures_are_what_the_strategies_answer():
    blocks = "\n".join(re.findall(r"```pycon\n(.*?)```", PAGE, re.DOTALL))
    names = {"allocate": allocate, "queues": queues, "owners": owners, "show": show}
    told: list[str] = []

    story = doctest.DocTestParser().get_doctest(blocks, names, "docs/strategies.md", None, None)
    result = doctest.DocTestRunner(verbose=False).run(story, out=told.append)

    assert result.attempted > 20
    assert result.failed == 0, "".join(told)


def test_every_strategy_has_a_section_and_a_row():
    sections = set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE))
    rows = set(re.findall(r"^\| \[`(\w+?)(?:-…)?`\]", PAGE, re.MULTILINE))

    assert sections == set(STRATEGIES)
    assert rows == set(STRATEGIES)
