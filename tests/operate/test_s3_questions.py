"""Spark reads and maintains tables in S3; both engines print the same."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.running_processes import run_process
from tests.support.systems.s3_copies import upload
from tests.support.systems.s3_server import BUCKET, S3Server

pytestmark = [pytest.mark.operate, pytest.mark.spark]


@pytest.fixture(scope="module")
def home(s3: S3Server, day: Path) -> str:
    """The tables of `day`, copied into the store; return the URI of their home."""
    upload(day, s3.place("day/warehouse"))
    return f"s3a://{BUCKET}/day"


@pytest.mark.parametrize("command", ["sql select+*+from+groups+order+by+group_id", "replay", "check"])
def test_both_engines_print_the_same_about_tables_in_the_store(home, tmp_path, command):
    words = [word.replace("+", " ") for word in command.split()]
    answers = [
        run_process(
            [sys.executable, "-m", "wakeroll_pipeline.cli", *words, "--engine", engine, "--home", home],
            WAKEROLL_WORK=str(tmp_path),
        )
        for engine in ("duckdb", "spark")
    ]

    assert [answer.returncode for answer in answers] == [0, 0], answers
    printed = [re.sub(r"\d+(\.\d)? s ago", "a while ago", answer.stdout) for answer in answers]
    assert printed[0].partition("Data Docs")[0] == printed[1].partition("Data Docs")[0]


def test_spark_continues_the_marts_that_duckdb_has_built_in_the_store(home, tmp_path):
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", "marts", "--home", home]
    built = run_process(command, WAKEROLL_WORK=str(tmp_path))
    continued = run_process([*command, "--engine", "spark"], WAKEROLL_WORK=str(tmp_path))

    assert built.returncode == 0, built.stdout
    assert continued.returncode == 0, continued.stdout + continued.stderr
