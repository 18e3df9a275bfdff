"""Hashes of passwords: scrypt with a random salt, as one line of text."""

import hashlib
import hmac
import re
import secrets

COST, BLOCK, LANES = 2**15, 8, 3
"""Parameters of scrypt for new passwords: about 32 MiB and a quarter of a second per attempt."""
SALT_BYTES, HASH_BYTES = 16, 32
LEAST_CHARACTERS, MOST_BYTES = 12, 1_024

_LINE = re.compile(r"scrypt:([0-9]{1,7}):([0-9]{1,2}):([0-9]{1,2}):([0-9a-f]{32}):([0-9a-f]{64})")
_MOST_COST, _MOST_BLOCK, _MOST_LANES = 2**17, 16, 16


def hash_of(password: str) -> str:
    """Return the hash of a password with a new salt, like ``scrypt:32768:8:3:<salt>:<hash>``.

    Raises:
        ValueError: the password is shorter than `LEAST_CHARACTERS` or longer than `MOST_BYTES`.
    """
    if len(password) < LEAST_CHARACTERS or len(password.encode()) > MOST_BYTES:
        raise ValueError(f"a password must have at least {LEAST_CHARACTERS} characters and at most {MOST_BYTES} bytes")
    salt = secrets.token_bytes(SALT_BYTES)
    return f"scrypt:{COST}:{BLOCK}:{LANES}:{salt.hex()}:{_scrypt(password, salt, COST, BLOCK, LANES).hex()}"


def is_hash(line: str) -> bool:
    """Return whether a text is a hash whose parameters are within bounds."""
    found = _LINE.fullmatch(line)
    if found is None:
        return False
    cost, block, lanes = (int(found[place]) for place in (1, 2, 3))
    return (
        2 <= cost <= _MOST_COST and cost & (cost - 1) == 0 and 1 <= block <= _MOST_BLOCK and 1 <= lanes <= _MOST_LANES
    )


def matches(password: str, line: str) -> bool:
    """Return whether a password has this hash; the comparison takes the same time for every wrong password."""
    found = _LINE.fullmatch(line)
    assert found is not None, "the file was checked when it was read"
    if len(password.encode(errors="surrogatepass")) > MOST_BYTES:
        password = ""  # a very long password costs no more time than another wrong one
    made = _scrypt(password, bytes.fromhex(found[4]), int(found[1]), int(found[2]), int(found[3]))
    return hmac.compare_digest(made, bytes.fromhex(found[5]))


def _scrypt(password: str, salt: bytes, cost: int, block: int, lanes: int) -> bytes:
    memory = 128 * block * (cost + lanes + 2)
    return hashlib.scrypt(
        password.encode(errors="surrogatepass"),
        salt=salt,
        n=cost,
        r=block,
        p=lanes,
        maxmem=2 * memory,
        dklen=HASH_BYTES,
    )
