"""Damage of a table, as disks, cleanups and people do it."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from wakeroll_pipeline.ledger.delta_files import files_of, open_delta
from wakeroll_pipeline.questions.quality.rule import Rule
from wakeroll_pipeline.storage.place import Place

Damage = Callable[[Path], str]
"""Damages a table in a folder; returns a part of the sentence that must name it."""


def largest_file(table: Path) -> Path:
    """Return the largest Parquet file of the newest version."""
    files = map(Path, files_of(open_delta(table), Place.of(table)))
    return max(files, key=lambda file: file.stat().st_size)


def lose_a_file(table: Path) -> str:
    file = largest_file(table)
    file.unlink()
    return f"the file {file} is missing"


def cut_a_file(table: Path) -> str:
    file = largest_file(table)
    os.truncate(file, file.stat().st_size // 2)
    return f"the file {file} has "


def empty_a_file(table: Path) -> str:
    file = largest_file(table)
    os.truncate(file, 0)
    return f"the file {file} has 0 bytes"


def zero_a_file(table: Path) -> str:
    """The file has its size, as after a power failure."""
    file = largest_file(table)
    file.write_bytes(bytes(file.stat().st_size))
    return f"the file {file} is damaged"


def flip_the_footer(table: Path) -> str:
    file = largest_file(table)
    body = bytearray(file.read_bytes())
    for place in (40, 60, 80):
        body[-place] ^= 0xFF
    file.write_bytes(body)
    return f"the file {file} is damaged"


def flip_the_pages(table: Path) -> str:
    """The footer is sound, so only a query that reads the values can notice."""
    file = largest_file(table)
    body = bytearray(file.read_bytes())
    for place in range(4, len(body) // 2):
        body[place] ^= 0xFF
    file.write_bytes(body)
    return f"the file {file} is damaged"


def lose_the_first_commit(table: Path) -> str:
    return _lose(_commits(table)[0])


def lose_a_commit(table: Path) -> str:
    return _lose(_commits(table)[1])


def _lose(commit: Path) -> str:
    commit.unlink()
    return f"the commit {commit} is missing"


def flip_a_commit(table: Path) -> str:
    commit = _commits(table)[-1]
    body = bytearray(commit.read_bytes())
    body[len(body) // 2] ^= 0xFF
    commit.write_bytes(body)
    return f"the commit {commit} is damaged"


def cut_a_checkpoint(table: Path) -> str:
    DeltaTable(str(table)).create_checkpoint()
    [checkpoint] = (table / "_delta_log").glob("*.checkpoint.parquet")
    os.truncate(checkpoint, checkpoint.stat().st_size // 2)
    return f"the checkpoint {checkpoint} is damaged"


def lose_the_checkpoint(table: Path) -> str:
    DeltaTable(str(table)).create_checkpoint()
    [checkpoint] = (table / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.unlink()
    return f"its log {table / '_delta_log'} is damaged"


def lose_the_log(table: Path) -> str:
    shutil.rmtree(table / "_delta_log")
    return f"{table / '_delta_log'} is missing"


def lose_the_table(table: Path) -> str:
    shutil.rmtree(table)
    return f"{table} is missing"


def put_another_table(table: Path) -> str:
    shutil.rmtree(table)
    write_deltalake(str(table), pa.table({"customer": ["a"], "price": [1]}))
    return f"{table} has no column"


def lose_a_column(table: Path) -> str:
    rows = DeltaTable(str(table)).to_pyarrow_table()
    shutil.rmtree(table)
    write_deltalake(str(table), rows.drop_columns(["partition"]))
    return f"{table} has no column partition"


def change_a_type(table: Path) -> str:
    rows = DeltaTable(str(table)).to_pyarrow_table()
    place = rows.column_names.index("partition")
    other = rows.set_column(place, "partition", rows.column("partition").cast(pa.string()))
    shutil.rmtree(table)
    write_deltalake(str(table), other)
    return f"{table} has the column partition of type VARCHAR instead of INTEGER"


DAMAGES: Mapping[str, Damage] = {
    one.__name__.replace("_", " "): one
    for one in (
        lose_a_file,
        cut_a_file,
        empty_a_file,
        zero_a_file,
        flip_the_footer,
        flip_the_pages,
        lose_the_first_commit,
        lose_a_commit,
        flip_a_commit,
        cut_a_checkpoint,
        lose_the_checkpoint,
        lose_the_log,
        lose_the_table,
        put_another_table,
        lose_a_column,
        change_a_type,
    )
}
"""What happened, in words -> the function that does it."""


def add_a_column(table: Path) -> None:
    """Add a column that may be null, as a newer release does."""
    rows = DeltaTable(str(table)).to_pyarrow_table()
    wider = rows.append_column("added_by_a_newer_release", pa.nulls(len(rows), pa.string()))
    write_deltalake(str(table), wider, mode="overwrite", schema_mode="overwrite")


def _commits(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.json"))


def bad_value(rule: Rule) -> object:
    """Return a value that breaks the rule of a column."""
    match rule.expectation:
        case "ExpectColumnValuesToNotBeNull":
            return None
        case "ExpectColumnValuesToBeBetween":
            return rule.arguments["min_value"] - 1
        case "ExpectColumnValuesToMatchRegex":
            return "é"
        case "ExpectColumnValuesToBeInSet":
            return "something else"
    raise AssertionError(f"nothing is known that breaks {rule}")
