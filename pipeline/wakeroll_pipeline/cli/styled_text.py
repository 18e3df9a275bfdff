"""Values of views as text for a terminal: names without control characters, verdicts, curves."""

from collections.abc import Sequence

from rich.text import Text

from wakeroll.epoch_ms import EpochMs
from wakeroll_pipeline.live.verdicts import LABELS, Kind
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
    "past": "past",
    "stale": "not current",
}
"""State of the view -> its name for people; the same as on the web page."""
_LEVELS = {"info": "dim", "warning": "yellow", "error": "bold red"}
_BARS = "▁▂▃▄▅▆▇█"
_CURVE = 12
"""Width of a curve (characters)."""


def plain(text: str) -> str:
    r"""Return a text of a record; control characters, which could move the cursor, are shown as escapes.

    >>> plain("a\x1b[2J")
    'a\\x1b[2J'
    """
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def plain_lines(text: str) -> list[Text]:
    """Return the lines of a text from a record; other control characters are shown as escapes."""
    return [plain_text(line) for line in text.splitlines()]


def plain_text(text: str, style: str = "") -> Text:
    """Return a text of a record with a style; see `plain`."""
    return Text(plain(text), style)


def verdict_text(verdict: Kind) -> Text:
    """Return the name of a verdict, in the verdict's colour."""
    return Text(LABELS.get(verdict, verdict), STYLES[verdict])


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


def head_text(health: Health) -> Text:
    """Return the first line: state, log time, the age of the newest tick."""
    text = Text()
    text.append(STATES[health.state], "bold" if health.state == "live" else "bold yellow")
    if health.state == "starting" and health.to_read:
        text.append(f" ({health.read:,} of {health.to_read:,} records)")
    if health.as_of_ms:
        text.append(f"  {str(EpochMs(health.as_of_ms))[:19].replace('T', ' ')} UTC", "dim")
    if health.source == "live" and health.tick_age_ms:
        text.append(f"  tick {max(health.tick_age_ms.values())} ms old", "dim")
    return text


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
