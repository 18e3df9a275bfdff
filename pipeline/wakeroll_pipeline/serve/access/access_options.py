"""The options for the rights to read and to change, and the checks of their combination."""

import re
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from wakeroll.errors import InvalidUsage
from wakeroll.keys import key_to_sign, read_keys
from wakeroll_pipeline.serve.access.trusted_proxies import is_loopback, networks_of
from wakeroll_pipeline.settings import Settings

_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")


class AccessOptions(Struct, frozen=True, kw_only=True):
    """The rules of access; by default, everybody may read, and changes are not possible."""

    allow_changes: bool = False
    auth_file: Path | None = None
    """File of users, who log in with a password; with `auth_header`, of their roles only."""
    auth_header: str = ""
    """Header in which a trusted proxy names the user; empty: none."""
    trusted_proxies: str = ""
    """Addresses and networks of the proxies, separated by commas."""
    oidc: Path | None = None
    """File of an identity provider that logs users in; None: no provider."""
    require_login: bool = False
    """Whether reading needs a login too."""
    public_url: str = ""
    """Address under which browsers open the page, if a proxy changes it; empty: the address that requests name."""
    insecure_http: bool = False
    """Whether logins may be sent over unencrypted connections."""

    @property
    def has_login(self) -> bool:
        """Whether users can be identified."""
        return self.auth_file is not None or self.oidc is not None or bool(self.auth_header)

    @property
    def public_host(self) -> str:
        """Name of the host in `public_url`; empty if it is not set."""
        return urlsplit(self.public_url).hostname or ""

    def check(self, host: str, settings: Settings) -> None:
        """Check the options together.

        Args:
            host: address that the page listens on.
            settings: settings of the deployment.

        Raises:
            InvalidUsage: options contradict each other, or changes would not work or would not be protected.
        """
        self._check_login(host)
        if self.public_url and not _is_origin(self.public_url):
            raise InvalidUsage(
                f"--public-url is {self.public_url!r}; it must be an address without a path, like https://page.example"
            )
        if not self.allow_changes:
            return
        if not self.has_login:
            raise InvalidUsage(
                "--allow-changes needs a login: use --auth-file, --oidc, or --auth-header with --trusted-proxies"
            )
        if not settings.bootstrap:
            raise InvalidUsage("--allow-changes needs brokers: use --bootstrap; the tables alone cannot be changed")
        if not settings.keys:
            raise InvalidUsage(
                "--allow-changes needs the operator's key: use --keys; `wakeroll keys new --role operator` creates one"
            )
        key_to_sign(read_keys(settings.keys), "operator")

    def _check_login(self, host: str) -> None:
        proxies = networks_of(self.trusted_proxies)
        if self.auth_header and not _HEADER.fullmatch(self.auth_header):
            raise InvalidUsage(
                f"--auth-header is {self.auth_header!r}; it must be the name of a header, like X-Forwarded-User"
            )
        if self.auth_header and not proxies:
            raise InvalidUsage("--auth-header needs --trusted-proxies: anybody else could set the header too")
        if self.require_login and not self.has_login:
            raise InvalidUsage(
                "--require-login needs a login: use --auth-file, --oidc, or --auth-header with --trusted-proxies"
            )
        if self.oidc is not None and self.auth_header:
            raise InvalidUsage("--oidc and --auth-header exclude each other: one of them says who a user is")
        has_sessions = (self.auth_file is not None or self.oidc is not None) and not self.auth_header
        if has_sessions and not is_loopback(host) and not proxies and not self.insecure_http:
            raise InvalidUsage(
                f"logins would be sent to {host} unencrypted; put a proxy with https in front of the page and name "
                "it in --trusted-proxies, or accept the risk with --insecure-http"
            )


def _is_origin(text: str) -> bool:
    try:
        found = urlsplit(text)
        found.port  # noqa: B018 - it raises if the port is not a number
    except ValueError:
        return False
    is_bare = found.path in ("", "/") and not (found.query or found.fragment or found.username or found.password)
    return found.scheme in ("http", "https") and bool(found.hostname) and is_bare
