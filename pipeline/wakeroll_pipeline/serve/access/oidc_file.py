"""The file of an identity provider: its address, the names of its claims, and the roles that they grant."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.serve.access.rights import Rights, rights_of
from wakeroll_pipeline.serve.access.trusted_proxies import is_loopback
from wakeroll_pipeline.storage.local_files import secret_in, toml_of

EVERYBODY = "*"
"""Name of the role that every user of the provider has."""
_NameOfClaim = Annotated[str, Meta(min_length=1, max_length=255)]


class GrantedRole(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rights of the users with a role or a group at the provider."""

    role: str
    groups: tuple[str, ...] = ("*",)


class Provider(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of the file."""

    issuer: str
    """Address of the provider, equal to ``iss`` in its tokens."""
    client_id: Annotated[str, Meta(min_length=1)]
    client_secret_file: str = ""
    """File with the secret of the client, relative to this one; empty: the client is public."""
    ca_file: str = ""
    """Certificates that sign the provider's, relative to this file; empty: those of public authorities."""
    title: Annotated[str, Meta(max_length=64)] = "single sign-on"
    """Name of the provider on the page of the login."""
    scope: str = "openid profile"
    user_claim: _NameOfClaim = "preferred_username"
    """Claim of the ID token with the name of the user."""
    roles_claim: _NameOfClaim = "groups"
    """Claim that lists the user's roles or groups; dots lead into objects, as in ``realm_access.roles``."""
    session_minutes: Annotated[int, Meta(ge=1, le=24 * 60)] = 60
    """Length of a session (minutes); after it, a new login at the provider is needed."""
    roles: Annotated[dict[str, GrantedRole], Meta(min_length=1, max_length=1_000)]
    """Role or group at the provider -> the rights that it grants. The first one that a user has counts."""


class ProviderRules(Struct, frozen=True, kw_only=True):
    """A provider whose file was checked."""

    provider: Provider
    secret: str
    """Secret of the client; empty: the client is public."""
    ca_file: Path | None
    rights: Mapping[str, Rights]
    """Role or group at the provider -> its rights, in the order of the file."""

    def role_of(self, claims: Mapping[str, Any]) -> str:
        """Return the first role of the file that a user has by the claims; empty if none."""
        value = claim_of(claims, self.provider.roles_claim)
        held = value if isinstance(value, list) else [value]
        return next((name for name in self.rights if name in (EVERYBODY, *held)), "")


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """Return the value of a claim; None if there is none. A name with dots may also lead into objects.

    >>> claim_of({"realm_access": {"roles": ["ops"]}, "https://a.example/groups": ["dev"]}, "realm_access.roles")
    ['ops']
    """
    if name in claims:
        return claims[name]
    first, dot, rest = name.partition(".")
    inner = claims.get(first)
    return claim_of(inner, rest) if dot and isinstance(inner, Mapping) else None


def read_provider(path: Path, *, insecure_http: bool = False) -> ProviderRules:
    """Read the file.

    Args:
        path: the file.
        insecure_http: whether the provider may be on another machine without https.

    Raises:
        InvalidUsage: a file cannot be read, or a value is not valid; the message names it.
    """
    found = toml_of(path, Provider, "the identity provider")
    try:
        _check_issuer(found.issuer, insecure_http)
        if "openid" not in found.scope.split():
            raise InvalidUsage(f"the scope is {found.scope!r}; it must contain openid")
        rights = {name: rights_of(one.role, one.groups) for name, one in found.roles.items()}
    except InvalidUsage as problem:
        raise InvalidUsage(f"the identity provider in {path} is not valid: {problem}") from None
    ca_file = path.parent / found.ca_file if found.ca_file else None
    if ca_file is not None and not ca_file.is_file():
        raise InvalidUsage(f"the identity provider in {path} is not valid: there is no ca_file {ca_file}")
    secret = _secret_in(path.parent / found.client_secret_file) if found.client_secret_file else ""
    return ProviderRules(provider=found, secret=secret, ca_file=ca_file, rights=rights)


def _check_issuer(issuer: str, insecure_http: bool) -> None:
    try:
        found = urlsplit(issuer)
        is_address = bool(found.hostname) and found.scheme in ("http", "https") and not (found.query or found.fragment)
    except ValueError:
        is_address = False
    if not is_address:
        raise InvalidUsage(f"the issuer is {issuer!r}; it must be an address like https://sso.example/realms/main")
    if found.scheme == "http" and not insecure_http and not is_loopback(found.hostname or ""):
        raise InvalidUsage(f"the issuer is {issuer!r}; it must have https, so that nobody can change its answers")


def _secret_in(path: Path) -> str:
    secret = secret_in(path, "the client secret")
    if not secret:
        raise InvalidUsage(f"the client secret {path} is empty")
    return secret
