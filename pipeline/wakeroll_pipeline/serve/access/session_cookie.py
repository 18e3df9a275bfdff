"""Sessions: a signed cookie that names a user, until it expires, the user logs out, or the password changes."""

import base64
import binascii
import secrets
import time
from collections import OrderedDict
from hashlib import sha256

import msgspec
from itsdangerous import BadSignature, Signer
from msgspec import Struct

SESSION_S = 8 * 3_600
"""Length of a session (s): one working day."""
MOST_ENDED = 10_000
"""Maximum number of sessions that ended by a logout, which are remembered until they expire."""
_MOST_CHARACTERS = 1_024


class Session(Struct, frozen=True, kw_only=True):
    """The contents of a cookie."""

    session_id: str
    name: str
    until_s: int
    """End of the session (epoch s)."""
    seal: str = ""
    """Fingerprint of the user's entry at the login: a new password ends the session."""
    role: str = ""
    """Role at the identity provider by which the user has rights; empty if a password began the session."""


class Sessions:
    """Signs sessions and verifies them. The secret is new at each start, so a restart ends all sessions."""

    def __init__(self, secret: bytes) -> None:
        """Prepare; `secret` is random and never leaves this process."""
        self._signer = Signer(secret, "session", key_derivation="hmac", digest_method=sha256)
        self._ended: OrderedDict[str, int] = OrderedDict()

    def begin(self, name: str, seal: str = "", *, role: str = "", length_s: int = SESSION_S) -> str:
        """Return the cookie of a new session, which ends after a time (s)."""
        until_s = int(time.time()) + length_s
        session = Session(session_id=secrets.token_hex(16), name=name, until_s=until_s, seal=seal, role=role)
        return self._signer.sign(base64.urlsafe_b64encode(msgspec.json.encode(session))).decode()

    def read(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None if it was not signed here, has expired, or was ended."""
        if len(cookie) > _MOST_CHARACTERS:
            return None
        try:
            session = msgspec.json.decode(base64.urlsafe_b64decode(self._signer.unsign(cookie)), type=Session)
        except (BadSignature, msgspec.MsgspecError, binascii.Error):
            return None
        return session if session.until_s > time.time() and session.session_id not in self._ended else None

    def end(self, session: Session) -> None:
        """End a session before it expires."""
        now_s = time.time()
        for session_id in [one for one, until_s in self._ended.items() if until_s <= now_s]:
            del self._ended[session_id]
        self._ended[session.session_id] = session.until_s
        if len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)
