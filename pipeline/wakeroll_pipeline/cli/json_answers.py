"""Answers of commands with ``--json``, as declarations; their JSON Schemas are in docs/schemas."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from wakeroll.dead_letters import Letter
from wakeroll.operator_requests import ResetOutcome
from wakeroll.reset import ResetPlan
from wakeroll_model.queue import Queue
from wakeroll_pipeline.cli.ci_reports import Run, Status
from wakeroll_pipeline.ledger.repair_findings import Finding, WrongDay
from wakeroll_pipeline.questions.marts import BuildResult
from wakeroll_pipeline.questions.tables_looked_at import TableLookedAt


class CheckRow(Struct, frozen=True, kw_only=True):
    """One check of `doctor`."""

    name: str
    ok: bool
    found: str
    fix: str
    """Remedy; empty if none is needed."""


class DoctorAnswer(Struct, frozen=True, kw_only=True):
    """The answer of `doctor`."""

    exit_code: int
    checks: Sequence[CheckRow]


class LetterRow(Struct, frozen=True, kw_only=True):
    """A dead letter."""

    number: int
    """Offset in the dead letter topic, which names it."""
    at_ms: int
    """Time at which it was stored (epoch ms)."""
    queue: Queue
    """Queue that the message was first delivered from."""
    offset: int
    """Offset of the message in that queue."""
    attempts: int
    """Number of attempts to process it."""
    client_id: str
    """Member whose handler failed last; empty if it is not known."""
    error: str
    """Error of the last attempt."""
    error_type: str
    """Type of its exception; empty if there was none."""
    trace_id: str
    """Trace id of the message; empty if there is none."""

    @classmethod
    def of(cls, letter: Letter) -> "LetterRow":
        """Return the row of a letter."""
        origin = letter.origin
        return cls(
            number=letter.number,
            at_ms=letter.at_ms,
            queue=origin.queue,
            offset=origin.offset,
            attempts=origin.attempt,
            client_id=origin.client_id,
            error=origin.error,
            error_type=origin.error_type,
            trace_id=origin.trace_id,
        )


class WholeLetter(LetterRow, frozen=True, kw_only=True):
    """A dead letter with its message; bytes that are not UTF-8 are escaped."""

    key: str | None
    headers: Sequence[tuple[str, str | None]]
    value: str | None


class LettersAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of `dlq`: one of the four parts."""

    group_id: str
    total: int | None = None
    """Number of open letters."""
    letters: Sequence[LetterRow] | None = None
    """The oldest open letters, at most `--limit`."""
    letter: WholeLetter | None = None
    """The letter of `--show`."""
    resent: int | None = None
    """Number of letters that `--resend` has sent again."""
    dropped: int | None = None
    """Number of letters that `--drop` has dropped."""


class RuleRow(Struct, frozen=True, kw_only=True):
    """The result of a data quality rule."""

    name: str
    suite: str
    table: str
    sentence: str
    status: Status
    broken: int
    """Number of rows that break the rule."""
    rows: Sequence[Mapping[str, Any]]
    """The first rows that break the rule."""
    looked_at: int | None
    """Number of rows that the rule was applied to; None if it compares tables."""
    reason: str
    """Reason why the rule was skipped or not checked; empty if it was checked."""


class CheckAnswer(Struct, frozen=True, kw_only=True):
    """The answer of `check`; with `problem`, the tables cannot be read, and the results are missing."""

    exit_code: int
    run: Run
    counts: Mapping[str, int] | None = None
    """Number of the rules, and of those with each status."""
    tables: Sequence[TableLookedAt] | None = None
    rules: Sequence[RuleRow] | None = None
    data_docs: str | None = None
    """Path of the Data Docs; None with `--no-docs`."""
    line: str | None = None
    """The newest line of each chain; None if there is none."""
    notes: Sequence[str] = ()
    published: str | None = None
    """Result of the published lines, as a sentence; None if there is none, or without `--bootstrap`."""
    problem: str = ""


class MartsAnswer(Struct, frozen=True, kw_only=True):
    """The answer of `marts`; with `problem`, the tables cannot be read, and the results are missing."""

    exit_code: int
    run: Run
    results: Sequence[BuildResult] = ()
    problem: str = ""


