"""The exceptions for a request that the page refuses, and for a query without an answer."""

from wakeroll.errors import InvalidUsage


class Refused(Exception):
    """A request is refused; the message is shown in the page.

    Attributes:
        status: HTTP status of the answer.
        link: address of a page with further help; empty if there is none.
    """

    def __init__(self, message: str, status: int, link: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.link = link


class NoAnswer(InvalidUsage):
    """A query about the past, or about a hypothetical change, has no answer; the message is the reason."""

    def __init__(self, reason: str, status: int = 400) -> None:
        """Set the reason, and the HTTP status: 400, or 404 if something does not exist, or 503 if a retry may help."""
        super().__init__(reason)
        self.status = status
