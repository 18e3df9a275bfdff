"""The `restore` command: it prepares the next `run` to start from the snapshots."""

from typing import Annotated

import typer

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.open_ledger import reading, session
from wakeroll_pipeline.cli.options import (
    BrokerOptions,
    Checkpoints,
    Machines,
    Replica,
    next_run,
)
from wakeroll_pipeline.cli.output import Output
from wakeroll_pipeline.storage import small_files

out = Output()

FromLog = Annotated[
    bool,
    typer.Option(
        "--from-log",
        help="Rebuild the state from the log in Kafka, without snapshots; records beyond its retention are lost.",
    ),
]
FromSnapshots = Annotated[
    bool,
    typer.Option(
        "--from-snapshots",
        help="Continue from the snapshots in the tables although there are checkpoints, such as those of a backup; "
        "they are set aside.",
    ),
]


def restore(
    deployment: BrokerOptions,
    from_log: FromLog = False,
    from_snapshots: FromSnapshots = False,
    machines: Machines = None,
    replica: Replica = None,
    checkpoints: Checkpoints = None,
) -> None:
    """Let the next `run` continue after a loss of checkpoints, of the log, or of tables.

    A lost state comes from the newest snapshots in the tables; lost tables are written again from the log in Kafka.
    """
    from wakeroll_pipeline.recovery.checkpoint_state import has_batches
    from wakeroll_pipeline.recovery.restore_plan import prepare_restore
    from wakeroll_pipeline.recovery.snapshots import NO_TABLES

    settings = deployment.settings(machines=machines, replica=replica, checkpoints=checkpoints)
    if not from_log and not has_batches(settings) and not small_files.exists(settings.warehouse):
        raise InvalidUsage(f"no tables in {settings.warehouse}; {NO_TABLES}")
    if from_log and from_snapshots:
        raise InvalidUsage("--from-log excludes --from-snapshots: a state is made from one of them")
    with session(settings, out) as spark, reading(settings.warehouse):
        restored = prepare_restore(spark, settings, from_log=from_log, from_snapshots=from_snapshots)
    for plan in restored.plans.values():
        out.print(plan.text, soft_wrap=True, highlight=False)
    for note in restored.notes:
        out.print(note, soft_wrap=True, highlight=False)
    if restored.plans:
        same = sum(not plan.is_new_era for plan in restored.plans.values())
        out.print(f"{same} of {len(restored.plans)} shards continue in their era")
    out.print(f"next: {next_run(settings)}")
