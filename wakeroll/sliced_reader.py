"""The reader of slices: it reads a partition once, and returns each message with the slice that it is in.

A slice whose buffer is full is passed over while other slices of its partition are read: the reader keeps some of its
messages. If there are more, or if the slice is paused, it keeps its position; later, the reader goes back there, and
the other slices skip what they have had. The same happens when a slice is assigned that begins before the others.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable
from typing import Any, TypeVar
from zlib import crc32

from confluent_kafka import Message
from msgspec import structs

from wakeroll.errors import InvalidUsage
from wakeroll.reader import Move, Reader
from wakeroll.slice_by import SliceKey, key_of
from wakeroll_model.client_actions import Give
from wakeroll_model.decisions import Done, Start
from wakeroll_model.queue import Queue
from wakeroll_model.slices import GOLDEN_RATIO, MOST, slice_of

_Result = TypeVar("_Result")

MOST_TIMES = 8
"""How many times as many messages are read at once as one slice may get, if it is all of their slices together that
get them. Otherwise each slice would get a few, and the handler's batches would be small."""
AT_ONCE = 500
"""Messages that are taken from Kafka's client at once. Several passes over them follow, which cost half as much again
if so many are read that they are not in the processor's cache any more."""
SAFETY = 0.8
"""Part of what a slice may get that it is to get at once, by its share so far: the rest is for chance."""
SHARE_KEPT = 0.9
"""Part of the largest share that a slice has had before which remains when its share is smaller."""
MOST_KEYS = 20_000
"""Keys whose slice is kept, for each number of slices."""
LEAST_KEYS = 50
"""Keys that must be read at once, so that their being new tells something."""
PAUSE = 50
"""How many times slices are computed without keeping them, if most keys were new."""
TELL_AFTER = 1_000
"""Offsets after which a slice's position is told at the latest, although only others have had messages."""
JUMP = 1_000
"""If no slice needs so many offsets in a row, the reader does not read them, but continues behind them. Kafka's client
fetches again then, which takes as long as some thousand messages."""
MOST_KEPT = 1_000
"""Maximum number of messages of a slice that are read but not returned yet."""
KEPT_BYTES = 1024 * 1024
"""Maximum number of bytes of their values. To go back costs the other slices some milliseconds: the more is kept, the
more seldom that is."""
_UNKNOWN = -2
"""Stands for a leader epoch that may not be that of all slices."""


class _Places(dict[bytes, int]):
    """Key -> its slice, of the keys that came lately: to find it there costs a third of the hash.

    Where most keys are new, nothing is kept for a while, as that costs more than it saves.
    """

    def __init__(self, slices: int) -> None:
        super().__init__()
        self._slices = slices
        self._shift = 33 - slices.bit_length()
        self._pause = 0
        """Calls of `of` that compute all slices, before keys are kept again."""

    def __missing__(self, key: bytes) -> int:
        place = self[key] = slice_of(key, self._slices)
        return place

    def of(self, keys: list[bytes]) -> list[int]:
        """Return the slice of each key."""
        if self._pause:
            self._pause -= 1
            shift, last = self._shift, self._slices - 1
            return [crc * GOLDEN_RATIO >> shift & last for crc in map(crc32, keys)]
        before = len(self)
        places = list(map(self.__getitem__, keys))
        if (len(self) - before) * 2 > len(keys) > LEAST_KEYS:
            self._pause = PAUSE
        if len(self) > MOST_KEYS:
            self.clear()
        return places


