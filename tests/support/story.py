"""The language of the stories: lines that say what happens, and below each the decisions that follow.

    # A comment; the first one says what the story is about.
    group billing                         the lines below are about this group
    partitions 1                          of the control topic; 4 unless said otherwise
    signed                                the shards ask for signatures: operator and observer sign what is theirs
    ticks by hand                         else every partition has a tick at each whole second

    0.1s    route orders 4                orders has the queues 0 to 3; `0,2` names them, `gone` has none
    0.2s    route orders 4 rooms=r1,r2 ends=100,7     their rooms and next offsets, again and again from the first
    0.3s    route orders 2 brokers=b1,b2  so many queues on each broker; topic_id=one
    1s      beat a orders payments        client a's heartbeat: the topics it wants
    1s      beat a pattern=orders[.].*     and the pattern of topics that it subscribes
    1.1s    matches orders[.].* orders.eu an observer has evaluated a pattern: the topics that match; problem=TEXT
    1.2s    receipt a                     its heartbeat that shows the newest assignment sent to it, and holds just that
    1.3s    draining a                    the same, but it still holds what it held and must give up
    11s     beat a                        it says again what it said last
    12s     beat a epoch=1 owned=orders-0,orders-1      or owned=orders-0..3, or owned=none
    12.5s   beat a orders about={"app_version":"2"}     it describes itself, in this heartbeat alone
    13s     beat a#2 orders               another life of client a: instance a#2 (a alone is its first, a#1)
    14s..15s  beat c1..c100 orders        a hundred clients, one after the other
    14.5s   commit a orders-0=17 orders-1=4          in the epoch of the newest assignment sent to it; or epoch=1
    15.5s   lock a orders-0,orders-1      and `unlock`, by RocketMQ's protocol
    16s     leave a#2                     unregister; died=SIGKILL: its process has ended, as its last will says
    16.5s   reset orders-0=17 by=ops      the operator sets offsets; request_id=1 says that it is the same one again
    16.6s   kick a keep_out_ms=600000     an operator kicks a client; reason=, by=, request_id= as for a reset
    16.6s   readmit a                     and lets it in again before that time is over
    16.6s   pause                         an operator pauses the group, and `resume`; reason=, by=, request_id=
    16.6s   delete group                  an operator deletes the group; reason=, by=, request_id= as for a reset
    16.6s   delete offsets orders-0..3    and committed offsets of these queues
    16.6s   configure slices={"orders":8} orders-0/5of8 is a slice, orders-0/0..3of8 are four; beat a orders slice_by=""
    16.7s   pull a orders-0 from=5        it waits; timeout_ms=, expression=, expression_type=, and n= to repeat
    16.8s   cancel a orders-0             its last pull of that queue
    16.9s   arrive orders-0 next=6        a hint; tags=paid, properties={"region":"EU"}; observer=o1 makes it a report
    17s     configure settle_ms=2000      values are JSON, or words
    18s     record partition=1 key=x {"type": "tick"}       any bytes, in any place
    18.5s   copy 17s                      somebody appends again, byte for byte, what was appended at 17s
    18.5s   lost log                      the coordinator goes on in a new era: its state is gone, and so is the log;
    18.6s   lost state                    its state alone: it reads the log again
    18.7s   lost gap                      records between its state and the log
    18.7s   keep state                    a snapshot: `lost rest` leaves the newest one, and
    18.8s   keep log                      the log from here on
    18.9s   lost rest                     the state and the log, but for what was kept
    19s     tick                          by hand
            ticks until 60s beating a b   a and b say again every ten seconds what they said last
            ticks every 5s until 8d

`group=NAME`, `key=TEXT` and `partition=N` may stand in any client's event.  In a signed story, `signature=none` leaves
an event unsigned, `signature=operator` and `signature=observer` name another role, and `signature=forged` has the name
of the right key and another secret.  `tell` leaves all of this as it is and writes the answers again, each line after
``->``; what follows from a tick has the tick's time before it.  An epoch of the second era is written 2:1.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, groupby
from typing import Any

import msgspec

from tests.support.control_log import QUEUES, START_MS, TOPIC, ControlLog
from wakeroll_model import config, events
from wakeroll_model.decisions import (
    AnyDecision,
    AssignedQueue,
    Assignment,
    FailedMessages,
    Fenced,
    Handover,
    LockAnswer,
    Membership,
    Offset,
    Rebalance,
    Rejected,
    Start,
    Wake,
)
from wakeroll_model.events import (
    About,
    Ahead,
    AnyEvent,
    Arrival,
    Cancel,
    Commit,
    CommittedOffset,
    Configure,
    Heartbeat,
    Pull,
    Reset,
    ResetOffset,
    Route,
    RoutedQueue,
    Subscription,
    Tick,
    Unregister,
)
from wakeroll_model.group import Group
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard
from wakeroll_model.signing import SIGNED_BY, Key, Keys, Signer

ANSWER = "->"
MANY = 6
"""More lines of one kind than this are told as one."""

KEYS = Keys.of([Key("ops", "operator", b"known to operators"), Key("obs", "observer", b"known to the observer")])
SIGNING = (
    ("operator", KEYS.by_id["ops"]),
    ("observer", KEYS.by_id["obs"]),
    ("forged operator", Key("ops", "operator", b"a guess")),
    ("forged observer", Key("obs", "observer", b"a guess")),
)

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 24 * 3_600_000}
_OF_AN_OPERATOR = (*("reset", "configure", "level", "kick", "readmit", "delete", "pause", "resume", "inspect"),)
_TIME = re.compile(r"([0-9.]+)(ms|s|m|h|d)")


class Story:
    """One story being told: the log, the shards, and what each client said and heard."""

    def __init__(self, *, cut_often: bool = False) -> None:
        self.decisions: list[AnyDecision] = []
        """All that was decided, in order."""
        self._cut_often = cut_often
        self._group = "group"
        self._by_hand = False
        self._signatures: Keys | None = None
        self._signers: dict[str, Signer] = {}
        self._appended: dict[int, list[Record]] = {}
        """What was appended at a time."""
        self._start(partitions=4)
        self._now_ms = 0
        self._ticked_ms = -1_000
        self._uptime_ms = 0
        self._said: dict[tuple[str, str], Heartbeat] = {}
        self._said_ms: dict[tuple[str, str], int] = {}
        self._heard: dict[tuple[str, str], Assignment] = {}
        self._pulls: Counter[str] = Counter()
        self._records: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self._kept: dict[tuple[str, int], bytes] = {}
        self._cut_at: dict[tuple[str, int], int] = {}

    def tell(self, text: str) -> str:
        """Return the text with its answers as they are."""
        lines: list[str] = []
        told, indent = 0, ""  # up to where, and how far in the last answers stand
        for line in text.splitlines():
            if line.strip().startswith(ANSWER):
                continue
            lines.append(line.rstrip())
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if self._cut_often:
                self._cut()
            if not self._by_hand and (time := _TIME.match(words[0])):
                # What follows from ticks before this line stands above it, and above its comments.
                before = self._ticks(_ms(time[0]), 1_000, [])
                lines[told:told] = [f"{indent}{ANSWER} {answer}" for answer in before]
            indent = " " * _column_of_event(line)
            lines += [f"{indent}{ANSWER} {answer}" for answer in self._line(line.strip(), words)]
            told = len(lines)
        return "\n".join(lines) + "\n"

    def group(self, group_id: str) -> Group | None:
        """Return a group's state as it is now."""
        found = (shard.group(group_id) for shard in self._shards.values())
        return next((group for group in found if group is not None), None)

    def _line(self, line: str, words: list[str]) -> Iterable[str]:
        match words:
            case ["group", name]:
                self._group = name
            case ["partitions", count]:
                self._start(int(count))
            case ["signed"]:
                self._signatures = KEYS
                self._signers = {name: Signer(key, f"{number:016}") for number, (name, key) in enumerate(SIGNING)}
                self._start(self._log.partitions)
            case ["ticks", "by", "hand"]:
                self._by_hand = True
            case ["ticks", "until", until, *beating]:
                return self._ticks(_ms(until), 1_000, beating[1:])
            case ["ticks", "every", every, "until", until, *beating]:
                return self._ticks(_ms(until), _ms(every), beating[1:])
            case [_, "lost" | "keep" as what, which]:
                (self._lose if what == "lost" else self._keep)(which)
            case [time, "record", *_]:
                return self._tell([self._record(_ms(time), line.partition("record ")[2])])
            case [time, "copy", then]:
                self._now_ms = _ms(time)
                return self._tell(
                    [self._decide(self._log.again(one, self._now_ms)) for one in self._appended[_ms(then)]]
                )
            case [time, *rest]:
                return self._happens(time, rest)
        return []

    def _happens(self, time: str, words: list[str]) -> Iterable[str]:
        start, _, end = time.partition("..")
        named = _expand(words)
        between_ms = (_ms(end) - _ms(start)) / len(named) if end else 0
        told = []
        for i, each in enumerate(named):
            self._now_ms = round(_ms(start) + i * between_ms)
            told.append(self._apply(each))
        return self._tell(told)

    def _ticks(self, until_ms: int, every_ms: int, beating: list[str]) -> Iterator[str]:
        """Tick until then; each answer says its time."""
        first_ms = (self._ticked_ms // every_ms + 1) * every_ms
        for self._now_ms in range(first_ms, until_ms + 1, every_ms):
            told = [self._apply(["beat", name]) for name in beating if self._is_due(name)]
            told.append(self._apply(["tick"]))
            for answer in self._tell(told):
                yield f"{_time(self._now_ms)} {answer}"

    def _apply(self, words: list[str]) -> list[AnyDecision]:
        """Append one event to the log and return what follows."""
        placed = {name: value for name, value in _options(words).items() if name in ("key", "partition", "signature")}
        words = [word for word in words if word.partition("=")[0] not in placed]
        if words == ["tick"]:  # a log clock that is set back does not turn the observer's own back
            passed_ms = self._now_ms - self._ticked_ms
            self._uptime_ms += passed_ms if passed_ms >= 0 else 1_000
        event = self._event(words)
        if isinstance(event, Tick):
            self._ticked_ms = self._now_ms
        records = self._log.append(event, self._now_ms)
        role = placed.pop("signature", SIGNED_BY.get(type(event), "none"))
        if placed:
            record = records[0]
            key = placed["key"].encode() if "key" in placed else record.key
            records = [
                msgspec.structs.replace(record, key=key, partition=int(placed.get("partition", record.partition)))
            ]
        if self._signatures and role != "none":
            records = [self._signed(record, SIGNED_BY[type(event)], role) for record in records]
        self._appended.setdefault(self._now_ms, []).extend(records)
        return [decision for record in records for decision in self._decide(record)]

    def _signed(self, record: Record, right: str, role: str) -> Record:
        """Return a record as its signer appends it, who knows where its partition ends."""
        signer = self._signers[f"forged {right}" if role == "forged" else role]
        assert record.value is not None
        value = signer.sign(record.topic, record.partition, record.key, record.value, record.offset)
        return msgspec.structs.replace(record, value=value)

    def _record(self, at_ms: int, text: str) -> list[AnyDecision]:
        self._now_ms = at_ms
        where, value = re.fullmatch(r"((?:(?:key|partition)=\S+ )*)(.*)", text).groups()
        options = _options(where.split())
        key = options["key"].encode() if "key" in options else None
        record = self._log.write(value.encode(), at_ms, int(options["partition"]), key)
        return self._decide(record)

    def _decide(self, record: Record) -> list[AnyDecision]:
        self._records[record.topic, record.partition].append(record)
        decisions = self._shards[record.topic, record.partition].apply(record)
        for decision in decisions:
            if isinstance(decision, Assignment):
                self._heard[decision.group_id, decision.instance_id] = decision
        self.decisions += decisions
        return decisions

    def _event(self, words: list[str]) -> AnyEvent:
        options = _options(words)
        group_id = options.pop("group", self._group)
        match [word for word in words if "=" not in word]:
            case ["tick"]:
                return Tick(observer="o", uptime_ms=self._uptime_ms)
            case ["route", topic, queues]:
                rooms, ends, brokers = (options.get(name, "") for name in ("rooms", "ends", "brokers"))
                version = options.get("version", f"{queues} {rooms} {brokers}".strip())
                return Route(
                    topic=topic,
                    queues=_routed(topic, queues, rooms, ends, brokers),
                    version=version,
                    topic_id=options.get("topic_id", ""),
                    is_new=options.get("is_new") == "true",
                )
            case ["beat", name, *topics]:
                return self._beat(group_id, name, topics, options)
            case ["receipt" | "draining" as how, name]:
                return self._receipt(group_id, name, options, draining=how == "draining")
            case ["commit", name]:
                return self._commit(group_id, name, options)
            case ["leave", name]:
                client_id, instance_id = _client(name)
                died = options.get("died")
                return Unregister(group_id=group_id, client_id=client_id, instance_id=instance_id, died=died)
            case ["lock" | "unlock" as what, name, queues]:
                client_id, instance_id = _client(name)
                named = [queue for names in queues.split(",") for queue in _queues(names)]
                lock = events.Lock if what == "lock" else events.Unlock
                return lock(group_id=group_id, client_id=client_id, instance_id=instance_id, queues=named)
            case ["failed", name, queue, offsets]:
                client_id, instance_id = _client(name)
                first, _, last = offsets.partition("..")
                of_one = {"queue": _queue(queue), "first_offset": int(first), "last_offset": int(last or first)}
                failure = msgspec.convert({"messages": 1, "attempt": 1} | of_one | _values(options), events.Failure)
                return events.Failures(
                    group_id=group_id, client_id=client_id, instance_id=instance_id, failures=[failure]
                )
            case ["pull" | "cancel" | "arrive", *_] as said:
                return self._of_a_queue(said, group_id, options)
            case ["matches" | "report" as what, name, *rest]:
                return _matches(group_id, name, rest, options) if what == "matches" else _report(group_id, name, rest)
            case [word, *_] as said if word in _OF_AN_OPERATOR:
                return self._of_an_operator(said, group_id, options)
        raise ValueError(f"no event reads like this: {' '.join(words)}")

    def _of_an_operator(self, said: list[str], group_id: str, options: dict[str, str]) -> AnyEvent:
        match said:
            case ["reset"]:
                return self._reset(group_id, options)
            case ["configure"]:
                return msgspec.convert({"type": "configure", "group_id": group_id} | _values(options), Configure)
            case ["kick" | "readmit" as what, client_id]:
                said_by = {"request_id": f"at-{self._now_ms}", "by": "ops"} | _values(options)
                return events.Kick(group_id=group_id, client_id=client_id, readmit=what == "readmit", **said_by)
            case ["inspect", client_id]:
                said_by = {"request_id": f"at-{self._now_ms}", "by": "ops"} | _values(options)
                return events.Inspect(group_id=group_id, client_id=client_id, **said_by)
            case ["pause" | "resume" as what]:
                said_by = {"request_id": f"at-{self._now_ms}", "by": "ops"} | _values(options)
                return events.Pause(group_id=group_id, resume=what == "resume", **said_by)
            case ["delete", "group" | "offsets" as what, *names]:
                said_by = {"request_id": f"at-{self._now_ms}", "by": "ops"} | _values(options)
                queues = [queue for name in names for queue in _queues(name)]
                return events.Delete(group_id=group_id, what=what, queues=queues, **said_by)
            case ["level", number]:
                return events.Level(level=int(number))
        raise ValueError(f"no event reads like this: {' '.join(said)}")

    def _of_a_queue(self, said: list[str], group_id: str, options: dict[str, str]) -> AnyEvent:
        match said:
            case ["pull", name, queue]:
                return self._pull(group_id, name, queue, options)
            case ["cancel", name, queue]:
                client_id, instance_id = _client(name)
                request_id = f"{instance_id}:{self._pulls[instance_id]}"
                return Cancel(request_id=request_id, group_id=group_id, client_id=client_id, queue=_queue(queue))
            case ["arrive", queue]:
                grown = {"queue": _queue(queue), "next_offset": int(options.pop("next"))}
                return Arrival(**grown, **_values(options))
        raise ValueError(f"no event reads like this: {' '.join(said)}")

    def _beat(self, group_id: str, name: str, topics: list[str], options: dict[str, str], **shown: Any) -> Heartbeat:
        client_id, instance_id = _client(name)
        said = self._said.get((group_id, instance_id)) or Heartbeat(
            group_id=group_id, client_id=client_id, instance_id=instance_id
        )
        if topics:
            version = int(options.pop("version", 0))
            expression = options.pop("expression", "*")
            shown["subscriptions"] = [
                Subscription(topic=topic, version=version, expression=expression) for topic in topics
            ]
        shown["about"] = None
        shown["handling"] = json.loads(options.pop("handling", "[]"))
        if "about" in options:
            shown["about"] = About(**json.loads(options.pop("about")))
        if "owned" in options:
            shown["owned"] = [
                queue for names in options.pop("owned").split(",") if names != "none" for queue in _queues(names)
            ]
        beat = msgspec.structs.replace(said, **shown, **_values(options))
        self._said[group_id, instance_id] = beat
        self._said_ms[group_id, instance_id] = self._now_ms
        return beat

    def _receipt(self, group_id: str, name: str, options: dict[str, str], *, draining: bool) -> Heartbeat:
        instance_id = _client(name)[1]
        heard = self._heard[group_id, instance_id]
        owned = {assigned.queue for assigned in heard.queues}
        if draining:
            owned |= set(self._said[group_id, instance_id].owned)
        shown = {"round": heard.round} if isinstance(heard.round, int) else {}
        return self._beat(group_id, name, [], options, epoch=heard.epoch, owned=sorted(owned), **shown)

    def _pull(self, group_id: str, name: str, queue: str, options: dict[str, str]) -> Pull:
        client_id, instance_id = _client(name)
        number = int(options.pop("n", self._pulls[instance_id] + 1))
        self._pulls[instance_id] = max(number, self._pulls[instance_id])
        return Pull(
            request_id=f"{instance_id}:{number}",
            group_id=group_id,
            client_id=client_id,
            instance_id=instance_id,
            queue=_queue(queue),
            from_offset=int(options.pop("from")),
            **_values(options),
        )

    def _reset(self, group_id: str, options: dict[str, str]) -> Reset:
        said = {name: options.pop(name, "") for name in ("by", "asked", "request_id")}
        said["request_id"] = said["request_id"] or f"at-{self._now_ms}"
        offsets = [ResetOffset(queue=_queue(queue), offset=int(offset)) for queue, offset in options.items()]
        return Reset(group_id=group_id, offsets=offsets, **said)

    def _commit(self, group_id: str, name: str, options: dict[str, str]) -> Commit:
        client_id, instance_id = _client(name)
        heard = self._heard.get((group_id, instance_id))
        given = {"epoch": heard.epoch if heard else -1, "instance_id": instance_id, "metadata": ""}
        given |= {field: value for field, value in _values(options).items() if field in given}
        metadata = given.pop("metadata")
        ahead = tuple(
            Ahead(expression=expression, offset=int(offset))
            for expression, _, offset in (text.rpartition("@") for text in options.pop("ahead", "").split(",") if text)
        )
        offsets = [
            CommittedOffset(queue=_queue(queue), offset=int(offset), metadata=metadata, ahead=ahead)
            for queue, offset in options.items()
            if queue not in ("epoch", "instance_id", "metadata")
        ]
        return Commit(group_id=group_id, client_id=client_id, offsets=offsets, **given)

    def _is_due(self, name: str) -> bool:
        """Whether a client's heartbeat is due; never mind that the log's time may step back."""
        return abs(self._now_ms - self._said_ms[self._who(name)]) >= 10_000

    def _who(self, name: str) -> tuple[str, str]:
        return self._group, _client(name)[1]

    def _start(self, partitions: int) -> None:
        self._log = ControlLog(partitions, queues=True)
        self._shards = {
            (topic, partition): Shard(topic, partition, partitions, signatures=self._signatures)
            for topic in (TOPIC, QUEUES)
            for partition in range(partitions)
        }

    def _cut(self) -> None:
        """Save every shard and go on from what was saved, as between two batches."""
        count = self._log.partitions
        self._shards = {
            at: Shard(*at, count, shard.body(), signatures=self._signatures) for at, shard in self._shards.items()
        }

    def _keep(self, what: str) -> None:
        """Take a snapshot of every shard, or note where the log begins that is not lost."""
        if what == "state":
            self._kept = {at: shard.body() for at, shard in self._shards.items()}
        else:
            self._cut_at = {at: len(self._records[at]) for at in self._shards}

    def _lose(self, what: str) -> None:
        """Start every shard in a new era, without what was lost."""
        for at, shard in self._shards.items():
            records, body = [], None
            if what == "state":
                records = self._records[at]
            elif what == "gap":
                body = shard.body()
            elif what == "rest":
                records, body = self._records[at][self._cut_at.get(at, 2**62) :], self._kept.get(at)
            quiet_until = records[-1].offset + 1 if records else 0
            again = Shard(*at, self._log.partitions, body, era=shard.era + 1, quiet_until=quiet_until)
            assert [decision for record in records for decision in again.apply(record)] == []
            self._shards[at] = again

    def _tell(self, told: Iterable[list[AnyDecision]]) -> list[str]:
        """Say decisions in words, those of a kind that follow each other together."""
        decisions = [decision for each in told for decision in each]
        answers: list[str] = []
        for key, same in groupby(decisions, key=lambda each: (type(each), getattr(each, "group_id", None))):
            kind, group_id = key
            prefix = "" if group_id in (None, self._group) else f"{group_id}: "
            answers += [prefix + answer for answer in WORDS[kind](list(same))]
        return answers


# --- decisions in words ---


def _memberships(decisions: list[Membership]) -> Iterator[str]:
    for change, same in groupby(decisions, key=lambda each: each.change):
        them = list(same)
        if len(them) > MANY:
            yield f"membership {change} {len(them)} clients: {them[0].client_id} ... {them[-1].client_id}"
            continue
        for each in them:
            who = f" {_name(each.client_id, each.instance_id)}" if each.client_id else ""
            yield f"membership {change}{who}" + (f": {each.detail}" if each.detail else "")


def _rebalances(decisions: list[Rebalance]) -> Iterator[str]:
    for each in decisions:
        causes = f" and {len(each.causes) - 1} more" if len(each.causes) > 1 else ""
        yield (
            f"rebalance epoch {_epoch(each.epoch)} by {each.trigger}{causes}, {each.strategy or 'no strategy'}: "
            f"{_count(each.clients, 'client')}, {_count(each.queues, 'queue')}, "
            f"{each.moved} moved, spread {each.spread}"
        )
        for reason, left in groupby(each.unassigned, key=lambda one: one.reason):
            yield f"  nobody gets {_names(one.queue for one in left)}: {reason}"
        for note in each.notes:
            yield f"  note: {note}"


def _handovers(decisions: list[Handover]) -> Iterator[str]:
    """Tell what changed hands; queues with the same fate together."""
    fates: dict[str, list[Queue]] = {}
    for each in decisions:
        came = f" from {each.from_}" if each.from_ is not None else ""
        times = {"asked": each.revoked_ms, "free": each.released_ms, "given": each.assigned_ms}
        when = "".join(
            f", {word} at {_time(ms - START_MS)}" for word, ms in times.items() if ms not in (None, each.at_ms)
        )
        fates.setdefault(f"{came} to {each.to or 'nobody'}: {each.how}{when}", []).append(each.queue)
    if len(fates) > MANY:
        to, how = {each.to for each in decisions}, sorted({each.how for each in decisions})
        yield f"handovers of {len(decisions)} queues to {len(to)} clients: {', '.join(how)}"
        return
    for fate, queues in fates.items():
        yield f"handover {_names(queues)}{fate}"


def _assignments(decisions: list[Assignment]) -> Iterator[str]:
    for epoch, same in groupby(decisions, key=lambda each: each.epoch):
        them = list(same)
        if len(them) > MANY:
            sizes = sorted({len(each.queues) for each in them})
            some = f"{sizes[0]} to {sizes[-1]} queues" if len(sizes) > 1 else _count(sizes[0], "queue")
            yield f"assignments epoch {_epoch(epoch)} to {len(them)} clients: {some} each"
            continue
        for each in them:
            yield f"assignment {_name(each.client_id, each.instance_id)} epoch {_epoch(epoch)}: {_assigned(each)}"


def _assigned(assignment: Assignment) -> str:
    def terms(one: AssignedQueue) -> tuple[int, Start]:
        return one.assigned_epoch, one.start

    shares = []
    for (given, start), same in groupby(assignment.queues, key=terms):
        words = [f"given in {_epoch(given)}"] if given != assignment.epoch else []
        if start.offset is not None:
            words.append(f"from {start.offset}")
        if start.policy not in (None, "last") or (start.policy and start.offset is not None):
            words.append(f"from {start.policy}")
        words += [f"{one.expression} done to {one.offset}" for one in start.ahead]
        words += [f"{one.slice}of{one.slices} done to {one.offset}" for one in start.done]
        shares.append(_names(one.queue for one in same) + (f" ({', '.join(words)})" if words else ""))
    text = ", ".join(shares) or "nothing"
    if assignment.revoke:
        text += f"; must give up {_names(assignment.revoke)}"
    if assignment.mode != "clustering":
        text += f"; {assignment.mode}"
    if assignment.state != "stable":
        text += f"; {assignment.state}"
    if assignment.paused:
        text += "; paused"
    if assignment.others:
        text += "; others want " + ", ".join(f"{one.topic} {one.expression!r}" for one in assignment.others)
    usual = (config.HEARTBEAT_MS, config.SESSION_TIMEOUT_MS, config.REVOKE_TIMEOUT_MS)
    told = (assignment.heartbeat_ms, assignment.session_timeout_ms, assignment.revoke_timeout_ms)
    if told != usual:
        text += "; heartbeat {}, session {}, revoke {}".format(*map(_time, told))
    return text


def _fenced(decisions: list[Fenced]) -> Iterator[str]:
    for each in decisions:
        by = f" by {each.by}" if each.by else ""
        yield f"fenced {_name(each.client_id, each.instance_id)}: {each.reason}{by}"


def _rejected(decisions: list[Rejected]) -> Iterator[str]:
    for each in decisions:
        who = f" of {each.client_id}" if each.client_id else ""
        right = "" if each.partition is msgspec.UNSET else f" (partition {each.partition} of {each.partitions})"
        yield f"rejected{who}, {each.rule}: {each.detail}{right}"


def _offsets(decisions: list[Offset]) -> Iterator[str]:
    """Tell what one client committed, or had reset, in one line."""
    for (client_id, epoch, metadata, reset_by), same in groupby(
        decisions, key=lambda each: (each.client_id, each.epoch, each.metadata, each.reset_by)
    ):
        far = ", ".join(
            f"{each.queue} {'deleted, was' if each.deleted else 'to'} {each.offset}{_ahead(each)}" for each in same
        )
        by = client_id if reset_by is None else f"{reset_by} for {client_id or 'nobody yet'}"
        yield f"offset {far}: by {by} in epoch {_epoch(epoch)}" + (f", {metadata!r}" if metadata else "")


def _ahead(offset: Offset) -> str:
    if not offset.ahead:
        return ""
    return f" ({', '.join(f'{one.expression!r} to {one.offset}' for one in offset.ahead)})"


def _wakes(decisions: list[Wake]) -> Iterator[str]:
    """Tell who is woken; of many with the same answer, how many."""
    for (queue, reason, next_offset), same in groupby(
        decisions, key=lambda each: (each.queue, each.reason, each.next_offset)
    ):
        them = list(same)
        if len(them) > MANY:
            yield f"wake {len(them)} clients of {queue}: {reason}, next {next_offset}"
            continue
        for each in them:
            yield f"wake {each.client_id} of {queue}: {reason}, next {next_offset}, held {_time(each.held_ms)}"


def _locks(decisions: list[LockAnswer]) -> Iterator[str]:
    for (client_id, outcome, until_ms), same in groupby(
        decisions, key=lambda each: (each.client_id, each.outcome, each.until_ms)
    ):
        until = "" if until_ms is None else f" until {_time(until_ms - START_MS)}"
        yield f"lock {_names(each.queue for each in same)} for {client_id}: {outcome}{until}"


def _failed(decisions: list[FailedMessages]) -> Iterator[str]:
    for each in decisions:
        where = f"{each.messages} of {each.queue}, {each.first_offset}..{each.last_offset}"
        then = "dead" if each.outcome == "dead" else f"retry at level {each.level}"
        yield f"failed at {each.client_id}: {where}: attempt {each.attempt}, {then}, {each.error!r}"


WORDS: dict[type, Callable[[Any], Iterator[str]]] = {
    Membership: _memberships,
    Rebalance: _rebalances,
    Handover: _handovers,
    Assignment: _assignments,
    Fenced: _fenced,
    Offset: _offsets,
    LockAnswer: _locks,
    FailedMessages: _failed,
    Wake: _wakes,
    Rejected: _rejected,
}


# --- words ---


def _column_of_event(line: str) -> int:
    """Where a line's event begins: answers stand below it."""
    words = line.split()
    timed = _TIME.match(words[0]) is not None
    return line.index(words[1], line.index(words[0]) + len(words[0])) if timed else line.index(words[0])


def _ms(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no time; write 5s, 0.1s, 45001ms, 2m, 1h or 7d")
    return round(float(match[1]) * _UNITS_MS[match[2]])


def _time(ms: int) -> str:
    """Say a time in seconds, whole days in days."""
    if ms >= _UNITS_MS["d"] and ms % _UNITS_MS["d"] == 0:
        return f"{ms // _UNITS_MS['d']}d"
    return f"{ms / 1_000:.3f}".rstrip("0").rstrip(".") + "s"


def _matches(group_id: str, pattern: str, topics: list[str], options: dict[str, str]) -> events.Matches:
    return events.Matches(group_id=group_id, pattern=pattern, topics=topics, **options)


def _report(group_id: str, name: str, words: list[str]) -> events.Report:
    client_id, instance_id = _client(name)
    return events.Report(group_id=group_id, client_id=client_id, instance_id=instance_id, text=" ".join(words))


def _options(words: list[str]) -> dict[str, str]:
    return {name: value for name, is_option, value in (word.partition("=") for word in words) if is_option}


def _values(options: dict[str, str]) -> dict[str, Any]:
    """Read values as JSON; what is none is a word."""
    values = {}
    for name, text in options.items():
        if match := re.fullmatch(r"(\d+):(\d+)", text):
            values[name] = (int(match[1]) - 1) * config.ERA_EPOCHS + int(match[2])
            continue
        try:
            values[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            values[name] = text
    return values


def _expand(words: list[str]) -> list[list[str]]:
    """Make one event a client of ``beat c1..c100 orders``."""
    for at, word in enumerate(words):
        if match := re.fullmatch(r"([a-z]+)(\d+)\.\.\1(\d+)", word):
            numbers = range(int(match[2]), int(match[3]) + 1)
            return [[*words[:at], f"{match[1]}{number}", *words[at + 1 :]] for number in numbers]
    return [words]


def _client(name: str) -> tuple[str, str]:
    """Return client and instance of ``a`` (its first life) or ``a#2``."""
    client_id, _, life = name.partition("#")
    return client_id, f"{client_id}#{life or 1}"


def _name(client_id: str, instance_id: str) -> str:
    return client_id if instance_id == f"{client_id}#1" else instance_id


def _routed(topic: str, queues: str, rooms: str, ends: str, brokers: str) -> list[RoutedQueue]:
    if queues == "gone":
        return []
    numbers = [int(number) for number in queues.split(",")] if "," in queues else list(range(int(queues)))
    return [
        RoutedQueue(topic=topic, broker=broker, queue_id=number, room=room, max_offset=int(end) if end else None)
        for broker in brokers.split(",")
        for number, room, end in zip(numbers, cycle(rooms.split(",")), cycle(ends.split(",")), strict=False)
    ]


def _queue(name: str) -> Queue:
    where, _, numbers = name.rpartition("-")
    topic, _, broker = where.partition("@")
    number, _, part = numbers.partition("/")
    slice_, _, slices = part.partition("of")
    return Queue(topic, broker, int(number), int(slices or 1), int(slice_ or 0))


def _queues(names: str) -> list[Queue]:
    """Read ``orders-0`` or ``orders-0..3``, ``orders-0/5of8`` or ``orders-0/0..3of8``."""
    if match := re.fullmatch(r"(.*)/(\d+)\.\.(\d+)of(\d+)", names):
        return [_queue(f"{match[1]}/{number}of{match[4]}") for number in range(int(match[2]), int(match[3]) + 1)]
    first, _, last = names.partition("..")
    queue = _queue(first)
    if queue.slices > 1:
        return [queue]
    return [
        Queue(queue.topic, queue.broker, number) for number in range(queue.queue_id, int(last or queue.queue_id) + 1)
    ]


def _names(queues: Iterable[Queue]) -> str:
    """Name queues, neighbours together: ``orders-0..3 payments-1``."""
    runs: list[list[Queue]] = []
    for queue in queues:
        last = runs[-1][-1] if runs else None
        if last and queue == _next(last):
            runs[-1].append(queue)
        else:
            runs.append([queue])
    return " ".join(map(_run, runs))


def _next(queue: Queue) -> Queue:
    number = {"queue_id": queue.queue_id + 1} if queue.slices == 1 else {"slice": queue.slice + 1}
    return msgspec.structs.replace(queue, **number)


def _run(run: list[Queue]) -> str:
    first, last = run[0], run[-1]
    if len(run) == 1:
        return str(first)
    if first.slices == 1:
        return f"{first}..{last.queue_id}"
    return f"{first.whole}/{first.slice}..{last.slice}of{first.slices}"


def _epoch(epoch: int) -> str:
    """Say an epoch; one of a later era than the first with its era before it."""
    era, number = divmod(epoch, config.ERA_EPOCHS)
    return f"{era + 1}:{number}" if era > 0 else str(epoch)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
