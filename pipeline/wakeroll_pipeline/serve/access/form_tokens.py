"""Tokens of forms: each form has its own, which belongs to one session, expires, and can be used once."""

import hmac
import re
import secrets
import time

from wakeroll_pipeline.serve.access.refusal import Refused

FORM_S = 1_800
"""A form can be sent for this long (s)."""
MOST_USED = 10_000
"""Used tokens that are remembered until they expire."""
_TOKEN = re.compile(r"([0-9]{1,12})\.([0-9a-f]{32})\.([0-9a-f]{64})")


class FormTokens:
    """Makes tokens and verifies them."""

    def __init__(self, secret: bytes) -> None:
        """Prepare; `secret` is random and never leaves this process."""
        self._key = hmac.digest(secret, b"form", "sha256")
        self._used: dict[str, int] = {}

    def new(self, session_id: str) -> str:
        """Return a token for a form that is shown in a session."""
        head = f"{int(time.time()) + FORM_S}.{secrets.token_hex(16)}"
        return f"{head}.{self._sign(session_id, head)}"

    def spend(self, session_id: str, token: str) -> None:
        """Verify a token and mark it as used.

        Raises:
            Refused: the token belongs to another session or none, has expired, or was used before.
        """
        found = _TOKEN.fullmatch(token)
        if found is None or not hmac.compare_digest(self._sign(session_id, f"{found[1]}.{found[2]}"), found[3]):
            raise Refused("the form does not belong to your session; open it again", 403)
        until_s, nonce, now_s = int(found[1]), found[2], time.time()
        if until_s <= now_s:
            raise Refused(f"the form is older than {FORM_S // 60} minutes; open it again", 403)
        if nonce in self._used:
            raise Refused("this form was already sent; nothing was sent again. Open it again for another change", 409)
        if len(self._used) >= MOST_USED:
            self._used = {one: end_s for one, end_s in self._used.items() if end_s > now_s}
            if len(self._used) >= MOST_USED:
                raise Refused(f"{MOST_USED} forms were sent in {FORM_S // 60} minutes; try again later", 503)
        self._used[nonce] = until_s

    def _sign(self, session_id: str, head: str) -> str:
        return hmac.digest(self._key, f"{session_id}\n{head}".encode(), "sha256").hex()
