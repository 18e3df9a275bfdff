"""Checks of `doctor` for tables and checkpoints in an object store: the store answers, and Spark can reach it."""

from collections.abc import Iterator

from wakeroll.errors import WakerollError
from wakeroll_pipeline.prerequisites import Check
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.jar_sums import JarsMissing
from wakeroll_pipeline.spark.s3_classes import s3_session_jars
from wakeroll_pipeline.spark.storage_confs import uses_s3
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.write_probes import refuse_unconditional


def storage_checks(settings: Settings) -> Iterator[Check]:
    """Yield one check for each remote folder, and one for the JARs; none if all data is local."""
    for place in dict.fromkeys((settings.warehouse.parent, settings.checkpoints_folder)):
        if not place.is_local:
            yield _answers(place)
    if uses_s3(settings):
        try:
            yield Check("s3 jars", True, f"{len(s3_session_jars())} for Spark", "")
        except JarsMissing as error:
            yield Check("s3 jars", False, str(error), "")


def _answers(place: Place) -> Check:
    try:
        refuse_unconditional(place)
    except WakerollError as error:
        return Check("storage", False, str(error), "")
    return Check("storage", True, f"{place} can be written, and refuses to create a file twice", "")
