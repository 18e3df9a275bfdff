"""The pattern by which an application subscribes topics, and the filter of their messages."""

from typing import NamedTuple

from wakeroll_model.events import Filter


class PatternChoice(NamedTuple):
    """A regular expression of topics, with the filter that all of them have."""

    text: str = ""
    """The expression; empty if there is none."""
    filter: Filter = ("*", "TAG")
    """The filter, and its type."""


NO_PATTERN = PatternChoice()
