"""SQL92 conditions.  Every answer in the tables below is what `org.apache.rocketmq.filter` 5.5.0 gives.

``None`` is SQL's null, and "error" is an exception while a message is evaluated: neither matches.
"""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wakeroll_model.filters import FilterError, matches, parse
from wakeroll_model.filters.sql92 import Condition, holds, read, values
from wakeroll_model.filters.sql92.conditions import Junction, Property
from wakeroll_model.filters.sql92.parser import MAX_NESTING
from wakeroll_model.filters.sql92.values import IncomparableError


def answer(expression: str, properties: dict[str, str]) -> Any:
    """Return what a condition is for a message: True, False, None or "error"."""
    try:
        return read(expression).evaluate(properties)
    except IncomparableError:
        return "error"


NUMBERS = [
    # A constant of 32 bits reads the property as an int.
    ("a > 10", {"a": "11"}, True),
    ("a = 10", {"a": "+10"}, True),
    ("a = 10", {"a": "010"}, True),
    ("a = 10", {"a": "\uff11\uff10"}, True),  # full-width digits
    ("a = 10", {"a": "\U0001d7cf\U0001d7ce"}, "error"),  # digits beyond U+FFFF
    ("a = 10", {"a": "10.0"}, "error"),
    ("a = 10", {"a": " 10 "}, "error"),
    ("a = 10", {"a": "1_0"}, "error"),
    ("a = 10", {"a": ""}, "error"),
    ("a > 10", {"a": "3000000000"}, "error"),
    ("a > -5", {"a": "-4"}, True),
    ("a >= -2147483647", {"a": "-2147483648"}, False),
    # A larger one reads it as a long.
    ("a > 2147483648", {"a": "3000000000"}, True),
    ("a = -2147483648", {"a": "-2147483648"}, True),
    ("a < 9223372036854775807", {"a": "9223372036854775806"}, True),
    ("a < 9223372036854775807", {"a": "9223372036854775808"}, "error"),
    ("a = 10L", {"a": "10"}, True),
    # A constant with a point or an exponent reads it as a double.
    ("a > 3.14", {"a": "3.1415"}, True),
    ("a > 3.1E10", {"a": "3.1415E10"}, True),
    ("a = 1.5", {"a": " 1.50 "}, True),
    ("a = 2.", {"a": "2d"}, True),
    ("a = .5", {"a": "0.5F"}, True),
    ("a = 12.0", {"a": "0x1.8p3"}, True),
    ("a > 1e308", {"a": "1e999"}, True),
    ("a > 1e308", {"a": "0x1p9999"}, True),
    ("a < -1e308", {"a": "-0x1p9999"}, True),
    ("a > 1.5", {"a": "NaN"}, True),
    ("a > 1.5", {"a": "nan"}, "error"),
    ("a > 1.5", {"a": "Infinity"}, True),
    ("a > 1.5", {"a": "inf"}, "error"),
    ("a > 1.5", {"a": "NaNd"}, "error"),
    ("a > 1.5", {"a": "2\u00a0"}, "error"),
    # Two properties are doubles to < and >, and texts to =.
    ("a > b", {"a": "10", "b": "9.5"}, True),
    ("a >= b", {"a": "up", "b": "1"}, "error"),
    ("a = b", {"a": "1.0", "b": "1"}, False),
    ("a < b", {"a": "-0.0", "b": "0.0"}, True),
    ("a <= b", {"a": "NaN", "b": "NaN"}, True),
    # Two constants, of whatever kinds.
    ("1 = 1.0", {}, True),
    ("10 < 3000000000", {}, True),
    ("9007199254740993 = 9007199254740992.0", {}, True),
    ("1 < a", {"a": "2"}, True),
    ("1 < a", {"a": "x"}, "error"),
    # A sign belongs to numbers: a property has none, for it is text.
    ("- -5 = 5", {}, True),
    ("+a = 5", {"a": "5"}, True),
    ("-a < 0", {"a": "5"}, None),
    ("-'x' < 0", {}, None),
]