class PlannedRow(Struct, frozen=True, kw_only=True):
    """One committed offset that a plan changes."""

    queue: Queue
    client_id: str
    """Client of a broadcasting group; empty for the offset of the group."""
    committed: int | None
    """Committed offset before the change; None if it is not known."""
    offset: int
    """Offset of the next message to consume after the change."""
    difference: int | None
    """Change of the offset in messages, negative if it moves back; None if it is not known."""


class RecordedRow(Struct, frozen=True, kw_only=True):
    """One committed offset as the coordinator has recorded it."""

    queue: Queue
    client_id: str
    """New owner of the queue, or the client of a broadcasting group; empty if the queue has no owner."""
    offset: int


class DeletedGroup(Struct, frozen=True, kw_only=True):
    """The answer of `delete-group`."""

    group_id: str
    detail: str
    """Operator, reason, and the deleted contents, in words."""


class PausedGroup(Struct, frozen=True, kw_only=True):
    """The answer of `pause` and `resume`."""

    group_id: str
    is_paused: bool
    detail: str
    """Change, operator and reason, in words."""


class MemberReport(Struct, frozen=True, kw_only=True):
    """The answer of `inspect`."""

    group_id: str
    client_id: str
    text: str
    """The running calls of its handler, with their messages and, unless the application forbids that, their stacks."""


class DeletedOffset(Struct, frozen=True, kw_only=True):
    """One committed offset that was deleted."""

    queue: Queue
    client_id: str
    """Client of a broadcasting group; empty for the offset of the group."""
    offset: int
    """The offset before the deletion."""


class DeletedOffsets(Struct, frozen=True, kw_only=True):
    """The answer of `delete-offsets`."""

    group_id: str
    offsets: Sequence[DeletedOffset]


class PlanAnswer(Struct, frozen=True, kw_only=True):
    """The answer of `reset-offsets`, `skip` and `import-offsets`."""

    group_id: str
    asked: str
    """The target in words, as it is recorded."""
    is_executed: bool
    rows: Sequence[PlannedRow]
    notes: Sequence[str]
    """Sentences about offsets that differ from the requested ones."""
    epoch: int | None
    """Epoch in which the plan was carried out; None if it was not."""
    recorded: Sequence[RecordedRow]
    """The recorded offsets; empty if the plan was not carried out."""

    @classmethod
    def of(cls, plan: ResetPlan, outcome: ResetOutcome | None) -> "PlanAnswer":
        """Return the answer of a plan; `outcome` is None if it was not carried out."""
        rows = [
            PlannedRow(
                queue=one.queue,
                client_id=one.client_id,
                committed=one.committed,
                offset=one.offset,
                difference=one.difference,
            )
            for one in plan.rows
        ]
        recorded = [] if outcome is None else sorted(outcome.offsets.items())
        return cls(
            group_id=plan.group_id,
            asked=plan.asked,
            is_executed=outcome is not None,
            rows=rows,
            notes=plan.notes,
            epoch=None if outcome is None else outcome.rebalance.epoch,
            recorded=[
                RecordedRow(queue=queue, client_id=client_id, offset=one.offset) for (queue, client_id), one in recorded
            ],
        )


class ChangedTable(Struct, frozen=True, kw_only=True):
    """The change that a repair makes to a table."""

    table: str
    deleted: int
    """Keys that are deleted, before the others are appended."""
    appended: int
    """Rows that are appended."""


class RepairAnswer(Struct, frozen=True, kw_only=True):
    """The answer of `repair`."""

    exit_code: int
    is_executed: bool
    """Whether the plan was carried out; without --yes, it is only shown."""
    findings: Sequence[Finding]
    changes: Sequence[ChangedTable]
    """The changes that were carried out, or that are planned."""
    days: Sequence[WrongDay]
    refused: Sequence[str]
    """Tables that were not repaired: other rows differ from those that were written, and a repair would hide that."""
    on_record: Sequence[str]
    """Losses that were accepted earlier, as sentences."""
    left: int
    """Number of rows that cannot be restored and are not recorded as lost."""


class FirstDecided(Struct, frozen=True, kw_only=True):
    """The first record of a control partition that is decided with the new number of partitions."""

    topic: str
    partition: int
    offset: int


class ReshardAnswer(Struct, frozen=True, kw_only=True):
    """The answer of `reshard`."""

    partitions: int
    """The new number of partitions, which must be set for every process now."""
    positions: Sequence[FirstDecided]
    """The positions per control partition; empty if an earlier attempt has divided the states already."""
    published: int
    """Number of decisions about earlier records that no coordinator had applied."""
