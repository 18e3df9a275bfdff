"""Every story in this folder happens as it is told; ``pytest --rewrite`` tells it again.

`tests/support/story.py` says how a line reads.
"""

from functools import cache
from pathlib import Path

import pytest

from tests.support.story import Story
from wakeroll_model import invariants
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.replay import encode_decision

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@cache
def tell(path: Path) -> tuple[str, list[AnyDecision]]:
    """Return a story as it happens, and all that was decided in it."""
    story = Story()
    return story.tell(path.read_text(encoding="utf-8")), story.decisions


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_happens_as_it_is_told(path, request):
    """The stories are what a newcomer reads first; they must not lie."""
    told, _ = tell(path)

    if request.config.getoption("--rewrite"):
        path.write_text(told, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == told


# In the story `forgotten`, half a million ticks happen.
LONG = [pytest.param(path, marks=[pytest.mark.operate] if path.stem == "forgotten" else []) for path in STORIES]


@pytest.mark.parametrize("path", LONG, ids=lambda path: path.stem)
def test_a_story_does_not_depend_on_where_batches_end(path):
    """Spark cuts its batches anywhere: with the state saved and loaded before each line, every byte is the same."""
    _, decisions = tell(path)
    cut = Story(cut_often=True)

    cut.tell(path.read_text(encoding="utf-8"))

    assert list(map(encode_decision, cut.decisions)) == list(map(encode_decision, decisions))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_keeps_the_rules_that_always_hold(path):
    """Whatever happens in it: one owner a queue, epochs grow, no decision is lost or numbered twice."""
    _, decisions = tell(path)

    assert invariants.broken(decisions) == []


def test_every_story_says_first_what_it_is_about():
    """The first line is the list of contents: `head -1 *.txt` shows the rules."""
    assert {path.stem: path.read_text(encoding="utf-8")[:2] for path in STORIES} == {
        path.stem: "# " for path in STORIES
    }
