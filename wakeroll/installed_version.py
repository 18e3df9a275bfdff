"""The version of wakeroll that is installed."""


def installed_version() -> str:
    """Return the version of the installed package; ``unknown`` for sources without an installation."""
    from importlib.metadata import PackageNotFoundError, version  # it loads 50 modules, such as those for e-mail

    try:
        return version("wakeroll")
    except PackageNotFoundError:
        return "unknown"
