"""What can go wrong, as exceptions of our own: each message is a sentence for whoever must mend it."""


class WakerollError(Exception):
    """Anything that goes wrong in our own words."""


class InvalidUsage(WakerollError):
    """The user asked for something that cannot work; the message says what would.  Trying again does not help."""


class NotReachable(WakerollError):
    """No broker answered in time, or it has no control plane."""


class Fenced(WakerollError):
    """This consumer is out of its group and must not come back by itself.

    Attributes:
        reason: ``duplicate`` (another process uses the same client_id), ``refused`` (the group is full, or consumes in
            another mode) or ``left``.
        by: of a duplicate, the instance that has the client_id; else empty.
    """

    def __init__(self, message: str, reason: str, by: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.by = by
