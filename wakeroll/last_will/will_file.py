"""A member's last will in memory that outlives its process: the member writes it, and the executor reads it.

It consists of two memory files. One has the will, which is written as a whole when the member's queues change. The
other has two numbers per queue, which change with each message: how far the application has processed the queue, and
the limit of its commits. Such a number is written by one store into memory, without a system call or a lock.

The process may die between any two instructions, so data that a reader needs is never changed in place:

- A new will is written beside the one before, then a header with its checksum; there are two headers in turn. The
  reader takes the newest one with a correct checksum.
- A number is a word of 8 bytes, `(number + 1) * 65537 + tag`; the tag is in the will and differs for each assignment of
  a queue. By its tag, the reader recognizes a torn word, or a word of another assignment, and ignores it.

This module is loaded by the executor too, so it imports nothing else of the SDK.
"""

import mmap
import os
import zlib
from collections.abc import Callable
from struct import Struct as Layout
from typing import NamedTuple

import msgspec
from msgspec import Struct, structs

from wakeroll.last_will.own_descriptor import OwnDescriptor
from wakeroll_model.client_actions import Give
from wakeroll_model.client_keys import ClientKey
from wakeroll_model.client_queues import ClientQueue
from wakeroll_model.last_will import LastWill
from wakeroll_model.queue import Queue

_TAGS = 65_537
"""Number of different tags of words; a prime."""
_HEADER = Layout("<QQQL")
"""Number of the will, its place and length in bytes, and the checksum of all of that."""
_HEADERS = (0, 64)
_BODIES = 128
"""Where wills are written, behind the headers."""
_WORD = 8
_WORDS = 2
"""Words per queue: the processed offset and the limit of commits."""
_QUEUES = 128
"""Number of queues for which the first file of numbers has room."""
_NONE = 0
"""Value of an unset word."""


class Sending(Struct, frozen=True):
    """How the events of a will are sent."""

    settings: dict[str, str | int | float | bool]
    """Settings of the producer, in librdkafka's names."""
    topic: str
    """The topic of events about groups."""
    client_key: ClientKey | None
    """The key that signs the events; None if they are not signed."""
    files: tuple[str, ...] = ()
    """Settings whose files are passed to the executor as descriptors, in their order."""


class Will(NamedTuple):
    """A will as a reader finds it."""

    sending: Sending
    will: LastWill
    progress: dict[Queue, int]
    """Queue -> the application has processed all messages below this offset, as for `LastWill.events`."""


class _Slot(Struct, frozen=True):
    """Where the numbers of one assignment of a queue are."""

    index: int
    tag: int


class _Body(Struct, frozen=True):
    sending: msgspec.Raw
    will: LastWill | None
    slots: tuple[_Slot, ...]
    """Slot of each queue of the will, in the will's order."""


class _Place(NamedTuple):
    """A slot with its assignment."""

    give: Give
    slot: _Slot
    words: memoryview
    at: int
    """Index of the first word."""


_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(_Body).decode
_decode_sending = msgspec.msgpack.Decoder(Sending).decode


_never_unmapped: list[memoryview] = []
"""Mappings whose descriptors the application has closed. They are never unmapped, because Python would then also close
its copy of the descriptor, which may be a file of the application by then."""


