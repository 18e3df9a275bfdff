"""How a shard begins without a checkpoint of its own: the same era only where nothing is missing behind its state."""

import json

import msgspec
import pytest

from wakeroll.errors import InvalidUsage
from wakeroll_model import feature_levels
from wakeroll_model.shard_state import VERSION, ShardState
from wakeroll_pipeline.recovery.checkpoint_state import progress_of, set_aside
from wakeroll_pipeline.recovery.initial_state import Beginning, Left, Log, Restore, adopt, plan, prepare, read_restore
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place

GROUPS = ("wakeroll.groups", 3)
SNAPSHOT = Left(next=101, era=2, source="the snapshot at 100", body=b"state", decided=900)


@pytest.mark.parametrize("log", [Log(0, 900), Log(101, 900), Log(50, 101)])
def test_a_state_that_the_log_follows_goes_on_in_its_era(log):
    """The same records lead to the same decisions, which readers have seen: nothing happens twice."""
    found = plan(GROUPS, SNAPSHOT, log, used=2, era=7)

    assert found.beginning == Beginning(offset=101, era=2, body=b"state")
    assert found.text == "groups-3 continues in era 2 from the snapshot at 100; nothing is lost"
    assert not found.is_new_era


def test_a_state_with_a_gap_behind_it_begins_a_new_era():
    """What the missing records did is not known: a queue may have got another owner in them."""
    found = plan(GROUPS, SNAPSHOT, Log(102, 900), used=2, era=7)

    assert found.beginning == Beginning(offset=102, era=7, quiet_until=900, body=b"state")
    assert found.text.startswith("groups-3 begins era 7 from the snapshot at 100: Kafka no longer has records 101 to ")
    assert found.is_new_era


def test_a_state_that_a_later_era_has_overtaken_begins_a_new_one():
    """Its decisions would be taken for those of an old coordinator, and its epochs are below those of the clients."""
    found = plan(GROUPS, SNAPSHOT, Log(0, 900), used=3, era=4)

    assert found.beginning == Beginning(offset=101, era=4, quiet_until=900, body=b"state")


@pytest.mark.parametrize(("resume", "offset"), [(60, 60), (None, 80), (5, 10), (90, 80)])
def test_a_state_that_has_read_more_than_the_log_has_goes_on_with_what_is_younger(resume, offset):
    """The same offsets will stand for other records; a decision about these must not have the name of an old one."""
    found = plan(GROUPS, SNAPSHOT, Log(10, 80), used=2, era=3, resume=resume)

    assert found.beginning == Beginning(offset=offset, era=3, quiet_until=900, body=b"state")


def test_a_state_whose_log_was_replaced_begins_a_new_era_although_the_log_is_longer_again():
    """The offsets go on, but the records in the state are no longer those of the log."""
    found = plan(GROUPS, SNAPSHOT, Log(10, 900), used=2, era=3, resume=60, is_replaced=True)

    assert found.beginning == Beginning(offset=60, era=3, quiet_until=900, body=b"state")
    assert "the log has lost records of the state; it continues at 60" in found.text


def test_a_shard_without_a_state_learns_from_the_log_in_a_new_era():
    """The log says what operators set, as far back as it goes; a level that it may have lost never goes down."""
    nothing = Left(next=0, era=2, source="the log", body=None, decided=900)

    whole = plan(GROUPS, nothing, Log(0, 900), used=2, era=3)
    cut = plan(GROUPS, nothing, Log(400, 900), used=2, era=3)

    assert whole.beginning == Beginning(offset=0, era=3, quiet_until=900)
    assert "settings and offsets are unchanged" in whole.text
    assert cut.beginning == Beginning(offset=400, era=3, quiet_until=900, level=feature_levels.OFFERED)
    assert "settings and offsets from before the log's start are lost" in cut.text


def test_a_restore_lives_in_the_checkpoint_and_is_lost_with_it(tmp_path):
    """A shard's first record may come days after the others': until then, only the restore knows its state."""
    settings = Settings(bootstrap="here:1", checkpoints=str(tmp_path))
    checkpoint = settings.checkpoint("coordinate")
    restore = Restore({"wakeroll.groups-3": Beginning(offset=7, era=2, body=b"state")})
    prepare(settings, restore)

    adopt(settings)
    assert read_restore(settings) == restore
    small_files.write(checkpoint.child("commits", "0"), b"")
    adopt(settings)
    assert read_restore(settings) == restore

    prepare(settings, Restore())
    adopt(settings)
    assert read_restore(settings) == restore, "a checkpoint with a batch knows better than what was prepared"
    set_aside(checkpoint)
    adopt(settings)
    assert read_restore(settings) == Restore()


@pytest.mark.parametrize(("version", "creator"), [(1, "older"), (VERSION + 1, "newer")])
def test_a_restore_of_another_version_is_refused_with_what_to_do(tmp_path, version, creator):
    """Its states cannot be read."""
    settings = Settings(bootstrap="here:1", checkpoints=str(tmp_path))
    prepare(settings, Restore({}, version=version))
    adopt(settings)

    sentence = rf"has states of version {version}, .* the {creator} release .* `wakeroll restore --from-log`"
    with pytest.raises(InvalidUsage, match=sentence):
        read_restore(settings)


def test_initial_states_have_the_highest_version_of_their_levels():
    """The release before reads them as long as no shard has been raised."""
    low, high = (msgspec.msgpack.encode(ShardState(4, level=level)) for level in (1, 2))

    def version(*beginnings: Beginning) -> int:
        return Restore.of({str(number): one for number, one in enumerate(beginnings)}).version

    first, second = feature_levels.STATE_VERSIONS[1], feature_levels.STATE_VERSIONS[2]
    assert version(Beginning(body=low), Beginning()) == first
    assert version(Beginning(body=low), Beginning(body=high)) == second
    assert version(Beginning(body=low), Beginning(level=2)) == second


def test_a_checkpoint_says_where_its_query_reads_on(tmp_path):
    """A batch that was planned and not committed is repeated: its records are read again."""

    def write(name: str, offset: int) -> None:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'v1\n{{"batch": 1}}\n{json.dumps({"wakeroll.groups": {"0": offset, "1": 5}})}')

    checkpoint = Place.of(tmp_path)
    assert progress_of(checkpoint) is None
    write("sources/0/0", 3)
    write("offsets/0", 10)
    first = progress_of(checkpoint)
    write("commits/0", 0)
    write("offsets/1", 20)
    second = progress_of(checkpoint)

    assert (first.next["wakeroll.groups", 0], first.planned["wakeroll.groups", 0]) == (3, 10)
    assert (second.next["wakeroll.groups", 0], second.planned["wakeroll.groups", 0]) == (10, 20)
    assert second.next["wakeroll.groups", 1] == 5
