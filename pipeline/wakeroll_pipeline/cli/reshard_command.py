"""The `reshard` command: more partitions and shards for a deployment whose coordinators are stopped."""

from typing import Annotated

import typer

from wakeroll_model.config import METADATA_MS
from wakeroll_pipeline.cli.json_answers import FirstDecided, ReshardAnswer
from wakeroll_pipeline.cli.open_ledger import session
from wakeroll_pipeline.cli.options import (
    AsJson,
    BrokerOptions,
    Checkpoints,
    Machines,
    Replica,
    next_run,
)
from wakeroll_pipeline.cli.output import Output, write_document

out = Output()

NewNumber = Annotated[
    int,
    typer.Option(
        "--partitions",
        metavar="NUMBER",
        min=2,
        max=1_000,
        help="New number of partitions of each control topic: a multiple of the present one.",
        show_default=False,
    ),
]
Metadata = Annotated[
    float,
    typer.Option(
        "--metadata",
        metavar="SECONDS",
        min=0,
        max=86_400,
        help="Longest time in which the clients of Kafka learn of new partitions (s): for so long, and a session, no "
        f"member of a moved group expires; default: {METADATA_MS // 1_000}.",
        show_default=False,
    ),
]


def reshard(
    deployment: BrokerOptions,
    partitions: NewNumber,
    metadata: Metadata = METADATA_MS / 1_000,
    machines: Machines = None,
    replica: Replica = None,
    checkpoints: Checkpoints = None,
    as_json: AsJson = False,
) -> None:
    """Raise the number of partitions and shards, while no coordinator runs; the next `run` continues with it."""
    from wakeroll_pipeline.jobs.reshard import refuse_number
    from wakeroll_pipeline.jobs.reshard import reshard as divide
    from wakeroll_pipeline.kafka.rights_check import require_rights

    settings = deployment.settings(machines=machines, replica=replica, checkpoints=checkpoints)
    refuse_number(settings.partitions, partitions)  # before the start of Spark
    require_rights(settings.connection, ["resharder"])
    with session(settings, out) as spark:
        done = divide(spark, settings, partitions, round(metadata * 1_000))
    if as_json:
        positions = [
            FirstDecided(topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in sorted(done.positions.items())
        ]
        write_document(ReshardAnswer(partitions=partitions, positions=positions, published=done.published))
        return
    for (topic, partition), offset in sorted(done.positions.items()):
        out.print(f"{topic}-{partition}: from offset {offset} on, {partitions} partitions decide", soft_wrap=True)
    if done.positions:
        out.print(f"decided {done.published} times about the records before, which no coordinator had applied")
    else:
        out.print("an earlier attempt has divided the states already")
    number = f"partitions = {partitions} (or WAKEROLL_PARTITIONS)"
    out.print(f"next: set {number} for every process; {next_run(settings)}")
