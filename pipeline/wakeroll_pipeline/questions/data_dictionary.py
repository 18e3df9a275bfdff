"""The page docs/data_dictionary.md: the columns of every table, view and mart, generated from their declarations."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from wakeroll_model.rows import TABLES
from wakeroll_pipeline.ledger.column_types import Column, Simple, columns_of, in_duckdb, in_spark
from wakeroll_pipeline.ledger.daily_facts import COMMENT, columns_of_facts
from wakeroll_pipeline.ledger.stored_marts import DAILY_FACTS
from wakeroll_pipeline.ledger.view_queries import declared_views, first_line

_HEAD = """\
# Data dictionary

Every table, view and mart of the ledger. `wakeroll sql "describe NAME"` shows the same, and so do `describe` in Spark,
the comments of the Delta tables and dbt's `.yml` files. A test compares this page with the declarations;
`make test ARGS="tests/unit/test_data_dictionary.py --rewrite"` generates it.

- **Types** are those of Delta and Spark, then those of DuckDB where they differ.
- **Times** in tables are BIGINT, epoch milliseconds. Views have the same time beside it as a TIMESTAMP in UTC, for
  tools that draw charts: beside `x_ms` the column `x_at`, beside `at_ms` it is `log_time`, beside `as_of_ms` it is
  `as_of`. It is null also if the number is in no year from 1 to 9999. Marts have only TIMESTAMPs.
- **Units** come last in a name: `_ms` (an epoch time where the unit says so, otherwise a duration), `_s`, `_per_s`,
  `_messages`. A name without a unit is a number of things or an identifier.
- **Integers**: `partition` and `queue_id` are INT; offsets, `seq`, `epoch` and counts are BIGINT. The one exception is
  the field `cause.partition` of the table `decisions`, a BIGINT: Delta can widen a type in place, not narrow it. In
  views it is an INT too.
- **Null**: a column without "yes" is never null; the meaning of the others says when they are null.
- `era` is no column of the Delta tables. `wakeroll sql`, Spark's views and dbt's models have it
  ([sql.md](sql.md#the-order-of-rows)).
- The fields of `decisions.json` are in [schemas/decisions.json](schemas/decisions.json), those of `events.value` in
  [schemas/events.json](schemas/events.json), as JSON Schemas.
"""
_TITLES = "| column | type | in DuckDB | unit | null | meaning |\n| --- | --- | --- | --- | --- | --- |\n"
_UNITS = (
    (re.compile(r"_per_s$"), "1/s"),
    (re.compile(r"_ms$"), "ms"),
    (re.compile(r"_s$"), "s"),
    (re.compile(r"_messages$|^messages$|^repeats_"), "messages"),
)


def data_dictionary(marts: Iterable[Mapping[str, Any]]) -> str:
    """Return the page.

    Args:
        marts: the models in `_marts.yml`, each with `name`, `description`, `columns` and `data_tests`.
    """
    page = f"{_HEAD}\n## Tables\n"
    for table in TABLES.values():
        page += _part(table.name, first_line(table.row), columns_of(table.row), table.key)
    page += "\n## Views\n"
    for view in declared_views():
        page += _part(view.name, view.comment, view.columns, view.key)
    page += "\n## Daily facts\n"
    page += _part(DAILY_FACTS, COMMENT, columns_of_facts(), ("day", "group_id"))
    page += "\n## Marts\n"
    for model in marts:
        page += _part(model["name"], model["description"], tuple(_of_mart(model)), _key_of_mart(model))
    return page


def _of_mart(model: Mapping[str, Any]) -> Iterator[Column]:
    for column in model["columns"]:
        comment = column["description"]
        yield Column(column["name"], cast(Simple, column["data_type"]), "null" in comment, comment)


def _key_of_mart(model: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the key that dbt tests."""
    for test in model.get("data_tests", ()):
        if isinstance(test, dict) and "unique_together" in test:
            return tuple(test["unique_together"]["arguments"]["columns"])
    return tuple(column["name"] for column in model["columns"] if "unique" in column.get("data_tests", ()))


def _part(name: str, comment: str, columns: Iterable[Column], key: Iterable[str]) -> str:
    rows = "".join(
        f"| `{column.name}` | {_code(in_spark(column.type))} | {_in_duckdb(column)} | {_unit_of(column)} "
        f"| {'yes' if column.is_nullable else ''} | {_escaped(column.comment)} |\n"
        for column in columns
    )
    return f"\n### {name}\n\n{_escaped(comment)} Key: {', '.join(f'`{one}`' for one in key)}.\n\n{_TITLES}{rows}"


def _in_duckdb(column: Column) -> str:
    there, here = in_spark(column.type), in_duckdb(column.type).replace('"', "")
    return "" if there == here.lower() else _code(here.lower())


def _unit_of(column: Column) -> str:
    if column.type == "timestamp":
        return "UTC"
    if "(epoch ms)" in column.comment:
        return "epoch ms"
    if column.type not in ("int", "bigint", "double"):
        return ""
    return next((unit for name, unit in _UNITS if name.search(column.name)), "")


def _code(text: str) -> str:
    return f"`{text}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
