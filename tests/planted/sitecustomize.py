"""Python imports this when it starts, where this folder is on PYTHONPATH: so the bug reaches Spark's workers too."""

import planted_bug

planted_bug.plant()
