"""Wrong options of `wakeroll marts`, and the folder that it prints for a user's `packages.yml`."""

from pathlib import Path

import pytest

from wakeroll_pipeline.questions import marts


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--vars", "storm_gap_s: 30", "--vars is 'storm_gap_s: 30'; it must be a JSON object of variables"),
        ("--vars", "[1]", "--vars is '[1]'; it must be a JSON object of variables"),
        ("--project", "nowhere", "--project nowhere has no dbt_project.yml; it must be the folder of a dbt project"),
    ],
)
def test_a_wrong_option_is_wrong_use(wakeroll, tmp_path: Path, option: str, value: str, sentence: str):
    code, _, complaint = wakeroll("marts", option, value, "--home", str(tmp_path))

    assert code == 2
    assert sentence in complaint


def test_the_folder_of_the_dbt_project_is_printed(wakeroll):
    assert wakeroll("marts", "--package") == (0, f"{marts.PROJECT}\n", "")
