"""How much the coordinators of a world keep: so little, and for so short a time, that everything is met."""

from collections.abc import Iterator
from contextlib import contextmanager

from wakeroll_model import config

BOUNDS = {
    "HINT_MS": 15_000,
    "REMEMBER_MS": 25_000,
}
"""Names in `wakeroll_model.config`."""


LIMITS = config.Limits(
    max_holds_per_queue=12,
    max_holds_per_shard=16,
    max_lives_per_queue=10,
    max_lives_per_shard=30,
    max_pulled_queues=12,
    max_filters_per_queue=250,
    max_filters_per_shard=350,
)
"""Each tick tells them."""


@contextmanager
def small_bounds() -> Iterator[None]:
    """Let the machines keep no more than a world's bounds say."""
    before = {name: getattr(config, name) for name in BOUNDS}
    vars(config).update(BOUNDS)
    try:
        yield
    finally:
        vars(config).update(before)
