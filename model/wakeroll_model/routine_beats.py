"""Routine heartbeats, which only prove that a member is alive.

Almost every heartbeat is equal, byte for byte, to the one before it, and its group has not changed since. Then its only
effect is the time of the member's last heartbeat. A shard recognizes such a heartbeat by a digest of its record. It
decodes neither the record nor the group, and stores the time beside the group.
"""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec
from msgspec import Struct, structs

from wakeroll_model import preferences
from wakeroll_model.events import Heartbeat
from wakeroll_model.group import Group
from wakeroll_model.records import Record

DIGEST_SIZE = 16
"""Bytes of a digest; to make two records with the same digest would take 2**64 attempts."""


class RoutineBeats(Struct, array_like=True):
    """The routine heartbeats of one group."""

    clients: dict[bytes, str] = {}
    """Digest of a record -> its client. A record with this digest is routine as long as it is listed here."""
    seen_ms: dict[str, int] = {}
    """Client -> the shard's clock at its last routine heartbeat, unless the group's state has that time already."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RoutineBeats).decode


def is_routine(group: Group, beat: Heartbeat) -> bool:
    """Return whether a heartbeat changes nothing except the time of its member's last heartbeat.

    The answer does not depend on the time, nor on offsets and locks.
    """
    member = group.members.get(beat.client_id)
    if member is None or member.instance_id != beat.instance_id or group.loss is not None or beat.mode != group.mode:
        return False
    if beat.epoch != member.shown_epoch or not member.sent_epoch <= beat.epoch <= min(
        group.epoch, group.received_epoch
    ):
        return False
    knows_settings = member.sent_epoch >= 0 and beat.epoch > group.configured_epoch
    if knows_settings and member.session_ms != group.settings.session_timeout_ms:
        return False
    if not beat.round <= member.shown_round or beat.round >= group.round:
        return False
    return (
        member.lagging_since_ms < 0
        and member.lagging_round < 0
        and not member.revoking
        and member.owned.keys() == set(beat.owned)
        and preferences.are_stored(preferences.agreed(group, beat), member)
        and (beat.about is None or beat.about == member.about)
        and beat.handling == member.handling
        and beat.slice_by in (None, member.slice_by)
    )


def enter(seen_ms: dict[str, int], group: Group) -> None:
    """Enter the times of routine heartbeats into a group's state."""
    for client_id, at_ms in seen_ms.items():
        group.members[client_id].seen_ms = at_ms


def with_seen(seen_ms: Mapping[str, int], group: Group) -> Group:
    """Return a copy of a group with the times of routine heartbeats."""
    later = {name: structs.replace(group.members[name], seen_ms=at_ms) for name, at_ms in seen_ms.items()}
    return structs.replace(group, members=group.members | later)


class RoutineIndex:
    """The routine heartbeats of all groups of a shard, each group stored as msgpack until it is used."""

    def __init__(self, stored: dict[bytes, bytes]) -> None:
        """Begin with `stored`, key of a group's records -> its routine heartbeats; `store` updates it."""
        self._stored = stored
        self._used: dict[bytes, RoutineBeats] = {}

    def client_of(self, record: Record) -> tuple[RoutineBeats, str] | None:
        """Return the client of a routine heartbeat, and its group's routine heartbeats; None for any other record."""
        if record.key is None or record.value is None or (beats := self._of(record.key)) is None:
            return None
        client_id = beats.clients.get(_digest(record.value))
        return None if client_id is None else (beats, client_id)

    def unlist(self, group: Group, client_id: str) -> None:
        """Remove the listed heartbeat of a client that has sent another one."""
        member = group.members.get(client_id)
        if member is None:
            return
        beats = self._of(group.group_id.encode())
        if beats is not None:
            beats.clients.pop(member.routine_beat, None)
        member.routine_beat = b""

    def list_if_routine(self, group: Group, beat: Heartbeat, record: Record) -> None:
        """List a heartbeat that has led to no decision, if an equal heartbeat would be routine.

        Args:
            group: the group, after the heartbeat.
            beat: the heartbeat.
            record: its record.
        """
        member = group.members.get(beat.client_id)
        if member is None or not is_routine(group, beat):
            return
        assert record.key is not None, "the key of a heartbeat is its group"
        assert record.value is not None, "a heartbeat has a value"
        member.routine_beat = _digest(record.value)
        beats = self._of(record.key)
        if beats is None:
            beats = self._used[record.key] = RoutineBeats()
        beats.clients[member.routine_beat] = beat.client_id

    def seen(self, group_id: str) -> Mapping[str, int]:
        """Return the times that a group's state does not have yet: client -> the shard's clock."""
        beats = self._of(group_id.encode())
        return {} if beats is None else beats.seen_ms

    def take_seen(self, group_id: str) -> dict[str, int]:
        """Return and forget the times that a group's state does not have yet: client -> the shard's clock."""
        beats = self._of(group_id.encode())
        if beats is None:
            return {}
        seen_ms, beats.seen_ms = beats.seen_ms, {}
        return seen_ms

    def drop(self, group_id: str) -> None:
        """Remove all listed heartbeats of a group whose state has all times."""
        key = group_id.encode()
        self._used.pop(key, None)
        self._stored.pop(key, None)

    def end_all(self) -> None:
        """Remove all listed heartbeats of all groups."""
        for key in [*self._stored.keys(), *self._used.keys()]:
            if (beats := self._of(key)) is not None:
                beats.clients.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._used.clear()
        self._stored.clear()

    def store(self) -> None:
        """Update the stored form."""
        for key, beats in self._used.items():
            self._stored[key] = _encode(beats)

    def _of(self, key: bytes) -> RoutineBeats | None:
        beats = self._used.get(key)
        if beats is None and (stored := self._stored.get(key)) is not None:
            beats = self._used[key] = _decode(stored)
        return beats


def _digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=DIGEST_SIZE).digest()
