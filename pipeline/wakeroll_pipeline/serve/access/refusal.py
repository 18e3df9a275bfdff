"""The exception of a request that the page refuses."""


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
