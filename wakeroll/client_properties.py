"""The settings of a Kafka client, in librdkafka's names or in those of Kafka's Java clients.

One file of settings serves both clients. `librdkafka_settings` translates to the names of confluent-kafka, which the
SDK and the observer use; `wakeroll_pipeline.kafka.java_properties` translates to those of Spark.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from wakeroll.client_settings import JAVA
from wakeroll.errors import InvalidUsage
from wakeroll.jaas import MODULES, read_jaas

if TYPE_CHECKING:
    from pathlib import Path

INLINE = (
    "ssl.key.pem",
    "ssl.certificate.pem",
    "ssl.ca.pem",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.certificates",
)
"""Settings with the text of a key or certificate. Spark prints the options of a stream in its plans."""

JAVA_LOGIN = (
    "sasl.jaas.config",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.keystore.type",
)
"""Names of Java clients that are translated, and that librdkafka does not have."""

_JAVA_NAMES = frozenset(JAVA).union(JAVA_LOGIN)
_BLANKS = " \t\f"
_JAVA_LINE = re.compile(r"[\w.]+\s*:")
"""Start of a line that only Java reads as a setting."""
_SETTING = re.compile(r"((?:\\.|[^\\=: \t\f])*)([ \t\f]*[=:]?)[ \t\f]*(.*)", re.DOTALL)
"""Name, separator and value of a logical line; a backslash makes the next character a part of the name."""
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class InvalidConfigFile(InvalidUsage):
    """A Kafka properties file is not valid; the message names the file, the line and the expected format."""


def read_properties(path: "Path") -> dict[str, str]:
    """Read a Kafka client properties file: ``name=value`` lines, ``#`` comments.

    If the file has a name that only Java clients have, or a line ``name: value``, it is read as Java reads it: a
    backslash escapes the next character, and at the end of a line it continues the value. Otherwise values are taken
    literally. As in both of Kafka's clients, blanks around a value do not belong to it.

    Raises:
        InvalidConfigFile: the file cannot be read, a line is neither a setting nor a comment, or a setting contains the
            text of a key or certificate. The message contains no value.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidConfigFile(f"cannot read the Kafka settings in {path}: {error}") from error
    lines = text.split("\n")  # not `splitlines`: a password may have other characters that end lines
    plain = list(_plain(lines))
    is_java = any(name in _JAVA_NAMES or _JAVA_LINE.match(name) for _, name, _ in plain)
    settings = {}
    for number, name, value in _as_java(lines) if is_java else plain:
        if not name or value is None:
            raise InvalidConfigFile(f"{path} line {number} is not a setting; it must be name=value")
        if name in INLINE:
            raise InvalidConfigFile(
                f"{path} line {number}: {name} contains the text of a key or certificate, which would appear in the "
                f"plans of Spark; name a file instead: ssl.ca.location, ssl.certificate.location, ssl.key.location"
            )
        settings[name] = value.strip()
    return settings


def exposed(path: str | os.PathLike[str] | None) -> str:
    """Return a warning if every user of the machine may read a file with a password; else an empty string."""
    from pathlib import Path  # here, because it loads urllib and more, which an import alone need not wait for

    if path is None or not Path(path).is_file():
        return ""
    mode = stat.S_IMODE(Path(path).stat().st_mode)
    has_secret = any("password" in name or name == "sasl.jaas.config" for name in read_properties(Path(path)))
    if not has_secret or not mode & stat.S_IRWXO:
        return ""
    return f"every user of this machine may read the password in {path} (mode {mode:o}); to fix this: chmod 600 {path}"


