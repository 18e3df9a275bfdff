"""The settings that a last will may have, and the transfer of the files that they name to the executor.

An executor that listens may have rights that a process which connects does not have. So it opens no file that a will
names: the process opens each, and passes its descriptor. It accepts the settings that are listed here and no others,
because many settings of Kafka's client name a file or a library, or run a command.

This module is loaded by the executor too, so it imports nothing else of the SDK.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

Settings = Mapping[str, str | int | float | bool]

FILES = (
    "https.ca.location",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.key.location",
    "ssl.keystore.location",
)
"""Settings that name a file with certificates or keys."""
MAX_FILE_BYTES = 4 * 2**20
"""Longest file that an executor reads."""
ACCEPTED = frozenset(
    (
        "api.version.request.timeout.ms",
        "bootstrap.servers",
        "broker.address.family",
        "broker.address.ttl",
        "client.dns.lookup",
        "client.id",
        "connections.max.idle.ms",
        "enable.idempotence",
        "enable.ssl.certificate.verification",
        "linger.ms",
        "max.in.flight.requests.per.connection",
        "message.max.bytes",
        "message.timeout.ms",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "partitioner",
        "receive.message.max.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.mechanism",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.max.fails",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
        "ssl.ca.pem",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.curves.list",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        "ssl.sigalgs.list",
        "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.interval.ms",
        "topic.metadata.refresh.sparse",
    )
)
"""Settings that a listening executor accepts; none of them names a file. It also accepts those of `PASSED`."""
PASSED = frozenset(FILES) - {"https.ca.location"}
"""Settings of `FILES` that a listening executor accepts with a descriptor of the file."""
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""Logins with a name and a password. The others are not accepted: GSSAPI runs a command and reads a file of keys, and
OAUTHBEARER connects to other servers."""
OF_THE_EXECUTOR = frozenset(("debug", "enable.metrics.push", "log.connection.close", "log.thread.name", "log_level"))
"""Settings about logs and metrics; a listening executor replaces them by its own."""


def named_files(settings: Settings) -> dict[str, str]:
    """Return setting -> path of each existing file that the settings name."""
    named = {name: str(settings[name]) for name in FILES if name in settings}
    return {name: file for name, file in named.items() if file != "probe" and Path(file).exists()}


def opened(file: str) -> int:
    """Return a descriptor of a file; for a folder of certificates, of a new file with all of them.

    Raises:
        OSError: it cannot be read.
    """
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    contents = (one.read_bytes() for one in sorted(Path(file).iterdir()) if one.is_file())
    return in_memory(b"\n".join(dict.fromkeys(one for one in contents if b"-----BEGIN CERTIFICATE-----" in one)))


def content_of(fd: int) -> bytes:
    """Return the content of a file that another process has opened for reading.

    It reads from the descriptor and does not open the file itself, which would use the rights of this process.

    Raises:
        OSError: it is not a regular file, is not open for reading, or is longer than `MAX_FILE_BYTES`.
    """
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        raise OSError("it is no regular file")
    if about.st_size > MAX_FILE_BYTES:
        raise OSError(f"it has {about.st_size} bytes; at most {MAX_FILE_BYTES} are read")
    return os.pread(fd, MAX_FILE_BYTES, 0)


def in_memory(content: bytes) -> int:
    """Return a descriptor of a new file in memory."""
    fd = os.memfd_create("wakeroll-login", os.MFD_CLOEXEC)
    with open(os.dup(fd), "wb") as file:  # noqa: PTH123 - a descriptor has no path
        file.write(content)
    return fd


def not_accepted(settings: Settings, passed: Iterable[str]) -> list[str]:
    """Return the names of settings that a listening executor does not accept, sorted; empty if it accepts all.

    Args:
        settings: settings of a producer, in librdkafka's names.
        passed: settings whose files are passed as descriptors.
    """
    files = PASSED.intersection(passed)
    wrong = {name for name in settings if name not in ACCEPTED and name not in files and name not in OF_THE_EXECUTOR}
    has_login = str(settings.get("security.protocol", "")).upper().startswith("SASL")
    if has_login and str(settings.get("sasl.mechanism", "")) not in MECHANISMS:
        wrong.add("sasl.mechanism")
    return sorted(wrong)
