"""The fetching of JARs: each is fetched once and verified; `wakeroll jars` calls this.

`python -m wakeroll_pipeline.spark.jars sums` rewrites `sha256sums` from the resolved `ivy.xml`, and, with a name such
as kafka-3.9.2, the list of another version of Kafka. Run it after a change of `ivy.xml`, and review the diff.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from wakeroll_pipeline.spark.ivy import CACHE, SILENCE_S, IvyFailed, retrieve
from wakeroll_pipeline.spark.jar_paths import BROKER, FOLDER_VARIABLE, LOCAL, S3, SPARK, JarSet, our_jars
from wakeroll_pipeline.spark.jar_sums import (
    STAMP,
    SUMS,
    JarsMissing,
    difference,
    is_stamped,
    read_sums,
    sentence_of,
    sums_of,
    write_stamp,
    write_sums_of,
)

SAY_EVERY = 10
"""Number of fetched JARs after which a line of progress is printed."""

_MEGABYTES = {SPARK: 23, BROKER: 45, S3: 13}
_NEW = ".new"
_LOCK = ".lock"


def ensure_jars(
    names: Sequence[str] = LOCAL,
    *,
    jars: JarSet | None = None,
    maven_url: str | None = None,
    say: Callable[[str], None] = print,
    silence_s: float = SILENCE_S,
) -> None:
    """Fetch missing JARs; return quickly and silently if all exist.

    JARs from any source are accepted if their hashes are right, so a machine without a network can receive copies. A
    second process waits until the first one is done. An interrupted download continues at the next start.

    Args:
        names: `spark`, `s3`, `broker`, or other versions of Kafka; by default, those of `wakeroll up`.
        jars: lists, and the folder to complete; None: those of this process.
        maven_url: Maven repository to use; by default WAKEROLL_MAVEN_URL, else Ivy's default.
        say: called with each line of progress.
        silence_s: seconds without data after which the download fails.

    Raises:
        JarsMissing: for any reason.
        LookupError: a name is unknown.
    """
    jars = our_jars() if jars is None else jars
    parts: dict[JarSet, list[str]] = {}
    for part, configuration in map(jars.part, names):
        parts.setdefault(part, []).append(configuration)
    for part, configurations in parts.items():
        _ensure(part, configurations, maven_url, say, silence_s)


def _ensure(
    jars: JarSet, configurations: Sequence[str], maven_url: str | None, say: Callable[[str], None], silence_s: float
) -> None:
    folder, sums = jars.folder, sums_of(configurations, read_sums(jars.lists))
    if is_stamped(folder, sums):
        return
    try:
        with _locked(folder, say) as lock:
            if is_stamped(folder, sums):
                return
            if lacking := [name for name in configurations if difference(folder, sums, [name])]:
                wanted = sums_of(lacking, sums)
                _fetch(jars, lacking, len(wanted), maven_url, say, lock, silence_s)
                _accept(folder, lacking, wanted)
                say(f"all {len(wanted)} JARs exist, and their hashes are right")
            write_stamp(folder, sums)
    except IvyFailed as error:
        raise JarsMissing(f"{error}.") from error
    except OSError as error:
        raise JarsMissing(f"cannot keep the JARs in {folder}: {error}; {_hint(error)}, then start again.") from error


def write_sums(
    jars: JarSet,
    configurations: Sequence[str],
    *,
    maven_url: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Resolve `ivy.xml` and write the hashes of the resolved JARs to `sha256sums`; do not change the JARs in use.

    Args:
        jars: lists, and a folder for the download.
        configurations: all configurations of `ivy.xml`.
        maven_url: as for `ensure_jars`.
        say: called with each line of progress.

    Raises:
        JarsMissing: Ivy did not find all JARs.
    """
    try:
        with _locked(jars.folder, say) as lock:
            _fetch(jars, configurations, 0, maven_url, say, lock, SILENCE_S)
            count = write_sums_of(jars.folder / _NEW, jars.lists, configurations)
            shutil.rmtree(jars.folder / _NEW)
    except IvyFailed as error:
        raise JarsMissing(f"{error}.") from error
    say(f"wrote {count} lines to {jars.lists / SUMS}; review the diff before you commit it")


def _fetch(
    jars: JarSet,
    configurations: Sequence[str],
    count: int,
    maven_url: str | None,
    say: Callable[[str], None],
    lock: int,
    silence_s: float,
) -> None:
    """Resolve configurations into the folder `.new`."""
    size = sum(_MEGABYTES[name] for name in configurations)
    say(f"fetching {count or 'the'} JARs, about {size} MB, into {jars.folder} (only once; about half a minute)")
    came = 0

    def fetched(_name: str) -> None:
        nonlocal came
        came += 1
        if came % SAY_EVERY == 0 or came == count:
            say(f"  fetched {came}{f' of {count}' if count else ''}")

    shutil.rmtree(jars.folder / _NEW, ignore_errors=True)
    url = os.environ.get("WAKEROLL_MAVEN_URL", "") if maven_url is None else maven_url
    retrieve(
        jars.lists / "ivy.xml",
        jars.folder,
        _NEW,
        configurations,
        maven_url=url,
        fetched=fetched,
        keep_open=lock,
        silence_s=silence_s,
    )


def _accept(folder: Path, configurations: Sequence[str], sums: dict[str, str]) -> None:
    """Move fetched JARs to their final folders, if their hashes are right."""
    new = folder / _NEW
    if found := difference(new, sums, configurations):
        for name in found.get("wrong", ()):
            for cached in (folder / CACHE).rglob(Path(name).name):
                cached.unlink()
        shutil.rmtree(new)
        raise JarsMissing(sentence_of(found))
    (folder / STAMP).unlink(missing_ok=True)
    for configuration in configurations:
        shutil.rmtree(folder / configuration, ignore_errors=True)
        (new / configuration).rename(folder / configuration)
    new.rmdir()
    shutil.rmtree(folder / CACHE, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Hold the folder's lock, and wait for it if necessary; the system releases it when all holders have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is fetching the JARs of {folder}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _hint(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space on that disk"
    return f"make that folder writable, or name another one in {FOLDER_VARIABLE}"


def main(arguments: Sequence[str]) -> int:
    """Write the hashes of our JARs, or of the named other versions of Kafka; return the exit code."""
    jars = our_jars()
    if arguments[:1] != ["sums"] or not set(arguments[1:]) <= set(jars.other_brokers):
        print(
            f"usage: python -m wakeroll_pipeline.spark.jars sums [{'|'.join(jars.other_brokers)}]...", file=sys.stderr
        )
        return 2
    try:
        for name in arguments[1:]:
            part, configuration = jars.part(name)
            write_sums(part, [configuration])
        if not arguments[1:]:
            write_sums(jars, [SPARK, BROKER, S3])
    except JarsMissing as error:
        print(f"jars: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
