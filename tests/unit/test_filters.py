"""Message filters: tags, codes and subscriptions, against what RocketMQ's own classes answer."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wakeroll_model import config
from wakeroll_model.filters import FilterError, ParsedSubscription, matches, parse, tags_code
from wakeroll_model.filters import subscription as subscription_module
from wakeroll_model.filters.matching import (
    matches_code,
    matches_code_of_any_type,
    matches_properties,
    matches_properties_of_retry,
)
from wakeroll_model.filters.subscription import Kept, is_tag_type

GOLDEN = Path(__file__).parent.parent / "golden" / "rocketmq"

WORDS = st.sampled_from(
    [
        "a", "b", "NOT", "AND", "OR", "IN", "IS", "NULL", "BETWEEN", "CONTAINS", "TRUE", "=", "<>", "<", ">=", "(", ")",
        ",", "-", "+", "1", "10", "3000000000", "1.5", "0.0", "'x'", "''", "'", "--", "/*", "*/", "\n", "#", "||", "*",
    ]
)  # fmt: skip
EXPRESSIONS = st.none() | st.text(max_size=40) | st.lists(WORDS, max_size=14).map(" ".join)
TYPES = st.sampled_from([None, "", "TAG", "tag", "SQL92", "SQL92", "XX"])
TEXTS = st.text(max_size=6) | st.sampled_from(["1", "10.0", " 2 ", "true", "NaN", "0x1p3", "9" * 5_000])
PROPERTIES = st.none() | st.dictionaries(st.sampled_from(["a", "b", "TAGS"]), TEXTS)


def golden_cases(name: str) -> list[Any]:
    """Return the cases of a golden file, each named by its number."""
    lines = (GOLDEN / name).read_text(encoding="utf-8").splitlines()
    return [pytest.param(case, id=str(case["id"])) for case in map(json.loads, lines)]


CODES = golden_cases("tag_code.jsonl")
PARSED = golden_cases("subscription_parse.jsonl")
MATCHED = golden_cases("tag_match.jsonl")


# --- golden: what RocketMQ 5.5.0 answers ---


def test_the_golden_files_have_all_their_cases(tell):
    """All of them run below; a file that lost its lines would pass in silence."""
    counts = {"codes": len(CODES), "subscriptions": len(PARSED), "matches": len(MATCHED)}
    tell(f"{sum(counts.values())} golden filter cases: {counts}")

    assert counts == {"codes": 14, "subscriptions": 22, "matches": 35}


@pytest.mark.parametrize("case", CODES)
def test_a_code_is_the_one_that_rocketmq_keeps(case):
    """Producers, brokers and clients compute it apart; a wrong one loses messages."""
    assert tags_code(case["tags"]) == case["tags_code"]


@pytest.mark.parametrize("case", PARSED)
def test_an_expression_is_read_as_rocketmq_reads_it(case):
    expression, expression_type = case["sub_string"], case.get("type", "TAG")
    if "error" in case:
        with pytest.raises(FilterError, match=case["error"]["message"]):
            parse(expression, expression_type)
        return

    found, expected = parse(expression, expression_type), case["expected"]

    assert (found.expression, found.expression_type) == (expected["sub_string"], expected["expression_type"])
    assert (found.tags, found.codes) == (set(expected["tags"]), set(expected["codes"]))
    assert found.class_filter_mode == expected["class_filter_mode"]


@pytest.mark.parametrize("case", [case for case in PARSED if "is_tag_type" in case.values[0]])
def test_a_type_is_one_of_tags_or_not_as_in_rocketmq(case):
    """Upper and lower case are not the same: "tag" filters nothing."""
    assert is_tag_type(case["type"]) == case["is_tag_type"]


@pytest.mark.parametrize("case", MATCHED)
def test_a_message_matches_as_in_rocketmqs_filters(case):
    """The three filters of the broker, and then the client, which knows the tag itself."""
    subscription, code = subscription_of(case), case["tags_code"]

    assert matches_code_of_any_type(subscription, code) == case["default_filter"]
    assert matches_code(subscription, code) == case["expression_filter"] == case["expression_for_retry_filter"]
    assert matches_properties(subscription, {}) == case["by_commit_log"]
    assert matches(subscription, code, None, {}) == case["expression_filter"]
    if case["message_tags"] is not None:
        exact = case["exact_tag_in_set"] in (True, None)
        assert matches(subscription, code, case["message_tags"], {}) == (case["expression_filter"] and exact)


def subscription_of(case: dict[str, Any]) -> ParsedSubscription | None:
    """Return the subscription of a golden case, with its class filter mode."""
    if case["subscription"] is None:
        return None
    parsed = parse(case["subscription"]["sub_string"])
    return ParsedSubscription(
        expression=parsed.expression,
        tags=parsed.tags,
        codes=parsed.codes,
        class_filter_mode=case["subscription"]["class_filter_mode"],
    )


# --- tags ---


def test_two_tags_with_the_same_code_are_told_apart_once_the_tag_is_known():
    """The broker lets both through; waking a consumer for the other one would be in vain."""
    subscription = parse("Aa")

    assert tags_code("Aa") == tags_code("BB")
    assert matches(subscription, tags_code("BB"), None, None)
    assert not matches(subscription, tags_code("BB"), "BB", None)
    assert matches(subscription, tags_code("Aa"), "Aa", None)


@pytest.mark.parametrize(
    ("expression", "expression_type"), [(None, "TAG"), ("a", "TAG"), ("a > 1", "SQL92"), ("a", "XX")]
)
def test_a_message_of_which_nothing_is_known_matches_everything(expression, expression_type):
    """An observer sees only that offsets grew: whoever waits must look for himself."""
    assert matches(parse(expression, expression_type), None, None, None)


def test_without_a_subscription_everything_matches():
    assert matches(None, tags_code("a"), "a", {"a": "1"})


def test_a_message_without_tags_is_not_one_whose_tags_are_unknown():
    """Its code is 0, and its tags are no tag that anybody wants."""
    assert not matches(parse("a"), 0, "", None)
    assert not matches(parse("a"), None, "", None)
    assert matches(parse("*"), 0, "", None)


@pytest.mark.parametrize("expression", [" ", " || ", "\t||\n"])
def test_an_expression_of_blank_tags_matches_nothing(expression):
    """It is not empty, so that it does not want all; and it names no tag."""
    assert not matches(parse(expression), tags_code("a"), "a", None)


@pytest.mark.parametrize("expression", [" * ", "a||*"])
def test_a_star_among_others_is_a_tag_like_any(expression):
    assert matches(parse(expression), tags_code("*"), "*", None)
    assert not matches(parse(expression), tags_code("b"), "b", None)


def test_only_the_low_32_bits_of_a_code_count():
    """The queue of offsets keeps it in 64 bits, the subscription in 32."""
    assert matches(parse("a"), 97 + 2**32, None, None)
    assert matches(parse("a"), 97 - 2**32, None, None)
    assert not matches(parse("a"), 97 * 2**32, None, None)


# --- types ---


def test_no_type_is_the_type_of_tags():
    assert parse("a||b", None) == parse("a||b") == parse("a||b", "TAG")


@pytest.mark.parametrize("expression_type", ["SQL92", "", "tag", "XX"])
@pytest.mark.parametrize("expression", [None, ""])
def test_only_tags_can_be_left_out(expression, expression_type):
    with pytest.raises(FilterError, match=f"Expression can't be null! {expression_type}"):
        parse(expression, expression_type)


def test_a_type_that_nobody_knows_filters_nothing_but_an_empty_one_everything():
    """RocketMQ keeps both without tags, and takes only the empty one for tags."""
    assert matches(parse("a", "sql92"), tags_code("b"), "b", {})
    assert not matches(parse("a", ""), tags_code("a"), "a", {})
    assert matches(parse("*", ""), tags_code("a"), "a", {})


@pytest.mark.parametrize(("properties", "expected"), [({"a": "11"}, True), ({"a": "9"}, False), ({}, False)])
def test_a_condition_looks_at_properties_whatever_the_tags_are(properties, expected):
    subscription = parse("a > 10", "SQL92")

    assert matches(subscription, tags_code("x"), "x", properties) is expected
    assert matches(subscription, tags_code("x"), "x", None)


def test_a_condition_can_ask_for_the_tags():
    """RocketMQ keeps them as the property TAGS, and its own example of a condition begins with them."""
    subscription = parse("TAGS IS NOT NULL AND TAGS IN ('paid', 'lost')", "SQL92")

    assert matches(subscription, tags_code("paid"), "paid", {})
    assert not matches(subscription, tags_code("new"), "new", {})
    assert not matches(subscription, 0, "", {})
    assert matches(subscription, None, "new", {"TAGS": "lost"})


def test_class_filter_mode_lets_everything_through():
    subscription = ParsedSubscription(
        expression="a > 1", expression_type="SQL92", condition=parse("a > 1", "SQL92").condition, class_filter_mode=True
    )

    assert matches(subscription, 1, "b", {})


def test_the_default_filter_takes_every_expression_for_tags():
    """RocketMQ's oldest filter knows no types: a condition has no tags, so that it matches only unknown codes."""
    subscription = parse("a > 1", "SQL92")

    assert not matches_code_of_any_type(subscription, tags_code("a"))
    assert matches_code_of_any_type(subscription, None)
    assert matches_code(subscription, tags_code("a"))


