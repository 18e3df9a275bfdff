"""A command whose extra is not installed names it, and has no traceback."""

import sys

import pytest

from tests.support.running_processes import run_process

WITHOUT = """
import sys
for name in ("pyspark", "py4j", "delta", "pandas", "numpy", "pyarrow", "prometheus_client"):
    sys.modules[name] = None  # an import fails
from pipeline.cli import main
main()
"""


@pytest.mark.parametrize(
    "words",
    ["run --bootstrap localhost:1", "observe --bootstrap localhost:1", "tap orders --bootstrap localhost:1"],
)
def test_the_extra_is_named(tmp_path, words):
    """Somebody who installed `ask` alone finds out how to get further."""
    done = run_process([sys.executable, "-c", WITHOUT, *words.split(), "--home", str(tmp_path)])

    assert done.returncode == 2
    assert done.stderr.startswith("wakeroll: this command needs the extra `spark` (")
    assert done.stderr.endswith("is missing); install it with: pip install 'wakeroll[spark]'\n")
    assert "Traceback" not in done.stderr
