"""Whether dbt runs on this Python: that of the extra `sql` does not on 3.14, and `marts` says so there."""

import sys

import pytest

NEEDS_DBT = pytest.mark.skipif(sys.version_info >= (3, 14), reason="dbt-core 1.11 does not run on Python 3.14")