def test_a_retried_message_is_judged_by_the_topic_it_was_first_sent_to():
    """All topics of a group share one retry topic, and each has a condition of its own."""
    originals = {"orders": parse("a > 10", "SQL92"), "notes": parse("x")}

    def judge(properties: dict[str, str] | None) -> bool:
        return matches_properties_of_retry(parse("TRUE", "SQL92"), properties, originals)

    assert judge({"RETRY_TOPIC": "orders", "a": "11"})
    assert not judge({"RETRY_TOPIC": "orders", "a": "9"})
    assert judge({"RETRY_TOPIC": "notes"})
    assert judge({"RETRY_TOPIC": "unknown"})
    assert judge(None)
    assert matches_properties_of_retry(parse("x"), {"RETRY_TOPIC": "orders", "a": "9"}, originals)


# --- whatever comes in ---


@given(expression=EXPRESSIONS, expression_type=TYPES, tags=st.none() | st.text(max_size=4), properties=PROPERTIES)
@example(expression="a > 1", expression_type="SQL92", tags=None, properties={"a": "9" * 5_000})
@example(expression="a = TRUE", expression_type="SQL92", tags="\ud800", properties={"a": "\udfff"})
def test_an_expression_is_a_filter_or_refused_and_a_filter_always_answers(
    expression, expression_type, tags, properties
):
    """Whatever a client sends: one bad expression, or one odd message, must not stop the others."""
    try:
        subscription = parse(expression, expression_type)
    except FilterError:
        return

    for code in (None, tags_code(tags)):
        assert matches(subscription, code, tags, properties) in (True, False)


