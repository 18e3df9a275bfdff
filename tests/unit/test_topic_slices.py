"""Into how many slices an operator cuts topics: what is not valid is refused before a broker is asked."""

import pytest

from wakeroll.errors import InvalidUsage
from wakeroll.topic_slices import checked_slices, slices_in


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["orders=3"], "--slices: orders is 3; it must be a power of two from 1 to 64, 1 if it is not cut"),
        (["orders=0"], "--slices: orders is 0; it must be a power of two from 1 to 64, 1 if it is not cut"),
        (["orders=128"], "--slices: orders is 128; it must be a power of two from 1 to 64, 1 if it is not cut"),
        (["orders"], "--slices is 'orders'; it must be TOPIC=N, such as orders=8"),
        (["orders=-8"], "--slices is 'orders=-8'; it must be TOPIC=N, such as orders=8"),
        (["orders=٨"], "--slices is 'orders=٨'; it must be TOPIC=N, such as orders=8"),
        (["=8"], "--slices is '=8'; it must be TOPIC=N, such as orders=8"),
        (["orders=8", "orders=4"], "--slices names the topic orders twice: orders=8 and orders=4"),
        (["or ders=8"], "--slices is {'or ders': 8}; each name must be 1 to 249 characters"),
        ([f"t{number}=2" for number in range(101)], "--slices is {'t0': 2"),
    ],
)
def test_configure_refuses_what_is_no_number_of_slices(wakeroll, given, sentence):
    """One line, and no broker is asked: there is none at this address."""
    options = [word for text in given for word in ("--slices", text)]

    code, _, complaint = wakeroll("configure", "billing", *options, "--bootstrap", "127.0.0.1:1")

    assert code == 2
    [line] = complaint.splitlines()
    assert sentence in line


def test_several_topics_are_cut_at_once():
    """1 removes the slices of a topic."""
    assert slices_in("--slices", ["orders=8", "payments=1", "b=64"]) == {"orders": 8, "payments": 1, "b": 64}
    assert slices_in("--slices", []) == {}


@pytest.mark.parametrize("given", [{"orders": True}, {"orders": "8"}, {"orders": 2.0}, {}, 8, None])
def test_in_python_only_whole_numbers_are_slices(given):
    """A dictionary of something else does not reach the log."""
    with pytest.raises(InvalidUsage, match="slices"):
        checked_slices("slices", given)
