"""Rows into Delta, each once, however often Spark repeats a batch."""

from pathlib import Path

from pyspark.sql import DataFrame


def append_once(rows: DataFrame, path: Path, query_id: str, batch_id: int) -> None:
    """Append a batch's rows to a table, unless this batch was appended before.

    `query_id` is that of the checkpoint: under another checkpoint's, Delta would drop batches it takes for repeated.
    """
    rows.write.format("delta").mode("append").options(txnAppId=f"{query_id}/{path.name}", txnVersion=batch_id).save(
        str(path)
    )