class WillFile:
    """The will of one member, as its process writes it.

    `begin`, `write` and `keep` are called under the member's lock, `note` by any thread at any time.
    """

    def __init__(self, sending: Sending) -> None:
        """Create the files; there is no will yet.

        Raises:
            OSError: the system has no memory files, or denies them.
        """
        self._sending = msgspec.Raw(_encode(sending))
        self._will = OwnDescriptor(os.memfd_create("wakeroll-will", os.MFD_CLOEXEC))
        try:
            self._progress = OwnDescriptor(os.memfd_create("wakeroll-progress", os.MFD_CLOEXEC))
        except OSError:
            self._will.close()
            raise
        self._number = 0
        self._active = _BODIES, 0
        """Place and length of the newest will."""
        self._places: dict[Queue, _Place] = {}
        self._last: tuple[Give | None, memoryview, int, int] = None, memoryview(b""), 0, 0
        """Assignment of the last note, its words, the index of the first one, and its tag: found without a search."""
        self._free: list[int] = []
        self._room = 0
        self._tag = 0
        self._words = memoryview(b"")

    @property
    def will_fd(self) -> int:
        """Descriptor of the will.

        Raises:
            OSError: the application has closed it.
        """
        return self._will.number

    @property
    def progress_fd(self) -> int:
        """Descriptor of the progress.

        Raises:
            OSError: the application has closed it.
        """
        return self._progress.number

    def note(self, give: Give, offset: int) -> None:
        """Note that the application has processed all messages of this assignment below an offset."""
        known, words, at, tag = self._last
        if known is not give:
            place = self._places.get(give.queue)
            if place is None or place.give != give:
                return
            self._last = _, words, at, tag = give, place.words, place.at, place.slot.tag
        try:
            words[at] = (offset + 1) * _TAGS + tag
        except ValueError:  # more than 2**47: no queue has so many messages, and none is lost without it
            words[at] = _NONE

    def noting(self, held: ClientQueue) -> Callable[[int], None] | None:
        """Return a function that notes progress of this assignment in `held` and, like `note`, here.

        Return None if the assignment is not in the will. After the assignment has ended, the function may write to the
        slot of another assignment, where its word is ignored.
        """
        place = self._places.get(held.give.queue)
        if place is None or place.give != held.give:
            return None
        words, at, tag = place.words, place.at, place.slot.tag

        def note(offset: int) -> None:
            held.done = offset
            try:
                words[at] = (offset + 1) * _TAGS + tag
            except ValueError:  # as in `note`
                words[at] = _NONE

        return note

    def keep(self, give: Give, offset: int | None) -> None:
        """Set the limit of the commits of this assignment; None: all processed offsets may be committed."""
        place = self._places.get(give.queue)
        if place is not None and place.give == give:
            _store(place.words, place.at + 1, place.slot.tag, -1 if offset is None else offset)

    def write(self, will: LastWill | None) -> None:
        """Replace the will; None: there is no member to act for.

        `begin` must have been called with its queues.

        Raises:
            OSError: there is no room, or the application has closed the descriptors.
        """
        slots: list[_Slot] = []
        for held in () if will is None else will.queues:
            place = self._places[held.give.queue]
            _store(place.words, place.at + 1, place.slot.tag, -1 if held.kept is None else held.kept)
            slots.append(place.slot)
        body = _encode(_Body(self._sending, will, tuple(slots)))
        begin, length = self._active
        at = _BODIES if _BODIES + len(body) <= begin else begin + length
        self._number += 1
        os.pwrite(self.will_fd, body, at)
        os.pwrite(self.will_fd, _header(self._number, at, body), _HEADERS[self._number % 2])
        self._active = at, len(body)

    def begin(self, gives: list[Give]) -> None:
        """Note progress of these assignments from now on, and of no others.

        Raises:
            OSError: as for `write`.
        """
        mine = {give.queue: give for give in gives}
        for queue, place in list(self._places.items()):
            if mine.get(queue) != place.give:
                del self._places[queue]
                self._free.append(place.slot.index)
        for queue, give in mine.items():
            if queue not in self._places:
                self._places[queue] = self._place(give)

    def close(self) -> None:
        """Close the files; a process that has copies of their descriptors can still read them."""
        self._places.clear()
        self._last = None, memoryview(b""), 0, 0
        if not self._progress.is_open:
            _never_unmapped.append(self._words)
        self._will.close()
        self._progress.close()

    def _place(self, give: Give) -> _Place:
        if not self._free:
            self._grow()
        index = self._free.pop()
        self._tag = self._tag % (_TAGS - 1) + 1  # never 0: no word of an assignment is `_NONE`
        slot = _Slot(index, self._tag)
        self._words[index * _WORDS] = _NONE
        return _Place(give, slot, self._words, index * _WORDS)

    def _grow(self) -> None:
        """Make room for twice as many queues; slots of the former mapping stay valid: it has the same memory."""
        before, self._room = self._room, max(2 * self._room, _QUEUES)
        size = self._room * _WORDS * _WORD
        os.ftruncate(self.progress_fd, size)
        self._words = memoryview(mmap.mmap(self.progress_fd, size)).cast("Q")
        self._free += range(self._room - 1, before - 1, -1)


def read_will(will_fd: int, progress_fd: int) -> Will | None:
    """Return the newest complete will, even if its writer died during a write; None if there is no member to act for.

    Raises:
        OSError: a file cannot be read.
    """
    found = [one for at in _HEADERS if (one := _body_of(will_fd, at)) is not None]
    if not found:
        return None
    body = _decode_body(max(found)[1])
    if body.will is None:
        return None
    words = memoryview(os.pread(progress_fd, os.fstat(progress_fd).st_size, 0)).cast("Q")
    queues, progress = [], {}
    for held, slot in zip(body.will.queues, body.slots, strict=True):
        done = _load(words, slot.index * _WORDS, slot.tag)
        kept = _load(words, slot.index * _WORDS + 1, slot.tag)
        if kept is None:
            continue  # without that bound, its progress must not be committed
        queues.append(structs.replace(held, kept=None if kept < 0 else kept))
        if done is not None:
            progress[held.give.queue] = done
    return Will(_decode_sending(body.sending), structs.replace(body.will, queues=tuple(queues)), progress)


def _header(number: int, at: int, body: bytes) -> bytes:
    places = _HEADER.pack(number, at, len(body), 0)
    return _HEADER.pack(number, at, len(body), zlib.crc32(body, zlib.crc32(places)))


def _body_of(will_fd: int, header_at: int) -> tuple[int, bytes] | None:
    """Return the number and the will of a header; None if it is torn, or there is none."""
    header = os.pread(will_fd, _HEADER.size, header_at)
    if len(header) < _HEADER.size:
        return None
    number, at, length, _ = _HEADER.unpack(header)
    if not number or at + length > os.fstat(will_fd).st_size:
        return None
    body = os.pread(will_fd, length, at)
    return (number, body) if header == _header(number, at, body) else None


def _store(words: memoryview, at: int, tag: int, number: int) -> None:
    try:
        words[at] = (number + 1) * _TAGS + tag
    except ValueError:
        words[at] = _NONE


def _load(words: memoryview, at: int, tag: int) -> int | None:
    """Return a number, at least -1; None if nothing was stored by this assignment."""
    if at >= len(words) or words[at] == _NONE or words[at] % _TAGS != tag:
        return None
    return words[at] // _TAGS - 1
