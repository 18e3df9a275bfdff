"""The reason why a question has no answer, with the status of the HTTP answer that reports it."""

from wakeroll.errors import InvalidUsage


class NoAnswer(InvalidUsage):
    """A question about the past, or about a hypothetical change, that has no answer; the message is the reason."""

    def __init__(self, reason: str, status: int = 400) -> None:
        """Give the reason, and the HTTP status: 400, or 404 if something does not exist, or 503 to try again."""
        super().__init__(reason)
        self.status = status
