"""The places of JARs, Python and packages for executors: on this machine, or on the workers of a cluster."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.executor_packages import FOLDER, packed


def is_local(master: str) -> bool:
    """Return whether executors run on this machine, with its files: ``local[4]``, ``local-cluster[2,1,1024]``."""
    return master.startswith("local")


def executor_confs(settings: Settings, jars: Sequence[Path]) -> Mapping[str, str]:
    """Return Spark settings for the executors, and set the environment of the Python processes.

    On a cluster, executors download the JARs from the driver, and the Python packages too unless they are installed.

    Args:
        settings: the master, and the source of the executors' Python packages.
        jars: JARs that Spark needs besides its own.

    Raises:
        PackagesMissing: the archive of the packages cannot be made.
    """
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local(settings.master):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.extraClassPath": os.pathsep.join(str(jar) for jar in jars),
        }
    os.environ["PYSPARK_PYTHON"] = settings.executor_python or f"python3.{sys.version_info.minor}"
    confs = {"spark.jars": ",".join(jar.as_uri() for jar in jars)}
    if settings.executor_packages == "shipped":
        archive = packed(settings.work_folder)
        confs |= {"spark.archives": f"{archive.as_uri()}#{FOLDER}", "spark.executorEnv.PYTHONPATH": FOLDER}
    return confs
