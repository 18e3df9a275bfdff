"""The JARs of Spark and of the embedded broker: fetched once, checked against their hashes, kept in deploy/jars/.

`python -m pipeline.spark.jars` fetches missing JARs; `python -m pipeline.spark.jars s3` fetches also those that Spark
needs for tables and checkpoints in an S3 store, and `python -m pipeline.spark.jars kafka-3.9.2` those of another
version of Kafka, which have a folder with an `ivy.xml` of its own. With the word `sums` in front, the command rewrites
`sha256sums` from the resolved `ivy.xml`: run it after a change of that file, and review the diff.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.spark.ivy import CACHE, SILENCE_S, IvyFailed, retrieve
from wakeroll.errors import WakerollError

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "jars"
BROKER = "broker"
CONFIGURATIONS = ("spark", BROKER)
"""Folders of the JARs that every machine needs."""
S3 = "s3"
"""Folder of the JARs for S3, which are fetched on request."""
CLASSES = FOLDER / ".classes.jsa"
"""Class file that `class_data_sharing` may have created; with it, Spark starts in 5 s instead of 7."""

SAY_EVERY = 10
"""A line of progress appears after so many fetched JARs."""

_MEGABYTES = {"spark": 30, BROKER: 40, S3: 15}
_HOW = "`make setup`, or `python -m pipeline.spark.jars`"
_NEW = ".new"
_STAMP = ".complete"
_LOCK = ".lock"


class JarsMissing(WakerollError):
    """JARs are missing and could not be fetched; the message is one sentence with the finding and the remedy."""


def spark_jars(folder: Path = FOLDER) -> list[Path]:
    """Return the JARs that Spark needs besides its own, sorted by name.

    Raises:
        JarsMissing: at least one JAR is missing.
    """
    return _present(folder, "spark")


def fetched_s3_jars(folder: Path = FOLDER) -> list[Path]:
    """Return the fetched JARs for an S3 store, sorted by name; `s3_classes.s3_jars` has ours too.

    Raises:
        JarsMissing: at least one JAR is missing.
    """
    return _present(folder, S3)


def broker_jars(folder: Path = FOLDER, version: str = "") -> list[Path]:
    """Return the complete class path of the embedded broker, sorted by name.

    Args:
        folder: contains the JARs of the usual version, and one folder for each other version.
        version: version of Kafka, such as 3.9.2; empty: the usual one.

    Raises:
        JarsMissing: at least one JAR is missing.
    """
    return _present(folder / f"kafka-{version}" if version else folder, BROKER)


def other_brokers(folder: Path = FOLDER) -> list[str]:
    """Return the names of the folders with another version of Kafka, such as kafka-3.9.2; sorted."""
    return sorted(file.parent.name for file in folder.glob("kafka-*/ivy.xml"))


def ensure_jars(
    folder: Path = FOLDER,
    *,
    configurations: tuple[str, ...] = CONFIGURATIONS,
    maven_url: str | None = None,
    say: Callable[[str], None] = print,
    silence_s: float = SILENCE_S,
) -> None:
    """Fetch missing JARs; return quickly and silently if all exist.

    JARs from any source are accepted if their hashes are right, so a machine without a network can receive copies. A
    second process waits until the first one is done. An interrupted download continues at the next start.

    Args:
        folder: contains `ivy.xml` and `sha256sums`, and gets one subfolder per configuration.
        configurations: names of the subfolders to complete.
        maven_url: Maven repository to use; by default WAKEROLL_MAVEN_URL, else Ivy's default.
        say: called with each line of progress.
        silence_s: seconds without data after which the download fails.

    Raises:
        JarsMissing: for any reason.
    """
    sums = _of(configurations, _read_sums(folder))
    if _is_stamped(folder, sums):
        return
    try:
        with _locked(folder, say) as lock:
            if _is_stamped(folder, sums):
                return
            if lacking := tuple(name for name in configurations if _difference(folder, sums, (name,))):
                wanted = _of(lacking, sums)
                _fetch(folder, lacking, len(wanted), maven_url, say, lock, silence_s)
                _accept(folder, lacking, wanted)
                say(f"all {len(wanted)} JARs exist, and their hashes are right")
            _write_stamp(folder, sums)
    except IvyFailed as error:
        raise JarsMissing(f"{error}.") from error
    except OSError as error:
        raise JarsMissing(f"cannot keep the JARs in {folder}: {error}; {_hint(error)}, then start again.") from error


def write_sums(
    folder: Path = FOLDER,
    *,
    configurations: tuple[str, ...] = (*CONFIGURATIONS, S3),
    maven_url: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Resolve `ivy.xml` and write the hashes of the resolved JARs to `sha256sums`; do not change the JARs in use.

    Args:
        folder: contains `ivy.xml`.
        configurations: all configurations of `ivy.xml`.
        maven_url: as for `ensure_jars`.
        say: called with each line of progress.

    Raises:
        JarsMissing: Ivy did not find all JARs.
    """
    try:
        with _locked(folder, say) as lock:
            _fetch(folder, configurations, 0, maven_url, say, lock, SILENCE_S)
            lines = [f"{digest}  {name}\n" for name, digest in sorted(_hashes(folder / _NEW, configurations).items())]
            (folder / "sha256sums").write_text("".join(lines), encoding="utf-8")
            shutil.rmtree(folder / _NEW)
    except IvyFailed as error:
        raise JarsMissing(f"{error}.") from error
    say(f"wrote {len(lines)} lines to {folder / 'sha256sums'}; review the diff before you commit it")


