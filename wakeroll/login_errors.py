"""Errors of a login: the brokers reject the user, or the TLS connection fails; and rights that a principal lacks."""

from collections.abc import Mapping

from confluent_kafka import KafkaError

from wakeroll.client_properties import librdkafka_settings
from wakeroll.errors import AccessDenied, LoginFailed

_REJECTED = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


def login_failure(bootstrap: str, config: Mapping[str, str], error: KafkaError) -> LoginFailed | None:
    """Return the failure of a login, if an error of Kafka's client reports one.

    Args:
        bootstrap: address of the brokers.
        config: settings of the client.
        error: error that the client reports.
    """
    settings = librdkafka_settings(config)
    if error.code() == KafkaError._SSL:
        return LoginFailed(
            f"the TLS connection to {bootstrap} failed: {error.str()}; check ssl.ca.location, "
            "ssl.certificate.location, ssl.key.location and ssl.endpoint.identification.algorithm"
        )
    if error.code() not in _REJECTED:
        return None
    user = settings.get("sasl.username")
    if user is None:
        return LoginFailed(
            f"authentication failed at {bootstrap}: {error.str()}; check security.protocol and the client's certificate"
        )
    return LoginFailed(
        f"authentication failed for {user!r} at {bootstrap}: {error.str()}; check sasl.mechanism, sasl.username and "
        "sasl.password"
    )


def is_denied(error: KafkaError | None) -> bool:
    """Return whether the principal lacks a right; then the brokers do not even report whether the topic exists."""
    return error is not None and error.code() in _DENIED


def denied(topic: str, operation: str) -> AccessDenied:
    """Return the error for a missing right on a topic; `operation` is in the words of kafka-acls, like ``Write``."""
    return AccessDenied(
        f"the brokers deny this principal the operation {operation} on the topic {topic}; `wakeroll acls` prints the "
        "ACLs of each role"
    )
