"""The program for spark-submit: its arguments are a command of wakeroll. See spark-submit.md."""

import os

from pyspark import SparkConf, SparkContext

from wakeroll_pipeline.cli import main

# Settings of a session override those of spark-submit, so both must name the same master.  Only its JVM knows it.
SparkContext._ensure_initialized()
os.environ["WAKEROLL_MASTER"] = SparkConf().get("spark.master", "")
main()
