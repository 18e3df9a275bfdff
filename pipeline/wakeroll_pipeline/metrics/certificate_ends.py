"""The expiry times of TLS certificates, read without a library for certificates."""

import calendar
import re
import ssl
import time
from collections.abc import Mapping
from pathlib import Path

from wakeroll.client_properties import librdkafka_settings

_BLOCK = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x17, 0x18, 0xA0
"""Tags of ASN.1; the version of a certificate is optional, and has the tag 0 of its context."""


def certificate_ends(config: Mapping[str, str]) -> dict[str, float]:
    """Return the expiry times of the certificates of a connection.

    Args:
        config: settings of Kafka's client, in librdkafka's names or in those of Java clients.

    Returns:
        Name of the setting in librdkafka's names -> Unix time. A chain expires with its first certificate; a list of
        authorities expires with its last one, because one valid authority is enough. Files that cannot be read, and
        keystores in binary formats, are left out: Kafka's client reports those that it cannot use.

    Raises:
        InvalidUsage: the settings contradict each other.
    """
    settings = librdkafka_settings(config)
    found: dict[str, float] = {}
    for what, select in (("certificate", min), ("ca", max)):
        for name in (f"ssl.{what}.location", f"ssl.{what}.pem"):
            if ends := _ends(settings.get(name, ""), is_file=name.endswith("location")):
                found[name] = select(ends)
    return found


def _ends(value: str, *, is_file: bool) -> list[float]:
    try:
        text = Path(value).read_text(encoding="ascii", errors="replace") if is_file and value else value
        return [_end_of(ssl.PEM_cert_to_DER_cert(block)) for block in _BLOCK.findall(text)]
    except (OSError, ValueError, IndexError):
        return []


def _end_of(certificate: bytes) -> float:
    """Return the expiry time of a certificate (Unix time), from its encoding in ASN.1: RFC 5280, section 4.1."""
    _, at, _ = _open(certificate, 0)  # Certificate
    _, at, _ = _open(certificate, at)  # TBSCertificate
    tag, _, after = _open(certificate, at)
    if tag == _VERSION:
        at = after
    for _ in ("serial number", "signature", "issuer"):
        _, _, at = _open(certificate, at)
    _, at, _ = _open(certificate, at)  # Validity
    _, _, at = _open(certificate, at)  # notBefore
    tag, begin, end = _open(certificate, at)
    text = certificate[begin:end].decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"the end of a certificate has the tag {tag:#x}; expected a time")
    return calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ"))


def _open(data: bytes, at: int) -> tuple[int, int, int]:
    """Return tag, begin of the content and end of the element that begins at a position."""
    tag, length, begin = data[at], data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, begin = int.from_bytes(data[begin : begin + count], "big"), begin + count
    return tag, begin, begin + length