class _Slice:
    """A slice that is read; or a whole partition that was cut before, of which former slices had messages."""

    __slots__ = ("done", "fresh", "give", "is_full", "is_paused", "kept", "position", "run", "taken", "told")

    def __init__(self, give: Give, position: int) -> None:
        self.give = give
        self.position = position
        """Offset from which on its messages are still to be read."""
        self.kept: list[Message] = []
        """Its messages before that which are not returned yet; replaced as a whole."""
        self.told = position
        """The position as the caller knows it, by its messages and moves."""
        self.taken = 0
        """Messages that it has got in this call of `take`."""
        self.run: list[Message] | None = None
        """These messages; None if there are none."""
        self.is_full = False
        """Whether it is not read on because its messages are not processed."""
        self.is_paused = False
        """Whether the application does not want to read it on; any thread may change it."""
        self.fresh: list[Message] = []
        """Its messages among those that were read last."""
        self.done = give.start.done
        """Messages of former slices that are processed."""

    @property
    def is_held(self) -> bool:
        """Whether it is not read on now."""
        return self.is_full or self.is_paused

    @property
    def needs_reading(self) -> bool:
        """Whether its next message is still to be read, and may be."""
        return not (self.kept or self.is_held)

    @property
    def next(self) -> int:
        """Offset from which on its messages are still to be returned. Any thread may call it."""
        kept = self.kept
        return kept[0].offset() or 0 if kept else self.position

    def set_to(self, offset: int) -> None:
        """Return the messages from this offset on next."""
        self.position = self.told = offset
        self.kept = []

    def go_back(self, offset: int) -> bool:
        """Continue where the log lost its tail: the messages that it has there are other ones.

        Returns:
            Whether the caller has been told of later offsets.
        """
        is_beyond = self.next > offset
        self.set_to(min(self.next, offset))
        self.done = tuple(structs.replace(done, offset=min(done.offset, offset)) for done in self.done)
        return is_beyond

    def keep(self, messages: list[Message]) -> bool:
        """Keep the messages that it is to return next but these, if there is room; return whether there was."""
        kept = self.kept + messages
        if len(kept) > MOST_KEPT or sum(map(len, kept)) > KEPT_BYTES:
            return False
        self.kept = kept
        return True


class _Partition:
    """A partition of which this consumer has slices."""

    __slots__ = ("at", "give", "is_stopped", "leader_epoch", "parts", "slices", "table")

    def __init__(self, give: Give, at: int) -> None:
        self.give = give
        """Stands for the partition, at the reader that knows no slices."""
        self.at = at
        """Offset of the next message that the reader returns: messages below it were returned to their slices, or were
        passed over."""
        self.leader_epoch: int | None = _UNKNOWN
        """Leader epoch of the last message, if the client knows it for all slices."""
        self.is_stopped = False
        """Whether it is not read on because none of its slices is."""
        self.parts: list[_Slice] = []
        """Its slices, in order."""
        self.slices = 1
        """Number of slices that `table` is about; slices of fewer are in it several times."""
        self.table: list[_Slice | None] = []
        """Slice -> the one that this consumer has; None: it is another member's."""

    def change(self, parts: Iterable[_Slice]) -> None:
        """Have these slices from now on."""
        self.parts = sorted(parts, key=lambda part: part.give.queue)
        self.slices = max((part.give.queue.slices for part in self.parts), default=1)
        self.table = [None] * self.slices
        for part in self.parts:
            width = self.slices // part.give.queue.slices
            first = part.give.queue.slice * width
            self.table[first : first + width] = [part] * width
        self.leader_epoch = _UNKNOWN