MISSING = [
    ("a > 1", {}, None),
    ("1 > a", {}, None),
    ("a = 1", {}, None),
    ("a <> 1", {}, None),
    ("a IN ('x')", {}, None),
    ("a NOT IN ('x')", {}, None),
    ("a BETWEEN 1 AND 2", {}, None),
    ("a NOT BETWEEN 1 AND 2", {}, None),
    ("a BETWEEN up AND low", {"a": "3.14"}, None),
    ("a BETWEEN 5 AND high", {"a": "4"}, False),
    ("a NOT BETWEEN 5 AND high", {"a": "4"}, True),
    ("a", {}, None),
    ("NOT a", {}, None),
    ("A = 1", {"a": "1"}, None),
    # The right side alone is not null's equal, and null is null's.
    ("a = b", {"b": "1"}, None),
    ("a = b", {"a": "1"}, False),
    ("a <> b", {"a": "1"}, True),
    ("a = b", {}, True),
    ("a IS NULL", {}, True),
    ("a IS NULL", {"a": ""}, False),
    ("a IS NOT NULL", {}, False),
    ("a IS NOT NULL", {"a": "2"}, True),
    ("a IS NULL IS NULL", {}, False),
    ("5 IS NULL", {}, False),
    ("NULL IS NULL", {}, True),
    ("a IS NULL OR a = 'hello'", {"a": "abc"}, False),
    ("a IS NOT NULL AND a > 0", {}, False),
    # Searching finds nothing where there is nothing, and not even its opposite.
    ("a CONTAINS 'x'", {}, False),
    ("a NOT CONTAINS 'x'", {}, False),
    ("NOT (a CONTAINS 'x')", {}, True),
]

BOOLEANS = [
    ("a = TRUE", {"a": "tRuE"}, True),
    ("a = TRUE", {"a": "yes"}, False),
    ("a = FALSE", {"a": "yes"}, True),
    ("a <> TRUE", {"a": "yes"}, True),
    ("a = TRUE OR b = FALSE", {"a": "false", "b": "true"}, False),
    ("TRUE = a", {"a": "true"}, "error"),  # a ClassCastException
    ("TRUE = TRUE", {}, True),
    ("TRUE = FALSE", {}, False),
    ("5 = TRUE", {}, False),
    ("'true' = TRUE", {}, True),
    ("TRUE", {}, True),
    ("FALSE", {}, False),
    ("NULL", {}, None),
    # A property alone is text, and text is not true.
    ("a", {"a": "true"}, False),
    ("NOT a", {"a": "true"}, True),
    ("NOT NOT a", {"a": "true"}, False),
    ("(a > 1) = TRUE", {"a": "2"}, True),
    ("(a > 1) = 5", {"a": "2"}, False),
    ("(a > 1) = b", {"a": "2", "b": "true"}, "error"),
    ("a = (b > 1)", {"a": "true", "b": "2"}, True),
]

TEXTS = [
    ("a = 'hello'", {"a": "hello"}, True),
    ("a = 'hello'", {"a": "Hello"}, False),
    ("a <> 'hello'", {"a": "Hello"}, True),
    ("TAGS = '''''tag'''''", {"TAGS": "''tag''"}, True),
    ("a = ''", {"a": ""}, True),
    ("a = '10'", {"a": "10.0"}, False),
    ("'10' = 10", {}, True),
    ("10 = 'x'", {}, "error"),
    ("a IN ('3', '4', '5')", {"a": "4"}, True),
    ("a IN ('3', '4', '5')", {"a": "8"}, False),
    ("a NOT IN ('3', '4', '5')", {"a": "8"}, True),
    ("a NOT IN ('3')", {"a": "3"}, False),
    ("(a) IN ('3')", {"a": "3"}, True),
    ("a CONTAINS 'ell'", {"a": "hello"}, True),
    ("a NOT CONTAINS 'ell'", {"a": "hello"}, False),
    ("a STARTSWITH 'he'", {"a": "hello"}, True),
    ("a NOT STARTSWITH 'lo'", {"a": "hello"}, True),
    ("a ENDSWITH 'lo'", {"a": "hello"}, True),
    ("a NOT ENDSWITH 'lo'", {"a": "hello"}, False),
    # Nothing to search for is never found, nor not found; what is not text is not searched.
    ("a CONTAINS ''", {"a": "hello"}, False),
    ("a NOT CONTAINS ''", {"a": "hello"}, False),
    ("(a > 1) CONTAINS ''", {"a": "x"}, False),
    ("5 CONTAINS '5'", {}, False),
]