def missing_files(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each setting that names a file of keys or certificates which does not exist, and the file."""
    from pathlib import Path

    named = [(name, file) for name, file in settings.items() if name.startswith("ssl.") and name.endswith(".location")]
    return [(name, file) for name, file in named if file != "probe" and not Path(file).exists()]


def librdkafka_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return settings in librdkafka's names; leave out settings that only Java clients have.

    >>> librdkafka_settings({"ssl.truststore.type": "PEM", "ssl.truststore.location": "ca.pem"})
    {'ssl.ca.location': 'ca.pem'}

    Raises:
        InvalidUsage: a setting has no equivalent, contradicts another one, or a login is incomplete. The message
            contains no password.
    """
    settings = {name: value for name, value in given.items() if name not in _JAVA_NAMES}
    if "sasl.mechanisms" in settings:  # librdkafka knows both names
        _add(settings, "sasl.mechanism", settings.pop("sasl.mechanisms"), "sasl.mechanisms")
    if "fetch.max.wait.ms" in given:
        _add(settings, "fetch.wait.max.ms", given["fetch.max.wait.ms"], "fetch.max.wait.ms")
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"
    if "sasl.jaas.config" in given:
        login = read_jaas(given["sasl.jaas.config"])
        expected = MODULES.get(settings.get("sasl.mechanism", ""))
        if login.module != expected:
            raise InvalidUsage(
                f"sasl.jaas.config names the module {login.module}, but sasl.mechanism is "
                f"{settings.get('sasl.mechanism', 'not set')}; {_mechanisms()}"
            )
        _add(settings, "sasl.username", login.username, "sasl.jaas.config")
        _add(settings, "sasl.password", login.password, "sasl.jaas.config")
    _translate_stores(given, settings)
    _check_login(settings)
    return settings


def _translate_stores(given: Mapping[str, str], settings: dict[str, str]) -> None:
    """Translate the truststore and keystore of a Java client; their default type in Java is JKS."""
    if "ssl.truststore.location" in given:
        kind = given.get("ssl.truststore.type", "JKS").upper()
        if kind != "PEM":
            raise InvalidUsage(
                f"ssl.truststore.type is {kind}; it must be PEM, the only type that both clients read; to convert it: "
                "keytool -exportcert -rfc -keystore FILE -alias NAME > ca.pem"
            )
        _add(settings, "ssl.ca.location", given["ssl.truststore.location"], "ssl.truststore.location")
    kind = given.get("ssl.keystore.type", "PKCS12").upper()
    if kind not in ("PEM", "PKCS12"):
        raise InvalidUsage(
            f"ssl.keystore.type is {kind}; it must be PEM or PKCS12, the types that both clients read; to convert it: "
            "keytool -importkeystore -srckeystore FILE -destkeystore client.p12 -deststoretype PKCS12"
        )
    if kind == "PEM" and "ssl.keystore.location" in settings:
        file = settings.pop("ssl.keystore.location")
        for name in ("ssl.certificate.location", "ssl.key.location"):
            _add(settings, name, file, "ssl.keystore.location")


def _check_login(settings: Mapping[str, str]) -> None:
    """Check that the login is complete: Kafka's client would send no login, or its error would name no setting."""
    protocol = settings.get("security.protocol", "PLAINTEXT")
    if not protocol.upper().startswith("SASL_"):
        if "sasl.username" in settings or "sasl.password" in settings:
            raise InvalidUsage(
                f"a SASL login is set, but security.protocol is {protocol}, so it is not used; it must be SASL_SSL, or "
                "SASL_PLAINTEXT without encryption"
            )
        return
    mechanism = settings.get("sasl.mechanism")
    if mechanism is None:
        raise InvalidUsage(f"security.protocol is {protocol}, and sasl.mechanism is not set; {_mechanisms()}")
    if mechanism in MODULES:
        missing = [name for name in ("sasl.username", "sasl.password") if not settings.get(name)]
        if missing:
            raise InvalidUsage(
                f"sasl.mechanism is {mechanism}, which needs {' and '.join(missing)} (Java clients: sasl.jaas.config)"
            )


def _mechanisms() -> str:
    return f"it must be one of: {', '.join(MODULES)}"


def _add(settings: dict[str, str], name: str, value: str, origin: str) -> None:
    if settings.get(name, value) != value:
        raise InvalidUsage(f"{name} and {origin} are both set, and contradict each other; set one of them")
    settings[name] = value


def _plain(lines: Iterable[str]) -> Iterator[tuple[int, str, str | None]]:
    """Yield number, name and value of each line that is not empty and not a comment; a line may have no value."""
    for number, line in enumerate(lines, 1):
        name, separator, value = line.strip().partition("=")
        if (name or separator) and not name.startswith(("#", "!")):
            yield number, name.strip(), value if separator else None


def _as_java(lines: Iterable[str]) -> Iterator[tuple[int, str, str | None]]:
    """Yield the same by the rules of `java.util.Properties`, where a backslash at the end continues a line."""
    joined, first, is_continued = "", 0, False
    for number, line in enumerate(lines, 1):
        text = line.removesuffix("\r").lstrip(_BLANKS)
        if not is_continued and (not text or text.startswith(("#", "!"))):
            continue
        joined, first = (joined + text, first) if is_continued else (text, number)
        is_continued = (len(text) - len(text.rstrip("\\"))) % 2 == 1
        if is_continued:
            joined = joined[:-1]
        elif joined:
            yield first, *_parts(joined)
    if is_continued and joined:
        yield first, *_parts(joined)


def _parts(line: str) -> tuple[str, str | None]:
    found = _SETTING.fullmatch(line)
    assert found is not None  # each line has that form
    name, separator, value = found.groups()
    return _ESCAPE.sub(_unescaped, name), _ESCAPE.sub(_unescaped, value) if separator else None


def _unescaped(escape: re.Match[str]) -> str:
    letter = escape[1]
    return chr(int(letter[1:], 16)) if len(letter) == 5 else _ESCAPES.get(letter, letter)
