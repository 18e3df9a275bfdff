"""Reads a table in a store as wakeroll does: `python -m tests.support.systems.s3_reader CLIENT TABLE WORK`.

For each line of its input it reads once, and prints ``rows`` and their number, or ``failed`` and the error in one line.
The store and the keys come from the environment. The clients are ``obstore`` (small files, and what DuckDB reads),
``deltalake`` and ``spark``.
"""

import os
import sys
from collections.abc import Callable

from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.ledger.delta_files import REMOTE, connected, open_delta
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place


def reader_of(client: str, table: Place, work: str) -> Callable[[], int]:
    """Return a function that reads the table, and returns the number of its rows."""
    if client == "spark":
        from wakeroll_pipeline.spark.session import start_brief_session

        home = table.parent.location
        spark = start_brief_session(load(os.environ, home=home, checkpoints=home, work=work), "reader")
        return lambda: spark.read.format("delta").load(table.for_spark()).count()
    return {"deltalake": _by_deltalake, "obstore": _by_duckdb}[client](table)


def _by_deltalake(table: Place) -> Callable[[], int]:
    return lambda: int(open_delta(table).to_pyarrow_table().num_rows)


def _by_duckdb(table: Place) -> Callable[[], int]:
    def read() -> int:
        files = [file for file in small_files.files(table) if file.place.name.endswith(".parquet")]
        names = [f"{REMOTE}://{file.size}/{file.place.key}" for file in files]
        with connected(table) as connection:
            [row] = connection.execute("select count(number) from read_parquet(?)", [names]).fetchall()
        return int(row[0])

    return read


def main(client: str, table: str, work: str) -> None:
    """Read whenever a line arrives."""
    settings = load(os.environ, home=table)
    read = reader_of(client, settings.warehouse.parent, work)
    print("ready", flush=True)
    for _ in sys.stdin:
        try:
            print(f"rows {read()}", flush=True)
        except Exception as error:
            print(f"failed {' '.join(str(error).split())[:400]}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
