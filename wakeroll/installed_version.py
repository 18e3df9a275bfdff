"""The version of wakeroll that is installed."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the version of the installed package; ``unknown`` for sources without an installation."""
    try:
        return version("wakeroll")
    except PackageNotFoundError:
        return "unknown"
