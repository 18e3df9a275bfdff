"""The interface by which handlers of other modules render a page."""

from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response


class Renderer(Protocol):
    """Renders a template within the frame of all pages."""

    def __call__(self, request: Request, template: str, status: int = 200, /, **values: object) -> Response:
        """Return a page with an HTTP status."""
