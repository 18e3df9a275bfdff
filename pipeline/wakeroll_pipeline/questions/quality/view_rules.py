"""Rules of the views in `pipeline/wakeroll_pipeline/ledger/views`: keys are unique, and some columns are never null.

A view cannot declare these rules, as a table can.  A duplicate row in a view is an error of its query.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from wakeroll_pipeline.questions.quality.rule import Rule, rows_rule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUEUE = ("topic", "broker", "queue_id")


class View(NamedTuple):
    """The rules of one view."""

    key: Sequence[str]
    """Columns that identify a row."""
    never_null: Sequence[str]
    """Columns that are never null."""
    is_of_clients: bool = False
    """Whether client_id is a part of the key in a broadcasting group."""


VIEWS: Mapping[str, View] = {
    "current_assignments": View(("group_id", *_QUEUE), ("epoch", "from_ms", "how")),
    "current_members": View(("group_id", "client_id"), ("instance_id", "joined_ms", "queues")),
    "current_offsets": View(
        ("group_id", *_QUEUE), ("client_id", "committed_offset", "epoch", "at_ms", "mode"), is_of_clients=True
    ),
    "groups": View(("group_id",), ("epoch", "strategy", "members", "owned", "unowned", "last_trigger")),
    "wakes": View(("shard", "seq"), (*_QUEUE, "group_id", "request_id", "reason", "next_offset", "held_ms", "at_ms")),
}


def _key_rule(name: str, view: View) -> Rule:
    client = ", and client_id if the group is broadcasting" if view.is_of_clients else ""
    return rows_rule(f"{name}.key", f"no two rows have the same {', '.join(view.key)}{client}")


def _null_rule(name: str, view: View) -> Rule:
    return rows_rule(f"{name}.null", f"never null: {', '.join(view.never_null)}")


VIEW_RULES = [make(name, view) for name, view in VIEWS.items() for make in (_key_rule, _null_rule)]

# One query per view checks both of its rules.
_BROKEN = """
with keyed as (
    select
        *,
        concat_ws('/', {key}) as place,
        count(*) over (partition by {key}) as twins,
        concat_ws(', ', {nulls}) as nulls
    from {name}
)

select
    concat('{name}.', what) as rule,
    place as at,
    case what when 'key' then concat(twins, ' rows') else concat('null: ', nulls) end as found,
    case what when 'key' then 'one row' else 'a value' end as expected
from keyed cross join (values ('key'), ('null')) as rules (what)
where (what = 'key' and twins > 1) or (what = 'null' and nulls <> '' and {is_known})
"""
# Views show a group's latest decision of each kind, which may be lost.
_IS_KNOWN = """group_id not in (
    select decisions.group_id from decisions inner join lost_rows on decisions.shard = lost_rows.shard
    where lost_rows.table_name = 'decisions' and decisions.group_id is not null
)"""


def broken_views(spark: "SparkSession", *, has_losses: bool = False) -> "DataFrame":
    """Return the rows of the session's views that break a rule: see `Broken`, and `view_queries`."""
    return reduce(
        lambda one, other: one.unionByName(other), map(spark.sql, view_queries(has_losses=has_losses).values())
    )


def view_queries(*, has_losses: bool = False) -> Mapping[str, str]:
    """Return view -> query of the rows that break one of its rules; the SQL is that of Spark and of DuckDB.

    Args:
        has_losses: whether decisions are lost on record, as the view `lost_rows` says.
    """
    return {name: _broken(name, view, has_losses=has_losses) for name, view in VIEWS.items()}


def _broken(name: str, view: View, *, has_losses: bool) -> str:
    nulls = ", ".join(f"case when {column} is null then '{column}' end" for column in view.never_null)
    client = ["case when mode = 'broadcasting' then client_id end"] if view.is_of_clients else []
    return _BROKEN.format(
        name=name, key=", ".join([*view.key, *client]), nulls=nulls, is_known=_IS_KNOWN if has_losses else "true"
    )
