"""What a strategy raises."""


class StrategyError(ValueError):
    """A strategy cannot share these queues; the message says why, for the group's operator."""
