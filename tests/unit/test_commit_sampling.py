"""Samples of commits: the newest one of each queue, none lost and none twice, whenever the process is killed."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from wakeroll_pipeline.kafka_watch import commit_sampling
from wakeroll_pipeline.kafka_watch.commit_sampling import CommitSampler, Mark, Step
from wakeroll_pipeline.kafka_watch.sample_interval import (
    LONG_PAST,
    LONGEST_MS,
    LONGEST_PAST_MS,
    SHORTEST_MS,
    SampleInterval,
)

PARTITION = 3
BEGIN = Mark(0, 0)


class Said(NamedTuple):
    """A record: a commit of a queue, or (`topic` is empty) a generation of the group."""

    group: str
    topic: str = ""
    after_ms: int = 100


def key_of(one: Said) -> bytes:
    head = b"\0\1" if one.topic else b"\0\2"
    names = [one.group, one.topic] if one.topic else [one.group]
    key = head + b"".join(len(name).to_bytes(2, "big") + name.encode() for name in names)
    return key + bytes(4) if one.topic else key


def log_of(said: Sequence[Said]) -> list[Message]:
    """Return a log of these records; its offsets have gaps, as after compaction."""
    log, at_ms = [], 0
    for number, one in enumerate(said):
        at_ms += one.after_ms
        log.append(Message(partition=PARTITION, offset=3 * number, key=key_of(one), value=b"v", timestamp=(1, at_ms)))
    return log


def sampler(mark: Mark = BEGIN) -> CommitSampler:
    return CommitSampler(PARTITION, mark, lambda group: group != b"z")


def offsets(steps: Sequence[Step]) -> list[list[list[int]]]:
    return [[[one.offset() // 3 for one in records] for records in step.groups] for step in steps]


def test_a_generation_follows_the_commits_of_its_group_that_came_before_it():
    """The owners before that record made them. Commits of other groups wait on; of a queue, the newest counts."""
    said = [Said("a", "t"), Said("b", "t"), Said("a", "t"), Said("z", "t"), Said("a", "u"), Said("a"), Said("z")]
    found = sampler()
    steps = found.take(log_of(said), 60_000)
    assert offsets(steps) == [[[2, 4], [5]]]
    assert steps[0].mark == Mark(0, 16)
    assert steps[0].at_ms == 600
    assert found.mark == Mark(0, 19), "the commit of b is not on record yet; everything else is"
    assert offsets(found.flush()) == [[[1]]]
    assert found.mark == Mark(19, 19)
    assert found.flush() == []


def test_samples_are_taken_at_whole_intervals():
    """A run may be longer than an interval, and an interval longer than a run."""
    log = log_of([Said("a", "t", 400)] * 8)  # 400 ms to 3,200 ms
    found = sampler()
    steps = [step for run in (log[:2], log[2:7], log[7:]) for step in found.take(run, 1_000)]
    assert offsets(steps) == [[[1]], [[3]], [[6]]]
    assert [step.mark for step in steps] == [Mark(6, 6), Mark(12, 12), Mark(21, 21)]


def test_records_without_a_readable_key_are_passed_on():
    """They are counted where they are decoded."""
    log = [Message(partition=PARTITION, offset=at, key=key, value=b"", timestamp=(1, 5)) for at, key in enumerate(KEYS)]
    found = sampler()
    assert [one.key() for step in found.take(log, 1_000) for its in step.groups for one in its] == KEYS
    assert found.flush() == []


KEYS = [None, b"", b"\0", b"\0\1", b"\0\1\0", b"\xff\xff\xff\xff", b"\0\2\x7f\xff"]


def test_what_is_held_back_is_bounded(monkeypatch):
    """Also if the commits of a partition are those of very many queues, or very large, or of groups without a watch."""
    monkeypatch.setattr(commit_sampling, "MOST_HELD", 10)
    monkeypatch.setattr(commit_sampling, "MOST_BYTES", 1_000)
    monkeypatch.setattr(commit_sampling, "MOST_KEYS", 40)
    found = sampler()
    many = log_of([Said("a" if number % 2 else "z", f"t{number}", 0) for number in range(400)])
    taken = [
        at
        for first in range(0, 400, 20)
        for step in found.take(many[first : first + 20], 60_000)
        for its in offsets([step])[0]
        for at in its
    ]
    assert taken == list(range(1, 400, 2))
    assert found.flush() == []
    large = [
        Message(partition=PARTITION, offset=9_000 + at, key=key_of(Said("a", "t")), value=bytes(400), timestamp=(1, 5))
        for at in range(12)
    ]
    assert found.take(large[:6], 60_000) == [], "of many large commits of one queue, only one is held back"
    assert found.take(large[6:], 60_000) == []
    assert len(found.flush()) == 1


SAID = st.builds(
    Said, st.sampled_from("abz"), st.sampled_from(["", "t", "u", "t", "u"]), st.sampled_from([-300, 0, 1, 90, 700])
)


@given(st.lists(SAID, max_size=40), st.data())
def test_whenever_the_process_is_killed_nothing_is_lost_and_nothing_is_twice(said, data):
    """The tables end after any step; the next process begins with the mark that is on record."""
    log, on_record, mark, kills = log_of(said), [], BEGIN, 0
    while True:
        found = sampler(mark)
        may_live = kills == 3
        steps = _steps(found, [one for one in log if one.offset() >= mark.next_offset], data)
        taken = []
        for step in steps:
            taken.append(step)
            if not may_live and data.draw(st.integers(0, 5)) == 0:
                break
        else:
            on_record += taken
            break
        appended = data.draw(st.integers(0, len(taken)))  # the last steps were in memory only
        on_record += taken[:appended]
        mark = taken[appended - 1].mark if appended else mark
        kills += 1

    told = [one.offset() // 3 for step in on_record for its in step.groups for one in its]
    wanted = [number for number, one in enumerate(said) if one.group != "z"]
    assert len(told) == len(set(told))
    assert [at for at in told if not said[at].topic] == [at for at in wanted if not said[at].topic]
    for group in "ab":
        its = [at for at in told if said[at].group == group]
        known: dict[str, int] = {}
        for at in its:
            topic = said[at].topic
            if topic:
                assert at > known.get(topic, -1), "an older commit would reset the offset"
                known[topic] = at
            else:
                assert known == _newest(said[:at], group), "its commits before a generation are on record before it"
        assert known == _newest(said, group)


def _steps(found: CommitSampler, log: list[Message], data: st.DataObject) -> Iterator[Step]:
    """Yield what follows from a log, in runs and intervals of any length."""
    while log:
        size = data.draw(st.integers(1, len(log)))
        run, log = log[:size], log[size:]
        yield from found.take(run, data.draw(st.sampled_from([1, 100, 1_000, 60_000])))
        if data.draw(st.integers(0, 9)) == 0:
            yield from found.flush()
    yield from found.flush()


def _newest(said: Sequence[Said], group: str) -> dict[str, int]:
    return {one.topic: number for number, one in enumerate(said) if one.group == group and one.topic}


@pytest.mark.parametrize("phase", [0.0, 0.25])
def test_partitions_take_their_samples_at_different_times(phase):
    found = CommitSampler(PARTITION, Mark(0, 0), lambda _: True, phase)
    log = log_of([Said("a", "t", 50)] * 40)
    first = found.take(log, 1_000)[0]
    assert first.at_ms == (950 if phase == 0 else 200)


def test_samples_are_fewer_while_the_tables_take_much_of_the_time():
    """The interval must follow a sudden load within seconds, and come back when that ends."""
    now_s = 0.0
    interval = SampleInterval(lambda: now_s)

    def pass_by(busy_s: float, idle_s: float) -> int:
        nonlocal now_s
        with interval.counted():
            now_s += busy_s
        now_s += idle_s
        interval.adjust()
        return interval.ms

    assert pass_by(1, 1) == SHORTEST_MS, "two seconds say nothing yet"
    assert [pass_by(4, 0), pass_by(4, 0), pass_by(4, 0)] == [2_778, 9_260, LONGEST_MS]
    assert pass_by(1.2, 2.8) == LONGEST_MS
    calm = [pass_by(0, 4) for _ in range(10)]
    assert calm == sorted(calm, reverse=True)
    assert calm[-1] == SHORTEST_MS
    interval.begin_past(LONG_PAST + 1)
    assert interval.ms == LONGEST_PAST_MS
    interval.end_past()
    assert interval.ms == LONGEST_MS
