"""The sentence about a group that does not exist."""

import pytest

from wakeroll_pipeline.ledger.known_groups import unknown_group


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([], "no group 'biling'; the groups are: none yet"),
        (["audit", "mail"], "no group 'biling'; the groups are: audit, mail"),
        (["audit", "billing", "billing-eu"], "no group 'biling'; did you mean billing or billing-eu?"),
        (
            [f"g{number:03}" for number in range(999)],
            "no group 'biling', and no similar name; `wakeroll groups` lists all 999",
        ),
    ],
)
def test_an_unknown_group_leads_to_a_similar_name_and_not_to_a_long_list(names, sentence):
    assert unknown_group("biling", names) == sentence