def _fetch(
    folder: Path,
    configurations: tuple[str, ...],
    count: int,
    maven_url: str | None,
    say: Callable[[str], None],
    lock: int,
    silence_s: float,
) -> None:
    """Resolve configurations into the folder `.new`."""
    size = sum(_MEGABYTES[name] for name in configurations)
    say(f"fetching {count or 'the'} JARs, about {size} MB, into {folder} (only once; about half a minute)")
    came = 0

    def fetched(_name: str) -> None:
        nonlocal came
        came += 1
        if came % SAY_EVERY == 0 or came == count:
            say(f"  fetched {came}{f' of {count}' if count else ''}")

    shutil.rmtree(folder / _NEW, ignore_errors=True)
    url = os.environ.get("WAKEROLL_MAVEN_URL", "") if maven_url is None else maven_url
    retrieve(folder, _NEW, configurations, maven_url=url, fetched=fetched, keep_open=lock, silence_s=silence_s)


def _accept(folder: Path, configurations: tuple[str, ...], sums: dict[str, str]) -> None:
    """Move fetched JARs to their final folders, if their hashes are right."""
    new = folder / _NEW
    if difference := _difference(new, sums, configurations):
        for name in difference.get("wrong", ()):
            for cached in (folder / CACHE).rglob(Path(name).name):
                cached.unlink()
        shutil.rmtree(new)
        raise JarsMissing(_sentence(difference))
    (folder / _STAMP).unlink(missing_ok=True)
    for configuration in configurations:
        shutil.rmtree(folder / configuration, ignore_errors=True)
        (new / configuration).rename(folder / configuration)
    new.rmdir()
    shutil.rmtree(folder / CACHE, ignore_errors=True)


def _difference(folder: Path, listed: dict[str, str], configurations: tuple[str, ...]) -> dict[str, list[str]]:
    """Compare subfolders with the list; return the names of missing, unlisted and wrong files; no empty lists."""
    found, sums = _hashes(folder, configurations), _of(configurations, listed)
    names = {
        "missing": sums.keys() - found.keys(),
        "unlisted": found.keys() - sums.keys(),
        "wrong": {name for name in sums.keys() & found.keys() if sums[name] != found[name]},
    }
    return {kind: sorted(some) for kind, some in names.items() if some}


def _sentence(difference: dict[str, list[str]]) -> str:
    kinds = {"missing": "missing", "unlisted": "not in the list", "wrong": "with a wrong hash"}
    what = "; ".join(f"{kinds[kind]}: {', '.join(names)}" for kind, names in difference.items())
    fix = "start again, which fetches the wrong ones again (from another mirror, if WAKEROLL_MAVEN_URL names one)"
    if difference.keys() != {"wrong"}:
        fix = "ivy.xml and sha256sums do not fit each other: take both from one version of wakeroll"
    return f"the fetched JARs do not match deploy/jars/sha256sums ({what}); {fix}."


