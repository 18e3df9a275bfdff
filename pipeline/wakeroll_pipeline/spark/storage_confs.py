"""Spark's settings for the places of tables and checkpoints: file systems, and the writing of a checkpoint's files."""

from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage.place import Place

_MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing."
_LOCAL_MANAGER = _MANAGERS + "FileSystemBasedCheckpointFileManager"
_S3_MANAGER = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
"""Class that writes a checkpoint's files in S3 under their final names; Hadoop's rename would copy and delete each
file."""


def storage_confs(settings: Settings) -> dict[str, str]:
    """Return the settings that depend on the places of a deployment's data; they contain no credentials."""
    # Hadoop without its native library forks `readlink` and `chmod` some 20 times a batch: 100 ms against 3 ms.
    confs = {"spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"}
    checkpoints = settings.checkpoints_folder
    if checkpoints.is_local:
        confs["spark.sql.streaming.checkpointFileManagerClass"] = _LOCAL_MANAGER
    elif checkpoints.is_s3:
        confs["spark.sql.streaming.checkpointFileManagerClass"] = _S3_MANAGER
    for place in _places(settings):
        if place.is_s3:
            confs |= place.s3.for_spark()
    return confs


def uses_s3(settings: Settings) -> bool:
    """Return whether tables or checkpoints are in S3."""
    return any(place.is_s3 for place in _places(settings))


def _places(settings: Settings) -> tuple[Place, Place]:
    return settings.warehouse, settings.checkpoints_folder
