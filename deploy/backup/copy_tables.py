"""Copies the tables of a deployment while `wakeroll run` writes them, in an order in which the copy can be restored.

The log of a table is copied before the files that it names, and the chain of hashes before the tables whose rows it
counts. Files that are deleted meanwhile, or not finished, are left out; expired versions are kept for an hour
(`keep_versions_ms`), so a copy must not take longer. The state needs no copy: its snapshots are a table.
"""

import argparse
import shutil
import sys
from pathlib import Path

_LOG = "_delta_log"
_FIRST = ("chain",)
"""Tables that count rows of others."""


def copy_tables(warehouse: Path, target: Path) -> int:
    """Copy all tables of a folder to another one, which must not exist; return the number of bytes.

    Raises:
        FileExistsError: the target exists.
        FileNotFoundError: there are no tables.
    """
    logs = sorted(warehouse.rglob(_LOG), key=lambda log: (log.parent.name not in _FIRST, log))
    if not logs:
        raise FileNotFoundError(f"no tables in {warehouse}")
    target.mkdir(parents=True)
    copied = 0
    for log in logs:
        copied += _copy(_listed(log), warehouse, target)
    return copied + _copy([file for file in warehouse.rglob("*") if _LOG not in file.parts], warehouse, target)


def _listed(log: Path) -> list[Path]:
    """Return the files of a log: first that with the name of its newest summary, which is among those that follow."""
    return sorted(log.rglob("*"), key=lambda file: (file.name != "_last_checkpoint", file))


def _copy(files: list[Path], warehouse: Path, target: Path) -> int:
    copied = 0
    for file in files:
        to = target / file.relative_to(warehouse)
        if not file.is_file() or file.name.endswith((".tmp", ".lock")):
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(file, to)
        except FileNotFoundError:  # deleted since it was listed
            continue
        copied += to.stat().st_size
    return copied


def main(arguments: list[str]) -> int:
    """Copy, and print what was copied."""
    parser = argparse.ArgumentParser(
        prog="deploy/backup/copy_tables.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("home", type=Path, help="home of the deployment, a local folder")
    parser.add_argument("target", type=Path, help="home of the copy; it must have no tables")
    given = parser.parse_args(arguments)
    try:
        copied = copy_tables(given.home / "warehouse", given.target / "warehouse")
    except OSError as problem:
        print(f"the tables were not copied: {problem}", file=sys.stderr)
        return 1
    print(f"copied {copied / 1e6:.1f} MB to {given.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
