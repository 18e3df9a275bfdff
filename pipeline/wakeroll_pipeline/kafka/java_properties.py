"""The settings of Spark's Kafka client, which is Kafka's Java client: translated from those of a connection."""

import re
from collections.abc import Mapping
from pathlib import Path

from wakeroll.client_properties import librdkafka_settings
from wakeroll.client_settings import JAVA
from wakeroll.errors import InvalidUsage
from wakeroll.jaas import MODULES, jaas_of

COMMON = frozenset(
    {
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "compression.type",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "metadata.max.age.ms",
        "metadata.recovery.strategy",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "socket.connection.setup.timeout.ms",
    }
)
"""Settings with the same name and meaning in both clients. All settings that are not translated are only for
librdkafka."""

_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.")
_KEY = re.compile(rb"-----BEGIN ([A-Z0-9 ]*PRIVATE KEY)-----")
_READABLE_KEYS = (b"PRIVATE KEY", b"ENCRYPTED PRIVATE KEY")


def java_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a connection in the names of Kafka's Java clients.

    Args:
        given: settings in librdkafka's names or in those of Java clients.

    Raises:
        InvalidUsage: a setting of the login has no equivalent, or a file of keys cannot be read by Java clients. The
            message contains no secret.
    """
    settings = librdkafka_settings(given)
    java = {name: given[name] for name in JAVA if name in given}
    if "security.protocol" in settings:
        java["security.protocol"] = settings.pop("security.protocol").upper()
    java |= _login(settings) | _trust(settings) | _identity(settings)
    for name, value in settings.items():
        if name in COMMON:
            java[name] = value
        elif name.startswith(_SECURITY):
            raise InvalidUsage(
                f"the Kafka client of Spark has no setting for {name}; docs/security.md lists the settings of a login "
                "that both clients have"
            )
    return java


def _login(settings: dict[str, str]) -> dict[str, str]:
    """Remove the settings of SASL, and return those of a Java client."""
    mechanism = settings.pop("sasl.mechanism", None)
    username, password = settings.pop("sasl.username", ""), settings.pop("sasl.password", "")
    if mechanism is None:
        return {}
    if mechanism not in MODULES:
        raise InvalidUsage(
            f"sasl.mechanism is {mechanism}; with Spark, it must be one of: {', '.join(MODULES)}; "
            "a client certificate (security.protocol=SSL) is possible too"
        )
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas_of(mechanism, username, password)}


def _trust(settings: dict[str, str]) -> dict[str, str]:
    """Remove the settings by which a client verifies a broker, and return those of a Java client."""
    java: dict[str, str] = {}
    if "ssl.ca.location" in settings:
        file = settings.pop("ssl.ca.location")
        if not Path(file).is_file():
            raise InvalidUsage(f"ssl.ca.location is {file!r}; with Spark, it must be a PEM file that exists")
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": file}
    algorithm = settings.pop("ssl.endpoint.identification.algorithm", None)
    if algorithm is not None:
        java["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if settings.get("enable.ssl.certificate.verification", "true") == "true":
        settings.pop("enable.ssl.certificate.verification", None)
    return java


def _identity(settings: dict[str, str]) -> dict[str, str]:
    """Remove the settings of a client's own certificate, and return those of a Java client."""
    java: dict[str, str] = {}
    names = ("ssl.certificate.location", "ssl.key.location")
    certificate, key = (settings.pop(name, None) for name in names)
    if certificate is not None or key is not None:
        if certificate is None or certificate != key:
            raise InvalidUsage(
                f"{names[0]} is {certificate!r} and {names[1]} is {key!r}; with Spark, both must name one PEM file "
                "with the key and its certificates; to make it: cat KEY CERTIFICATE > client.pem; chmod 600 client.pem"
            )
        _check_key(certificate)
        java |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": certificate}
    elif "ssl.keystore.location" in settings:
        java |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": settings.pop("ssl.keystore.location")}
        if "ssl.keystore.password" in settings:
            java["ssl.keystore.password"] = settings.pop("ssl.keystore.password")
    if "ssl.key.password" in settings:
        java["ssl.key.password"] = settings.pop("ssl.key.password")
    return java


def _check_key(file: str) -> None:
    """Check that Java can read a PEM file, because its own error names neither file nor setting."""
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise InvalidUsage(f"cannot read ssl.certificate.location: {error}") from None
    keys = _KEY.findall(content)
    if len(keys) != 1 or b"-----BEGIN CERTIFICATE-----" not in content:
        raise InvalidUsage(
            f"{file} has {len(keys)} private keys; it must have one, and the certificates that belong to it"
        )
    if keys[0] not in _READABLE_KEYS:
        raise InvalidUsage(
            f"the key in {file} has the format {keys[0].decode()!r}; with Spark, it must be PKCS #8; to convert it: "
            "openssl pkcs8 -topk8 -nocrypt -in FILE"
        )
