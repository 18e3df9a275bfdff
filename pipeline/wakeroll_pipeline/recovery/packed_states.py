"""The form in which Spark stores the state of a shard: compressed.

A state passes from Java to Python and back in each batch, and Spark passes bytes as a pickled string. Compressed states
have about a ninth of the size; see `docs/decisions/0020-packed-states.md`.
"""

import pyarrow as pa  # type: ignore[import-untyped]

PACKED_VERSION = 5
"""First version whose states are compressed: the release that reads version 4 cannot read compressed states."""

_MARK = b"\0zstd"
"""First bytes of a compressed state; no other state begins with a 0. They are followed by the size and the compressed
bytes."""
_SIZE_BYTES = 8
_CODEC = pa.Codec("zstd", compression_level=3)


def pack(body: bytes, version: int) -> bytes:
    """Return the stored form of an encoded state."""
    if version < PACKED_VERSION:
        return body
    return _MARK + len(body).to_bytes(_SIZE_BYTES, "big") + bytes(_CODEC.compress(body, asbytes=True))


def unpack(stored: bytes) -> bytes:
    """Return the encoded state of its stored form."""
    if not stored.startswith(_MARK):
        return stored
    begin = len(_MARK) + _SIZE_BYTES
    size = int.from_bytes(stored[len(_MARK) : begin], "big")
    return bytes(_CODEC.decompress(memoryview(stored)[begin:], size, asbytes=True))
