"""What a filter raises."""


class FilterError(ValueError):
    """An expression cannot be a filter; the message says why, for whoever subscribed with it."""
