"""The templates: every value is escaped, and times, numbers and addresses have the same format everywhere."""

from collections.abc import Sequence
from functools import cache
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from wakeroll.epoch_ms import EpochMs
from wakeroll_pipeline.live.verdicts import LABELS, clock, duration
from wakeroll_pipeline.live.view_structs import LaneRow, PeriodRow
from wakeroll_pipeline.live.view_text import (
    catch_up_text,
    count_text,
    epoch_text,
    is_wait_known,
    lag_text,
    offsets_text,
    rate_text,
)
from wakeroll_pipeline.serve.access.page_frame import Frame
from wakeroll_pipeline.serve.site_paths import base_of

OWNER_COLOURS = 8
"""Number of colours of owners; with more clients, several share a colour, so each period has a name too."""


@cache
def environment() -> Environment:
    """Return the one environment of all templates; a name that is not defined is an error."""
    made = Environment(
        loader=PackageLoader("wakeroll_pipeline.serve"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "clock": clock,
        "iso": iso,
        "milliseconds": lambda at_ms: iso(at_ms)[11:23],
        "duration": duration,
        "count": count_text,
        "plural": plural,
        "stopped": stopped,
        "short": lambda text: text if len(text) <= 14 else f"{text[:10]}…",
        "label": lambda kind: LABELS.get(kind, kind),
    }
    made.globals |= {
        "link_to": link_to,
        "link": link_here,
        "colour": colour,
        "percent": percent,
        "spark": spark,
        "lane_text": lane_text,
        "frame": Frame(),
        "deployment": "",
        "listed": "groups",
        "base_of": base_of,
        "lag_text": lag_text,
        "catch_up_text": catch_up_text,
        "epoch_text": epoch_text,
        "offsets_text": offsets_text,
        "rate_text": rate_text,
        "is_wait_known": is_wait_known,
    }
    return made


def link(path: str, **params: object) -> str:
    """Return an address; parameters without a value are left out.

    >>> link("/groups/a b", page=2, q="")
    '/groups/a%20b?page=2'
    """
    given = {name: str(value) for name, value in params.items() if value not in ("", None)}
    return quote(path) + (f"?{urlencode(given)}" if given else "")


def link_to(path: str, params: Sequence[tuple[str, str]]) -> str:
    """Return an address with parameters; a name may occur several times."""
    return quote(path) + (f"?{urlencode(params)}" if params else "")


@pass_context
def link_here(context: Context, path: str, **params: object) -> str:
    """Return an address of the deployment and the moment that the page shows: `link` with its ``at``, unless given."""
    return base_of(context["deployment"]) + link(path, **{"at": context.get("at", ""), **params})


def iso(at_ms: int) -> str:
    """Return a time in ISO 8601."""
    return str(EpochMs(max(at_ms, 0)))


def plural(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: ``1 queue``, ``3 queues``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def stopped(text: str) -> str:
    """Return the text of an error with a full stop, unless it ends as a sentence already.

    >>> stopped("no broker answered; is it running?"), stopped("log in first")
    ('no broker answered; is it running?', 'log in first.')
    """
    return text if text.endswith((".", "?", "!")) else f"{text}."


def colour(client_id: str, clients: dict[str, int]) -> str:
    """Return the CSS class of a client's colour: by its place in `clients`, or by its name if it is not a member."""
    if not client_id:
        return "o-none"
    place = clients.get(client_id)
    return f"o-{(sum(client_id.encode()) if place is None else place) % OWNER_COLOURS}"


def percent(value: float, whole: float) -> str:
    """Return a share as a percentage with three digits, for SVG."""
    return f"{100 * value / whole if whole else 0:.3f}%"


def spark(values: list[int] | list[tuple[int, int]], width: int = 80, height: int = 18) -> str:
    """Return the points of a line, oldest value left; empty with fewer than two values, or if all are 0.

    Values with a time are placed by their times, others at equal distances.
    """
    pairs = [one if isinstance(one, tuple) else (place, one) for place, one in enumerate(values)]
    if len(pairs) < 2 or not any(value for _, value in pairs):
        return ""
    first, last = pairs[0][0], pairs[-1][0]
    most = max(max(value for _, value in pairs), 1)
    return " ".join(
        f"{(at - first) / max(last - first, 1) * width:.1f},{height - 1 - value / most * (height - 2):.1f}"
        for at, value in pairs
    )


def lane_text(lane: LaneRow, as_of_ms: int) -> str:
    """Return the owners of a lane as text, the newest one first, for screen readers."""
    return f"{lane.queue}: " + "; ".join(_period_text(one, as_of_ms) for one in reversed(lane.periods[-6:]))


def _period_text(one: PeriodRow, as_of_ms: int) -> str:
    until = "now" if one.is_open else clock(one.to_ms, as_of_ms)
    return f"{one.client_id or 'nobody'} {clock(one.from_ms, as_of_ms)} to {until}"