WORDS = [
    ("a=3 and b<>4 And c>5 AND d<=4", {"a": "3", "b": "5", "c": "6", "d": "1"}, True),
    ("a=3 and b<>4 And c>5 AND d<=4", {"a": "4", "b": "5", "c": "6", "d": "1"}, False),
    ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "4", "b": "4", "c": "3", "d": "2"}, True),
    ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "4", "b": "4", "c": "3", "d": "10"}, False),
    ("a between 2 and 10", {"a": "10"}, True),
    ("a between 2 and 10", {"a": "11"}, False),
    ("a not between 2 and 10", {"a": "1"}, True),
    ("a not between 2 and 10", {"a": "2"}, False),
    ("a NOT BETWEEN 5 AND 1", {"a": "3"}, True),
    ("a BETWEEN -1 AND -5", {"a": "1"}, False),  # only constants without a sign must be in order
    # AND binds tighter than OR, = tighter than AND, < tighter than =, and NOT tighter than all of them.
    ("TRUE OR TRUE AND FALSE", {}, True),
    ("(TRUE OR TRUE) AND FALSE", {}, False),
    ("TRUE = a > 1", {"a": "2"}, True),
    ("NOT a = 10", {"a": "11"}, False),
    ("NOT (a = 10)", {"a": "11"}, True),
    ("a = b = TRUE", {"a": "x", "b": "x"}, True),
    # Names, comments, blanks.
    ("$a_1 = 1 AND _ = 2", {"$a_1": "1", "_": "2"}, True),
    ("a/* one */= /***/1 -- two\n", {"a": "1"}, True),
    ("a = 1 -- x\n AND a = 2", {"a": "1"}, False),
    ("a\t=\r\n\f1", {"a": "1"}, True),
    ("ORDER_ID = 1 AND INNER = 2", {"ORDER_ID": "1", "INNER": "2"}, True),
    # What follows a complete condition is not read.
    ("a = 1 b = 2", {"a": "1"}, True),
    ("a = 1)", {"a": "1"}, True),
    ("a = 1 b #", {"a": "1"}, True),
    ("a = 1 -- not a comment without its line's end", {"a": "1"}, True),
    ("a = 012", {"a": "0"}, True),
    ("a = 10abc", {"a": "10"}, True),
    ("my-name = 'x'", {"my": "x"}, False),
]

ROWS_OF_PARTS = [
    # What decides ends the row; null does not; an error before it spoils all.
    ("a = 1 OR b > 1", {"a": "1", "b": "x"}, True),
    ("a = 1 OR b > 1", {"a": "x", "b": "2"}, "error"),
    ("a = 1 AND b > 1", {"a": "2", "b": "x"}, False),
    ("a = 1 AND b > 1", {"a": "1", "b": "x"}, "error"),
    ("a = 1 AND b > 1", {"b": "x"}, "error"),
    ("a = 1 OR b = 1", {"b": "1"}, True),
    ("a = 1 OR b = 1", {"b": "2"}, None),
    ("a = 1 AND b = 1", {"b": "2"}, False),
    ("a = 1 AND b = 1", {"b": "1"}, None),
    ("NOT (a = 1 AND b = 1)", {"b": "1"}, None),
    ("a = 1 AND b = 1 AND c = 1", {"b": "1", "c": "2"}, False),
    ("a = 1 OR b = 1 OR c = 1", {"b": "2", "c": "1"}, True),
    ("a > b", {"b": "x"}, None),
    ("a > (-b)", {"a": "x", "b": "x"}, None),
    ("a BETWEEN 5 AND b", {"a": "4", "b": "x"}, False),
    ("a BETWEEN 5 AND b", {"a": "6", "b": "x"}, "error"),
]

