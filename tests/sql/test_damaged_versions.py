"""The second part of the table of damage (`test_hidden_damage.py`): versions and files that are not the recorder's."""

import shutil

import pytest

from tests.support.hidden_damages import HARMLESS, KINDS, ON_FILES, REWRITTEN
from tests.support.samples import sample

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", sample(REWRITTEN | ON_FILES | HARMLESS, quick=7))
def test_damage_is_found_and_named(judge, name):
    judge(name)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.is_published])
def test_the_chain_alone_does_not_show_what_was_done_to_all_of_it(sound, ask, tmp_path, name):
    """That is why its newest line is published."""
    shutil.copytree(sound / "warehouse", tmp_path / "warehouse")
    KINDS[name].damage(tmp_path / "warehouse")

    assert [one for one in ask("check", tmp_path).broken if one.endswith(".chain")] == []
