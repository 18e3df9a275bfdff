"""The command that fetches the JARs of Spark and of the embedded broker."""

from typing import Annotated

import typer

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.output import Output
from wakeroll_pipeline.spark.jar_paths import S3, SPARK, jar_paths, our_jars
from wakeroll_pipeline.spark.jars import ensure_jars
from wakeroll_pipeline.spark.s3_classes import ensure_s3_classes

out = Output(highlight=False, soft_wrap=True)

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="spark: for `run` and `tap` (23 MB); s3: besides those, for tables or checkpoints in an S3 store (13 MB); "
        "broker: for the embedded broker of `up` and `demo` (45 MB); kafka-3.9.2 and others: other versions of that "
        "broker. Default: spark.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing about JARs that exist already.")]


def jars(names: Names = None, quiet: Quiet = False) -> None:
    """Fetch the JARs that Python packages do not contain, and verify their hashes.  Each is fetched once.

    WAKEROLL_JARS names their folder (default: in the user's cache or the checkout), WAKEROLL_MAVEN_URL a repository.
    """
    wanted, ours = list(dict.fromkeys(names or [SPARK])), our_jars()
    if unknown := [name for name in wanted if name not in ours.names]:
        raise InvalidUsage(f"no JARs are named {unknown[0]!r}; expected: {', '.join(ours.names)}")
    try:
        ensure_jars(wanted, jars=ours, say=_say)
        if S3 in wanted:
            ensure_s3_classes(ours, say=_say)
    except KeyboardInterrupt:
        typer.echo("jars: stopped; fetched JARs are kept, and the next start continues from there", err=True)
        raise typer.Exit(130) from None
    if not quiet:
        counts = ", ".join(f"{len(jar_paths(name, jars=ours))} for {name}" for name in wanted)
        _say(f"JARs in {ours.folder}: {counts}")


def _say(line: str) -> None:
    out.print(line, markup=False)
