"""The error of the strategies."""


class StrategyError(ValueError):
    """A strategy cannot assign these queues; the message gives the reason to the operator of the group."""
