"""The engines that a test asks the same question."""

import pytest

ENGINES = ("duckdb", pytest.param("spark", marks=pytest.mark.operate))
"""Parameters of a test or fixture.

`make test` asks DuckDB. It compares every row of every view with Spark's (`tests/sql/test_engines.py`), and asks Spark
once per command (`tests/sql/test_damaged_tables.py`, `test_check.py`); all that questions make of the views is asked
again in Spark by `make test-operate`, for that takes ten times as long.
"""
