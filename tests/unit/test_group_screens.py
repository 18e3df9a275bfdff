"""Groups in a terminal: screens fit it, show what matters first, and no record can write to the terminal."""

from collections.abc import Sequence

import pytest
from msgspec import structs
from rich.cells import cell_len

from tests.support.delta_tables import write_tables
from tests.support.ledgers import PARTITIONS, a_day
from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.group_screens import group_screen, groups_screen, member_screen
from wakeroll_pipeline.cli.live_answer import of_member
from wakeroll_pipeline.cli.text_table import Line
from wakeroll_pipeline.cli.watch_live_command import essence
from wakeroll_pipeline.live.ledger_reader import read_ledger
from wakeroll_pipeline.live.live_model import LiveModel
from wakeroll_pipeline.live.view_structs import GroupsView, GroupView, Notice, QueueRow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LiveModel:
    warehouse = tmp_path_factory.mktemp("home") / "warehouse"
    write_tables(warehouse, a_day())
    return read_ledger(warehouse, Topics(), PARTITIONS)


@pytest.fixture
def groups(model) -> GroupsView:
    return model.groups_view()


@pytest.fixture
def billing(model) -> GroupView:
    return model.group_view("billing")


def lines_of(screen: Sequence[Line], width: int) -> list[str]:
    lines = list(map(str, screen))
    assert max(map(cell_len, lines)) <= width
    return lines


def many(row: QueueRow, count: int) -> list[QueueRow]:
    return [structs.replace(row, name=f"orders-{number}", queue_id=number) for number in range(count)]


def test_all_groups_are_listed_in_their_order(groups):
    lines = lines_of(groups_screen(groups, 160), 160)

    rows = lines[[line.startswith("group ") for line in lines].index(True) + 1 :]
    assert [row.split()[0] for row in rows] == ["audit", "billing"]
    assert "rebalancing too often" in rows[1]


def test_a_group_shows_owners_members_and_rebalances(billing):
    text = "\n".join(lines_of(group_screen(billing, 160), 160))

    for one in billing.queues:
        assert f"{one.name} " in text
    for one in billing.members:
        assert one.client_id in text
    assert f"epoch {billing.rebalances[0].epoch}, " in text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_member_is_shown_with_its_queues_and_no_others(billing, model, width):
    """In a broadcasting group, those are all queues of its topics."""
    view = of_member(billing, "c3")
    text = "\n".join(lines_of(member_screen(view, width), width))
    audit = model.group_view("audit")

    assert [one.client_id for one in view.members] == ["c3"]
    assert view.queues == [one for one in billing.queues if "c3" in (one.owner, one.next_owner)]
    assert text.count("orders-") == len(view.queues) > 0
    assert f"instance {view.members[0].instance_id}, heartbeat " in text
    assert "member of billing, joined " in text
    assert "subscribes orders" in text
    alone = structs.replace(audit.members[0], client_id="alone")
    broadcasting = structs.replace(
        audit, summary=structs.replace(audit.summary, mode="broadcasting"), members=[*audit.members, alone]
    )
    assert of_member(broadcasting, "alone").queues == audit.queues


def test_a_pattern_is_shown_with_the_topics_that_match(billing):
    view = of_member(billing, "c3")
    [member] = view.members
    assert "pattern" not in "\n".join(lines_of(group_screen(billing, 300), 300))

    by_pattern = structs.replace(view, members=[structs.replace(member, pattern="orders.*")])
    without = structs.replace(view, members=[structs.replace(member, pattern="(", subscriptions=[])])

    assert "subscribes pattern 'orders.*', which matches orders" in "\n".join(
        lines_of(member_screen(by_pattern, 160), 160)
    )
    assert "subscribes pattern '(', which matches no topic" in "\n".join(lines_of(member_screen(without, 160), 160))
    assert "pattern" in "\n".join(lines_of(group_screen(by_pattern, 300), 300))