@given(tags=st.text(st.characters(exclude_characters="|", exclude_categories=["Cs"]), min_size=1, max_size=8))
def test_a_tag_subscribed_to_by_itself_matches_itself(tags):
    """Unless Java trims it, or takes it for everything."""
    if min(tags[0], tags[-1]) <= " " or tags == "*":
        return

    assert matches(parse(tags), tags_code(tags), tags, None)
    assert not matches(parse(tags + "x"), tags_code(tags), tags, None)


# --- what is kept ---


@pytest.fixture
def kept(monkeypatch) -> list[str]:
    """Room for 200 characters, and which expressions were read."""
    read: list[str] = []

    def counted(expression, expression_type):
        read.append(expression)
        return read_anew(expression, expression_type)

    read_anew = subscription_module._parse
    monkeypatch.setattr(subscription_module, "_parse", counted)
    monkeypatch.setattr(subscription_module, "_kept", Kept())
    monkeypatch.setattr(config, "MAX_FILTERS_KEPT", 200)
    return read


def test_an_expression_is_read_once_as_long_as_it_is_used(kept):
    """Whatever others send meanwhile: a pull is as cheap as one without a filter."""
    for number in range(100):
        parse("a > 10", "SQL92")
        parse(f"b > {number}", "SQL92")

    assert kept.count("a > 10") == 1
    assert len(kept) == 101


@pytest.mark.usefixtures("kept")
def test_so_many_characters_are_kept_and_no_more():
    """A process that lives for months must not keep all that it was ever sent."""
    for number in range(1_000):
        parse(f"tag-{number:05}")

    assert len(subscription_module._kept) <= 200 // len("tag-00000")


@pytest.mark.usefixtures("kept")
def test_what_is_longer_than_all_that_is_kept_is_read_all_the_same():
    assert parse("x" * 300).tags == {"x" * 300}
    assert parse("x" * 300).tags == {"x" * 300}
