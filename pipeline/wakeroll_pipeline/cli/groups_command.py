"""The `groups` command: all groups at a glance."""

from collections.abc import Sequence

from rich.table import Table

from wakeroll_pipeline.cli.open_ledger import ledger
from wakeroll_pipeline.cli.options import AsJson, ConfigFile, EngineName, Home, settings_of
from wakeroll_pipeline.cli.output import Output, clock_text, write_document
from wakeroll_pipeline.ledger.ledger import Row
from wakeroll_pipeline.ledger.view_queries import numbers_of

out = Output()


def groups(as_json: AsJson = False, engine: EngineName = None, home: Home = None, config: ConfigFile = None) -> None:
    """List the groups: members, queues, epoch, and the trigger of the last rebalance."""
    with ledger(settings_of(config, home=home), out, engine) as opened:
        rows = opened.rows(f"select {numbers_of('groups')} from groups order by group_id")
    if as_json:
        write_document({"groups": [row.as_dict() for row in rows]})
    else:
        out.print(_table(rows))


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title=f"{len(rows)} groups" if len(rows) != 1 else "1 group")
    for name in ("group", "epoch", "strategy"):
        table.add_column(name)
    for name in ("members", "queues owned", "unowned"):
        table.add_column(name, justify="right")
    table.add_column("last rebalance")
    for row in rows:
        why = f"{row.last_trigger}, {clock_text(row.last_rebalance_ms)}" if row.last_trigger else "none yet"
        table.add_row(
            row.group_id, str(row.epoch), row.strategy, str(row.members), str(row.owned), str(row.unowned), why
        )
    return table
