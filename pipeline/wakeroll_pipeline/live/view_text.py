"""Values of views as text; the words on the page and in a terminal are the same."""

from wakeroll_pipeline.live.verdicts import duration

UNKNOWN = "-"
_SHORTEST_MS = 1_000
"""If only a lower bound of a wait is known, and it is shorter than this (ms), the wait counts as not known."""


def count_text(number: int | None) -> str:
    """Return a number, ``-`` if it is not known.

    >>> count_text(1234), count_text(None)
    ('1,234', '-')
    """
    return UNKNOWN if number is None else f"{number:,}"


def offsets_text(first: int, last: int) -> str:
    """Return a range of offsets: ``42``, or ``42 to 47``."""
    return str(first) if first == last else f"{first} to {last}"


def lag_text(messages: int | None, unknown: int = 0) -> str:
    """Return a lag; with ``>=`` before it if the lag of some queues is not known.

    >>> lag_text(1234), lag_text(1234, 2), lag_text(None, 2)
    ('1,234', '>= 1,234', '-')
    """
    return count_text(messages) if messages is None or not unknown else f">= {messages:,}"


def ago(at_ms: int | None, as_of_ms: int) -> str:
    """Return the time between an event and `as_of_ms`; ``-`` if it is not known."""
    return UNKNOWN if at_ms is None else duration(as_of_ms - at_ms)


def is_wait_known(since_ms: int | None, as_of_ms: int, *, is_longer: bool) -> bool:
    """Return whether the waiting time of messages is known; the first known end may be from this very moment."""
    return since_ms is not None and not (is_longer and as_of_ms - since_ms < _SHORTEST_MS)


def wait_text(since_ms: int | None, as_of_ms: int, *, is_longer: bool) -> str:
    """Return for how long the oldest message waits; ``-`` if none waits, or the time is not known.

    >>> wait_text(0, 90_000, is_longer=True), wait_text(None, 90_000, is_longer=False)
    ('> 90 s', '-')
    """
    if since_ms is None or not is_wait_known(since_ms, as_of_ms, is_longer=is_longer):
        return UNKNOWN
    return f"{'> ' if is_longer else ''}{duration(as_of_ms - since_ms)}"


def rate_text(per_s: float | None) -> str:
    """Return messages per second; ``-`` if that is not known.

    >>> rate_text(1234.56), rate_text(0.0), rate_text(2.25), rate_text(None)
    ('1,235/s', '0/s', '2.2/s', '-')
    """
    if per_s is None:
        return UNKNOWN
    return f"{per_s:,.0f}/s" if per_s >= 100 or per_s == int(per_s) else f"{per_s:,.1f}/s"


def catch_up_text(lag: int | None, catch_up_ms: int | None, consumed_per_s: float | None) -> str:
    """Return the time until all messages are consumed; ``-`` if it is not known.

    >>> catch_up_text(0, 0, 5.0), catch_up_text(9, 90_000, 5.0), catch_up_text(9, None, 5.0)
    ('now', '90 s', 'not falling')
    """
    if lag == 0:
        return "now"
    if catch_up_ms is not None:
        return duration(catch_up_ms)
    return UNKNOWN if lag is None or consumed_per_s is None else "not falling"


def epoch_text(shown: int, sent: int) -> str:
    """Return the epoch that a member shows as received, and the one that was sent to it if they differ.

    >>> epoch_text(3, 3), epoch_text(-1, 2)
    ('3', '- (sent 2)')
    """
    text = UNKNOWN if shown < 0 else str(shown)
    return text if shown == sent else f"{text} (sent {UNKNOWN if sent < 0 else sent})"
