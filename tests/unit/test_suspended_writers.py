"""Whoever is suspended anywhere between lease and commit: each row is in the tables once, and no write vanishes.

The exploration suspends a process before every line of the turn, the fence, the sink and the loop around them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.support.suspended_writers import InTurn, World, Writer, offsets, suspended_later
from wakeroll_pipeline.recovery.checkpoint_state import recordings
from wakeroll_pipeline.recovery.write_turn import WriteTurn
from wakeroll_pipeline.sinks import arrow_sink, table_fence
from wakeroll_pipeline.storage import small_files


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_fence, "ThreadPoolExecutor", InTurn)


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[World]:
    """Return worlds that another process has recorded before."""
    world = World(tmp_path / "before")
    world.source = 2
    assert Writer(world, "first").run()
    assert world.ended == {"first": "done"}
    world.source = 6
    return (world.copied(tmp_path / str(number)) for number in count())


def pause(world: World, writer: Writer, *, clock_stands: bool) -> Callable[[], None]:
    """Note when a writer was suspended; return what is to be called before it goes on."""
    since_ms = world.now_ms

    def go_on() -> None:
        if clock_stands:
            writer.lease.suspended_ms += world.now_ms - since_ms

    return go_on


def check(world: World, *holders: str) -> None:
    """Check the tables and the ends of all processes, after a last process has recorded the rest."""
    world.source += 1
    last = Writer(world, "last")
    assert last.run()
    rows = world.rows()
    found = list(zip(rows["offset"].to_pylist(), [key.decode() for key in rows["key"].to_pylist()], strict=True))
    assert [offset for offset, _ in found] == list(range(world.source)), found
    promised = {(offset, name) for name, offsets in world.returned.items() for offset in offsets}
    assert promised <= set(found), ("an append returned, and its rows are not there", promised - set(found))
    assert {world.ended[name] for name in (*holders, "last")} == {"done"}, world.ended
    assert set(world.ended.values()) <= {"done", "Fenced", "LeaseLost"}, world.ended


NOTHING: Callable[[World], None] = lambda _: None  # noqa: E731
DISASTERS = {
    "": NOTHING,
    "the topic is created again": World.recreate_the_topic,
    "the log loses a record": lambda world: world.lose_the_tail(1),
    "the log loses all records": lambda world: world.lose_the_tail(len(world.log)),
}


def lines_of(world: World) -> list[str]:
    """Return the lines of a writer that nobody suspends, as they are executed."""
    alone = Writer(world, "alone")
    assert alone.run()
    return alone.lines


def first_in(file: str, lines: list[str]) -> int:
    """Return the first step in a file."""
    return next(step for step, line in enumerate(lines, 1) if line.startswith(file))


def steps_of(world: World) -> tuple[list[int], list[int]]:
    """Return the steps of a writer before which it can be suspended: all, and the first one of each line."""
    lines = lines_of(world)
    firsts = {line: step for step, line in reversed([*enumerate(lines, 1)])}
    assert len(firsts) > 60
    return [*range(1, len(lines) + 1)], sorted(firsts.values())


def suspend_one(worlds: Iterator[World], disaster: str, steps: list[int], *, clock_stands: bool) -> None:
    """Suspend a writer once before each of these steps; it wakes up after another one has taken the turn."""
    for step in steps:
        world = next(worlds)
        slow = Writer(world, "slow")
        with suspended_later(slow):
            assert not slow.run(step)
            at, go_on = slow.at, pause(world, slow, clock_stands=clock_stands)
            DISASTERS[disaster](world)
            world.source += 2
            assert Writer(world, "quick").run()
            go_on()
            assert slow.run()
            try:
                check(world, "quick")
            except AssertionError as wrong:
                raise AssertionError(f"suspended before {at}: {wrong}") from wrong


def test_a_writer_that_is_suspended_before_any_line_harms_nobody(worlds: Iterator[World]):
    """A third of the lines; the tests below have all."""
    _, firsts = steps_of(next(worlds))

    suspend_one(worlds, "", firsts[::3], clock_stands=False)


@pytest.mark.operate
def test_a_writer_whose_lease_was_in_another_topic_harms_nobody(worlds: Iterator[World]):
    """Other lines. Its machine was suspended too, so its clock does not tell it that time has passed."""
    _, firsts = steps_of(next(worlds))

    suspend_one(worlds, "the topic is created again", firsts[1::3], clock_stands=True)


def take_the_next_number(turn: WriteTurn, _: object) -> int:
    """Raise the fence to the number after the one in the table, as earlier releases did."""
    number = turn._fences.highest() + 1
    turn._fences.raise_to(number)
    return number


def test_the_exploration_finds_a_fence_that_the_last_one_raises(
    worlds: Iterator[World], monkeypatch: pytest.MonkeyPatch
):
    """The slow writer raises its fence between two appends of the next one."""
    monkeypatch.setattr(WriteTurn, "_leased", take_the_next_number)
    lines = lines_of(next(worlds))
    before_fence, before_append = first_in("write_turn.py", lines), first_in("arrow_sink.py", lines)

    with pytest.raises(AssertionError, match=r"suspended before write_turn\.py"):
        wake_in_between(worlds, "", [before_fence], [before_append], clock_stands=True)


def test_the_exploration_finds_a_sink_that_does_not_look_at_the_fence(
    worlds: Iterator[World], monkeypatch: pytest.MonkeyPatch
):
    """The slow writer appends rows that the next one has appended too."""
    monkeypatch.setattr(arrow_sink, "refuse_other", lambda *_: None)

    with pytest.raises(AssertionError, match=r"suspended before arrow_sink\.py"):
        suspend_one(worlds, "", [first_in("arrow_sink.py", lines_of(next(worlds)))], clock_stands=True)


def test_the_turns_of_a_new_topic_follow_those_of_the_topic_before(worlds: Iterator[World]):
    """Terms begin again; each turn follows the checkpoint of the one before, and none deletes a newer one."""
    world = next(worlds)
    for number in range(8):
        if number in (3, 6):
            world.recreate_the_topic()
        world.source += 3
        assert Writer(world, f"w{number}").run()
        assert world.ended[f"w{number}"] == "done"

    assert [before for _, before in world.turns[1:]] == [name for name, _ in world.turns[:-1]]
    assert recordings(world.settings) == ["record", *(name for name, _ in world.turns[-3:])]
    check(world)


def test_a_turn_follows_the_checkpoints_of_an_earlier_release(worlds: Iterator[World]):
    """Their names are terms of leases, those of an old topic may be high."""
    world = next(worlds)
    _, first = recordings(world.settings)
    for term in (3, 5_100, 4_200):
        folder = world.settings.checkpoint(f"record.{term}")
        for file in ("offsets/0", "sources/0/0"):
            small_files.write(folder.child(*file.split("/")), offsets(0))
    small_files.delete_folder(world.settings.checkpoint(first))
    world.recreate_the_topic()
    world.source += 1

    assert Writer(world, "upgraded").run()

    assert [before for _, before in world.turns] == ["record.5100"]
    check(world, "upgraded")


def test_two_holders_of_a_topic_that_was_created_again_write_one_after_the_other(worlds: Iterator[World]):
    """The second one finds an empty log and claims at once, before the first one can know of the new topic."""
    before_append = first_in("arrow_sink.py", lines_of(next(worlds)))
    world = next(worlds)
    old = Writer(world, "old")
    with ExitStack() as sleepers:
        sleepers.enter_context(suspended_later(old))
        assert not old.run(before_append)
        world.recreate_the_topic()
        world.source += 2
        new = Writer(world, "new")
        sleepers.enter_context(suspended_later(new))
        while not new.run(len(new.lines) + 1) and not new.at.startswith("arrow_sink.py"):
            pass

        assert old.lease.is_held
        assert new.lease.is_held

        assert old.run()
        assert world.ended["old"] == "Fenced"
        assert new.run()
        check(world, "new")


@pytest.mark.operate
@pytest.mark.parametrize("clock_stands", [False, True], ids=["", "its clock stands still"])
@pytest.mark.parametrize("disaster", DISASTERS)
def test_a_writer_that_is_suspended_at_any_step_harms_nobody(
    worlds: Iterator[World], disaster: str, clock_stands: bool
):
    """The same lines again, in the second table and in later batches."""
    every, _ = steps_of(next(worlds))

    suspend_one(worlds, disaster, every, clock_stands=clock_stands)


def wake_in_between(
    worlds: Iterator[World], disaster: str, steps: list[int], others: list[int], *, clock_stands: bool
) -> None:
    """Suspend a writer before each of these steps; it wakes up when the next one is before each of the others."""
    for step in steps:
        for other in others:
            world = next(worlds)
            slow = Writer(world, "slow")
            with suspended_later(slow):
                assert not slow.run(step)
                at, go_on = slow.at, pause(world, slow, clock_stands=clock_stands)
                DISASTERS[disaster](world)
                world.source += 2
                quick = Writer(world, "quick")
                with suspended_later(quick):
                    quick.run(other)
                    until = quick.at
                    go_on()
                    assert slow.run()
                    assert quick.run()
                try:
                    check(world, max(slow, quick, key=lambda one: (one.lease.log, one.lease.term)).name)
                except AssertionError as wrong:
                    raise AssertionError(
                        f"suspended before {at}, until the next one was before {until}: {wrong}"
                    ) from wrong


def test_a_writer_that_wakes_up_while_the_next_one_takes_its_turn_harms_nobody(worlds: Iterator[World]):
    _, firsts = steps_of(next(worlds))

    wake_in_between(worlds, "", firsts[::12], firsts[::36], clock_stands=True)


@pytest.mark.operate
@pytest.mark.parametrize("clock_stands", [False, True], ids=["", "its clock stands still"])
@pytest.mark.parametrize("disaster", ["", "the topic is created again"])
def test_a_writer_that_wakes_up_at_any_line_of_the_next_one_harms_nobody(
    worlds: Iterator[World], disaster: str, clock_stands: bool
):
    _, firsts = steps_of(next(worlds))

    wake_in_between(worlds, disaster, firsts[::4], firsts[2::4], clock_stands=clock_stands)


@pytest.mark.operate
@pytest.mark.parametrize("clock_stands", [False, True], ids=["", "their clocks stand still"])
@pytest.mark.parametrize("disaster", ["", "the topic is created again"])
@pytest.mark.parametrize("wake", ["first", "second"])
def test_two_writers_that_are_suspended_harm_nobody(
    worlds: Iterator[World], disaster: str, clock_stands: bool, wake: str
):
    """The second one takes over from the first, and the third from the second; they wake up in either order."""
    _, steps = steps_of(next(worlds))
    for one in steps[::4]:
        for other in steps[:: len(steps) // 10]:
            world = next(worlds)
            with ExitStack() as sleepers:
                slow = Writer(world, "slow")
                sleepers.enter_context(suspended_later(slow))
                assert not slow.run(one)
                resumed = [pause(world, slow, clock_stands=clock_stands)]
                DISASTERS[disaster](world)
                late = Writer(world, "late")
                sleepers.enter_context(suspended_later(late))
                late.run(other)
                resumed.append(pause(world, late, clock_stands=clock_stands))
                world.source += 2
                assert Writer(world, "quick").run()
                at = slow.at, late.at
                for go_on in resumed:
                    go_on()
                for sleeper in (slow, late) if wake == "first" else (late, slow):
                    assert sleeper.run()
                try:
                    check(world, "quick")
                except AssertionError as wrong:
                    raise AssertionError(f"suspended before {at}: {wrong}") from wrong
