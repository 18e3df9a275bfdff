"""The check against the lines that the recorder published in Kafka, which shows that the chains were not rewritten."""

from collections.abc import Iterator, Sequence

import duckdb
from deltalake.exceptions import DeltaError

from wakeroll.epoch_ms import EpochMs
from wakeroll_model.chain import Published, counting
from wakeroll_model.rows import CHAINED
from wakeroll_pipeline.ledger.chains import gathered_lines, lines_in_commits, newest_line
from wakeroll_pipeline.ledger.delta_files import is_delta, literal, open_delta
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.ledger.table_damage import damage_behind
from wakeroll_pipeline.questions.quality.rule import SHOWN, RuleResult, rows_rule
from wakeroll_pipeline.storage.place import Folder, Place

RULE = rows_rule("chain.published", "the chains have each line that the recorder published in Kafka")
"""The rule of the published lines, which is checked if a broker is named."""
_AT_ONCE = 1_000
"""Maximum number of lines in the condition of a query."""


def check_published(warehouse: Folder, published: Sequence[Published] | None, topic: str) -> RuleResult:
    """Compare the chains of the newest tables with published lines.

    `broken_links` proves the lines before each of them, and the rows.

    Args:
        warehouse: folder of the tables. They must have been read after the records: their newest lines were stored
            before they were published.
        published: the records of the topic, in the order of the log; None: there is no topic.
        topic: name of the topic.
    """
    if published is None:
        return RuleResult(RULE, skipped=f"there is no topic {topic}; `wakeroll run` of this release creates it")
    lines = [one for one in counting(published) if one.table in _NAMES]
    if not lines:
        again = max((one.at_ms for one in published if not one.number), default=None)
        since = "" if again is None else f" since {EpochMs(again)}, when the tables were restored"
        return RuleResult(RULE, skipped=f"no line was published in {topic}{since}")
    try:
        broken = list(_broken(Place.of(warehouse), lines, topic))
    except UnreadableTable as damage:
        return RuleResult(RULE, not_checked=str(damage))
    except (duckdb.Error, DeltaError) as error:
        if (lost := damage_behind(error, Place.of(warehouse), None)) is None:
            raise
        return RuleResult(RULE, not_checked=str(lost))
    return RuleResult(RULE, len(broken), broken[:SHOWN], looked_at=len(lines))


def sentence_of(result: RuleResult, published: Sequence[Published] | None, topic: str) -> str:
    """Return the result of the check as a sentence; empty if there is none."""
    if result.broken:
        first = result.rows[0]
        return (
            f"{result.broken} lines that were published are not in the chains: {first['at']}: found {first['found']}, "
            f"expected {first['expected']}; the history was rewritten, or the tables are older than the line"
        )
    lines = counting(published or ())
    if result.skipped or result.not_checked or not lines:
        return ""
    newest = max(one.at_ms for one in lines)
    return f"the newest line published in {topic}, of {EpochMs(newest)}, is in the chain, as all {len(lines)} are"


_NAMES = frozenset(table.name for table in CHAINED)


def _broken(warehouse: Place, lines: Sequence[Published], topic: str) -> Iterator[dict[str, str]]:
    """Yield the published lines that are missing in the chains, in their order."""
    for table in CHAINED:
        wanted = [one for one in lines if one.table == table.name]
        if not wanted:
            continue
        last = _last_gathered(warehouse, table.name)
        found = _hashes(warehouse, table.name, sorted({one.number for one in wanted}), last)
        missing = (
            f"no such line: the table chain ends at line {last} of {table.name}" if last else "no line of this table"
        )
        for one in wanted:
            its_hash = found.get(one.number)
            if its_hash != one.line_hash:
                yield {
                    "rule": RULE.name,
                    "at": f"line {one.number} of {table.name}, published in {topic} at {EpochMs(one.at_ms)}",
                    "found": its_hash or missing,
                    "expected": one.line_hash,
                }


def _hashes(warehouse: Place, table: str, numbers: Sequence[int], last: int) -> dict[int, str]:
    """Return number -> hash of these lines of a table, as far as they exist; `last` is its last gathered line."""
    found: dict[int, str] = {}
    for begin in range(0, len(numbers), _AT_ONCE):
        some = ", ".join(map(str, numbers[begin : begin + _AT_ONCE]))
        lines = gathered_lines(warehouse, f"table_name = {literal(table)} and number in ({some})")
        found |= {line.number: line.line_hash for line in lines}
    folder = warehouse / table
    if len(found) < len(numbers) and is_delta(folder):
        lines = lines_in_commits(folder, open_delta(folder).version(), last)
        found |= {line.number: line.line_hash for line in lines if line.number in numbers}
    return found


def _last_gathered(warehouse: Place, table: str) -> int:
    line = newest_line(warehouse, table)
    return 0 if line is None else line.number
