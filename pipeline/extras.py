"""The error for a command whose packages are not installed: it names the extra that brings them."""

from wakeroll.errors import InvalidUsage


def missing_extra(what: str, extra: str, missing: ModuleNotFoundError) -> InvalidUsage:
    """Return the error for a package of an extra that is not installed.

    Args:
        what: subject of the sentence, such as ``this command``.
        extra: name of the extra, such as ``ask``.
        missing: error of the import.
    """
    package = (missing.name or "").partition(".")[0]
    return InvalidUsage(
        f"{what} needs the extra `{extra}` ({package} is missing); install it with: pip install 'wakeroll[{extra}]'"
    )
