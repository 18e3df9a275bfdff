"""The deciding queries: one query runs both state machines, or two queries run one each, with separate checkpoints.

Each replica of a coordinator has its own queries.
"""

from pathlib import Path

from wakeroll_model.partitioner import ControlPartition
from wakeroll_pipeline.settings import Settings

COORDINATE = "coordinate"
RECORD = "record"
_APART = ("groups", "queues")


def query_of(settings: Settings) -> str:
    """Return the name of the deciding query, and of its checkpoint: ``coordinate``, ``coordinate-groups@b``."""
    name = COORDINATE if settings.machines == "both" else f"{COORDINATE}-{settings.machines}"
    return name + _at(settings)


def queries_of(settings: Settings) -> tuple[str, ...]:
    """Return the names of all deciding queries of this coordinator; these settings run one of them."""
    names = (COORDINATE,) if settings.machines == "both" else tuple(f"{COORDINATE}-{name}" for name in _APART)
    return tuple(name + _at(settings) for name in names)


def machines_of(settings: Settings) -> tuple[str, ...]:
    """Return the machines that the deciding query runs: ``groups``, ``queues`` or both."""
    return _APART if settings.machines == "both" else (settings.machines,)


def topics_of(settings: Settings) -> tuple[str, ...]:
    """Return the control topics that the deciding query reads."""
    topics = settings.connection.topics
    return tuple({"groups": topics.groups, "queues": topics.queues}[name] for name in machines_of(settings))


def partitions_of(settings: Settings) -> list[ControlPartition]:
    """Return the partitions that the deciding query reads; each has one shard."""
    return [(topic, number) for topic in topics_of(settings) for number in range(settings.partitions)]


def lease_of(settings: Settings, machine: str) -> str:
    """Return the name of the lease of the process that runs a machine."""
    return f"{COORDINATE}.{machine}{_at(settings)}"


def lock_of(settings: Settings, machine: str) -> Path:
    """Return the lock file of the process that runs a machine."""
    return settings.lock_file(settings.checkpoint(f"{lease_of(settings, machine)}.lock"))


def record_lock(settings: Settings) -> Path:
    """Return the lock file of the process that writes the tables."""
    return settings.lock_file(settings.warehouse / "record.lock")


def _at(settings: Settings) -> str:
    return f"@{settings.replica}" if settings.replica else ""
