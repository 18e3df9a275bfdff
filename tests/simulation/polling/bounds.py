"""How much the coordinators of a world keep: so little, and for so short a time, that everything is met."""

from collections.abc import Iterator
from contextlib import contextmanager

from model import config

BOUNDS = {
    "MAX_HOLDS_PER_QUEUE": 12,
    "MAX_HOLDS_PER_SHARD": 16,
    "MAX_LIVES_PER_QUEUE": 10,
    "MAX_LIVES_PER_SHARD": 30,
    "MAX_PULLED_QUEUES": 12,
    "MAX_FILTERS_PER_QUEUE": 250,
    "MAX_FILTERS_PER_SHARD": 350,
    "HINT_MS": 15_000,
    "REMEMBER_MS": 25_000,
}
"""Names in `model.config`."""


@contextmanager
def small_bounds() -> Iterator[None]:
    """Let the machines keep no more than a world's bounds say."""
    before = {name: getattr(config, name) for name in BOUNDS}
    vars(config).update(BOUNDS)
    try:
        yield
    finally:
        vars(config).update(before)
