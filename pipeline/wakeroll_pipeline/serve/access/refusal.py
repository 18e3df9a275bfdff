"""The exceptions of a request that the page refuses, and of a question that has no answer."""

from wakeroll.errors import InvalidUsage


class Refused(Exception):
    """A request is refused; the message is shown in the page.

    Attributes:
        status: HTTP status of the answer.
        link: address that helps the user further; empty if there is none.
    """

    def __init__(self, message: str, status: int, link: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.link = link


class NoAnswer(InvalidUsage):
    """A question about the past, or about a hypothetical change, that has no answer; the message is the reason."""

    def __init__(self, reason: str, status: int = 400) -> None:
        """Give the reason, and the HTTP status: 400, or 404 if something does not exist, or 503 to try again."""
        super().__init__(reason)
        self.status = status
