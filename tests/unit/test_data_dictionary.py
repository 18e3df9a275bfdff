"""What is written down about the data, for people and for dbt, comes from the declarations."""

import re
from pathlib import Path

import pytest
import yaml

from wakeroll_model.rows import TABLES
from wakeroll_pipeline.ledger.stored_marts import DAILY_FACTS
from wakeroll_pipeline.ledger.view_queries import VIEWS
from wakeroll_pipeline.questions import marts
from wakeroll_pipeline.questions.data_dictionary import data_dictionary

PAGE = Path(__file__).parents[2] / "docs" / "data_dictionary.md"


def declared_marts() -> list[dict[str, object]]:
    return yaml.safe_load(marts.declared_marts())["models"]


def test_the_data_dictionary_is_that_of_the_declarations(request):
    """``pytest --rewrite`` writes it."""
    page = data_dictionary(declared_marts())
    if request.config.getoption("--rewrite"):
        PAGE.write_text(page, encoding="utf-8")

    assert PAGE.read_text(encoding="utf-8") == page


def test_the_tutorial_names_all_tables_and_views():
    """A newcomer takes its list for the whole."""
    text = (PAGE.parent / "tutorial-data.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
    views = re.findall(r"`(\w+)`", text.partition("The views are ")[2].partition(". ")[0])

    assert tables == [*TABLES, DAILY_FACTS]
    assert views == sorted(VIEWS)


def test_dbt_is_told_the_columns_of_the_ledger(request):
    """Its documentation and its tests name them; ``pytest --rewrite`` writes the file."""
    if request.config.getoption("--rewrite"):
        marts.SOURCES.write_text(marts.sources_file(), encoding="utf-8")

    assert marts.SOURCES.read_text(encoding="utf-8") == marts.sources_file()
    [source] = yaml.safe_load(marts.sources_file())["sources"]
    assert {"events", "lag", "wakes"} < {table["name"] for table in source["tables"]}


@pytest.mark.parametrize("model", declared_marts(), ids=lambda model: model["name"])
def test_a_mart_says_of_each_column_what_it_means(model):
    assert all(column["description"] and column["data_type"] for column in model["columns"])
