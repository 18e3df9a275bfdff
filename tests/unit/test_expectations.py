"""Errors about values say what is valid, in words that fit an option, a setting, a form and an argument alike."""

import re
from typing import Any

import msgspec
import pytest

from wakeroll.errors import InvalidUsage
from wakeroll.expectations import problem_in, problem_of
from wakeroll_model.events import Commit, Configure, Heartbeat, Reset, Subscription
from wakeroll_model.queue import Queue
from wakeroll_model.what_if import Variation
from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.questions.what_if_answers import alternatives
from wakeroll_pipeline.settings import InvalidSettings, Settings

FIELDS = {
    f"{struct.__name__}.{field.name}": field.type
    for struct in (Settings, Configure, Heartbeat, Reset, Commit, Subscription, Queue)
    for field in msgspec.structs.fields(struct)
}
WRONG: list[Any] = [
    None,
    -(10**19),
    10**19,
    3.5,
    "\0",
    "",
    "x" * 100_000,
    [1],
    ["x"] * 100_000,
    {"a": 1},
    {1: 1},
    [{"topic": 7}],
    [{"queue": {"topic": "a b", "queue_id": 1}, "offset": 1}],
    object(),
    b"x",
    True,
    float("nan"),
]
NOT_A_WORD = re.compile(r"`|\bNone\b|\bnull\b|\bstr\b|\bint\b|\bfloat\b|\bdict\b|\benum\b|\$|Literal")


@pytest.mark.parametrize("name", FIELDS)
def test_each_declared_value_says_what_it_must_be(name):
    refused = 0
    for value in WRONG:
        try:
            msgspec.convert(value, FIELDS[name])
        except msgspec.ValidationError as error:
            refused += 1
            sentence = problem_of("it", "?", FIELDS[name], error)
            assert re.match(r"it is '\?'; .* must be .", sentence), sentence
            assert not NOT_A_WORD.search(sentence.removeprefix("it is '?'")), sentence
    assert refused


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"mode": "both"}, "mode is 'both'; it must be broadcasting or clustering"),
        ({"consume_from": "earliest"}, "consume_from is 'earliest'; it must be first, last or timestamp"),
        ({"weight": 0}, "weight is 0; it must be a number of more than 0 and at most 1000000"),
        ({"room": 5}, "room is 5; it must be text of at most 255 characters"),
        ({"orderly": "yes"}, "orderly is 'yes'; it must be true or false"),
        ({"strategy_params": {1: 2}}, "strategy_params is {1: 2}; each name must be text"),
        (
            {"subscriptions": [{"topic": "a"}, {"topic": "b", "expression": 7}]},
            "subscriptions is [{'topic': 'a'}, {'topic': 'b', 'expression': 7}]; expression of item 2 must be text "
            "of at most 4096 characters",
        ),
        ({"weight": 1, "unknown": 3}, ""),
    ],
)
def test_the_value_and_the_valid_ones_are_named(values, sentence):
    assert problem_in(values, Heartbeat) == sentence


def test_a_setting_of_the_environment_is_text_and_is_named_with_what_it_must_be():
    with pytest.raises(InvalidSettings) as refused:
        load({"WAKEROLL_PARTITIONS": "4", "WAKEROLL_LOCKS": "none"})

    assert str(refused.value) == "invalid setting: locks is 'none'; it must be auto, file or lease"


def test_a_setting_of_a_what_if_is_checked_before_it_is_played():
    with pytest.raises(InvalidUsage, match="heartbeat_ms is 1; it must be a whole number from 100 to 86400000"):
        alternatives(Variation(settings={"heartbeat_ms": 1}), [])
