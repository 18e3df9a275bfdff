"""Check of the rights of this process's principal, before it starts to work."""

import logging
from collections.abc import Iterable

from confluent_kafka import KafkaError

from wakeroll.connection import Connection
from wakeroll.errors import AccessDenied, LoginFailed, NotReachable
from wakeroll_pipeline.kafka.role_rights import Right, Scope, rights_of
from wakeroll_pipeline.kafka.topic_admin import PATIENCE_S, Cluster

log = logging.getLogger(__name__)

_IN_KAFKA = {"DescribeConfigs": "DESCRIBE_CONFIGS"}


def require_rights(
    connection: Connection, roles: Iterable[str], patience_s: float = PATIENCE_S, *, must_answer: bool = True
) -> None:
    """Check that the principal has the rights of roles on the control plane's topics; skip it without a login.

    Topics that do not exist yet are not checked. Topics of messages are known only later.

    Args:
        connection: the brokers, and the login.
        roles: roles of `role_rights`.
        patience_s: how long to wait for each answer, in seconds.
        must_answer: whether it is an error if no broker answers; False if the caller waits for one anyway.

    Raises:
        LoginFailed: the brokers reject the login.
        AccessDenied: a right is missing; the message names the role, the topics and the operations.
        NotReachable: no broker answered in time.
    """
    if not connection.has_login:
        return
    try:
        _require(connection, roles, Cluster(connection, patience_s=patience_s))
    except (LoginFailed, AccessDenied):
        raise
    except NotReachable as error:
        if must_answer:
            raise
        log.warning("the rights of %s are not checked: %s", connection.user, error)


def _require(connection: Connection, roles: Iterable[str], cluster: Cluster) -> None:
    for role in roles:
        if missing := missing_rights(cluster, connection, role):
            denied = "; ".join(f"{', '.join(right.operations)} on the topic {right.name}" for right in missing)
            raise AccessDenied(
                f"the brokers at {connection.bootstrap} deny {connection.user}, as {role}: {denied}; to fix this: "
                f"wakeroll acls {role}=PRINCIPAL --prefix {connection.topics.prefix} prints the ACLs"
            )


def missing_rights(cluster: Cluster, connection: Connection, role: str) -> list[Right]:
    """Return the rights of a role on the control plane's topics that the principal does not have.

    Raises:
        LoginFailed: the brokers reject the login.
        NotReachable: no broker answered in time.
    """
    needed = [right for right in rights_of([role], Scope(connection.topics)) if right.kind == "topic"]
    found = cluster.operations(right.name for right in needed)
    missing = []
    for right in needed:
        allowed = found[right.name]
        if isinstance(allowed, KafkaError):
            if allowed.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            allowed = frozenset[str]()
        denied = tuple(one for one in right.operations if _IN_KAFKA.get(one, one.upper()) not in allowed)
        if denied:
            missing.append(right._replace(operations=denied))
    return missing