class SlicedReader:
    """Reads the assigned queues and slices, each from its start. Without slices, it does what `Reader` does.

    For one thread, except for the methods that say otherwise.
    """

    def __init__(self, reader: Reader, key: SliceKey) -> None:
        """Read by means of a reader without queues; `key`: by what messages are ordered."""
        self._reader = reader
        self._key = key
        self._partitions: dict[Queue, _Partition] = {}
        """Partition -> its slices here."""
        self._parts: dict[Queue, _Slice] = {}
        """The slices of all partitions."""
        self._displaced: set[Queue] = set()
        """Partitions in which the reader may have to continue elsewhere, or to stop."""
        self._reached: dict[Queue, tuple[Give, int]] = {}
        """As in `Reader`, of slices."""
        self._places = {2**bits: _Places(2**bits) for bits in range(1, MOST.bit_length())}
        self._share = 1.0
        """Largest part of the messages read that one slice has got lately."""
        self._untold: set[_Partition] = set()
        """Partitions with slices whose position is not told."""
        self._pauses_changed = False
        """Whether the application has paused slices, or resumed them."""
        self.moves: list[Move] = []
        """As in `Reader`."""
        self.on_leader_epoch: Callable[[Give, int, int | None], object] = lambda _give, _offset, _leader_epoch: None
        """As in `Reader`."""
        self.leader_epoch_at: Callable[[Give, int], int | None] = lambda _give, _offset: None
        """As in `Reader`."""
        reader.on_leader_epoch = self._note_leader_epoch
        reader.leader_epoch_at = self._leader_epoch_of

    # --- what is read ---

    @property
    def queues(self) -> list[Queue]:
        """Queues and slices that are being read, sorted. Any thread may call it."""
        if not self._parts:
            return self._reader.queues
        return sorted([*(queue for queue in self._reader.queues if queue not in self._partitions), *self._parts.copy()])

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to read now, and nothing else to do in `take`."""
        if not self._reader.is_idle:
            return False
        if not self._partitions:
            return True
        is_due = any(part.kept and not part.is_held for part in self._parts.values()) and not self._reader.is_stopped
        return not (self._displaced or self._pauses_changed or is_due)

    @property
    def is_mending(self) -> bool:
        """Whether the position of a queue is lost, and Kafka must be asked where to continue."""
        return self._reader.is_mending

    def assigned(self) -> dict[Queue, Give]:
        """Return the queues and slices that are being read, with their assignments."""
        found = self._reader.assigned()
        if self._parts:
            for whole in self._partitions:
                found.pop(whole, None)
            found |= {queue: part.give for queue, part in self._parts.items()}
        return found

    def named(self, queue: Queue) -> list[Queue]:
        """Return the slices that are read here of a partition that is named as a whole; else the queue itself.

        Any thread may call it.
        """
        parts = sorted(part for part in self._parts.copy() if part.whole == queue) if queue.slices == 1 else []
        return parts or [queue]

    def queue_of(self, message: Message) -> Queue:
        """Return the queue or slice of a message that this reader has returned. Any thread may call it."""
        whole = Queue(message.topic() or "", "", message.partition() or 0)
        partition = self._partitions.get(whole)
        part = None if partition is None else partition.table[self._slice_of(message, partition.slices)]
        return whole if part is None else part.give.queue

    def start(self, gives: list[Give]) -> list[tuple[Give, int]]:
        """Read these queues and slices too; see `Reader.start`."""
        cut = [give for give in gives if give.queue.slices > 1 or give.start.done]
        if not cut:
            return self._reader.start(gives)
        found = self._reader.start([give for give in gives if give not in cut])
        starts = self._find(cut)
        of_partition: defaultdict[Queue, list[tuple[Give, int]]] = defaultdict(list)
        for start in starts:
            of_partition[start[0].queue.whole].append(start)
        new = []
        for whole, places in of_partition.items():
            if whole not in self._partitions:
                first, offset = min(places, key=lambda start: start[1])
                new.append((structs.replace(first, queue=whole), offset))
        self._reader.begin(new)
        # In this order: an exception must not leave slices of a partition that is not read.
        self._partitions |= {give.queue: _Partition(give, offset) for give, offset in new}
        for whole, places in of_partition.items():
            partition = self._partitions[whole]
            for give, offset in places:
                self._reached[give.queue] = give, offset
                self._parts[give.queue] = _Slice(give, offset)
            partition.change(part for queue, part in self._parts.items() if queue.whole == whole)
            self._displaced.add(whole)
        return sorted([*found, *starts], key=lambda start: start[0].queue)

    def _find(self, gives: list[Give]) -> list[tuple[Give, int]]:
        """Return the offsets at which to start slices; leave out those that Kafka does not return now.

        Slices of a partition with the same rule are started at the same offset. If a part of a slice has an offset, and
        for another part a rule applies, the slice is started at the lower one.
        """
        found = [(give, give.start.offset) for give in gives if give.start.offset is not None and not give.start.policy]
        asked: defaultdict[tuple[Queue, Start], list[Give]] = defaultdict(list)
        for give in gives:
            if give.start.policy or give.start.offset is None:
                asked[give.queue.whole, Start(policy=give.start.policy, ms=give.start.ms)].append(give)
        while asked:
            # One rule of each partition at once: Kafka's answers name the partition only.
            these = dict(reversed(asked))
            rules = [Give(whole, start, 0, "") for whole, start in these.items()]
            for rule, offset in self._reader.find_starts(rules):
                for give in asked[rule.queue, rule.start]:
                    known = give.start.offset
                    found.append((give, offset if known is None else min(known, offset)))
            for place in these.items():
                del asked[place]
        return found

    def stop_all_but(self, gives: dict[Queue, Give]) -> list[Queue]:
        """Stop reading all queues and slices that are not in `gives`; return them, sorted."""
        if not self._partitions:
            return self._reader.stop_all_but(gives)
        before = set(self._partitions)
        stopped = sorted(queue for queue, part in self._parts.items() if gives.get(queue) != part.give)
        for whole in {queue.whole for queue in stopped}:
            partition = self._partitions[whole]
            partition.change(part for part in partition.parts if gives.get(part.give.queue) == part.give)
            self._displaced.add(whole)
        for queue in stopped:
            del self._parts[queue]
            self._reached.pop(queue, None)
        for whole in [whole for whole, partition in self._partitions.items() if not partition.parts]:
            self._untold.discard(self._partitions.pop(whole))
            self._displaced.discard(whole)
        others = {queue: give for queue, give in gives.items() if queue.slices == 1 and queue not in self._partitions}
        wholes = {whole: partition.give for whole, partition in self._partitions.items()}
        stopped += [queue for queue in self._reader.stop_all_but(others | wholes) if queue not in before]
        assigned = self.assigned()
        self.moves = [move for move in self.moves if assigned.get(move.give.queue) == move.give]
        return sorted(stopped)

    # --- messages ---

    def take(self, most: int, timeout: float, *, each: bool = False) -> list[tuple[Give, list[Message]]]:
        """Return the next messages by queue or slice, each with its assignment; see `Reader.take`.

        `each`: whether each queue or slice may get `most` messages; otherwise they may get so many together.
        """
        if not self._partitions:
            runs = self._reader.take(most, timeout)
            if self._reader.moves:
                self._follow_moves()
            return runs
        runs, left = self._take_kept(most, each=each)
        if self._displaced or self._pauses_changed:
            self._place()
        if each:
            left = max(most, min(most * MOST_TIMES, round(most * SAFETY / self._share)))
        if left > 0:
            self._read(most, left, 0 if runs else timeout, runs)
        if self._reader.moves:
            self._follow_moves()
        return runs

    def _take_kept(self, most: int, *, each: bool) -> tuple[list[tuple[Give, list[Message]]], int]:
        """Return the messages that are kept of each slice that is not held, and how many of `most` are left."""
        runs: list[tuple[Give, list[Message]]] = []
        left = most
        for part in self._parts.values():
            part.taken, part.run = 0, None
            if part.kept and left > 0 and not (part.is_held or self._reader.is_stopped):
                messages, part.kept = part.kept[:left], part.kept[left:]
                self._hand_out(part, messages, runs)
                left -= 0 if each else len(messages)
                if not part.kept:
                    self._displaced.add(part.give.queue.whole)
                    self._untold.add(self._partitions[part.give.queue.whole])
        return runs, left

    def _read(self, most: int, together: int, timeout: float, runs: list[tuple[Give, list[Message]]]) -> None:
        """Read so many messages together, and add them to the runs, at most `most` to that of each queue or slice."""
        asked = min(together, AT_ONCE)
        count = self._read_some(asked, most, timeout, runs)
        # Not after a slice is full, or something has moved: what is read then would have to be read again.
        while asked == count < together and not (self._displaced or self._reader.moves or self.moves):
            wanted = min(together - count, AT_ONCE)
            count, asked = count + self._read_some(wanted, most, 0, runs), asked + wanted
        if count < together:
            self._tell()
        elif self._parts:
            share = min(max(part.taken for part in self._parts.values()) / count, 1.0)
            self._share = max(share, SHARE_KEPT * self._share + (1 - SHARE_KEPT) * share, 1 / 64)

    def _read_some(self, count: int, most: int, timeout: float, runs: list[tuple[Give, list[Message]]]) -> int:
        """Read so many messages, and add them to the runs of their queues and slices; return how many there were."""
        read = 0
        for give, messages in self._reader.take(count, timeout):
            read += len(messages)
            partition = self._partitions.get(give.queue)
            if partition is not None:
                self._cut(partition, messages, runs, most)
                continue
            room = most - sum(len(some) for other, some in runs if other is give)
            if len(messages) > room:
                self._reader.set_back([(give, messages[room].offset() or 0)])
                read -= len(messages) - room
                messages = messages[:room]
            if messages:
                runs.append((give, messages))
        return read

    def _tell(self) -> None:
        """Let the caller know all positions."""
        untold, self._untold = self._untold, set()
        for partition in untold:
            for part in partition.parts:
                if part.told < part.position and not part.kept:
                    part.told = part.position
                    self.moves.append(Move(part.give, part.position))

    def _cut(
        self, partition: _Partition, messages: list[Message], runs: list[tuple[Give, list[Message]]], most: int
    ) -> None:
        """Add the messages of each slice to `runs`, those that it is to have, at most `most` in this call of `take`."""
        begin, first, end = partition.at, messages[0].offset() or 0, (messages[-1].offset() or 0) + 1
        lost: Collection[_Slice] = ()
        if messages[-1].leader_epoch() != partition.leader_epoch:
            lost = self._compare_leader_epochs(partition, messages)
        parts = partition.parts
        for part in parts:
            part.fresh = []
        self._distribute(partition, messages)
        partition.at = end
        for part in parts:
            position, fresh = part.position, part.fresh
            part.fresh = []
            if not begin <= position < end or part in lost:
                continue  # it was passed over before, or has had all of this
            if fresh and position > first:
                fresh = [message for message in fresh if (message.offset() or 0) >= position]
            part.position = end
            if fresh and part.done:
                fresh = self._without_done(part, fresh)
            room = 0 if part.kept or part.is_held else most - part.taken
            if len(fresh) > room:
                others, fresh = fresh[room:], fresh[:room]
                if part.is_paused or not part.keep(others):
                    part.position = others[0].offset() or 0
                    self._displaced.add(partition.give.queue)
            if fresh:
                self._hand_out(part, fresh, runs)
            if part.told < part.position and not part.kept:
                self._untold.add(partition)
                if part.position - part.told >= TELL_AFTER:
                    part.told = part.position
                    self.moves.append(Move(part.give, part.position))

    @staticmethod
    def _hand_out(part: _Slice, messages: list[Message], runs: list[tuple[Give, list[Message]]]) -> None:
        """Add messages to the run of their slice."""
        if part.run is None:
            part.run = messages
            runs.append((part.give, messages))
        else:
            part.run += messages
        part.taken += len(messages)
        part.told = (messages[-1].offset() or 0) + 1

    def _distribute(self, partition: _Partition, messages: list[Message]) -> None:
        """Add each message to the fresh ones of its slice, if this consumer has it; the hash is that of `slice_of`."""
        table, slices = partition.table, partition.slices
        if slices == 1:
            partition.parts[0].fresh = messages
            return
        if self._key.told:
            find = self._key.key_of
            for message in messages:
                if (part := table[slice_of(find(message), slices)]) is not None:
                    part.fresh.append(message)
            return
        found: list[Any] = list(map(Message.key, messages))
        if None in found:
            found = list(map(key_of, messages))
        places = self._places[slices].of(found)
        others: list[Message] = []
        adds = [others.append if part is None else part.fresh.append for part in table]
        for place, message in zip(places, messages, strict=True):
            adds[place](message)

    def _slice_of(self, message: Message, slices: int) -> int:
        return slice_of(self._key.key_of(message), slices)

    def _without_done(self, part: _Slice, messages: list[Message]) -> list[Message]:
        """Leave out what former slices have processed."""
        first = messages[0].offset() or 0
        known = [done for done in part.done if done.offset > first]
        return [message for message in messages if not any(self._is_done(message, done) for done in known)]

    def _is_done(self, message: Message, done: Done) -> bool:
        """Return whether a message is one of those of a former slice that are processed.

        The log may have lost its tail since. The messages that it has there now are of a later leader epoch.
        """
        if (message.offset() or 0) >= done.offset or self._slice_of(message, done.slices) != done.slice:
            return False
        leader_epoch = message.leader_epoch()
        return leader_epoch is None or done.leader_epoch is None or leader_epoch <= done.leader_epoch

    def _follow_moves(self) -> None:
        """Let slices follow the moves of their partitions."""
        moves, self._reader.moves = self._reader.moves, []
        for move in moves:
            partition = self._partitions.get(move.give.queue)
            if partition is None:
                self.moves.append(move)
                continue
            if partition.give != move.give:
                continue
            begin, partition.at = partition.at, move.offset
            for part in partition.parts:
                if move.is_back and part.position > move.offset:
                    is_told = part.go_back(move.offset)
                elif not move.is_back and begin <= part.position < move.offset:
                    part.position = move.offset
                    if is_told := not part.kept:
                        part.told = move.offset
                else:
                    continue
                if is_told:
                    self.moves.append(move._replace(give=part.give))
            if move.is_back:
                partition.leader_epoch = _UNKNOWN
                self._displaced.add(partition.give.queue)

    # --- leader epochs ---

    def _note_leader_epoch(self, give: Give, offset: int, leader_epoch: int | None) -> None:
        if give.queue not in self._partitions:
            self.on_leader_epoch(give, offset, leader_epoch)

    def _leader_epoch_of(self, give: Give, offset: int) -> int | None:
        """Return the leader epoch of the message before an offset: for a partition, as one of its slices knows it."""
        partition = self._partitions.get(give.queue)
        if partition is None:
            return self.leader_epoch_at(give, offset)
        there = (part.give for part in partition.parts if part.position == offset)
        return next((known for one in there if (known := self.leader_epoch_at(one, offset)) is not None), None)

    def _compare_leader_epochs(self, partition: _Partition, messages: list[Message]) -> list[_Slice]:
        """Tell of leader epochs that begin in these messages, to each slice that is at their place.

        A slice that is ahead of them has read others at their offsets, if their leader epoch is later than that of the
        message before its position: the log has lost its tail since. It continues where that epoch begins.

        Returns:
            Such slices. None of these messages may be returned for them, before the move is followed.
        """
        last, lost, is_known = messages[-1].leader_epoch(), list[_Slice](), True
        for part in partition.parts:
            known = self.leader_epoch_at(part.give, part.position)
            if part.position < partition.at:
                is_known &= known == last
                continue
            if known == last == messages[0].leader_epoch():
                continue
            for message in messages:
                offset, leader_epoch = message.offset() or 0, message.leader_epoch()
                if leader_epoch == known:
                    continue
                if part.position <= offset:
                    self.on_leader_epoch(part.give, offset, leader_epoch)
                    known = leader_epoch
                elif known is not None and leader_epoch is not None and known < leader_epoch:
                    if part.go_back(offset):
                        self.moves.append(Move(part.give, offset, True, leader_epoch))
                    lost.append(part)
                    break
            is_known &= known == last
        if lost:
            self._displaced.add(partition.give.queue)
        partition.leader_epoch = last if is_known and not lost else _UNKNOWN
        return lost

    # --- positions ---

    def reach(self, place: tuple[Give, int]) -> None:
        """Note that all messages of an assignment below an offset are processed. Any thread may call it."""
        give = place[0]
        if give.queue not in self._parts:
            self._reader.reach(place)
        elif (known := self._reached.get(give.queue)) is not None and known[0] == give:
            self._reached[give.queue] = place

    def reached(self, give: Give) -> int:
        """Return the offset below which everything of this assignment is processed, or was skipped by `seek`."""
        if give.queue not in self._parts:
            return self._reader.reached(give)
        known, offset = self._reached.get(give.queue, (give, 0))
        return offset if known == give else 0

    def recover(self, in_hand: Iterable[tuple[Give, int]] = ()) -> None:
        """Read everything from the first message on that is not processed; see `Reader.recover`."""
        places = dict(in_hand)
        self.moves = []
        for part in self._parts.values():
            part.fresh, part.is_full, part.done = [], False, part.give.start.done
            part.set_to(places.pop(part.give, self.reached(part.give)))
        for whole, partition in self._partitions.items():
            partition.change(part for queue, part in self._parts.items() if queue.whole == whole)
            partition.at = min((part.position for part in partition.parts), default=0)
            partition.is_stopped = False
            self._reader.reach((partition.give, partition.at))
        self._reader.recover(places.items())
        self._displaced = set(self._partitions)

    def seek(self, queue: Queue, offset: int) -> None:
        """Read a queue or slice from this offset on.

        Raises:
            InvalidUsage: it is not being read.
        """
        part = self._parts.get(queue)
        if part is None:
            self._refuse_others([queue])
            self._reader.seek(queue, offset)
            return
        self._reached[queue] = part.give, offset
        part.set_to(offset)
        part.done = ()
        self._displaced.add(queue.whole)

    def position(self, queue: Queue) -> int:
        """Return the offset of the next message of a queue or slice that `take` returns. Any thread may call it.

        Raises:
            InvalidUsage: it is not being read.
        """
        part = self._parts.get(queue)
        if part is not None:
            return part.next
        self._refuse_others([queue])
        return self._reader.position(queue)

    def set_back(self, positions: Iterable[tuple[Give, int]]) -> None:
        """Read these assigned queues and slices from these offsets on; see `Reader.set_back`."""
        others = []
        for give, offset in positions:
            part = self._parts.get(give.queue)
            if part is None:
                others.append((give, offset))
            elif part.give == give and part.next != offset:
                part.set_to(offset)
                self._displaced.add(give.queue.whole)
        if others:
            self._reader.set_back(others)

    def lag(self, timeout: float) -> dict[Queue, int]:
        """Return the number of offsets from the position of each queue or slice to its end; see `Reader.lag`.

        Those of a slice are not all its own: other slices have messages there too.
        """
        found = self._reader.lag(timeout)
        for whole in self._partitions:
            end = found.pop(whole) + self._reader.position(whole)
            found |= {queue: max(end - part.next, 0) for queue, part in self._parts.items() if queue.whole == whole}
        return found

    def _place(self) -> None:
        """Let the reader continue where the slices need it, and stop where they need nothing."""
        if self._pauses_changed:
            self._pauses_changed = False
            self._displaced.update(self._partitions)
        displaced, self._displaced = self._displaced, set()
        stop, go_on = list[Queue](), list[Queue]()
        for whole in displaced:
            partition = self._partitions[whole]
            wanted = [part.position for part in partition.parts if part.needs_reading]
            if partition.is_stopped != (not wanted):
                partition.is_stopped = not wanted
                (go_on if wanted else stop).append(whole)
            if wanted and not partition.at <= (lowest := min(wanted)) < partition.at + JUMP:
                self._reader.set_back([(partition.give, lowest)])
                partition.at, partition.leader_epoch = lowest, _UNKNOWN
        self._reader.hold_back(stop)
        self._reader.go_on(go_on)

    # --- what is not read on ---

    @property
    def held_back(self) -> Container[Queue]:
        """Whole queues that `hold_back` has named, and `go_on` has not."""
        return self._reader.held_back

    def hold_back(self, queues: list[Queue]) -> None:
        """Read no further messages of these queues and slices, until `go_on`."""
        self._reader.hold_back(self._fill(queues, True) if self._parts else queues)

    def go_on(self, queues: list[Queue]) -> None:
        """Read these held queues and slices on, except for those that the application has paused."""
        self._reader.go_on(self._fill(queues, False) if self._parts else queues)

    def _fill(self, queues: list[Queue], is_full: bool) -> list[Queue]:
        """Note which slices are full, and return the others of these queues."""
        for queue in queues:
            if (part := self._parts.get(queue)) is not None:
                part.is_full = is_full
                self._displaced.add(queue.whole)
        return [queue for queue in queues if queue not in self._parts and queue.slices == 1]

    def stop(self, is_stopped: bool) -> None:
        """Read nothing on, also nothing that is assigned later; or read on what nothing else stops."""
        self._reader.stop(is_stopped)

    def pause(self, queues: list[Queue]) -> None:
        """Read no further messages of these queues and slices for the application. Any thread may call it.

        Raises:
            InvalidUsage: one of them is not being read.
        """
        self._refuse_others(queues)
        self._reader.pause([queue for queue in queues if queue not in self._parts])
        self._pause(queues, True)

    @property
    def paused(self) -> list[Queue]:
        """The queues and slices that `pause` has stopped, sorted."""
        return sorted([*self._reader.paused, *(queue for queue, part in self._parts.copy().items() if part.is_paused)])

    def resume(self, queues: list[Queue]) -> None:
        """Read queues and slices on that `pause` has stopped. Any thread may call it.

        Raises:
            InvalidUsage: one of them is not being read.
        """
        self._refuse_others(queues)
        self._reader.resume([queue for queue in queues if queue not in self._parts])
        self._pause(queues, False)

    def _pause(self, queues: list[Queue], is_paused: bool) -> None:
        for queue in queues:
            if (part := self._parts.get(queue)) is not None:
                part.is_paused = is_paused
        self._pauses_changed = True

    def _refuse_others(self, queues: Iterable[Queue]) -> None:
        """Refuse partitions of which only slices are read here, and slices that are not read."""
        others = [queue for queue in queues if queue not in self._parts]
        if wrong := [str(queue) for queue in others if queue.slices > 1 or queue in self._partitions]:
            raise InvalidUsage(f"this consumer does not read {', '.join(wrong)} now; see assignment()")

    # --- the reader's own ---

    def when_polled(self, call: Callable[[], _Result], timeout: float) -> _Result:
        """Let the polling thread make a call; see `Reader.when_polled`."""
        return self._reader.when_polled(call, timeout)

    def close(self) -> None:
        """Stop reading everything."""
        self._parts.clear()
        self._partitions.clear()
        self._reader.close()
