"""`wakeroll groups`: which groups need attention, readable at any width."""

import json
from pathlib import Path

import pytest

from tests.support.delta_tables import write_tables
from tests.support.ledgers import a_day


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_tables(folder / "warehouse", a_day())
    return folder


@pytest.fixture
def groups(home, wakeroll):
    return lambda *words: wakeroll("groups", *words, "--home", str(home))


def rows(groups, *words: str) -> list[dict]:
    code, said, complaint = groups(*words, "--json")
    assert (code, complaint) == (0, "")
    return json.loads(said)["groups"]


def test_a_group_has_what_the_page_shows_of_it(groups, home, wakeroll):
    """One computation: the list and the page of a group cannot disagree."""
    for row in rows(groups):
        one = json.loads(wakeroll("describe", row["group_id"], "--json", "--home", str(home))[1])
        assert one["summary"] == row


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("bill*",), ["billing"]),
        (("billing", "aud?t", "--sort", "name"), ["audit", "billing"]),
        (("nothing-*",), []),
        (("--topic", "nowhere"), []),
        (("--sort", "name"), ["audit", "billing"]),
        (("--verdict", "healthy", "--verdict", "learning"), []),
    ],
)
def test_groups_are_selected_and_sorted(groups, words, names):
    assert [one["group_id"] for one in rows(groups, *words)] == names


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("biling",), "no group 'biling'; did you mean billing?"),
        (("--verdict", "broken"), "verdict is 'broken'; it must be one of: attention, abandoned, stalled, "),
        (("--sort", "size"), "sort is 'size'; it must be one of: verdict, name, members, "),
    ],
)
def test_a_wrong_word_is_one_line_that_names_the_right_ones(groups, words, sentence):
    code, said, complaint = groups(*words)

    assert (code, said) == (2, "")
    assert complaint.startswith(f"wakeroll: {sentence}")
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_names_are_whole_and_lines_fit_at_any_width(groups, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    code, said, _ = groups()
    assert code == 0
    assert {"billing", "audit"} <= {line.split()[0] for line in said.splitlines()}
    assert max(map(len, said.splitlines())) <= int(columns)


def test_in_a_pipe_each_group_is_one_line_with_its_whole_reason(groups):
    """For grep and awk."""
    _, said, _ = groups()
    reasons = [one["reason"] for one in rows(groups)]

    assert [line.endswith(reason) for line, reason in zip(said.splitlines()[-2:], reasons, strict=True)] == [True, True]