REFUSED = [
    ("", "expected at character 1, not the end"),
    ("  ", "not the end"),
    ("a and between 2 and 10", "not 'between'"),
    ("a = ", "not the end"),
    ("(a = 1", r"\) expected at character 7"),
    ("a NOT b", "after NOT expected"),
    ("a NOT > 1", "after NOT expected"),
    ("a IS b", "NULL expected at character 6, not 'b'"),
    ("a IN ()", "text in quotes expected"),
    ("a IN (1, 2)", "text in quotes expected at character 7, not '1'"),
    ("a IN ('1' '2')", r"\) expected"),
    ("5 IN ('5')", "IN needs a property before it, not 5"),
    ("a CONTAINS b", "text in quotes expected"),
    ("a BETWEEN 1 OR 2", "AND expected"),
    ("a BETWEEN 10 AND 0", "Illegal values of between, 10 must not be greater than 0"),
    ("a BETWEEN 2.5 AND 2", "Illegal values of between"),
    ("a BETWEEN '1' AND '2'", "'1' cannot be compared"),
    ("a BETWEEN NULL AND 2", "NULL cannot be compared"),
    ("a > 'x'", "'x' cannot be compared"),
    ("a > TRUE", "TRUE cannot be compared"),
    ("a > 1 > 2", "a condition cannot be compared"),
    ("NOT a > 3", "a condition cannot be compared"),
    ("a = NULL", "'NULL' cannot be compared"),
    ("TRUE = 5", "TRUE cannot be compared with 5"),
    ("5", "5 is neither true nor false"),
    ("'x' OR a = 1", "'x' is neither true nor false"),
    ("a = 1 AND -a", "a number with a sign is neither"),
    ("a > 100000000000000000000000", "greater than 9223372036854775807"),
    ("a > -9223372036854775808", "greater than 9223372036854775807"),
    ("a > 0.0", "less than 4.9E-324"),
    ("a > 1e-400", "less than 4.9E-324"),
    ("a > 1e400", "greater than 1.79"),
    ("a = 'x", 'no word begins with "\'" at character 5'),
    ("a = 1 #", "no word begins with '#' at character 7"),
    ("a != 1", "no word begins with '!'"),
    ("a = 1 /* open", "no word begins with '/'"),
    ("a \u00a0= 1", "no word begins with"),
    ("\u00e9 = 1", "no word begins with"),
    ("*", "no word begins with"),
]


@pytest.mark.parametrize(("expression", "properties", "expected"), NUMBERS)
def test_a_number_says_how_a_property_is_read(expression, properties, expected):
    """Properties are text: the same "10.0" is a number beside 1.5 and an error beside 1."""
    assert answer(expression, properties) == expected


@pytest.mark.parametrize(("expression", "properties", "expected"), MISSING)
def test_a_missing_property_is_null(expression, properties, expected):
    """Messages without the property do not match, not even the opposite of what was asked."""
    assert answer(expression, properties) == expected


@pytest.mark.parametrize(("expression", "properties", "expected"), BOOLEANS)
def test_text_is_true_only_beside_true(expression, properties, expected):
    """`a = FALSE` is all but "true", and `a` alone is nothing."""
    assert answer(expression, properties) == expected


@pytest.mark.parametrize(("expression", "properties", "expected"), TEXTS)
def test_text_is_compared_as_it_stands(expression, properties, expected):
    assert answer(expression, properties) == expected


@pytest.mark.parametrize(("expression", "properties", "expected"), WORDS)
def test_words_bind_as_in_rocketmqs_grammar(expression, properties, expected):
    """Whoever moves over brings his expressions along, those that only look right too."""
    assert answer(expression, properties) == expected


@pytest.mark.parametrize(("expression", "properties", "expected"), ROWS_OF_PARTS)
def test_a_row_of_parts_ends_with_the_one_that_decides(expression, properties, expected):
    """What is not evaluated cannot be an error; what is, spoils the whole condition."""
    assert answer(expression, properties) == expected


@pytest.mark.parametrize(("expression", "why"), REFUSED)
def test_a_condition_with_a_mistake_is_refused_with_its_place_or_reason(expression, why):
    with pytest.raises(FilterError, match=f"Invalid MessageSelector: .*{why}"):
        read(expression)


@pytest.mark.parametrize("expected", [None, "error", False])
def test_null_and_errors_are_no_match(expected):
    """Only true matches, and nobody sees an exception."""
    expression, properties = {None: ("a > 1", {}), "error": ("a > 1", {"a": "x"}), False: ("a > 1", {"a": "0"})}[
        expected
    ]

    assert answer(expression, properties) == expected
    assert not matches(parse(expression, "SQL92"), None, None, properties)


def test_blanks_capitals_and_needless_parentheses_do_not_change_a_condition():
    assert read("a=3 and b<>4") == read(" a = 3\nAND  (b <> 4) -- so\n")
    assert read("a=3 and b<>4") != read("a=3 or b<>4")


# --- bounds ---


def test_parentheses_may_be_nested_up_to_the_bound():
    """Beyond it the expression is refused, long before Python's own stack would end."""

    def nested(depth: int) -> str:
        return "(" * depth + "a = 1" + ")" * depth

    assert answer(nested(MAX_NESTING), {"a": "1"}) is True
    for depth in (MAX_NESTING + 1, 2_000, 100_000):
        with pytest.raises(FilterError, match="nested deeper than 100 levels"):
            read(nested(depth))


