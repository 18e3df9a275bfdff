"""Own expectations of Great Expectations about the ledger, with stored results and Data Docs beside those of `check`.

    python examples/own_expectations.py /data/wakeroll reports/quality

judges all rows of the view `rebalances`, and of the mart `rebalance_cost` if `wakeroll marts` has built it. The second
argument is the folder of `wakeroll check --docs`; without a check before, it is created. The script needs the extra
`quality` and pandas. Its exit code is 1 if an expectation is not met.
"""

import sys
from pathlib import Path

import great_expectations as gx
from great_expectations import expectations as expect
from great_expectations.checkpoint import UpdateDataDocsAction

from wakeroll_pipeline.ledger.duck_ledger import duck_ledger

SUITES = {
    "rebalances": [
        expect.ExpectColumnValuesToBeInSet(column="trigger", value_set=["join", "leave", "expire", "route", "config"]),
        expect.ExpectColumnMaxToBeBetween(column="moved", max_value=100),
    ],
    "rebalance_cost": [
        expect.ExpectColumnValuesToBeBetween(column="longest_pause_s", max_value=60, mostly=0.99),
        expect.ExpectColumnSumToBeBetween(column="repeats_possible", max_value=1_000_000),
    ],
}
"""Table, view or mart -> what we expect of it."""


def main(home: Path, docs: Path) -> int:
    """Judge the newest rows; return the exit code."""
    (docs / "duckdb").mkdir(parents=True, exist_ok=True)
    # The project of `wakeroll check`: its suites, results and pages stay, and ours are added.
    context = gx.get_context(mode="file", project_root_dir=docs / "duckdb")
    source = context.data_sources.add_or_update_pandas("own")
    is_good = True
    with duck_ledger(home / "warehouse") as ledger:
        built = ledger.open_marts()
        for name, expectations in SUITES.items():
            if name == "rebalance_cost" and name not in built:
                continue
            suite = context.suites.add_or_update(gx.ExpectationSuite(f"own {name}", expectations=expectations))
            batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all rows")
            judged = context.validation_definitions.add_or_update(
                gx.ValidationDefinition(name=f"own {name}", data=batch, suite=suite)
            )
            checkpoint = context.checkpoints.add_or_update(
                gx.Checkpoint(
                    name=f"own {name}",
                    validation_definitions=[judged],
                    actions=[UpdateDataDocsAction(name="pages")],
                    result_format="COMPLETE",
                )
            )
            rows = ledger.connection.sql(f"from {name}").df()
            done = checkpoint.run(batch_parameters={"dataframe": rows})
            print(f"{name}: {len(rows)} rows, {'as expected' if done.success else 'NOT as expected'}")
            is_good = is_good and bool(done.success)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
