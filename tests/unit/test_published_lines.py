"""Lines that were published prove that nobody rewrote the history; nothing that is lawful breaks the proof."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.chained_ledgers import append, append_snapshots, create_tables
from tests.support.ledgers import Story, a_long_life
from wakeroll.connection import Topics
from wakeroll_model.chain import Head, Published, counting
from wakeroll_model.rows import CHAIN, DECISIONS, EVENTS
from wakeroll_pipeline.ledger.chains import Chains, gathered_lines
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.questions.quality.check_in_duckdb import check_in_duckdb
from wakeroll_pipeline.questions.quality.published_check import check_published, sentence_of
from wakeroll_pipeline.questions.quality.rule import RuleResult
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage.place import Place

TOPIC = Topics().chain


class Log:
    """The topic, as its readers see it."""

    def __init__(self) -> None:
        self.records: list[Published] = []

    def publish(self, heads: Sequence[Head]) -> None:
        """Append the lines."""
        at_ms = 1_000 * len(self.records)
        self.records += [
            Published(table=one.table, number=one.number, line_hash=one.line_hash, at_ms=at_ms) for one in heads
        ]


def a_history(committed: int) -> Story:
    """Tell of a group that commits an offset; everything else is the same."""
    story = Story()
    story.route("orders", 4, ends=1_000)
    story.join("billing", "a", "orders")
    story.pass_seconds(5)
    story.commit("billing", committed)
    story.pass_seconds(5)
    story.join("billing", "b", "orders")
    story.pass_seconds(10)
    return story


def written(warehouse: Path, story: Story, log: Log) -> Path:
    """Let a recorder write a story into new tables."""
    create_tables(warehouse)
    heard: list[Sequence[Head]] = []
    chains = Chains(warehouse, heard.append)
    append(warehouse, story, chains)
    if story.snapshots:
        append_snapshots(warehouse, story, chains)
    chains.gather(ArrowSink().append)
    log.publish(heard[-1])
    return warehouse


def broken_rules(warehouse: Path) -> list[str]:
    """Return the rules of `check` that the tables break, without the published lines."""
    with duck_ledger(warehouse) as ledger:
        return [one.rule.name for one in check_in_duckdb(ledger) if one.broken or one.not_checked]


def judged(warehouse: Path, log: Log) -> RuleResult:
    return check_published(warehouse, log.records, TOPIC)


def test_a_history_that_was_rewritten_is_found_by_the_published_lines_and_by_nothing_else(tmp_path):
    """All rows, decisions, hashes and lines of the forged tables fit together."""
    log = Log()
    written(tmp_path / "true", a_history(committed=300), log)
    written(tmp_path / "forged", a_history(committed=301), Log())
    assert broken_rules(tmp_path / "true") == []
    assert broken_rules(tmp_path / "forged") == []
    assert (judged(tmp_path / "true", log).broken, judged(tmp_path / "true", log).skipped) == (0, "")

    result = judged(tmp_path / "forged", log)

    assert result.broken == len({one.table for one in log.records})
    true = {one.table: one for one in log.records}["offsets"]
    [row] = [row for row in result.rows if " offsets, " in row["at"]]
    assert row["at"] == f"line {true.number} of offsets, published in {TOPIC} at 1970-01-01T00:00:00.000Z"
    assert row["expected"] == true.line_hash
    assert len(row["found"]) == 64
    assert row["found"] != true.line_hash
    sentence = sentence_of(result, log.records, TOPIC)
    assert all(result.rows[0][name] in sentence for name in ("at", "found", "expected"))
    assert "rewritten" in sentence


def test_a_recorder_that_continues_a_forged_history_does_not_hide_it(tmp_path):
    """It publishes lines of the forged chain, which are in it; those of the process before are kept beside them."""
    log = Log()
    written(tmp_path / "true", a_history(committed=300), log)
    forged = written(tmp_path / "forged", a_history(committed=301), Log())
    before = len(log.records)
    chains = Chains(forged, log.publish)
    append(forged, later_than(forged), chains, batches=1)
    chains.gather(ArrowSink().append)
    assert len(log.records) > before
    assert check_published(forged, log.records[before:], TOPIC).broken == 0

    assert judged(forged, log).broken == before


def later_than(warehouse: Path) -> Story:
    """Return ticks behind the records of a ledger."""
    story, topic = Story(), Topics().groups
    rows = DeltaTable(warehouse / EVENTS.name).to_pyarrow_table().to_pylist()
    last = max(row["offset"] for row in rows if (row["topic"], row["partition"]) == (topic, 0))
    story.rows = [(topic, 0, last + number, story.now_ms, None, b'{"type":"tick"}') for number in (1, 2, 3)]
    return story


def test_nothing_lawful_is_accused(tmp_path):
    """More shards, an era, retention, an interrupted deletion, records that Kafka lost, and a table that was lost."""
    log = Log()
    warehouse = written(tmp_path, a_long_life(), log)
    append_rows = ArrowSink().append

    def again(story: Story) -> Chains:
        chains = Chains(warehouse, log.publish)
        chains.begin()
        append(warehouse, story, chains, batches=1)
        chains.gather(append_rows)
        assert judged(warehouse, log).broken == 0
        return chains

    chains = again(later_than(warehouse))
    with chains.rewriting(EVENTS, {f"{Topics().groups}-0": 60}, "older than the retention", append_rows):
        delete(warehouse, "events", f"topic = '{Topics().groups}' and partition = 0 and offset <= 60")
    assert judged(warehouse, log).broken == 0

    def interrupted() -> None:
        with chains.rewriting(DECISIONS, None, "rows were made again by `wakeroll repair`", append_rows):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert judged(warehouse, log).broken == 0
    Chains(warehouse, log.publish).finish(DECISIONS, append_rows)
    assert judged(warehouse, log).broken == 0

    skipping = later_than(warehouse)
    skipping.rows = skipping.rows[2:]
    again(skipping)
    ticks = later_than(warehouse)
    shutil.rmtree(warehouse / EVENTS.name)
    create_tables_again(warehouse)
    again(ticks)
    kinds = [line.kind for line in gathered_lines(warehouse, "table_name = 'events' order by number")]
    assert kinds == ["begin", *["rows"] * 5, "rows", "cut", "kept", "gap", "rows", "begin", "gap", "rows"]
    assert {one.table for one in log.records} == {"assignments", "decisions", "events", "offsets", "snapshots"}


def create_tables_again(warehouse: Path) -> None:
    """Create the tables that are missing, as a start does."""
    other = warehouse.parent / f"{warehouse.name} other"
    create_tables(other)
    for folder in other.iterdir():
        if not (warehouse / folder.name).exists():
            shutil.copytree(folder, warehouse / folder.name)


def delete(warehouse: Path, table: str, condition: str) -> None:
    DeltaTable(warehouse / table).delete(condition)


def test_a_line_is_published_only_after_it_is_in_the_table_chain(tmp_path):
    """A line that a crash takes away would accuse a sound ledger for ever."""
    log = Log()
    create_tables(tmp_path)
    chains = Chains(tmp_path, log.publish)
    append(tmp_path, a_history(committed=300), chains, gathers=False)

    def fails(_rows: pa.Table, _place: Place) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        chains.gather(fails)
    assert log.records == []

    chains.gather(ArrowSink().append)
    newest = {head.table: head.line_hash for head in chains.heads()}
    assert {one.table: one.line_hash for one in log.records} == newest
    chains.gather(ArrowSink().append)
    assert len(log.records) == len(newest), "nothing is new"


def test_the_loss_of_the_newest_lines_is_found(tmp_path):
    """An older copy of the tables looks like that too."""
    log = Log()
    warehouse = written(tmp_path, a_history(committed=300), log)
    last = {one.table: one.number for one in log.records}["events"]
    delete(warehouse, CHAIN.name, f"table_name = 'events' and number = {last}")
    # Its commit has the line too, and is deleted after an hour.
    max((warehouse / EVENTS.name / "_delta_log").glob("*.json")).unlink()

    [row] = judged(warehouse, log).rows
    assert row["at"].startswith(f"line {last} of events, ")
    assert row["found"] == f"no such line: the table chain ends at line {last - 1} of events"


def test_lines_of_tables_that_were_restored_do_not_count(tmp_path):
    """Only who may write to the topic can say so: `restore` does."""
    log = Log()
    written(tmp_path / "true", a_history(committed=300), log)
    new = tmp_path / "new"
    fresh = Log()
    written(new, a_history(committed=301), fresh)
    assert judged(new, log).broken == len(log.records)

    tables = sorted({one.table for one in log.records})
    log.records += [Published(table=table, number=0, reason="the tables were lost", at_ms=7_000) for table in tables]
    assert judged(new, log).skipped == (
        f"no line was published in {TOPIC} since 1970-01-01T00:00:07.000Z, when the tables were restored"
    )
    log.records += fresh.records
    assert (judged(new, log).broken, judged(new, log).skipped) == (0, "")
    assert [one.table for one in counting(log.records)] == tables


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (None, f"there is no topic {TOPIC}; `wakeroll run` of this release creates it"),
        ([], f"no line was published in {TOPIC}"),
        ([Published(table="of a later release", number=1)], f"no line was published in {TOPIC}"),
    ],
)
def test_without_published_lines_the_rule_is_skipped_with_the_reason(tmp_path, records, reason):
    result = check_published(tmp_path, records, TOPIC)

    assert (result.skipped, result.broken, result.not_checked) == (reason, 0, "")
    assert sentence_of(result, records, TOPIC) == ""


def test_a_damaged_file_of_the_chain_leaves_it_unchecked(tmp_path):
    log = Log()
    warehouse = written(tmp_path, a_history(committed=300), log)
    for file in (warehouse / CHAIN.name).glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:40])

    assert "cannot read table 'chain'" in judged(warehouse, log).not_checked
