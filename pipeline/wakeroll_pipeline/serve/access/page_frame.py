"""The frame of a page: the name of its reader, and the links that depend on the reader."""

from msgspec import Struct
from starlette.requests import Request

from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.access.login_pages import login_address
from wakeroll_pipeline.serve.access.rights import Rights


class Frame(Struct, frozen=True, kw_only=True):
    """The parts of a page that depend on its reader."""

    name: str = ""
    """Name of the user; empty if the user is not known."""
    logout_token: str = ""
    """Token of the form that ends the session; empty if there is no session."""
    login: str = ""
    """Address of the login form; empty if there is none, or the user is logged in already."""
    may_change: bool = False
    """Whether the page offers changes to logged-in users."""
    rights: Rights = Rights()
    """Rights of the user; all rights if the user is not known, because a change requires a login first."""

    def offers_change(self, group_id: str, deployment: str) -> bool:
        """Return whether the page links to the changes of a group of a deployment."""
        return self.may_change and not self.rights.lack("operator", group_id, deployment)


def frame_of(gate: Gate | None, request: Request, may_change: bool) -> Frame:
    """Return the frame of a page for the sender of a request."""
    if gate is None:
        return Frame()
    visitor = gate.visitor(request)
    if visitor is None:
        is_login = request.url.path == "/login" or request.url.path.startswith("/login/")
        path = "/" if is_login or request.method != "GET" else f"{request.url.path}?{request.url.query}".rstrip("?")
        login = login_address(path) if gate.has_form and request.url.path != "/login" else ""
        return Frame(login=login, may_change=may_change)
    token = gate.tokens.new(visitor.session_id) if visitor.can_log_out else ""
    return Frame(name=visitor.name, logout_token=token, may_change=may_change, rights=visitor.rights)
