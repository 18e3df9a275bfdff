"""Which machines a deciding query runs: both, or one of them.  What one query keeps, another one cannot read."""

from pathlib import Path

from pipeline.settings import Settings

COORDINATE = "coordinate"
RECORD = "record"
_APART = ("groups", "queues")


def query_of(settings: Settings) -> str:
    """Return the name of the deciding query, and of its checkpoint."""
    return COORDINATE if settings.machines == "both" else f"{COORDINATE}-{settings.machines}"


def queries_of(settings: Settings) -> tuple[str, ...]:
    """Return the names of all deciding queries of a deployment, of which these settings may have one."""
    return (COORDINATE,) if settings.machines == "both" else tuple(f"{COORDINATE}-{name}" for name in _APART)


def machines_of(settings: Settings) -> tuple[str, ...]:
    """Return what the deciding query runs: ``groups``, ``queues`` or both."""
    return _APART if settings.machines == "both" else (settings.machines,)


def topics_of(settings: Settings) -> tuple[str, ...]:
    """Return the control topics that the deciding query reads."""
    topics = settings.connection.topics
    return tuple({"groups": topics.groups, "queues": topics.queues}[name] for name in machines_of(settings))


def lock_of(settings: Settings, machine: str) -> Path:
    """Return the file that the process holds which runs a machine."""
    return settings.checkpoint(f"{COORDINATE}.{machine}.lock")


def record_lock(settings: Settings) -> Path:
    """Return the file that the process holds which writes the tables."""
    return settings.warehouse / "record.lock"
