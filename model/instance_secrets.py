"""Instances that only their own process can end: the instance_id is the digest of a secret, and ending it shows that.

Whoever reads the control topics knows every instance_id, so that an `unregister` could be forged otherwise.
"""

import hashlib

PROVABLE = "h:"
"""An instance_id that begins so goes on with the first 40 hex digits of the SHA-256 of a secret."""


def provable_id(secret: str) -> str:
    """Return the instance_id that only the holder of this secret can unregister.

    >>> provable_id("a secret")
    'h:984ca5162200734c592148f1820b71057f098573'
    """
    return PROVABLE + hashlib.sha256(secret.encode()).hexdigest()[:40]


def may_end(instance_id: str, secret: str) -> bool:
    """Return whether an `unregister` with this secret may end an instance; one without a digest may be ended by all."""
    return not instance_id.startswith(PROVABLE) or instance_id == provable_id(secret)
