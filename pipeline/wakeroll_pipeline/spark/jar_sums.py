"""The hashes of JARs: the list `sha256sums`, the hashes of a folder, and a stamp that avoids hashing files again."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from wakeroll.errors import WakerollError

SUMS = "sha256sums"
"""Name of the list: one line per JAR, with its hash and its name (spark/x.jar)."""
STAMP = ".complete"
"""Name of the file with hash, name and size (bytes) of each JAR that was verified."""


class JarsMissing(WakerollError):
    """JARs are missing and could not be fetched; the message is one sentence with the finding and the remedy."""


def read_sums(lists: Path) -> dict[str, str]:
    """Return the hashes by name (spark/x.jar), sorted by name.

    Raises:
        JarsMissing: the list cannot be read.
    """
    try:
        lines = (lists / SUMS).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise JarsMissing(f"cannot read the list of JARs: {error}; is wakeroll installed completely?") from error
    return dict(sorted((name, digest) for digest, name in (line.split(maxsplit=1) for line in lines if line.strip())))


def write_sums_of(folder: Path, lists: Path, configurations: Sequence[str]) -> int:
    """Write the hashes of the JARs in a folder to the list; return their number."""
    lines = [f"{digest}  {name}\n" for name, digest in sorted(_hashes(folder, configurations).items())]
    (lists / SUMS).write_text("".join(lines), encoding="utf-8")
    return len(lines)


def sums_of(configurations: Sequence[str], sums: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the list for some configurations."""
    return {name: digest for name, digest in sums.items() if name.partition("/")[0] in configurations}


def difference(folder: Path, listed: Mapping[str, str], configurations: Sequence[str]) -> dict[str, list[str]]:
    """Compare subfolders with the list; return the names of missing, unlisted and wrong files, without empty lists."""
    found, sums = _hashes(folder, configurations), sums_of(configurations, listed)
    names = {
        "missing": sums.keys() - found.keys(),
        "unlisted": found.keys() - sums.keys(),
        "wrong": {name for name in sums.keys() & found.keys() if sums[name] != found[name]},
    }
    return {kind: sorted(some) for kind, some in names.items() if some}


def sentence_of(found: Mapping[str, Sequence[str]]) -> str:
    """Return the sentence for a difference, with its remedy."""
    kinds = {"missing": "missing", "unlisted": "not in the list", "wrong": "with a wrong hash"}
    what = "; ".join(f"{kinds[kind]}: {', '.join(names)}" for kind, names in found.items())
    fix = "start again, which fetches the wrong ones again (from another mirror, if WAKEROLL_MAVEN_URL names one)"
    if found.keys() != {"wrong"}:
        fix = "ivy.xml and sha256sums do not fit each other: take both from one version of wakeroll"
    return f"the fetched JARs do not match {SUMS} ({what}); {fix}."


def is_stamped(folder: Path, sums: Mapping[str, str]) -> bool:
    """Return whether these JARs were verified before and have the same sizes: 60 `stat` calls instead of hashing."""
    try:
        return set(_stamp(folder, sums)) <= set(_stamped(folder))
    except OSError:
        return False


def write_stamp(folder: Path, sums: Mapping[str, str]) -> None:
    """Record that these JARs were verified; the records of other JARs are kept."""
    others = [line for line in _stamped(folder) if line.split()[1] not in sums]
    unfinished = folder / f"{STAMP}.new"
    unfinished.write_text("".join(f"{line}\n" for line in [*others, *_stamp(folder, sums)]), encoding="utf-8")
    unfinished.replace(folder / STAMP)


def _stamped(folder: Path) -> list[str]:
    file = folder / STAMP
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _stamp(folder: Path, sums: Mapping[str, str]) -> list[str]:
    return [f"{digest}  {name}  {(folder / name).stat().st_size}" for name, digest in sums.items()]


def _hashes(folder: Path, configurations: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of each file in the folders of the configurations, by name (spark/x.jar)."""
    files = [path for configuration in configurations for path in (folder / configuration).glob("*")]
    return {f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
