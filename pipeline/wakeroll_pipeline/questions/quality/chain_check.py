"""The rules about hash chains: each table has exactly the rows that its recorder wrote.

The lines of a table are checked first, without its rows: none is missing or edited. Then the rows are read in the order
of their streams, some hundred thousand at a time, and the hashes of each line are computed again.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import duckdb
from deltalake.exceptions import DeltaError

from wakeroll.epoch_ms import EpochMs
from wakeroll_model.chain import NOWHERE, WITHOUT_ROWS, Head, Line, broken_links
from wakeroll_model.rows import CHAIN, CHAINED, Table
from wakeroll_pipeline.ledger.chains import highest_positions, range_in_sql, rows_without_position
from wakeroll_pipeline.ledger.delta_files import Written, literal, number_of_rows
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, whole_name
from wakeroll_pipeline.ledger.proven_rows import (
    Chain,
    Covered,
    Needed,
    Span,
    base_of,
    begins_before,
    broken_spans,
    chain_of,
    covered_by,
)
from wakeroll_pipeline.questions.quality.chain_rules import CHAIN_RULES
from wakeroll_pipeline.questions.quality.ordered_rows import Broken
from wakeroll_pipeline.questions.quality.rule import Rule


class ChainCheck:
    """The check of the chains of a ledger, and the newest line of each."""

    def __init__(self, published: Sequence[Head] = (), since: Sequence[Head] = ()) -> None:
        """Prepare.

        Args:
            published: lines that must be in the chains.
            since: lines up to which the tables were checked before; they must be in the chains too.
        """
        self.published = (*published, *since)
        self.since = {head.table: head.number for head in since}
        """Table -> number of the line up to which it was checked before."""
        self._behind: dict[str, _Behind] = {}
        """Table that begins after a line -> its chain from there on."""
        self.notes: list[str] = []
        """Sentences with the reasons why all rows of a table were read although it was checked before up to a line."""
        self.heads: list[Head] = []
        """The newest line of each table that was checked and has lines, sorted by table."""
        self.skipped: dict[str, str] = {}
        """Rule without any proof -> the reason."""

    @staticmethod
    def tables_of(rules: Collection[Rule]) -> list[Table]:
        """Return the tables whose chains are the subject of these rules, sorted by name."""
        wanted = {rule.name for rule in rules}
        return sorted((one for one in CHAINED if CHAIN_RULES[one.name].name in wanted), key=lambda one: one.name)

    def broken(self, ledger: DuckLedger, table: Table) -> Iterator[Broken]:
        """Yield the violations of the chain of a table."""
        behind = self._behind.get(table.name)
        chain = chain_of(ledger, table, self._first_of(table)) if behind is None else behind.chain
        name, base = CHAIN_RULES[table.name].name, base_of(chain.lines)
        if chain.head is not None:
            self.heads.append(chain.head)
        elif ledger.rows(f"select 1 from {table.name} limit 1"):
            self.skipped[name] = "the rows have no chain: an earlier release has written them"
        if base is not None and base.kind == "cut":
            why = f"rows up to the positions of line {base.number} are not proven until `run` has finished a deletion"
            self.skipped[name] = f"{why}, which began at {EpochMs(base.at_ms)}"
        if behind is None or not behind.is_proven:
            source = table.name if behind is None else whole_name(table)
            yield from broken_chain(ledger, chain, self.published, source, self.since.get(table.name, 0))

    def _first_of(self, table: Table) -> int:
        """Return the number of the first line to read: the one before the oldest line that must exist."""
        if table.name not in self.since:
            return 1
        return min(head.number for head in self.published if head.table == table.name) - 1

    def leave_out_checked_rows(self, ledger: DuckLedger) -> None:
        """Let the tables of a ledger begin after the lines up to which they were checked before.

        Only files and lines that were written since are read. These are enough if the lines prove the rows of the
        files. Otherwise all rows of the table are read, because a line that replaces others covers all of them, a clock
        was set back, or rows are damaged.
        """
        for table in CHAINED:
            if table.name in self.since:
                try:
                    self._begin_behind(ledger, table, self.since[table.name])
                except (duckdb.Error, DeltaError):  # the rules that read the table report the damage
                    self._behind.pop(table.name, None)
        old_lines = [
            f"(table_name = {literal(name)} and number < {behind.chain.first})" for name, behind in self._behind.items()
        ]
        if old_lines:
            ledger.begin_behind(CHAIN, " or ".join(old_lines))

    def _begin_behind(self, ledger: DuckLedger, table: Table, number: int) -> None:
        chain = chain_of(ledger, table, self._first_of(table), begins=False)
        recent = _recent(chain, number)
        part = None
        if isinstance(recent, Written):
            source = f"({ledger.reading(table, recent)}) as rows"
            streams = highest_positions(ledger.table_connection, source, table).keys()
            rows = number_of_rows(ledger.opened.deltas[table.name], recent)
            needed = Needed({*streams, *(its for line in chain.lines for its in line.positions)}, rows)
            begins = begins_before(ledger, table, chain.first, needed)
            part = chain._replace(begins={**begins, **chain.begins})
            if next(broken_chain(ledger, part, self.published, source, number), None) is not None:
                part = None
        else:
            self.notes.append(f"all rows of {table.name} are read: {recent}")
        chain = chain_of(ledger, table, chain.first) if part is None else part
        checked = dict(chain.begins)
        for line in chain.lines:
            if line.number <= number and line.kind not in WITHOUT_ROWS:
                checked |= {its: max(end, checked.get(its, end)) for its, end in line.positions.items()}
        if checked:
            old = " or ".join(range_in_sql(table, stream, NOWHERE, last) for stream, last in checked.items())
            ledger.begin_behind(table, old, None if part is None or isinstance(recent, str) else recent)
            self._behind[table.name] = _Behind(chain, is_proven=part is not None)


class _Behind(NamedTuple):
    """The chain of a table from after a line on."""

    chain: Chain
    is_proven: bool
    """Whether its lines prove the rows of the files that were written since."""


def _recent(chain: Chain, number: int) -> Written | str:
    """Return the files with all rows after a line; or, if any file may have some, the reason as part of a sentence."""
    replacing = next((one for one in chain.lines if one.number > number and one.kind in _REPLACING), None)
    if replacing is not None:
        return f"line {replacing.number} of {EpochMs(replacing.at_ms)} ({replacing.kind}) replaces the lines before it"
    line = next((one for one in chain.lines if one.number == number), None)
    if line is None:
        return f"the chain has no line {number}"
    return Written(line.at_ms - _CLOCKS_MS)


_REPLACING = ("begin", "cut", "kept")
_CLOCKS_MS = 3_600_000
"""Greatest difference between the clocks of two processes that have written the tables (ms)."""


def broken_chain(
    ledger: DuckLedger, chain: Chain, published: Sequence[Head] = (), source: str | None = None, since: int = 0
) -> Iterator[Broken]:
    """Yield the violations of a chain.

    Args:
        ledger: the ledger.
        chain: the lines of one table.
        published: lines that must be in the chain.
        source: view of the whole table; None: the view with its name.
        since: number of the line up to which the table was checked before.
    """
    source = chain.table.name if source is None else source
    rule = CHAIN_RULES[chain.table.name].name
    for one in broken_links(*_linked_lines(chain)):
        yield Broken(rule, f"line {one.number}", one.found, one.expected)
    known = {line.number: line.line_hash for line in chain.lines}
    for head in published:
        if head.table == chain.table.name and not head.is_of(known.get(head.number, "")):
            found = known.get(head.number, "no such line")
            yield Broken(rule, f"line {head.number}", found, f"{head.line_hash}, which was published")
    covered = covered_by(chain.lines, chain.begins)
    for span, rows in broken_spans(ledger, chain.table, source, covered, since):
        yield Broken(
            rule,
            f"line {span.line.number} of {EpochMs(span.line.at_ms)}: {_where(span)}",
            f"{rows} rows" if rows != span.line.rows else f"{rows} rows, of which one or more were edited",
            f"{span.line.rows} rows",
        )
    if chain.lines:
        yield from _uncovered(ledger, chain.table, source, covered, rule)


def _linked_lines(chain: Chain) -> tuple[Sequence[Line], str, int]:
    """Return the lines whose links can be proven, the hash of the line before them, and the number of the first."""
    if chain.first > 1 and chain.lines and chain.lines[0].number == chain.first:
        return chain.lines[1:], chain.lines[0].line_hash, chain.first + 1
    return chain.lines, "", chain.first


def _uncovered(ledger: DuckLedger, table: Table, source: str, covered: Covered, rule: str) -> Iterator[Broken]:
    """Yield the streams with rows after the positions of all lines, and the rows without a position."""
    if unplaced := rows_without_position(ledger.table_connection, source, table):
        yield Broken(rule, "no position", f"{unplaced} rows", "no row that no line covers")
    for stream, last in highest_positions(ledger.table_connection, source, table).items():
        known = covered.last.get(stream, NOWHERE)
        if last > known:
            expected = (
                "no row that no line covers" if known == NOWHERE else f"{known}: no line covers the rows behind it"
            )
            yield Broken(rule, stream, f"rows up to position {last}", expected)


def _where(span: Span) -> str:
    ends = list(span.line.positions.items())
    spans = [f"{stream} from {span.after.get(stream, -1) + 1} to {last}" for stream, last in ends[:_NAMED]]
    more = f" and {len(ends) - _NAMED} more" if len(ends) > _NAMED else ""
    return ", ".join(spans) + more


_NAMED = 3
"""Maximum number of streams that a violation names."""
