"""How deltalake writes the Parquet files and the log of a table."""

from deltalake import PostCommitHookProperties, WriterProperties

HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""After a commit; `wakeroll_pipeline.ledger.maintenance` cleans the log."""

_STATISTICS_BYTES = 64
"""Longest minimum and maximum of a column that a file contains (bytes). Without a bound, the statistics of a column of
states would contain whole states, uncompressed."""

SMALL_VALUES = WriterProperties(compression="ZSTD", compression_level=3, statistics_truncate_length=_STATISTICS_BYTES)
"""Half of Snappy's bytes of a state, and a fifth of those of heartbeats, in the same time (docs/decisions/0031)."""
STATES = WriterProperties(
    compression="ZSTD", compression_level=3, statistics_truncate_length=_STATISTICS_BYTES, max_row_group_size=1
)
"""The same for a table whose rows have megabytes: each row is a row group, so a reader decodes only the rows that it
selects, one after the other."""
