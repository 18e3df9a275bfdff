"""The error of the filters."""


class FilterError(ValueError):
    """An expression is not a valid filter; the message gives the reason to the subscriber."""
