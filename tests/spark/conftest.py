"""Makes the modules importable that the tests with Spark share; nothing else does in importlib mode."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "planted")]