@pytest.mark.parametrize(
    "expression", ["NOT " * 1_000 + "a", "-" * 4_000 + "1 = 1", "a" + " = b" * 1_000, "a" + " IS NULL" * 500]
)
def test_parts_within_parts_are_bounded_without_parentheses_too(expression):
    """Each of these is as deep as it is long."""
    with pytest.raises(FilterError, match="nested deeper than 100 levels"):
        read(expression)


def test_parentheses_beside_each_other_are_not_nested():
    expression = " OR ".join(f"(a = {n})" for n in range(300))

    assert answer(expression, {"a": "299"}) is True
    assert answer(expression, {"a": "300"}) is False


def test_a_row_is_as_long_as_it_likes():
    """A thousand ANDs are one part with a thousand operands, not a thousand parts within each other."""
    condition = read(" AND ".join(["a = 1"] * 1_000))

    assert isinstance(condition, Junction)
    assert len(condition.operands) == 1_000
    assert condition.evaluate({"a": "1"}) is True


def test_a_property_is_read_once_however_deep_between_is_nested():
    """Java evaluates the value of BETWEEN for each of its bounds: nested, that doubles with every level."""

    class Counting(dict[str, str]):
        reads = 0

        def get(self, *name: Any) -> Any:
            self.reads += 1
            return super().get(*name)

    expression = "a BETWEEN 1 AND 2"
    for _ in range(45):
        expression = f"-({expression}) BETWEEN 1 AND 2"
    properties = Counting(a="1")

    assert read(expression).evaluate(properties) is None
    assert properties.reads == 1


# --- laws ---

PARTS = st.sampled_from(["a = 1", "b > 1", "c IS NULL", "a <> b", "c CONTAINS 'x'", "TRUE", "NULL"])
VALUES = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2", "x"]))


@given(parts=st.lists(PARTS, min_size=3, max_size=5), properties=VALUES, word=st.sampled_from([" AND ", " OR "]))
def test_a_row_answers_as_its_parts_joined_two_by_two(parts, properties, word):
    """RocketMQ joins them from the left, each time two."""
    joined = parts[0]
    for part in parts[1:]:
        joined = f"({joined}){word}({part})"

    assert answer(word.join(parts), properties) == answer(joined, properties)


@given(part=PARTS, properties=VALUES)
def test_not_turns_true_and_false_around_and_leaves_null(part, properties):
    found = answer(part, properties)
    opposite = {True: False, False: True}.get(found, found)

    assert answer(f"NOT ({part})", properties) == opposite


# --- what it costs ---


def parts_of(condition: Condition) -> list[Condition]:
    return [condition, *(part for operand in condition.operands for part in parts_of(operand))]


class Asked(dict):
    """Properties that count how often one is asked for."""

    times = 0

    def get(self, *arguments):
        self.times += 1
        return super().get(*arguments)


LONG = "a > 1" + "".join(f" OR NOT (b{number} = {number} AND c IS NULL)" for number in range(120))


@given(parts=st.lists(st.sampled_from([*"abc1()=<>+-,", "OR", "AND", "NOT", "IS", "NULL", "IN", "'x'"]), max_size=12))
@example(parts=[LONG])
@example(parts=["a=1OR " * 600, "a"])
@example(parts=["-" * 90, "1=1"])
def test_a_condition_has_at_most_two_parts_for_each_character(parts):
    """So the length of an expression bounds what an arrival costs."""
    expression = " ".join(parts)
    try:
        condition = read(expression)
    except FilterError:
        return

    assert len(parts_of(condition)) <= 2 * len(expression)


def test_each_part_is_evaluated_once():
    """Even one that is found nowhere before the last."""
    condition, properties = read(LONG), Asked({"a": "0", "c": "1"})

    assert holds(condition, properties)
    assert 1 < properties.times <= len([part for part in parts_of(condition) if isinstance(part, Property)])


@pytest.mark.parametrize("digits", ["0" * 3_999, "\u0660" * 3_999])
def test_a_long_number_is_read_once_however_many_filters_compare_it(digits):
    """A producer chooses it; all that wait at the queue would pay."""
    values._whole.cache_clear()
    for constant in range(200):
        values.whole(digits, constant)

    assert values._whole.cache_info().misses == 1
