"""Requests of Kafka's protocol, byte by byte: what no client library would send, or not as quickly."""

import socket
import struct
from types import TracebackType
from typing import Self

from tests.support.coordinator_messages import encode
from wakeroll_model.coordinator_log.message_schemas import ConsumerAssignment, ConsumerSubscription, TopicPartitions

_COMMIT, _JOIN, _SYNC = 8, 11, 14


class QuickMember:
    """The only member of a classic group, and so its leader: each `rejoin` is a new generation within milliseconds."""

    def __init__(self, bootstrap: str, group_id: str, topic: str) -> None:
        host, _, port = bootstrap.partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._stream = self._socket.makefile("rwb")
        self._group_id, self._topic, self._member_id = group_id, topic, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._socket.close()

    def rejoin(self, partitions: list[int]) -> int:
        """Join again, and assign these partitions to itself; return the generation."""
        subscription = encode(ConsumerSubscription(topics=[self._topic]), 1)
        request = text(self._group_id) + struct.pack(">ii", 60_000, 60_000) + text(self._member_id) + text("consumer")
        answer = self._ask(_JOIN, 3, request + struct.pack(">i", 1) + text("range") + blob(subscription))
        _, error, generation = struct.unpack_from(">ihi", answer)
        assert error == 0, f"JoinGroup: error {error}"
        _, _, self._member_id = texts(answer, 10, 3)
        mine = TopicPartitions(topic=self._topic, partitions=partitions)
        assignment = encode(ConsumerAssignment(assigned_partitions=[mine]), 1)
        one = struct.pack(">i", 1) + text(self._member_id) + blob(assignment)
        request = text(self._group_id) + struct.pack(">i", generation) + text(self._member_id) + one
        _, error = struct.unpack_from(">ih", self._ask(_SYNC, 2, request))
        assert error == 0, f"SyncGroup: error {error}"
        return int(generation)

    def commit_under(self, group_id: str, offset: int) -> None:
        """Commit without being a member, as an old client does: Kafka's client of today refuses an empty name."""
        one = struct.pack(">i", 1) + text(self._topic) + struct.pack(">iiq", 1, 0, offset) + text("")
        request = text(group_id) + struct.pack(">i", -1) + text("") + struct.pack(">q", -1) + one
        answer = self._ask(_COMMIT, 2, request)
        assert answer[-2:] == b"\0\0", "the group's coordinator takes the commit"

    def _ask(self, api: int, version: int, body: bytes) -> bytes:
        request = struct.pack(">hhi", api, version, 1) + text("quick") + body
        self._stream.write(struct.pack(">i", len(request)) + request)
        self._stream.flush()
        (size,) = struct.unpack(">i", self._stream.read(4))
        return self._stream.read(size)[4:]


def text(value: str) -> bytes:
    found = value.encode()
    return struct.pack(">h", len(found)) + found


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def texts(data: bytes, at: int, count: int) -> list[str]:
    """Return some texts behind each other."""
    found = []
    for _ in range(count):
        (size,) = struct.unpack_from(">h", data, at)
        found.append(data[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return found
