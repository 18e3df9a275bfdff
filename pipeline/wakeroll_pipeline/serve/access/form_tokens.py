"""Forms: the fields that a browser sends, and a token for each form, which can be used once in one session."""

import secrets
import time
from collections.abc import Mapping
from hashlib import sha256
from urllib.parse import parse_qsl

from itsdangerous import BadSignature, SignatureExpired, TimestampSigner
from starlette.requests import Request

from wakeroll_pipeline.serve.access.refusal import Refused

FORM_S = 1_800
"""Time within which a form can be sent (s)."""
MOST_USED = 10_000
"""Maximum number of used tokens, which are remembered until they expire."""


class FormTokens:
    """Makes tokens and verifies them."""

    def __init__(self, secret: bytes) -> None:
        """Prepare; `secret` is random and never leaves this process."""
        self._secret = secret
        self._used: dict[str, float] = {}

    def new(self, session_id: str) -> str:
        """Return a token for a form that is shown in a session."""
        return self._signer(session_id).sign(secrets.token_hex(16)).decode()

    def spend(self, session_id: str, token: str) -> None:
        """Verify a token and mark it as used.

        Raises:
            Refused: the token belongs to another session or none, has expired, or was used before.
        """
        try:
            nonce = self._signer(session_id).unsign(token, max_age=FORM_S).decode()
        except SignatureExpired:
            raise Refused(f"the form is older than {FORM_S // 60} minutes; open it again", 403) from None
        except BadSignature:
            raise Refused("the form does not belong to your session; open it again", 403) from None
        now_s = time.time()
        if nonce in self._used:
            raise Refused("this form was already sent; nothing was sent again. Open it again for another change", 409)
        if len(self._used) >= MOST_USED:
            self._used = {one: end_s for one, end_s in self._used.items() if end_s >= now_s}
            if len(self._used) >= MOST_USED:
                raise Refused(f"{MOST_USED} forms were sent in {FORM_S // 60} minutes; try again later", 503)
        self._used[nonce] = now_s + FORM_S

    def _signer(self, session_id: str) -> TimestampSigner:
        return TimestampSigner(self._secret, f"form {session_id}", key_derivation="hmac", digest_method=sha256)


MOST_BYTES = 128 * 1024
MOST_FIELDS = 64
_FORM = "application/x-www-form-urlencoded"


async def fields_of(request: Request) -> Mapping[str, str]:
    """Return the fields of a form; of a name that occurs twice, the last value.

    Raises:
        Refused: the body is not a form, or is too large.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        raise Refused(f"the request has the type {kind[:64]!r}; expected {_FORM}", 415)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise Refused(f"the form has more than {MOST_BYTES} bytes", 413)
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:  # not ASCII, or too many fields
        raise Refused("the form cannot be read", 400) from None