def _read_sums(folder: Path) -> dict[str, str]:
    """Return the hashes by name (spark/x.jar), sorted by name."""
    try:
        lines = (folder / "sha256sums").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise JarsMissing(f"cannot read the list of JARs: {error}; is the checkout complete?") from error
    return dict(sorted((name, digest) for digest, name in (line.split(maxsplit=1) for line in lines if line.strip())))


def _of(configurations: tuple[str, ...], sums: dict[str, str]) -> dict[str, str]:
    """Return the part of the list for some configurations."""
    return {name: digest for name, digest in sums.items() if name.partition("/")[0] in configurations}


def _hashes(folder: Path, configurations: tuple[str, ...]) -> dict[str, str]:
    """Return the SHA-256 of each file in the folders of the configurations, by name (spark/x.jar)."""
    files = [path for configuration in configurations for path in (folder / configuration).glob("*")]
    return {f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _present(folder: Path, configuration: str) -> list[Path]:
    jars = [folder / name for name in _read_sums(folder) if name.startswith(f"{configuration}/")]
    missing = [jar.name for jar in jars if not jar.is_file()]
    if missing:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        lacks = f"{folder / configuration} lacks {len(missing)} of {len(jars)} JARs ({some})"
        how = _HOW
        if choice := S3 if configuration == S3 else folder.name if (folder.parent / "ivy.xml").exists() else "":
            how = f"`make jars ARGS={choice}`, or `python -m pipeline.spark.jars {choice}`"
        raise JarsMissing(f"{lacks}; run {how}.")
    return jars


def _is_stamped(folder: Path, sums: dict[str, str]) -> bool:
    """Return whether these JARs were checked before and have the same sizes: 60 `stat` calls instead of hashing."""
    try:
        stamped = (folder / _STAMP).read_text(encoding="utf-8").splitlines()
        return set(_stamp(folder, sums).splitlines()) <= set(stamped)
    except OSError:
        return False


def _write_stamp(folder: Path, sums: dict[str, str]) -> None:
    text = _stamp(folder, sums)
    unfinished = folder / f"{_STAMP}.new"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(folder / _STAMP)


def _stamp(folder: Path, sums: dict[str, str]) -> str:
    return "".join(f"{digest}  {name}  {(folder / name).stat().st_size}\n" for name, digest in sums.items())


@contextlib.contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Hold the folder's lock, and wait for it if necessary; the system releases it when all its holders have ended."""
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is fetching the JARs of {folder}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _hint(error: OSError) -> str:
    return (
        "free some space on that disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make that folder writable"
    )


def main(arguments: list[str], folder: Path = FOLDER) -> int:
    """Fetch the JARs, and those of the named choices; or with `sums` write hashes. Return the exit code."""
    is_sums = arguments[:1] == ["sums"]
    names = arguments[1:] if is_sums else list(arguments)
    brokers = other_brokers(folder)
    choices = brokers if is_sums else [S3, *brokers]
    if unknown := [name for name in names if name not in choices]:
        known = ", ".join(["sums", *choices])
        print(f"jars: unknown argument {unknown[0]!r}; expected: {known}, or no argument", file=sys.stderr)
        return 2
    try:
        if is_sums:
            _write_sums(folder, names)
        else:
            _ensure(folder, names)
    except JarsMissing as error:
        print(f"jars: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("jars: stopped; fetched JARs are kept, and the next start continues from there", file=sys.stderr)
        return 130
    return 0


def _ensure(folder: Path, names: list[str]) -> None:
    if S3 in names:
        from pipeline.spark.s3_classes import ensure_s3_jars

        ensure_s3_jars(folder, say=_say)
    else:
        ensure_jars(folder, say=_say)
    for name in names:
        if name != S3:
            ensure_jars(folder / name, configurations=(BROKER,), say=_say)


def _write_sums(folder: Path, names: list[str]) -> None:
    for name in names:
        write_sums(folder / name, configurations=(BROKER,), say=_say)
    if not names:
        write_sums(folder, say=_say)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
