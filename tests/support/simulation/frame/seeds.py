"""Worlds from fixed seeds, or from random ones, and whether a seed is the same world everywhere."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[4]
SEED = os.environ.get("SEED", "")
"""The first seed: a number, or ``random`` to search; empty: from 0, so that a run can be repeated."""


def run_worlds(
    live: Callable[[int, Counter[str]], str], count: int, found: Sequence[int] = ()
) -> tuple[Counter[str], int]:
    """Run worlds until one has a story to tell, which fails the test; return what happened, and in how many worlds.

    `found`: seeds besides, in which a rule was broken once.
    """
    first = random.SystemRandom().randrange(2**31) if SEED == "random" else int(SEED or 0)
    happened, seeds = Counter[str](), [*range(first, first + count), *found]
    for seed in seeds:
        story = live(seed, happened)
        assert not story, f"\n{story}"
    return happened, len(seeds)


def digests(code: str) -> list[str]:
    """Return a digest of what some code makes as ``said``, in two processes that hash differently."""
    command = f"import hashlib; {code}; print(hashlib.sha256(repr(said).encode()).hexdigest())"
    return [
        subprocess.run(
            [sys.executable, "-c", command],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
