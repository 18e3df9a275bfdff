"""Requests to webhooks: a thread per webhook, which repeats failed requests, and signs by Standard Webhooks."""

import base64
import hashlib
import hmac
import http.client
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from prometheus_client import Counter

from wakeroll.epoch_ms import now_ms
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.notify.causes import Notification
from wakeroll_pipeline.notify.notification_forms import Sender, body_of
from wakeroll_pipeline.notify.notify_file import Webhook

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
MOST_AT_ONCE = 100
"""Maximum number of notifications in one request."""
MOST_WAITING = 1_000
"""Maximum number of notifications that wait for one webhook; beyond it, the oldest ones are dropped."""
LONGEST_MS = 3_600_000
"""Time (ms) after which a notification that could not be delivered is dropped, because it is outdated."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects, which would send the body and its signature to another address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect: the answer counts as a failure."""
        return


_OPENER = build_opener(_NoRedirect)


class WebhookThread(threading.Thread):
    """Delivers notifications to a webhook in their order; waiting ones share a request."""

    def __init__(self, webhook: Webhook, secret: bytes | None, sender: Sender, counter: Counter) -> None:
        """Prepare.

        Args:
            webhook: receives the requests.
            secret: signs the requests; None: they are not signed.
            sender: stands in the requests.
            counter: counts notifications by webhook and outcome.
        """
        super().__init__(name=f"webhook-{webhook.name}", daemon=True)
        self.webhook = webhook
        self._secret = secret
        self._sender = sender
        self._counter = counter
        self._waiting: deque[Notification] = deque()
        self._changed = threading.Condition()
        self._is_stopped = False
        self._trouble = Trouble(log, f"the webhook {webhook.name} takes notifications again")
        for outcome in ("delivered", "dropped"):
            counter.labels(webhook.name, outcome)

    def send(self, notifications: Sequence[Notification]) -> None:
        """Deliver these notifications soon. Any thread may call it."""
        with self._changed:
            self._waiting.extend(notifications)
            self._drop(len(self._waiting) - MOST_WAITING)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread after the present request; waiting notifications are not delivered."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def run(self) -> None:
        """Deliver until `stop`."""
        while (batch := self._next()) is not None:
            outcome = "delivered" if self._deliver(batch) else "dropped"
            self._counter.labels(self.webhook.name, outcome).inc(len(batch))

    def _next(self) -> list[Notification] | None:
        """Wait for notifications; return the first ones, or None at the end."""
        with self._changed:
            while not self._is_stopped:
                self._changed.wait_for(lambda: self._waiting or self._is_stopped)
                self._drop(sum(map(_is_old, self._waiting)))
                if self._waiting and not self._is_stopped:
                    return [self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))]
            return None

    def _deliver(self, batch: Sequence[Notification]) -> bool:
        """Send a request until it is accepted, with the same id; return False when it is too old, or at the end."""
        pause_s, message_id = _FIRST_PAUSE_S, f"msg_{uuid.uuid4().hex}"
        while problem := self._post(message_id, batch):
            self._trouble.began(f"the webhook {self.webhook.name} does not take notifications: {problem}; retrying")
            with self._changed:
                if self._changed.wait_for(lambda: self._is_stopped, pause_s) or _is_old(batch[-1]):
                    return False
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._trouble.ended()
        return True

    def _drop(self, number: int) -> None:
        """Drop the oldest notifications. The caller has the lock."""
        for _ in range(max(number, 0)):
            self._waiting.popleft()
            self._counter.labels(self.webhook.name, "dropped").inc()

    def _post(self, message_id: str, batch: Sequence[Notification]) -> str:
        """Send a request; return why it was not accepted, or an empty text."""
        body = body_of(self.webhook.format, self._sender, batch)
        headers = {"Content-Type": "application/json", "User-Agent": "wakeroll", "webhook-id": message_id}
        if self._secret is not None:
            headers |= signed_headers(self._secret, message_id, int(time.time()), body)
        try:
            with _OPENER.open(Request(self.webhook.url, body, headers, method="POST"), timeout=TIMEOUT_S):
                return ""
        except HTTPError as error:
            with error:
                where = urlsplit(error.headers.get("Location") or "").netloc
                leads = f", which leads to {where}; name that address" if where else ""
                return f"it answers {error.code} {error.reason}{leads}"
        except (URLError, OSError, http.client.HTTPException, ValueError) as error:
            return str(getattr(error, "reason", None) or error or type(error).__name__)


def _is_old(one: Notification) -> bool:
    return one.at_ms < now_ms() - LONGEST_MS


def signed_headers(secret: bytes, message_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of Standard Webhooks, by which a receiver verifies the sender and the time of a request."""
    signed = b".".join((message_id.encode(), str(at_s).encode(), body))
    signature = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return {"webhook-id": message_id, "webhook-timestamp": str(at_s), "webhook-signature": f"v1,{signature}"}
