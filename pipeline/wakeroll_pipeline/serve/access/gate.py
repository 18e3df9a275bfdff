"""The gate: it identifies the user of a request, and refuses forms of other sites and other sessions."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct
from starlette.requests import HTTPConnection
from starlette.responses import Response

from wakeroll.errors import missing_extra
from wakeroll_pipeline.serve.access.access_options import AccessOptions
from wakeroll_pipeline.serve.access.form_tokens import FormTokens
from wakeroll_pipeline.serve.access.login_limits import LoginLimits
from wakeroll_pipeline.serve.access.oidc_file import read_provider
from wakeroll_pipeline.serve.access.refusal import Refused
from wakeroll_pipeline.serve.access.rights import Rights, Role
from wakeroll_pipeline.serve.access.session_cookie import SESSION_S, Session, Sessions
from wakeroll_pipeline.serve.access.trusted_proxies import TrustedProxies, is_loopback, networks_of, peer_of
from wakeroll_pipeline.serve.access.user_file import USER_NAME, UserFile

if TYPE_CHECKING:
    from wakeroll_pipeline.serve.access.oidc_client import OidcClient

_COOKIE, _SECURE_COOKIE = "wakeroll", "__Host-wakeroll"
"""A browser accepts a name with ``__Host-`` only from this host itself, over https."""


class Visitor(Struct, frozen=True, kw_only=True):
    """A user who was identified by a session, or by the header of a trusted proxy."""

    name: str
    address: str
    session_id: str
    """Id of the session, to which the tokens of forms belong."""
    can_log_out: bool
    rights: Rights = Rights()


class Gate:
    """Identifies users by sessions and proxies."""

    def __init__(self, options: AccessOptions) -> None:
        """Prepare.

        Raises:
            InvalidUsage: the file of users or that of the provider, or an address of a proxy, cannot be used.
        """
        secret = secrets.token_bytes(32)
        self.options = options
        self.proxies = TrustedProxies(networks_of(options.trusted_proxies))
        self._known = None if options.auth_file is None else UserFile(options.auth_file)
        self.users = None if options.auth_header else self._known
        """The users who log in with a password; None: there are no such logins."""
        self.oidc = None if options.oidc is None else _client_of(options.oidc, options.insecure_http)
        """The identity provider that logs users in; None: there is none."""
        self.secret = secrets.token_hex(32)
        """Signs the cookie of a login that is under way at the provider."""
        self.sessions = Sessions(secret)
        self.tokens = FormTokens(secret)
        self.limits = LoginLimits()

    @property
    def has_form(self) -> bool:
        """Whether users log in on this page: with a password, or by the identity provider."""
        return self.users is not None or self.oidc is not None

    def visitor(self, connection: HTTPConnection) -> Visitor | None:
        """Return the user of a request; None if the user is not known."""
        address = self.proxies.address_of(connection)
        if self.options.auth_header:
            named = connection.headers.getlist(self.options.auth_header)
            if not self.proxies.is_from_proxy(connection) or len(named) != 1 or not USER_NAME.fullmatch(named[0]):
                return None
            rights = Rights() if self._known is None else self._known.rights_of(named[0])
            session_id = f"proxy:{named[0]}"
            return Visitor(name=named[0], address=address, session_id=session_id, can_log_out=False, rights=rights)
        session = self.session(connection)
        if session is None:
            return None
        return Visitor(
            name=session.name,
            address=address,
            session_id=session.session_id,
            can_log_out=True,
            rights=self._rights_of(session),
        )

    def _rights_of(self, session: Session) -> Rights:
        if session.role and self.oidc is not None:
            return self.oidc.rules.rights[session.role]
        assert self.users is not None, "another session has a password's user"
        return self.users.rights_of(session.name)

    def session(self, connection: HTTPConnection) -> Session | None:
        """Return the session of a request's cookie; a user of the file must still exist and have the same password."""
        session = self.sessions.read(connection.cookies.get(self._cookie_name(connection), ""))
        if session is None or session.role:
            return session
        return session if self.users is not None and session.seal == self.users.seal_of(session.name) else None

    def known(self, connection: HTTPConnection) -> Visitor:
        """Return the user of a request.

        Raises:
            Refused: the user is not known.
        """
        visitor = self.visitor(connection)
        if visitor is None:
            raise Refused(self.why_unknown(connection), 401 if self.has_form else 403)
        return visitor

    def known_with(self, connection: HTTPConnection, needed: Role, group_id: str, deployment: str = "") -> Visitor:
        """Return the user of a request, if this user has the rights for a change of a group of a deployment.

        Raises:
            Refused: the user is not known, or lacks a right.
        """
        visitor = self.known(connection)
        if lack := visitor.rights.lack(needed, group_id, deployment):
            raise Refused(lack, 403)
        return visitor

    def why_unknown(self, connection: HTTPConnection) -> str:
        """Return the reason why the user of a request is not known."""
        if self.has_form:
            return "log in first"
        if not self.options.auth_header:
            return "this page has no login, so nobody may change anything"
        if not self.proxies.is_from_proxy(connection):
            return (
                f"your connection from {peer_of(connection)} does not come through a trusted proxy, which logs users in"
            )
        return f"the proxy named no valid user in the header {self.options.auth_header}"

    def accepts_logins(self, connection: HTTPConnection) -> bool:
        """Return whether a login may be sent over this connection: it is encrypted, local, or explicitly allowed."""
        return (
            self.options.insecure_http
            or self.proxies.is_https(connection)
            or (is_loopback(peer_of(connection)) and not self.proxies.is_from_proxy(connection))
        )

    def check_origin(self, connection: HTTPConnection) -> None:
        """Check that a form was sent by a page of this site.

        Raises:
            Refused: another site sent it, or the browser does not name the site.
        """
        site, origin = connection.headers.get("sec-fetch-site"), connection.headers.get("origin")
        if site not in (None, "same-origin") or (origin is None and site is None):
            raise Refused("the form was not sent by this page", 403)
        sender = None if origin is None else _origin_of(origin)
        if origin is not None and (sender is None or sender != _origin_of(self.own_address(connection))):
            raise Refused(
                "the form was not sent by this page; if a proxy changes the address of the page, set --public-url", 403
            )

    def set_session(
        self, connection: HTTPConnection, response: Response, cookie: str, length_s: int = SESSION_S
    ) -> None:
        """Send the browser a session with a length (s)."""
        response.set_cookie(
            self._cookie_name(connection),
            cookie,
            max_age=length_s,
            path="/",
            secure=self._is_secure(connection),
            httponly=True,
            samesite="strict",
        )

    def clear_session(self, connection: HTTPConnection, response: Response) -> None:
        """Remove the session from the browser."""
        response.delete_cookie(
            self._cookie_name(connection),
            path="/",
            secure=self._is_secure(connection),
            httponly=True,
            samesite="strict",
        )

    def _is_secure(self, connection: HTTPConnection) -> bool:
        return self.options.public_url.startswith("https:") or self.proxies.is_https(connection)

    def _cookie_name(self, connection: HTTPConnection) -> str:
        return _SECURE_COOKIE if self._is_secure(connection) else _COOKIE

    def own_address(self, connection: HTTPConnection) -> str:
        """Return the address of this page for browsers, without a slash at its end."""
        if self.options.public_url:
            return self.options.public_url.rstrip("/")
        scheme = "https" if self.proxies.is_https(connection) else "http"
        return f"{scheme}://{connection.headers.get('host', '')}"


def _client_of(file: Path, insecure_http: bool) -> "OidcClient":
    rules = read_provider(file, insecure_http=insecure_http)
    try:
        from wakeroll_pipeline.serve.access.oidc_client import OidcClient
    except ModuleNotFoundError as missing:
        raise missing_extra("the login by an identity provider", "oidc", missing) from None
    return OidcClient(rules)


def _origin_of(address: str) -> tuple[str, str, int | None] | None:
    """Return scheme, host and port of an address; None if it has none, like the origin ``null``."""
    try:
        found = urlsplit(address)
        port = found.port or {"http": 80, "https": 443}.get(found.scheme)
    except ValueError:
        return None
    return (found.scheme, found.hostname, port) if found.hostname else None