def test_a_member_that_does_not_exist_is_told_with_similar_names(billing):
    for name, sentence in (
        ("c33", r"no member 'c33' in group 'billing'; did you mean c3\?"),
        ("nobody", "no member 'nobody' in group 'billing'; the members are: c3"),
    ):
        with pytest.raises(InvalidUsage, match=sentence):
            of_member(billing, name)
    with pytest.raises(InvalidUsage, match="no member 'c3' in group 'billing', which has none"):
        of_member(structs.replace(billing, members=[]), "c3")


@pytest.mark.parametrize("height", [12, 16, 24, 50])
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_screen_is_never_higher_than_the_terminal(billing, width, height):
    """What does not fit is counted: a terminal would cut it without a word."""
    large = structs.replace(billing, queues=many(billing.queues[0], 300))

    lines = lines_of(group_screen(large, width, height), width)

    assert len(lines) <= height
    assert any("more queues" in line for line in lines)


def test_the_list_of_groups_is_never_higher_than_the_terminal(groups):
    large = structs.replace(groups, groups=groups.groups * 100)

    lines = lines_of(groups_screen(large, 100, 24), 100)

    assert len(lines) <= 24
    assert "and 1" in lines[-1]
    assert "more groups" in lines[-1]


def test_queues_that_need_attention_are_shown_if_not_all_can_be(billing):
    queues = many(structs.replace(billing.queues[0], lag_messages=0), 300)
    queues[250] = structs.replace(queues[250], owner="")
    queues[299] = structs.replace(queues[299], lag_messages=7)
    large = structs.replace(billing, queues=queues)

    text = "\n".join(lines_of(group_screen(large, 120, 20), 120))

    assert "orders-250" in text
    assert "orders-299" in text
    assert "nobody" in text


def test_a_record_cannot_move_the_cursor_or_style_the_text(billing):
    """Details of rejected records, and causes, contain what a client sent."""
    hostile = "\x1b[2J\x07[bold]x[/bold]"
    summary = structs.replace(billing.summary, reason=hostile)
    health = structs.replace(billing.health, notices=[Notice(kind="x", level="error", text=hostile)])

    text = "\n".join(lines_of(group_screen(structs.replace(billing, summary=summary, health=health), 160), 160))

    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.count(r"\x1b[2J\x07[bold]x[/bold]") == 2


def test_a_terminal_without_unicode_gets_words(billing):
    rising = structs.replace(billing, queues=[structs.replace(billing.queues[0], trend="rising", samples=[1, 5])])

    assert "rising" in "\n".join(lines_of(group_screen(rising, 120, is_unicode=False), 120))
    "\n".join(lines_of(group_screen(rising, 120, is_unicode=False), 120)).encode("ascii")


def test_a_hand_over_names_both_clients(billing):
    moving = structs.replace(billing.queues[0], owner="c3", releasing=True, next_owner="c4")

    text = "\n".join(lines_of(group_screen(structs.replace(billing, queues=[moving]), 120), 120))

    assert "c3 must release, then c4" in text


def test_a_heartbeat_is_no_change_and_a_commit_is_one(billing):
    """A pipe gets one message per change; members send a heartbeat every few seconds."""
    beaten = structs.replace(
        billing, members=[structs.replace(one, seen_ms=one.seen_ms + 1) for one in billing.members]
    )
    later = structs.replace(beaten, health=structs.replace(beaten.health, as_of_ms=beaten.health.as_of_ms + 1))
    committed = structs.replace(billing, queues=[structs.replace(one, committed_offset=999) for one in billing.queues])

    assert essence(later) == essence(billing)
    assert essence(committed) != essence(billing)


def test_a_change_of_health_is_a_change(groups):
    dark = structs.replace(groups.health, notices=[Notice(kind="no-ticks", level="error", text="no ticks for 42 s")])
    darker = structs.replace(groups.health, notices=[Notice(kind="no-ticks", level="error", text="no ticks for 43 s")])

    assert essence(structs.replace(groups, health=dark)) != essence(groups)
    assert essence(structs.replace(groups, health=dark)) == essence(structs.replace(groups, health=darker))
