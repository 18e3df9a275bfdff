"""A stretch of a shard's log decided again, without Spark: what counts as the same, and what does not."""

import msgspec
import pandas as pd
from msgspec import structs

from tests.support.control_log import START_MS
from tests.support.ledgers import PARTITIONS, Story
from wakeroll_model.partitioner import partition_of
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.replay_stretches import Replayable, Stretch, Unknown
from wakeroll_pipeline.questions.replay_check import Checked, Difference, check
from wakeroll_pipeline.questions.replay_in_spark import check_shard

GROUPS = "wakeroll.groups"
HOME = partition_of(b"billing", PARTITIONS)


def a_minute() -> Story:
    story = Story()
    story.route("orders", 4)
    story.join("billing", "c1", "orders")
    story.pass_seconds(10)
    story.snapshot()
    story.join("billing", "c2", "orders")
    story.pass_seconds(50)
    return story


def records(story: Story) -> list[Record]:
    return [Record(*row) for row in story.rows if row[:2] == (GROUPS, HOME)]


def recorded(story: Story, era: int = 1, period: Period = Period()) -> dict[int, str]:  # noqa: B008
    return {
        decision.seq: encode_decision(decision).decode()
        for decision in story.decisions
        if decision.shard == f"groups-{HOME}.{era}" and period.has(decision.at_ms)
    }


def whole(story: Story) -> Stretch:
    return Stretch(
        topic=GROUPS,
        partition=HOME,
        era=1,
        first=0,
        last=records(story)[-1].offset,
        after=-1,
        last_seq=max(recorded(story)),
    )


def test_the_same_log_leads_to_the_same_decisions():
    story = a_minute()

    done = check(whole(story), PARTITIONS, records(story), recorded(story).items(), Period())

    assert (done.shard, done.events, done.differences) == (f"groups-{HOME}.1", len(records(story)), 0)
    assert done.compared == len(recorded(story)) > 10


def test_a_snapshot_spares_what_was_before_it():
    """What is asked about is decided alike, though the shard begins in the middle."""
    story = a_minute()
    period = Period(story.now_ms - 45_000)
    first = next(record.offset for record in records(story) if period.has(record.timestamp_ms))
    [(after, body)] = [(row[2], row[6]) for row in story.snapshots if row[:2] == (GROUPS, HOME)]
    stretch = structs.replace(whole(story), first=first, after=after, body=bytes(body))

    from_snapshot = check(
        stretch, PARTITIONS, records(story)[after + 1 :], recorded(story, period=period).items(), period
    )
    from_start = check(whole(story), PARTITIONS, records(story), recorded(story, period=period).items(), period)

    assert from_snapshot.differences == 0
    assert structs.replace(from_snapshot, after=-1) == from_start


def test_what_was_changed_lost_or_added_differs():
    story = a_minute()
    said = recorded(story)
    true = dict(said)
    said[3] = said[3].replace("c1", "c7")
    del said[5]
    said[9_999] = "{}"

    done = check(whole(story), PARTITIONS, records(story), said.items(), Period())

    assert done.first == [
        Difference(3, true[3].replace("c1", "c7"), true[3]),
        Difference(5, None, true[5]),
        Difference(9_999, "{}", None),
    ]
    assert (done.differences, done.compared) == (3, len(true) + 1)


def test_what_the_table_does_not_reach_yet_is_no_difference():
    """The log is archived before what follows from it: a coordinator may be behind."""
    story = a_minute()
    behind = {seq: json for seq, json in recorded(story).items() if seq <= 6}

    done = check(structs.replace(whole(story), last_seq=6), PARTITIONS, records(story), behind.items(), Period())

    assert (done.compared, done.differences) == (6, 0)
    assert done.not_recorded == len(recorded(story)) - 6


def test_only_one_group_is_compared():
    """Decisions are numbered by shard, so that another group of the shard is decided again all the same."""
    story = a_minute()
    other = next(name for name in "abcdefgh" if partition_of(name.encode(), PARTITIONS) == HOME)
    story.join(other, "c1", "orders")
    story.join("billing", "c3", "orders")
    its = {d.seq: encode_decision(d).decode() for d in story.decisions if d.group_id == "billing"}

    done = check(whole(story), PARTITIONS, records(story), its.items(), Period(), "billing")

    assert (done.compared, done.differences, done.not_recorded) == (len(its), 0, 0)


def test_a_new_era_keeps_quiet_about_what_was_decided_before_it():
    story = a_minute()
    story.lose_state()
    begin = records(story)[-1].offset + 1
    story.join("billing", "c3", "orders")
    story.pass_seconds(10)
    [body] = [bytes(row[6]) for row in story.snapshots if row[:4] == (GROUPS, HOME, -1, 2)]
    last = records(story)[-1].offset
    stretch = structs.replace(whole(story), era=2, first=begin, last_seq=max(recorded(story, 2)), last=last, body=body)

    done = check(stretch, PARTITIONS, records(story), recorded(story, 2).items(), Period())

    assert min(recorded(story, 2)) == 1
    assert (done.compared, done.differences) == (len(recorded(story, 2)), 0)


def test_decisions_whose_records_are_lost_cannot_be_made_again():
    """A shard of which no event is left is not equal because there is nothing to compare."""
    events = pd.DataFrame(columns=["topic", "partition", "offset", "at_ms", "key", "value"])
    decisions = pd.DataFrame(
        {"shard": ["groups-1.1"] * 3, "seq": [1, 2, 3], "at_offset": [0, 7, 8], "json": ["{}", "{}", "{}"]}
    )
    found = Replayable([], [Unknown(shard_name="groups-1.1", first=7, last=9, why="of a gap before them")])

    told = check_shard(found, PARTITIONS, Period(), (GROUPS, 1), events, decisions)["checked"]

    done = [msgspec.json.decode(one, type=Checked) for one in told]
    assert [(one.shard, one.compared, one.unknown, one.why) for one in done] == [
        ("groups-1.1", 0, 2, "of a gap before them"),
        ("groups-1.1", 0, 1, "their records are not archived"),
    ]


def test_a_period_has_its_begin_and_not_its_end():
    period = Period(START_MS, START_MS + 1_000)

    assert [period.has(START_MS + ms) for ms in (-1, 0, 999, 1_000)] == [False, True, True, False]
    assert str(period) == "from 2023-11-14T22:13:20.000Z to 2023-11-14T22:13:21.000Z"
    assert str(Period()) == "from the start of the log to the end of the log"
