"""Ed25519 signatures (RFC 8032), which a process verifies without a secret.

All processes must agree on each signature, but libraries differ about unusual ones. So one library verifies (OpenSSL,
by the package `cryptography`), and public keys about which libraries differ are refused here. The package is imported
when the first such key is used: an application without one needs neither the package nor the time of its import.
"""

from functools import cache, lru_cache
from typing import Any

from wakeroll_model import config

KEY_BYTES = 32
"""Bytes of a private key (RFC 8032 calls it so; libraries also say seed), and of a public one."""
SIGNATURE_BYTES = 64
NEEDED = "Ed25519 keys need the extra `ed25519`; install it with: pip install 'wakeroll[ed25519]'"
"""Error for a process without the library."""

_P = 2**255 - 19
"""The prime of the field of the coordinates."""
_D = -121665 * pow(121666, -1, _P) % _P
"""The constant of the curve -x² + y² = 1 + d x² y²."""
_EIGHTH = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
_SMALL_ORDER = frozenset({0, 1, _P - 1, _EIGHTH, _P - _EIGHTH})
"""y of the eight points of small order: a signature by such a key may be valid for every text."""


def is_available() -> bool:
    """Return whether the library is installed."""
    try:
        _library()
    except ImportError:
        return False
    return True


def public_key_of(private_key: bytes) -> bytes:
    """Return the public key of a private one, both of 32 bytes.

    Raises:
        ImportError: the library is not installed.
    """
    found: bytes = _private(private_key).public_key().public_bytes_raw()
    return found


def problem_of(public_key: bytes) -> str:
    """Return why signatures cannot be verified by a public key, as the end of a sentence; empty if they can.

    It needs no library, and is slow (about 0.1 ms): call it once per key.
    """
    if len(public_key) != KEY_BYTES:
        return f"has {len(public_key)} bytes; it must have {KEY_BYTES}"
    number = int.from_bytes(public_key, "little")
    y = number % 2**255
    if y in _SMALL_ORDER:
        return "is a point of small order, by which anybody could sign; make another key"
    x_squared = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    if y >= _P or pow(x_squared, (_P - 1) // 2, _P) != 1:
        return "is not a point of the curve; was it copied as a whole?"
    return ""


def sign(private_key: bytes, text: bytes) -> bytes:
    """Return the signature of a text, 64 bytes; it depends on nothing else.

    Raises:
        ImportError: the library is not installed.
    """
    found: bytes = _private(private_key).sign(text)
    return found


def verifies(public_key: bytes, signature: bytes, text: bytes) -> bool:
    """Return whether a signature is that of a text, by a public key for which `problem_of` is empty.

    A signature is valid if s is below the order of the base point, and R is exactly the encoding of s B - k A (without
    a cofactor).

    Raises:
        ImportError: the library is not installed.
    """
    _, invalid = _library()
    try:
        _public(public_key).verify(signature, text)
    except invalid:
        return False
    return True


@cache
def _library() -> tuple[Any, type[Exception]]:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return ed25519, InvalidSignature


@lru_cache(maxsize=config.MAX_KEYS)
def _private(private_key: bytes) -> Any:
    return _library()[0].Ed25519PrivateKey.from_private_bytes(private_key)


@lru_cache(maxsize=config.MAX_KEYS)
def _public(public_key: bytes) -> Any:
    return _library()[0].Ed25519PublicKey.from_public_bytes(public_key)
