"""Names of the streams of a table, as the lines of its chain have them.

Commands that only query read them too, so this module needs no package beyond the extra `ask`.
"""

from wakeroll_model.rows import SNAPSHOTS, Table


def values_of(stream: str, table: Table) -> dict[str, str | int]:
    """Return the columns that a name of `wakeroll_pipeline.ledger.row_hashes.streams_of` stands for."""
    if table.stream == ("partition", "shard"):
        shard, _, partition = stream.rpartition("@")
        return {"partition": int(partition), "shard": shard}
    if table.stream == ("partition",):
        return {"partition": int(stream)}
    found: dict[str, str | int] = {}
    if table is SNAPSHOTS:
        stream, _, era = stream.rpartition(".")
        found["era"] = int(era)
    topic, _, partition = stream.rpartition("-")
    return found | {"topic": topic, "partition": int(partition)}
