"""Values of views as text for a terminal: names without control characters, verdicts, ages, curves."""

from collections.abc import Sequence

from rich.text import Text

from wakeroll.epoch_ms import EpochMs
from wakeroll_pipeline.live.queue_lag import Trend
from wakeroll_pipeline.live.verdicts import LABELS, Kind, duration
from wakeroll_pipeline.live.view_structs import Health

STYLES: dict[Kind, str] = {
    "abandoned": "bold red",
    "stalled": "bold red",
    "unowned": "bold red",
    "uncommitted": "bold red",
    "duplicate": "bold red",
    "paused": "cyan",
    "behind": "yellow",
    "rebalancing": "yellow",
    "conflict": "yellow",
    "learning": "cyan",
    "empty": "dim",
    "healthy": "green",
}
STATES = {
    "live": "live",
    "starting": "reading the log",
    "ledger": "archived log",
    "stale": "not current",
}
"""State of the view -> its name for people; the same as on the web page."""
_LEVELS = {"info": "dim", "warning": "yellow", "error": "bold red"}
_BARS = "▁▂▃▄▅▆▇█"
_CURVE = 12
"""Width of a curve (characters)."""
_ARROWS: dict[Trend, str] = {"none": "", "rising": "↑ rising", "falling": "↓ falling", "steady": "= steady"}


def plain_text(text: str, style: str = "") -> Text:
    r"""Return a text of a record; control characters, which could move the cursor, are shown as escapes.

    >>> plain_text("a\x1b[2J").plain
    'a\\x1b[2J'
    """
    return Text("".join(one if one.isprintable() else repr(one)[1:-1] for one in text), style)


def verdict_text(verdict: Kind) -> Text:
    """Return the name of a verdict, in its colour."""
    return Text(LABELS.get(verdict, verdict), STYLES[verdict])


def count_text(number: int | None) -> str:
    """Return a number, ``-`` if it is not known.

    >>> count_text(1234), count_text(None)
    ('1,234', '-')
    """
    return "-" if number is None else f"{number:,}"


def lag_text(messages: int | None, unknown: int) -> str:
    """Return a lag; with ``>=`` before it if the lag of some queues is not known.

    >>> lag_text(1234, 0), lag_text(1234, 2), lag_text(None, 2)
    ('1,234', '>= 1,234', '-')
    """
    return count_text(messages) if messages is None or not unknown else f">= {messages:,}"


def ago(at_ms: int | None, as_of_ms: int) -> str:
    """Return how long before `as_of_ms` something was; ``-`` if the time is not known."""
    return "-" if at_ms is None else duration(as_of_ms - at_ms)


def wait_text(since_ms: int | None, is_longer: bool, as_of_ms: int) -> str:
    """Return for how long the oldest message waits; empty if none does."""
    return "" if since_ms is None else f"{'> ' if is_longer else ''}{duration(as_of_ms - since_ms)}"


def clock_text(at_ms: int) -> str:
    """Return a time of the day in UTC, in seconds."""
    return str(EpochMs(max(at_ms, 0))).partition("T")[2][:8]


def curve(values: Sequence[int]) -> str:
    """Return the newest values as bars, relative to the largest; empty for fewer than two, or if all are 0.

    >>> curve([0, 5, 10]), curve([0, 0]), curve([7])
    ('▁▄█', '', '')
    """
    newest = values[-_CURVE:]
    most = max(newest, default=0)
    if most <= 0 or len(newest) < 2:
        return ""
    return "".join(_BARS[max(value, 0) * (len(_BARS) - 1) // most] for value in newest)


def trend_text(trend: Trend, samples: Sequence[int], is_unicode: bool) -> str:
    """Return the direction of a lag, with its curve if the terminal can show one."""
    if not is_unicode:
        return "" if trend == "none" else trend
    return f"{_ARROWS[trend]} {curve(samples)}".strip()


def head_text(health: Health, rest: str) -> Text:
    """Return the first line: state, log time, the age of the newest tick, and the rest."""
    text = Text()
    text.append(STATES[health.state], "bold" if health.state == "live" else "bold yellow")
    if health.state == "starting" and health.to_read:
        text.append(f" ({health.read:,} of {health.to_read:,} records)")
    if health.as_of_ms:
        text.append(f"  {str(EpochMs(health.as_of_ms))[:19].replace('T', ' ')} UTC", "dim")
    if health.source == "live" and health.tick_age_ms:
        text.append(f"  tick {max(health.tick_age_ms.values())} ms old", "dim")
    return text.append(f"  {rest}") if rest else text


def notice_texts(health: Health) -> list[Text]:
    """Return the notices, each with its level as a word and a remedy."""
    lines = []
    for notice in health.notices:
        text = Text(f"{notice.level}: ", _LEVELS[notice.level])
        text.append_text(plain_text(notice.text))
        if notice.remedy and notice.level != "info":
            text.append_text(plain_text(f"; {notice.remedy}", "dim"))
        lines.append(text)
    return lines
