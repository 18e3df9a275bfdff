"""A plan of a reset as the page shows it, with a fingerprint: only the plan that was shown is executed."""

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from wakeroll.reset import PlannedOffset, ResetPlan
from wakeroll_pipeline.serve.changes.change_requests import ResetRequest

SHOWN_ROWS = 500
"""Maximum number of rows of a plan that the page shows; the sums cover all rows."""


class PlanSummary(Struct, frozen=True, kw_only=True):
    """A plan, shortened for a page."""

    asked: str
    rows: Sequence[PlannedOffset]
    total: int
    """Number of changed offsets."""
    has_clients: bool
    """Whether each client has its own offsets."""
    again: int
    """Number of messages that will be read again."""
    skipped: int
    """Number of messages that will not be read."""
    unknown: int
    """Number of offsets whose present value is not known."""
    notes: Sequence[str]
    fingerprint: str


def summary_of(plan: ResetPlan, request: ResetRequest) -> PlanSummary:
    """Return the summary of a plan."""
    known = [row.difference for row in plan.rows if row.difference is not None]
    return PlanSummary(
        asked=plan.asked,
        rows=plan.rows[:SHOWN_ROWS],
        total=len(plan.rows),
        has_clients=any(row.client_id for row in plan.rows),
        again=-sum(one for one in known if one < 0),
        skipped=sum(one for one in known if one > 0),
        unknown=len(plan.rows) - len(known),
        notes=plan.notes,
        fingerprint=fingerprint_of(plan, request),
    )


def fingerprint_of(plan: ResetPlan, request: ResetRequest) -> str:
    """Return a hash that changes when the plan has another effect than the one that was shown.

    It covers the queues and clients, the new offset of each, and whether the new offset is below or above the committed
    one. Members may commit while a user reads the plan, so the committed offset itself is not covered. The end of a
    queue moves with every message, so it is not covered either: a user who chose the end gets the end at the time of
    the reset.
    """
    rows = [
        (str(row.queue), row.client_id, None if request.to == "last" else row.offset, _direction(row))
        for row in plan.rows
    ]
    return hashlib.sha256(msgspec.json.encode((plan.group_id, plan.asked, rows))).hexdigest()


def _direction(row: PlannedOffset) -> int | None:
    return None if row.difference is None else (row.difference > 0) - (row.difference < 0)
