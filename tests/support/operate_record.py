"""The last runs of the `operate` tests, shard by shard: tests/operate_record.json.

A shard is a file, or a few tests of a file that takes too long for one: `tests.support.operate_shards`, which runs
them, prints a line for each. This module copies those lines into the record, to be committed:
`python -m tests.support.operate_record LOG...`.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

RECORD = Path("tests/operate_record.json")

FRESH_RUNS = 4
"""Each shard is green in one of so many runs of CI, or `problems` names it."""

_LINE = re.compile(
    r"operate: (?P<on>\S+) (?P<commit>\w+) (?P<seconds>\d+) s (?P<outcome>green|red|cut|skipped) (?P<shard>tests/.*\S)"
)


class LastRuns(Struct, frozen=True, omit_defaults=True):
    """The last runs of a shard."""

    green: str | None = None
    """Commit of the last green run, None: never."""
    on: str | None = None
    """Date of that run."""
    seconds: int | None = None
    """Duration of the last run, with its start and fixtures; of one that was cut, what it needs at least."""
    red_at: tuple[str, ...] = ()
    """Commits of the red runs since the green one."""
    skipped_at: str | None = None
    """Commit of the last run, if all tests were skipped because the machine lacks what they need."""


class Record(Struct, frozen=True):
    """What is known of the runs of CI."""

    runs: tuple[str, ...] = ()
    """Commits at which CI ran shards, the oldest first."""
    shards: Mapping[str, LastRuns] = {}
    """Shard -> its last runs."""

    def place(self, shard: str) -> tuple[int, int, str]:
        """Return by what shards are sorted: the one green longest ago comes first, and a red one behind its like."""
        last = self.shards.get(shard, LastRuns())
        return (self.runs.index(last.green) if last.green in self.runs else -1, len(last.red_at), shard)

    def updated(self, log: str) -> "Record":
        """Return the record with the runs that stand in a log."""
        runs, shards = list(self.runs), dict(self.shards)
        for line in _LINE.finditer(log):
            shard, commit, seconds = line["shard"], line["commit"], int(line["seconds"])
            before = shards.get(shard, LastRuns())
            if commit not in runs:
                runs.append(commit)
            match line["outcome"]:
                case "green":
                    now = LastRuns(green=commit, on=line["on"], seconds=seconds)
                case "red":
                    red_at = tuple(dict.fromkeys((*before.red_at, commit)))
                    now = LastRuns(before.green, before.on, seconds, red_at)
                case "cut":
                    least = max(before.seconds or 0, seconds)
                    now = LastRuns(before.green, before.on, least, before.red_at, before.skipped_at)
                case _:
                    now = LastRuns(before.green, before.on, seconds, before.red_at, skipped_at=commit)
            shards[shard] = now
        return Record(tuple(runs), dict(sorted(shards.items())))

    def problems(self, shards: Iterable[str]) -> list[str]:
        """Return a line for each shard that is red, or was not green in one of the last runs of CI."""
        fresh = self.runs[-FRESH_RUNS:]
        found = []
        for shard in sorted(shards, key=self.place):
            last = self.shards.get(shard, LastRuns())
            was = f"last green at {last.green}, {last.on}" if last.green else "never green"
            if last.red_at:
                found.append(f"red      {shard}: at {', '.join(last.red_at)}; {was}")
            elif last.skipped_at:
                found.append(f"skipped  {shard}: at {last.skipped_at}, the machine lacks what it needs; {was}")
            elif last.green not in fresh:
                found.append(f"not run  {shard}: {was}")
        return found


def load(path: Path = RECORD) -> Record:
    """Return the record, empty if there is none."""
    return msgspec.json.decode(path.read_bytes(), type=Record) if path.exists() else Record()


def save(record: Record, path: Path = RECORD) -> None:
    """Write the record as people read it."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python -m tests.support.operate_record LOG...")
    save(load().updated("\n".join(Path(log).read_text() for log in sys.argv[1:])))
