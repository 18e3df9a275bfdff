"""Replay: compute the decisions that records of control topics lead to.

``python -m wakeroll_model.replay [--partitions 4] [--refused FILE] < events.jsonl > decisions.jsonl``.  An input line
is ``{"topic", "partition", "offset", "timestamp_ms", "key", "value": {...}}``, in log order. A null key or value means
none; ``"key_base64"`` and ``"value_base64"`` contain bytes that are not text. An output line is one decision. The same
records lead to the same bytes, on any machine and in batches of any size.

A replay has no keys. A record with or without a signature counts as accepted, unless a decision in FILE (JSON lines)
rejects it by the rule ``signature``; other decisions in FILE are skipped.
"""

import argparse
import base64
import binascii
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import msgspec
from msgspec import Raw, Struct

from wakeroll_model.config import CONTROL_PARTITIONS
from wakeroll_model.decision_sizes import bounded
from wakeroll_model.decisions import AnyDecision, Rejected
from wakeroll_model.events import UNREADABLE
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard
from wakeroll_model.signing import OnRecord


class _Line(Struct):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: str | None = None
    key_base64: str | None = None
    value: Raw = Raw()
    value_base64: str | None = None


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_decision = msgspec.json.Decoder(AnyDecision).decode


def encode_decision(decision: AnyDecision) -> bytes:
    """Return a decision's bytes, as in Kafka and Delta."""
    return bounded(decision)[1]


def replay(
    records: Iterable[Record],
    partitions: int = CONTROL_PARTITIONS,
    refused: Mapping[ControlPartition, OnRecord] | None = None,
) -> Iterator[AnyDecision]:
    """Run the machines over records of any number of control partitions.

    Args:
        records: the records; those of one partition in the order of their offsets.
        partitions: number of partitions of each control topic.
        refused: the records that were rejected for their signatures when they were first decided; None: signatures
            were not required at that time.
    """
    shards: dict[ControlPartition, Shard] = {}
    for record in records:
        at = (record.topic, record.partition)
        if at not in shards:
            signatures = None if refused is None else refused.get(at, OnRecord())
            shards[at] = Shard(*at, partitions, signatures=signatures)
        yield from shards[at].apply(record)


def refused_in(decisions: Iterable[AnyDecision]) -> dict[ControlPartition, OnRecord]:
    """Return which records were rejected for their signatures, by partition."""
    found: dict[ControlPartition, dict[int, str]] = {}
    for decision in decisions:
        if isinstance(decision, Rejected) and decision.rule == "signature":
            cause = decision.cause
            found.setdefault((cause.topic, cause.partition), {})[cause.offset] = decision.detail
    return {at: OnRecord(details) for at, details in found.items()}


def read_lines(lines: Iterable[bytes]) -> Iterator[Record]:
    """Read records from JSON lines; empty lines are skipped.

    Raises:
        ValueError: a line is not a record; the message contains its number.
    """
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = _decode_line(text)
            value = bytes(line.value)
            key = _bytes_of(line.key_base64, None if line.key is None else line.key.encode())
            value_or_none = _bytes_of(line.value_base64, None if value in (b"", b"null") else value)
        except (*UNREADABLE, binascii.Error) as error:
            raise ValueError(f"line {number} is not a record: {error}") from error
        yield Record(line.topic, line.partition, line.offset, line.timestamp_ms, key, value_or_none)


def _bytes_of(encoded: str | None, otherwise: bytes | None) -> bytes | None:
    return otherwise if encoded is None else base64.b64decode(encoded, validate=True)


def _read_decisions(lines: Iterable[bytes]) -> Iterator[AnyDecision]:
    for number, text in enumerate(lines, 1):
        if text.strip():
            try:
                yield _decode_decision(text)
            except UNREADABLE as error:
                raise ValueError(f"line {number} of the decisions is none: {error}") from error


def main(arguments: list[str] | None = None, lines: BinaryIO | None = None, out: BinaryIO | None = None) -> int:
    """Run the command; return its exit code: 2 when a line is not a record."""
    parser = argparse.ArgumentParser(prog="python -m wakeroll_model.replay", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--partitions", type=int, default=CONTROL_PARTITIONS, help="of each control topic (default %(default)s)"
    )
    parser.add_argument("--refused", metavar="FILE", type=argparse.FileType("rb"), help="decisions, as JSON lines")
    given = parser.parse_args(arguments)
    if given.partitions < 1:
        parser.error(f"--partitions is {given.partitions}; it must be 1 or more")
    out = out or sys.stdout.buffer
    try:
        refused = refused_in(_read_decisions(given.refused or ()))
        for decision in replay(read_lines(lines or sys.stdin.buffer), given.partitions, refused):
            out.write(encode_decision(decision) + b"\n")
        out.flush()
    except ValueError as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has closed the pipe. Python would report that again when it closes the stream.
        sys.stderr.close()
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
