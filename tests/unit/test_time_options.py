"""The options that take a time: how it may be written, and what a relative one stands for."""

import re

import pytest

from tests.support.delta_tables import write_tables
from tests.support.ledgers import a_day

OPTIONS = [
    "explain --group billing --queue orders-3 --at",
    "what-if --group billing --add 1 --at",
    "sql select --at",
    "check --at",
    "replay --from",
    "replay --to",
    "reset-offsets billing --bootstrap 127.0.0.1:1 --to-time",
]
FORMS = "20m ago, a time like 2026-07-01T03:00:00Z, or epoch milliseconds"


@pytest.mark.parametrize("words", OPTIONS)
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("yesterday", f"'yesterday' is not a time; expected {FORMS}"),
        ("2026-07-01T03:00", "2026-07-01T03:00:00 has no time zone; write 2026-07-01T03:00:00Z, or like +02:00"),
    ],
)
def test_a_wrong_time_is_wrong_use_and_one_line_names_the_right_form(wakeroll, words, text, sentence):
    assert wakeroll(*words.split(), text) == (2, "", f"wakeroll: {sentence}\n")


@pytest.mark.parametrize("words", OPTIONS)
def test_the_help_names_the_forms(wakeroll, words):
    shown = " ".join(wakeroll(words.split()[0], "--help")[1].replace("│", " ").split())

    assert "TIME is 20m ago (or -20m), 2026-07-01T03:00:00Z, another zone such as +02:00, or epoch ms" in shown


@pytest.mark.parametrize("text", ["-20m", "20m ago", "1 hour ago"])
def test_the_moment_of_a_relative_time_is_shown_with_its_zone(wakeroll, tmp_path, text):
    """An operator who looks at an answer later must know of when it is."""
    write_tables(tmp_path / "warehouse", a_day())
    question = ("explain", "--group", "billing", "--queue", "orders-3", "--at", text)

    code, _, said = wakeroll(*question, "--home", str(tmp_path))

    assert code == 0
    assert re.fullmatch(rf"{text} is 20..-..-..T..:..:..\....Z\n", said)
