"""The error messages of deltalake: a tree of causes, one per line and in colours; only the last line has the reason."""

import re

_CALLS = re.compile(r"\n +0: .*", re.DOTALL)
"""The stack trace in an error message, from the innermost function on."""
_CAUSE = re.compile(r"\s*\n\s*(?:\x1b\[\d+m)?\u21b3(?:\x1b\[\d+m)?\s*")


def in_one_line(error: object) -> str:
    r"""Return the message of an error, with the causes behind it in the same line.

    >>> in_one_line("Generic error\n  \x1b[31m\u21b3\x1b[0m Unable to copy\n   \x1b[31m\u21b3\x1b[0m No space left\n")
    'Generic error: Unable to copy: No space left'
    >>> in_one_line("Json error: Truncated record\n   0: <unknown>\n  13: clone3\n             at ./clone3.S:81:0\n")
    'Json error: Truncated record'
    """
    return _CAUSE.sub(": ", _CALLS.sub("", str(error))).strip()
