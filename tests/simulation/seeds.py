"""Worlds from as many seeds as there is time for, and whether a seed is the same world everywhere."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

SEEDS = int(os.environ.get("SEEDS", "0"))
"""How many worlds; 0: at least `least`, and up to `MOST` as long as there is time."""
MOST = 60


def run_worlds(live: Callable[[int, Counter[str]], str], least: int, budget_s: float) -> tuple[Counter[str], int]:
    """Run worlds until one has a story to tell, which fails the test; return what happened, and in how many."""
    began, happened, seed = time.monotonic(), Counter[str](), 0
    while seed < SEEDS or (not SEEDS and (seed < least or (seed < MOST and time.monotonic() - began < budget_s))):
        story = live(seed, happened)
        assert not story, f"\n{story}"
        seed += 1
    return happened, seed


def digests(code: str) -> list[str]:
    """Return a digest of what some code makes as ``said``, in two processes that hash differently."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = f"import hashlib; {code}; print(hashlib.sha256(repr(said).encode()).hexdigest())"
    return [
        subprocess.run(
            [sys.executable, "-c", command],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
