"""How many pulls the coordinators of a world hold: so few that a crowd goes beyond it."""

from collections.abc import Iterator
from contextlib import contextmanager

from model import config

HOLDS_PER_QUEUE, HOLDS_PER_SHARD = 12, 16


@contextmanager
def small_bounds() -> Iterator[None]:
    """Let the machines hold no more than a world's bounds say."""
    before = config.MAX_HOLDS_PER_QUEUE, config.MAX_HOLDS_PER_SHARD
    config.MAX_HOLDS_PER_QUEUE, config.MAX_HOLDS_PER_SHARD = HOLDS_PER_QUEUE, HOLDS_PER_SHARD
    try:
        yield
    finally:
        config.MAX_HOLDS_PER_QUEUE, config.MAX_HOLDS_PER_SHARD = before
