"""The bodies of requests to webhooks: wakeroll's own JSON, and the forms of Slack and Alertmanager."""

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote

import msgspec
from msgspec import Struct

from wakeroll.epoch_ms import EpochMs
from wakeroll_pipeline.live.verdicts import LABELS
from wakeroll_pipeline.notify.causes import Notification
from wakeroll_pipeline.notify.notify_file import Form

_MOST_LINES = 20
"""Maximum number of notifications in one message of a chat."""


class Sender(Struct, frozen=True):
    """The deployment that notifications come from."""

    deployment: str
    """Prefix of its topics."""
    page: str = ""
    """Address of the page, without a slash at its end; empty: it is not known."""

    def link(self, group_id: str) -> str:
        """Return the address of the page of a group, or of all groups; empty if it is not known."""
        place = f"groups/{quote(group_id, safe='')}" if group_id else ""
        return self.page and f"{self.page}/{place}"


class Told(Notification, frozen=True, kw_only=True):
    """A notification with the address of its page."""

    link: str
    """Address of the page; empty if it is not known."""


class Document(Struct, frozen=True, kw_only=True):
    """The body of a request."""

    deployment: str
    notifications: Sequence[Told]


def body_of(form: Form, sender: Sender, notifications: Sequence[Notification]) -> bytes:
    """Return the body of one request about some notifications, in JSON."""
    return msgspec.json.encode(_FORMS[form](sender, notifications))


def _document(sender: Sender, notifications: Sequence[Notification]) -> Document:
    linked = [Told(**msgspec.structs.asdict(one), link=sender.link(one.group_id)) for one in notifications]
    return Document(deployment=sender.deployment, notifications=linked)


def _slack(sender: Sender, notifications: Sequence[Notification]) -> dict[str, str]:
    lines = [_line(sender, one) for one in notifications[:_MOST_LINES]]
    if (more := len(notifications) - len(lines)) > 0:
        lines.append(f"and {more} more")
    return {"text": "\n".join(lines)}


def _line(sender: Sender, one: Notification) -> str:
    """Return a line in Slack's markup, whose three special characters are escaped."""
    link, name = sender.link(one.group_id), _escaped(one.group_id or f"wakeroll ({sender.deployment})")
    who = f"<{link}|{name}>" if link else f"*{name}*"
    verdict = LABELS.get(one.verdict, one.verdict)
    what = f"no longer {verdict}" if one.event == "ended" else verdict
    return f"{'✅' if one.event == 'ended' else '⚠️'} {who}: {_escaped(f'{what}; {one.reason}')}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _alerts(sender: Sender, notifications: Sequence[Notification]) -> list[Mapping[str, object]]:
    """Return the alerts of ``POST /api/v2/alerts`` of Alertmanager."""
    return [
        {
            "labels": {
                "alertname": "WakerollGroup" if one.group_id else "WakerollPlane",
                "deployment": sender.deployment,
                "verdict": one.verdict,
                **({"group": one.group_id} if one.group_id else {}),
            },
            "annotations": {"summary": f"{one.group_id or 'wakeroll'} is {one.verdict}", "description": one.reason},
            "startsAt": str(EpochMs(one.since_ms)),
            **({"endsAt": str(EpochMs(one.at_ms))} if one.event == "ended" else {}),
            **({"generatorURL": link} if (link := sender.link(one.group_id)) else {}),
        }
        for one in notifications
    ]


_FORMS: Mapping[Form, Callable[[Sender, Sequence[Notification]], object]] = {
    "json": _document,
    "slack": _slack,
    "alertmanager": _alerts,
}
