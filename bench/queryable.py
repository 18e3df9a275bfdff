"""The delay until a decision is queryable in SQL: from its append to Kafka to its commit in Delta.

It is read from the table's own log: each commit names its new files, and is visible from the time of its log file on.
"""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from bench.latency_figures import Latency, latency_of

_decode = msgspec.json.Decoder().decode


def queryable(decisions: Path, since_ms: int) -> Latency:
    """Return how long decisions took that were published since then.

    Args:
        decisions: the table's folder, of which nothing was cleaned yet.
        since_ms: epoch ms.
    """
    return latency_of(
        commit_ms - published_ms
        for commit_ms, added in _commits(decisions)
        for published_ms in parquet.read_table(added, columns=["published_ms"])["published_ms"].to_pylist()
        if published_ms >= since_ms
    )


def _commits(table: Path) -> Iterator[tuple[int, Path]]:
    """Yield each file with new rows, and when it was committed, epoch ms; a compaction's has none that are new."""
    for commit in (table / "_delta_log").glob("*.json"):
        commit_ms = commit.stat().st_mtime_ns // 1_000_000
        for line in commit.read_bytes().splitlines():
            added = _decode(line).get("add")
            if added is not None and added["dataChange"]:
                yield commit_ms, table / unquote(added["path"])
