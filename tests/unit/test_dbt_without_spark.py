"""What runs in DuckDB needs neither PySpark nor Java: modules behind `marts` and `check`, in a process of their own."""

import subprocess
import sys

import pytest

from tests.support.dbt_here import NEEDS_DBT

WITHOUT_SPARK = """
import sys

sys.modules["pyspark"] = sys.modules["delta"] = None
import {module}
"""


@pytest.mark.parametrize(
    "module",
    [
        "wakeroll_pipeline.cli.marts_command",
        "wakeroll_pipeline.cli.check_command",
        "wakeroll_pipeline.questions.marts",
        pytest.param("wakeroll_pipeline.questions.dbt_plugin", marks=NEEDS_DBT),
        "wakeroll_pipeline.questions.quality.history_in_duckdb",
        "wakeroll_pipeline.questions.quality.check_in_duckdb",
    ],
)
def test_a_module_behind_a_command_needs_no_spark(module: str):
    """The extras `sql` and `quality` do not install it."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK.format(module=module)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
