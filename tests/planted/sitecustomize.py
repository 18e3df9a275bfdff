"""Python imports this when it starts, where this folder is on PYTHONPATH: so the bug reaches Spark's workers too."""

from tests.support.planted_bug import plant

plant()
