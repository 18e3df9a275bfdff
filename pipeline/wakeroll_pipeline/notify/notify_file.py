"""The file with the rules of notifications: the webhooks with their verdicts, and the silenced groups."""

import base64
import binascii
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from wakeroll.errors import InvalidUsage
from wakeroll.name_lists import matches_any
from wakeroll.time_text import duration_ms_of
from wakeroll_pipeline.live.verdicts import Kind
from wakeroll_pipeline.storage.local_files import secret_in, toml_of

Form = Literal["json", "slack", "alertmanager"]

URGENT: tuple[Kind, ...] = ("abandoned", "stalled", "unowned", "uncommitted", "duplicate", "behind", "conflict")
"""Verdicts that webhooks receive by default."""
_LEAST_SECRET = 16
_LONGEST_MS = 7 * 24 * 3_600_000
_MOST = 20

Patterns = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...], Meta(min_length=1, max_length=100)]
"""Names of groups, with ``*`` for any text."""


class Webhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An address that receives notifications."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{1,64}$")]
    """Name of the webhook in logs and metrics, because an address may contain a secret."""
    url: str
    format: Form = "json"
    groups: Patterns = ("*",)
    verdicts: tuple[Kind, ...] = URGENT
    plane: bool = True
    """Whether it receives notifications about the control plane itself, such as missing ticks."""
    secret_file: str = ""
    """File with the secret that signs each request, relative to the rules; empty: requests are not signed."""

    def wants(self, group_id: str, verdict: str) -> bool:
        """Return whether it receives a verdict; `group_id` is empty for the control plane itself."""
        return (verdict in self.verdicts and matches_any(group_id, self.groups)) if group_id else self.plane


class Silence(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Groups without notifications for a time."""

    groups: Patterns
    verdicts: tuple[Kind, ...] = ()
    """Silenced verdicts; empty: all."""
    until: Annotated[datetime, Meta(tz=True)] | None = None
    """End of the silence; None: it does not end."""
    reason: str = ""

    def covers(self, group_id: str, verdict: str, now_ms: int) -> bool:
        """Return whether it silences a verdict now (epoch ms)."""
        is_over = self.until is not None and datetime.fromtimestamp(now_ms / 1_000, UTC) >= self.until
        return not is_over and matches_any(group_id, self.groups) and (not self.verdicts or verdict in self.verdicts)


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    webhooks: Annotated[list[Webhook], Meta(min_length=1, max_length=_MOST)]
    silences: Annotated[list[Silence], Meta(max_length=1_000)] = []
    holds: str = "30s"
    interval: str = "15m"


class Rules(Struct, frozen=True, kw_only=True):
    """The rules of notifications."""

    webhooks: tuple[Webhook, ...]
    silences: tuple[Silence, ...] = ()
    secrets: dict[str, bytes] = {}
    """Webhook -> its secret."""
    holds_ms: int = 30_000
    """Time for which a verdict, or its end, must last before it is sent (ms)."""
    interval_ms: int = 900_000
    """Minimum time between two notifications of one cause of a group (ms)."""

    def is_watched(self, group_id: str, verdict: str) -> bool:
        """Return whether any webhook receives a verdict."""
        return any(one.wants(group_id, verdict) for one in self.webhooks)

    def is_silent(self, group_id: str, verdict: str, now_ms: int) -> bool:
        """Return whether a verdict is silenced now (epoch ms)."""
        return any(one.covers(group_id, verdict, now_ms) for one in self.silences)


def read_rules(path: Path) -> Rules:
    """Read the rules of a file.

    Raises:
        InvalidUsage: the file or a secret cannot be read, or a value is not valid; the message names it.
    """
    found = toml_of(path, _File, "the notifications", "are")
    names = [one.name for one in found.webhooks]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise InvalidUsage(f"the notifications in {path} are not valid: two webhooks have the name {double!r}")
    for one in found.webhooks:
        if not _is_address(one.url):
            raise InvalidUsage(f"the url of the webhook {one.name!r} in {path} must be like https://host:port/path")
    return Rules(
        webhooks=tuple(found.webhooks),
        silences=tuple(found.silences),
        secrets={one.name: _secret(path.parent / one.secret_file) for one in found.webhooks if one.secret_file},
        holds_ms=_duration(path, "holds", found.holds),
        interval_ms=_duration(path, "interval", found.interval),
    )


def _is_address(url: str) -> bool:
    try:
        found = urlsplit(url)
        found.port  # noqa: B018 - it raises if the port is not a number
    except ValueError:
        return False
    return (
        found.scheme in ("http", "https")
        and bool(found.hostname)
        and url.isascii()
        and url.isprintable()
        and " " not in url
    )


def _duration(path: Path, name: str, text: str) -> int:
    found = duration_ms_of(text)
    if found is None or found > _LONGEST_MS:
        raise InvalidUsage(f"{name} in {path} is {text[:64]!r}; it must be a duration like 30s or 15m, at most 7d")
    return found


def _secret(path: Path) -> bytes:
    """Return a secret: bytes in base64 after ``whsec_``, as in Standard Webhooks, or any other text.

    Raises:
        InvalidUsage: it cannot be read, is too short, or every user of the machine may read it.
    """
    text = secret_in(path, "the secret")
    try:
        secret = base64.b64decode(text[6:], validate=True) if text.startswith("whsec_") else text.encode()
    except binascii.Error:
        raise InvalidUsage(f"the secret in {path} is not valid: behind whsec_, it must be base64") from None
    if len(secret) < _LEAST_SECRET:
        raise InvalidUsage(f"the secret in {path} has {len(secret)} bytes; it must have at least {_LEAST_SECRET}")
    return secret
