"""A Spark session of its own that writes to a store: `python -m tests.support.systems.s3_writer HOME WORK TASK NUMBER`.

Its settings come from the environment.  It prints one line per success, which begins with ``done``.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import SparkSession

from tests.support.spark_tables import append
from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.spark.session import start_brief_session
from wakeroll_pipeline.storage.place import Place

WRITERS = 8
NAMES = 6
APPENDS = 12


def create_files(spark: SparkSession, folder: Place) -> None:
    """Let many threads create the same files at the same time, as Spark creates the files of a checkpoint."""
    jvm: Any = spark._jvm
    hadoop = jvm.org.apache.hadoop.fs
    conf = spark._jsparkSession.sessionState().newHadoopConf()

    def create(number: int) -> str:
        path = hadoop.Path((folder / f"file-{number % NAMES}").for_spark())
        try:
            stream = path.getFileSystem(conf).create(path, False)
            stream.writeBytes(str(number))
            stream.close()
        except Exception as error:
            return f"refused {number % NAMES} {str(error).splitlines()[1]}"
        return f"done {number % NAMES} {number}"

    with ThreadPoolExecutor(WRITERS * NAMES) as threads:
        for line in threads.map(create, range(WRITERS * NAMES)):
            print(line, flush=True)


def append_rows(spark: SparkSession, table: Place, writer: int) -> None:
    """Append rows one by one, while another process does so too."""
    for number in range(APPENDS):
        try:
            append(spark.createDataFrame([(writer, number)], "writer int, number int"), table)
        except Exception as error:
            print(f"refused {writer} {number} {str(error).splitlines()[0][:300]}", flush=True)
        else:
            print(f"done {writer} {number}", flush=True)


def main(home: str, work: str, task: str, number: str) -> None:
    """Do the task."""
    import os

    settings = load(os.environ, home=home, checkpoints=home, work=work)
    spark = start_brief_session(settings, "writer")
    print("ready", flush=True)
    sys.stdin.readline()  # both begin at the same time
    folder = settings.warehouse.parent
    if task == "create":
        create_files(spark, folder / "files")
    else:
        append_rows(spark, folder / "table", int(number))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
