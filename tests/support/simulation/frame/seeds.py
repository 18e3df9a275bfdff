"""Worlds from fixed seeds, or from random ones, and whether a seed is the same world everywhere."""

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence

from tests.support.running_processes import ROOT, run_process

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
    program = [sys.executable, "-c", command]
    made = [run_process(program, PYTHONHASHSEED=hash_seed, PYTHONPATH=str(ROOT)) for hash_seed in ("1", "2")]
    assert [one.stderr for one in made if one.returncode] == []
    return [one.stdout for one in made]
