"""Names for failures of the machine itself."""

_FRAMES = 6
"""Number of innermost calls in a fingerprint."""
_OURS = __name__.partition(".")[0]


def fingerprint(error: Exception) -> str:
    """Return a name for a failure of the machine itself: the exception, and the functions of this package it came from.

    It is part of a decision, so it must be the same on every machine and after edits elsewhere. It contains no line
    numbers, no calls of the standard library, and no names that differ between versions of Python, such as those of
    comprehensions.

    >>> fingerprint(ValueError("7"))
    'ValueError in '
    """
    calls: list[str] = []
    frame = error.__traceback__
    while frame is not None:
        module = frame.tb_frame.f_globals.get("__name__", "")
        name = frame.tb_frame.f_code.co_name
        if module.partition(".")[0] == _OURS and not name.startswith("<"):
            calls.append(f"{module.removeprefix('wakeroll_')}.{name}")  # as stored decisions have it
        frame = frame.tb_next
    return f"{type(error).__name__} in {' > '.join(calls[-_FRAMES:])}"
