"""Settings by which deltalake writes the Parquet files and the log of a table."""

from deltalake import PostCommitHookProperties, WriterProperties

HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""Actions of deltalake after a commit; it does not clean the log, which `wakeroll_pipeline.ledger.maintenance` does."""

_STATISTICS_BYTES = 64
"""Maximum length of the stored minimum and maximum of a column (bytes). Without a bound, the statistics of a column of
states would contain whole states, uncompressed."""

SMALL_VALUES = WriterProperties(compression="ZSTD", compression_level=3, statistics_truncate_length=_STATISTICS_BYTES)
"""Compression of tables with small values: compared with Snappy, half of the bytes for states, and a fifth for
heartbeats, in the same time (docs/decisions/0031)."""
STATES = WriterProperties(
    compression="ZSTD", compression_level=3, statistics_truncate_length=_STATISTICS_BYTES, max_row_group_size=1
)
"""The same compression for a table whose rows have megabytes. Each row is a row group, so a reader decodes only the
rows that it selects, one after the other."""
