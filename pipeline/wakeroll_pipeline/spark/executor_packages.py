"""The Python packages of the executors: an archive of parts of this environment, which Spark sends to each executor.

Executors of a cluster run the state machines, so they need this version of wakeroll and the packages that it imports.
Some of these are C extensions, which cannot be imported from an archive: Spark unpacks it in the executor's working
folder. The workers need the same version of Python, the same operating system and the same kind of processor.
"""

import hashlib
import importlib
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from wakeroll.errors import WakerollError

FOLDER = "wakeroll-packages"
"""Name of the folder in the executor's working folder into which the archive is unpacked."""

_OURS = ("wakeroll_model", "wakeroll", "wakeroll_pipeline")
_OTHERS = ("msgspec", "confluent-kafka", "cryptography", "pandas", "pyarrow")
"""Distributions that executors import; PySpark itself is part of the workers' Spark."""
_NEEDLESS = frozenset({"tests", "include", "__pycache__"})
"""Folders that executors do not import; they have a tenth of all bytes."""
_LEVEL = 1
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)


class PackagesMissing(WakerollError):
    """The archive for the executors cannot be made; the message has the reason."""


def packed(folder: Path) -> Path:
    """Return the archive of this environment; make it in `folder` if it does not exist yet (about 10 s, 90 MB).

    Its name contains a digest of its contents, so a new version of any package leads to a new archive. Archives of
    earlier versions are deleted.

    Raises:
        PackagesMissing: a package is not installed, or the folder cannot be written.
    """
    others, ours = _distributions(), _our_files()
    archive = folder / f"executor-packages-{_digest(others, ours)}.zip"
    if archive.exists():
        return archive
    unfinished = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as into:
            for name, file in sorted({**_files(others), **ours}.items()):
                entry = zipfile.ZipInfo(name, _FIXED_TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o755 << 16
                into.writestr(entry, file.read_bytes())
        for earlier in folder.glob("executor-packages-*.zip"):
            earlier.unlink(missing_ok=True)
        unfinished.replace(archive)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise PackagesMissing(f"cannot make the archive of the executors' packages in {folder}: {error}") from error
    return archive


def _distributions() -> dict[str, Distribution]:
    """Return the distributions that executors need, with all their requirements, by name.

    Raises:
        PackagesMissing: one of them is not installed.
    """
    found: dict[str, Distribution] = {}
    wanted = list(_OTHERS)
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            if name in _OTHERS:
                raise PackagesMissing(f"the executors need {name}, which is not installed here") from None
            continue  # required under conditions that do not hold here
        wanted += [_name(required) for required in found[name].requires or () if "extra ==" not in required]
    return dict(sorted(found.items()))


def _name(requirement: str) -> str:
    """Return the distribution that a requirement names.

    >>> _name('numpy>=1.23.2; python_version == "3.11"')
    'numpy'
    """
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _files(distributions: Mapping[str, Distribution]) -> dict[str, Path]:
    """Return the files of distributions: name in the archive -> file."""
    located = {
        str(file): Path(str(one.locate_file(file)))
        for one in distributions.values()
        for file in one.files or ()
        if ".." not in file.parts and not _NEEDLESS.intersection(file.parts)
    }
    return {name: file for name, file in located.items() if file.is_file()}


def _our_files() -> dict[str, Path]:
    """Return the files of wakeroll's packages, which may be in a checkout or installed."""
    return dict(_walk())


def _walk() -> Iterator[tuple[str, Path]]:
    for package in _OURS:
        file = importlib.import_module(package).__file__
        assert file is not None, f"{package} is a package with a file"
        root = Path(file).parent
        for path in root.rglob("*"):
            inside = path.relative_to(root.parent)
            if path.is_file() and not _NEEDLESS.intersection(inside.parts):
                yield inside.as_posix(), path


def _digest(others: Mapping[str, Distribution], ours: Mapping[str, Path]) -> str:
    """Return 16 hex digits that identify the versions of the distributions and the contents of wakeroll's files."""
    digest = hashlib.sha256()
    for name, one in sorted(others.items()):
        digest.update(f"{name}=={one.version}\n".encode())
    for name, file in sorted(ours.items()):
        digest.update(f"{name}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
