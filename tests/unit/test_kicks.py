"""The memory of kicks: bounded, part of the state, and forgotten when it is over."""

from tests.support.story import Story
from wakeroll_model import config

MANY = """\
group billing
0.05s   level 4
0.1s    route orders 1
1s      beat a orders
2s..3s  beat c1..c101 orders
4s..5s  kick c1..c101 keep_out_ms=60000
"""


def kicked(story: Story) -> set[str]:
    group = story.group("billing")
    assert group is not None
    return set(group.kicks)


def test_a_hundred_clients_are_kicked_or_kept_out_and_no_more():
    """The state of a group must not grow with the requests of operators; each end makes room."""
    story = Story()
    told = story.tell(MANY)
    assert "rejected, kick: 100 clients are kicked or kept out already; expected at most 100" in told
    assert len(kicked(story)) == config.MAX_KICKS

    told = story.tell("group billing\n8s      readmit c1\n9s      kick c101\n")

    assert "membership kicked c101: kicked by ops" in told
    assert kicked(story) == {f"c{number}" for number in range(2, 101)}


def test_a_kick_is_forgotten_when_its_time_is_over():
    """Also if no heartbeat comes: a snapshot does not keep what nobody needs."""
    for cut_often in (False, True):
        story = Story(cut_often=cut_often)
        story.tell(MANY)
        story.tell("group billing\n        ticks until 66s\n")

        assert kicked(story) == set()


FORGETFUL = """\
group billing
0.05s   level 4
0.1s    record partition=1 {"type":"tick","limits":{"forget_after_ms":3600000}}
0.2s    route orders 1
1s      beat a orders
2s      kick a keep_out_ms=7200000
2.1s    receipt a
        ticks every 3s until 90m
90m     beat a#2 orders
        ticks every 3s until 150m
"""


def test_an_empty_group_is_forgotten_only_when_nobody_is_kept_out():
    """Otherwise the client could join as soon as its group is forgotten."""
    told = Story().tell(FORGETFUL)

    assert "rejected of a, kicked: client_id 'a' was kicked by ops; kept out for" in told
    [forgotten] = [line for line in told.splitlines() if "membership forgotten" in line]
    assert forgotten.split()[1] == "7203s"
