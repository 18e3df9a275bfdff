"""Instances that only their own process can end: the instance_id is the digest of a secret.

Every reader of the control topics can see each instance_id. Without the secret, each could forge an `unregister`.
"""

PROVABLE = "h:"
"""Prefix of an instance_id that continues with the first 40 hex digits of the SHA-256 of a secret."""


def provable_id(secret: str) -> str:
    """Return the instance_id that only the owner of this secret can unregister.

    >>> provable_id("a secret")
    'h:984ca5162200734c592148f1820b71057f098573'
    """
    import hashlib  # here, because nothing else of a consumer that only was imported needs it

    return PROVABLE + hashlib.sha256(secret.encode()).hexdigest()[:40]


def may_end(instance_id: str, secret: str) -> bool:
    """Return whether an `unregister` with this secret may end an instance; one that is not a digest needs no secret."""
    return not instance_id.startswith(PROVABLE) or instance_id == provable_id(secret)
