"""The rules about chains: each table has exactly the rows that its recorder wrote.

The lines of a table are checked first, without its rows: none is missing or edited. Then the rows are read in the order
of their streams, some hundred thousand at a time, and the hashes of each line are computed again.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from wakeroll.epoch_ms import EpochMs
from wakeroll_model.chain import NOWHERE, PROVING, Head, Line, Part, broken_links, hash_of_rows
from wakeroll_model.rows import CHAINED, Table
from wakeroll_pipeline.ledger.chains import (
    gathered_lines,
    highest_positions,
    lines_between,
    lines_in_commits,
    range_in_sql,
    sorted_rows,
)
from wakeroll_pipeline.ledger.delta_files import literal, open_delta
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.ledger.row_hashes import parts_by_line
from wakeroll_pipeline.questions.quality.chain_rules import CHAIN_RULES
from wakeroll_pipeline.questions.quality.ordered_rows import Broken
from wakeroll_pipeline.questions.quality.rule import Rule

MOST_AT_ONCE = 250_000
"""Rows that are read at once; a line with more is read alone."""


class Chain(NamedTuple):
    """The lines of a table."""

    table: Table
    lines: Sequence[Line]
    """All of them, sorted by number."""

    @property
    def head(self) -> Head | None:
        """The newest line."""
        return Head(self.table.name, self.lines[-1].number, self.lines[-1].line_hash) if self.lines else None


def chain_of(ledger: DuckLedger, table: Table) -> Chain:
    """Return the chain of a table, in the version that the ledger has of it."""
    lines = gathered_lines(ledger.warehouse, f"table_name = {literal(table.name)}", ledger.versions.get("chain"))
    lines.sort(key=lambda line: line.number)
    version = ledger.versions.get(table.name)
    if version is None:
        return Chain(table, lines)
    folder = ledger.warehouse / table.name
    newest = open_delta(folder).version()
    if newest > version:
        # The ledger leaves out the newest batch, which not all tables have yet: its lines may be gathered already.
        later = {line.number for line in lines_between(folder, version, newest)}
        lines = [line for line in lines if line.number not in later]
    return Chain(table, [*lines, *lines_in_commits(folder, version, lines[-1].number if lines else 0)])


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
        self._left_out: set[str] = set()
        """Tables that begin behind a line."""
        self.heads: list[Head] = []
        """The newest line of each table that was checked and has lines, sorted by table."""
        self.skipped: dict[str, str] = {}
        """Rule that could prove nothing -> the reason."""

    @staticmethod
    def tables_of(rules: Collection[Rule]) -> list[Table]:
        """Return the tables whose chains some of these rules are about, sorted by name."""
        wanted = {rule.name for rule in rules}
        return sorted((one for one in CHAINED if CHAIN_RULES[one.name].name in wanted), key=lambda one: one.name)

    def broken(self, ledger: DuckLedger, table: Table) -> Iterator[Broken]:
        """Yield the violations of the chain of a table."""
        chain = chain_of(ledger, table)
        if chain.head is not None:
            self.heads.append(chain.head)
        elif ledger.rows(f"select 1 from {table.name} limit 1"):
            self.skipped[CHAIN_RULES[table.name].name] = "the rows have no chain: an earlier release has written them"
        source = _WHOLE.format(table.name) if table.name in self._left_out else table.name
        yield from broken_chain(ledger, chain, self.published, source, self.since.get(table.name, 0))

    def leave_out_checked_rows(self, ledger: DuckLedger) -> None:
        """Let the tables of a ledger begin behind the lines up to which they were checked before."""
        for table in CHAINED:
            number = self.since.get(table.name)
            if number is None:
                continue
            checked: dict[str, int] = {}
            for line in chain_of(ledger, table).lines:
                if line.number <= number and line.kind != "gap":
                    checked |= {its: max(end, checked.get(its, end)) for its, end in line.positions.items()}
            if not checked:
                continue
            old = " or ".join(range_in_sql(table, stream, NOWHERE, last) for stream, last in checked.items())
            whole = _WHOLE.format(table.name)
            ledger.connection.execute(f"alter view {table.name} rename to {whole}")
            ledger.connection.execute(f"create view {table.name} as select * from {whole} where not ({old})")
            self._left_out.add(table.name)


_WHOLE = "{}_whole"
"""Name of the view of a whole table, if the table begins behind a line."""


def broken_chain(
    ledger: DuckLedger, chain: Chain, published: Sequence[Head] = (), source: str | None = None, since: int = 0
) -> Iterator[Broken]:
    """Yield the violations of a chain.

    Args:
        ledger: the ledger.
        chain: the lines of one table.
        published: lines that must be in the chain.
        source: view of the whole table; None: that with its name.
        since: number of the line up to which the table was checked before.
    """
    source = chain.table.name if source is None else source
    rule = CHAIN_RULES[chain.table.name].name
    for one in broken_links(chain.lines):
        yield Broken(rule, f"line {one.number}", one.found, one.expected)
    known = {line.number: line.line_hash for line in chain.lines}
    for head in published:
        if head.table == chain.table.name and not head.is_of(known.get(head.number, "")):
            found = known.get(head.number, "no such line")
            yield Broken(rule, f"line {head.number}", found, f"{head.line_hash}, which was published")
    covered = covered_by(chain.lines)
    for window in covered.windows(since):
        yield from _broken_window(ledger, chain.table, source, window, rule)
    if chain.lines:
        yield from _uncovered(ledger, chain.table, source, covered, rule)


class Span(NamedTuple):
    """A line that proves rows, and where they are."""

    line: Line
    after: Mapping[str, int]
    """Stream -> position behind which the rows of the line begin; a missing stream begins with its first row."""
    is_known: bool = True
    """Whether that is known: the line before is not missing."""


class Covered(NamedTuple):
    """The rows that a chain proves."""

    spans: Sequence[Span]
    last: Mapping[str, int]
    """Stream -> last position that a line covers."""

    def windows(self, since: int = 0) -> Iterator[list[Span]]:
        """Yield the spans of the lines after a number, in groups of at most `MOST_AT_ONCE` rows."""
        window: list[Span] = []
        rows = 0
        for span in (one for one in self.spans if one.line.number > since):
            if window and rows + span.line.rows > MOST_AT_ONCE:
                yield window
                window, rows = [], 0
            window.append(span)
            rows += span.line.rows
        if window:
            yield window


def covered_by(lines: Sequence[Line]) -> Covered:
    """Return the rows that the lines of a table prove; they are sorted by number."""
    base = next((line for line in reversed(lines) if line.kind in ("begin", "cut", "kept")), None)
    floor: Mapping[str, int] = {} if base is None else base.positions
    if base is not None and base.kind == "begin":
        lines = [line for line in lines if line.number >= base.number]
    spans = [Span(base, {})] if base is not None and base.kind == "kept" else []
    last, numbers = dict(floor), {line.number for line in lines}
    for line in lines:
        if line.kind in PROVING and any(end > floor.get(its, NOWHERE) for its, end in line.positions.items()):
            after = {its: last[its] for its in line.positions if its in last}
            spans.append(Span(line, after, is_known=line.number - 1 in numbers))
            last |= line.positions
    return Covered(spans, last)


def _broken_window(ledger: DuckLedger, table: Table, source: str, spans: Sequence[Span], rule: str) -> Iterator[Broken]:
    ends: dict[str, tuple[list[int], list[int]]] = {}
    ranges: dict[str, tuple[int, int]] = {}
    for span in spans:
        for stream, last in span.line.positions.items():
            positions, numbers = ends.setdefault(stream, ([], []))
            positions.append(last)
            numbers.append(span.line.number)
            first = ranges[stream][0] if stream in ranges else span.after.get(stream, NOWHERE)
            ranges[stream] = first, last
    found: dict[int, list[Part]] = {span.line.number: [] for span in spans}
    for number, part in parts_by_line(sorted_rows(ledger.connection, source, table, ranges), table, ends):
        found[number].append(part)
    for span in spans:
        line, parts = span.line, found[span.line.number]
        if not span.is_known or hash_of_rows(parts) == line.rows_hash:
            continue
        rows = sum(part.rows for part in parts)
        yield Broken(
            rule,
            f"line {line.number} of {EpochMs(line.at_ms)}: {_where(span)}",
            f"{rows} rows" if rows != line.rows else f"{rows} rows, of which one or more were edited",
            f"{line.rows} rows",
        )


def _uncovered(ledger: DuckLedger, table: Table, source: str, covered: Covered, rule: str) -> Iterator[Broken]:
    """Yield the streams with rows behind the positions of all lines."""
    for stream, last in highest_positions(ledger.connection, source, table).items():
        known = covered.last.get(stream, NOWHERE)
        if last > known:
            expected = (
                "no row that no line covers" if known == NOWHERE else f"{known}: no line covers the rows behind it"
            )
            yield Broken(rule, stream, f"rows up to position {last}", expected)


def _where(span: Span) -> str:
    ends = list(span.line.positions.items())
    said = [f"{stream} from {span.after.get(stream, -1) + 1} to {last}" for stream, last in ends[:_NAMED]]
    more = f" and {len(ends) - _NAMED} more" if len(ends) > _NAMED else ""
    return ", ".join(said) + more


_NAMED = 3
"""Streams that a violation names."""
