"""The changes that a user requests, read from the fields of a form."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from wakeroll.argument_checks import checked, json_object
from wakeroll.errors import InvalidUsage
from wakeroll.kick import keep_out_ms_of
from wakeroll.reset import ResetPoint, queue_of
from wakeroll.time_text import time_of
from wakeroll.topic_slices import slices_in
from wakeroll_model import strategies
from wakeroll_model.config import PROFILES
from wakeroll_model.events import Configure, Reason
from wakeroll_model.queue import ClientId, Queue

Target = Literal["first", "last", "offset", "time", "skip"]
"""Target of a reset; ``skip`` is the offset after the next message of one queue."""

NUMBERS = (
    "heartbeat_ms",
    "session_timeout_ms",
    "rebalance_interval_ms",
    "settle_ms",
    "revoke_timeout_ms",
    "max_members",
)
"""Settings that are whole numbers."""
CHOICES: Mapping[str, tuple[str, ...]] = {
    "profile": tuple(PROFILES),
    "handover": ("cooperative", "eager"),
}
"""Settings that have one of several values."""
_MOST_JSON = 32_768


class ResetRequest(Struct, frozen=True, kw_only=True):
    """A reset of committed offsets, from the form."""

    to: Target
    offset: str = ""
    time: str = ""
    topic: str = ""
    queue: str = ""

    @property
    def where(self) -> ResetPoint | Queue:
        """The target; to skip a message, the queue with this next message.

        Raises:
            InvalidUsage: the offset or the time is not valid.
        """
        match self.to:
            case "first" | "last":
                return self.to
            case "offset":
                if not (self.offset.isascii() and self.offset.isdigit() and len(self.offset) <= 19):
                    raise InvalidUsage(f"the offset is {self.offset!r}; it must be a whole number from 0")
                return int(self.offset)
            case "time":
                return time_of(self.time)
            case "skip":
                if not self.queue:
                    raise InvalidUsage("a message is skipped in one queue; name the queue, like orders-3")
                if self.topic:
                    raise InvalidUsage("a message is skipped in one queue; leave the topic empty")
                return queue_of(self.queue)

    @property
    def only(self) -> tuple[str | None, Queue | None]:
        """The topic and the queue to which the reset is limited.

        Raises:
            InvalidUsage: the queue is not valid.
        """
        return self.topic or None, queue_of(self.queue) if self.queue else None

    def params(self) -> dict[str, str]:
        """Return the fields that are not empty."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}


def reset_of(fields: Mapping[str, str]) -> ResetRequest:
    """Read a reset; only the fields that its target needs are kept.

    Raises:
        InvalidUsage: a field is not valid.
    """
    to, texts = (
        fields.get("to", ""),
        {name: fields.get(name, "").strip()[:300] for name in ("offset", "time", "topic", "queue")},
    )
    for target in get_args(Target):
        if target == to:
            for name in ("offset", "time"):
                if texts[name] and name != to:
                    raise InvalidUsage(
                        f"the field {name} has {texts[name]!r}, but the target is {to!r}; use one of them"
                    )
            kept = {name: text for name, text in texts.items() if name in (to, "topic", "queue")}
            found = ResetRequest(to=target, **kept)
            _ = found.where, found.only  # they raise
            return found
    raise InvalidUsage(f"the target is {to[:64]!r}; choose one of: {', '.join(get_args(Target))}")


class KickRequest(Struct, frozen=True, kw_only=True):
    """A kick of a client, from the form."""

    client: str
    keep_out: str = ""
    """Time for which the client is kept out, such as ``10m``; empty: it may join again at once."""
    reason: str = ""

    @property
    def keep_out_ms(self) -> int:
        """How long other instances of the client may not join (ms).

        Raises:
            InvalidUsage: the text is not a duration, or it is too long.
        """
        return keep_out_ms_of(self.keep_out) if self.keep_out else 0

    def params(self) -> dict[str, str]:
        """Return the fields that are not empty."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}


def kick_of(fields: Mapping[str, str]) -> KickRequest:
    """Read a kick.

    Raises:
        InvalidUsage: a field is not valid.
    """
    keep_out = fields.get("keep_out", "").strip()[:300]
    found = KickRequest(client=client_of(fields), keep_out=keep_out, reason=reason_of(fields))
    _ = found.keep_out_ms  # it raises
    return found


def client_of(fields: Mapping[str, str]) -> str:
    """Read the name of a client.

    Raises:
        InvalidUsage: it is not valid.
    """
    return str(checked("client", fields.get("client", "").strip()[:300], ClientId))


def reason_of(fields: Mapping[str, str]) -> str:
    """Read the reason of a change, which may be empty.

    Raises:
        InvalidUsage: it is too long.
    """
    return str(checked("reason", fields.get("reason", "").strip()[:300], Reason))


def settings_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """Read the settings that a form changes; an empty field changes nothing.

    Raises:
        InvalidUsage: a value is not valid.
    """
    given = {name: text.strip() for name, text in fields.items() if text.strip()}
    declared = {field.name: field.type for field in msgspec.structs.fields(Configure)}
    settings: dict[str, Any] = {}
    for name, choices in CHOICES.items():
        if name in given:
            if given[name] not in choices:
                raise InvalidUsage(f"{name} is {given[name][:64]!r}; it must be one of: {', '.join(choices)}")
            settings[name] = given[name]
    if text := given.get("strategy"):
        try:
            strategies.find(text[:64])
        except strategies.StrategyError as error:
            raise InvalidUsage(str(error)) from None
        settings["strategy"] = text
    if text := given.get("strategy_params"):
        settings["strategy_params"] = json_object("strategy_params", text[:_MOST_JSON])
    if slices := slices_in("slices", given.get("slices", "")[:_MOST_JSON].replace(",", " ").split()):
        settings["slices"] = slices
    for name in NUMBERS:
        if name in given:
            settings[name] = checked(name, _number(name, given[name]), declared[name])
    return settings


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        unit = " of milliseconds" if name.endswith("_ms") else ""
        raise InvalidUsage(f"{name} is {text[:64]!r}; it must be a whole number{unit}")
    return int(text)
