"""The program for spark-submit: its arguments are a command of wakeroll. See spark-submit.md."""

import os

from pyspark import SparkConf

from pipeline.cli import main

# Settings of a session override those of spark-submit, so both must name the same master.
os.environ["WAKEROLL_MASTER"] = SparkConf().get("spark.master", "")
main()
