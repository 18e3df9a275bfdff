"""Names of Kafka's groups, members and topics in wakeroll.

Kafka accepts any characters in the names of groups and clients, wakeroll those of `wakeroll_model.queue`.
"""

import hashlib
import re

from msgspec import Meta

from wakeroll_model.queue import ClientId, GroupId, TopicName

_BASE64 = str.maketrans("+/", "-_")
"""Member ids of KIP-848 are in base64."""


def _pattern(declared: object) -> re.Pattern[str]:
    [meta] = [one for one in getattr(declared, "__metadata__", ()) if isinstance(one, Meta)]
    return re.compile(meta.pattern or "")


_is_group = _pattern(GroupId).search
_is_client = _pattern(ClientId).search
_is_topic = _pattern(TopicName).search
_LONGEST = 255
_LONGEST_TOPIC = 249


def group_name(kafka_group: str) -> str:
    """Return the name of a Kafka group in wakeroll.

    >>> group_name("billing"), group_name("a group")
    ('billing', 'a_group-531a76a7')
    """
    return _legal(kafka_group, r"[^A-Za-z0-9._-]", _is_group(kafka_group) is not None, _LONGEST)


def topic_name(kafka_topic: str) -> str:
    """Return the name of a topic in wakeroll: Kafka's, unless a hostile record has another one."""
    return _legal(kafka_topic, r"[^A-Za-z0-9._-]", _is_topic(kafka_topic) is not None, _LONGEST_TOPIC)


def client_name(member_id: str, client_id: str, group_instance_id: str | None) -> str:
    """Return the name of a member of a Kafka group in wakeroll.

    A static member has the name that its owner gave it, and keeps it when it is restarted. Any other member has its
    member id, after its client.id if the id does not begin with that: ``client.id`` alone is often not unique.

    >>> client_name("app-1-0b6ff7c1", "app-1", None), client_name("/9smel3ySm+oA", "app-1", None)
    ('app-1-0b6ff7c1', 'app-1-_9smel3ySm-oA')
    >>> client_name("s1-0b6ff7c1", "app-1", "s1")
    's1'
    """
    name = group_instance_id
    if not name:
        known = member_id.translate(_BASE64)
        name = known if not client_id or known.startswith(client_id) else f"{client_id}-{known}"
    return _legal(name, r"[^A-Za-z0-9._@#:-]", _is_client(name) is not None, _LONGEST)


def instance_name(member_id: str) -> str:
    """Return a member id as the id of an instance: a digest, because a member id may be long."""
    return hashlib.blake2b(member_id.encode(errors="replace"), digest_size=16).hexdigest()


def _legal(name: str, others: str, is_legal: bool, longest: int) -> str:
    """Return a legal name, not too long and without other characters; a changed one ends with a digest."""
    if is_legal:
        return name
    digest = hashlib.blake2b(name.encode(errors="replace"), digest_size=4).hexdigest()
    return f"{re.sub(others, '_', name)[: longest - 9]}-{digest}"
