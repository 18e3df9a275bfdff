"""The `operate` tests in shards, for CI, which has no time for all of them at each commit.

Two shards run at once, each in a process of its own. The one that was green longest ago comes first; one that the
record says will not end in the rest of the time is left for the next commit. Each prints a line when it ends:

    operate: 2026-11-30 cdbaddf9 961 s green tests/operate/test_drills.py

Without ``--seconds`` nothing is run, and the shards are named that are red or were not green lately.
"""

import datetime
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.support.operate_record import FRESH_RUNS, LastRuns, Record, load

LANES = 2
"""Shards that run at once: each is several processes itself."""

DIVIDED = {"tests/operate/test_alerts.py": 4, "tests/operate/test_benches.py": 1}
"""File that takes too long for one shard -> tests in each of its shards; a shard has the name of its first test."""

UNKNOWN_S = 300
"""What a shard is expected to take that has never run."""

ENDING_S = 60
"""Time in which a shard that is cut stops its brokers; it is killed then."""

_COLLECT = ("--collect-only", "-q", "-m", "operate")
_RUN = ("-q", "-m", "operate", "-p", "no:cacheprovider")


def shards_of(nodeids: Iterable[str], divided: Mapping[str, int] = DIVIDED) -> dict[str, list[str]]:
    """Return the shards of tests: name -> what pytest is told to run."""
    tests: dict[str, list[str]] = {}
    for nodeid in nodeids:
        tests.setdefault(nodeid.partition("::")[0], []).append(nodeid)
    shards = {file: [file] for file in tests if file not in divided}
    for file in tests.keys() & divided.keys():
        size = divided[file]
        shards |= {tests[file][at]: tests[file][at : at + size] for at in range(0, len(tests[file]), size)}
    return shards


def next_shard(waiting: Iterable[str], record: Record, left_s: float) -> str | None:
    """Return the shard to begin now: of those that fit in the time, the one that was green longest ago."""
    fitting = [one for one in waiting if (record.shards.get(one, LastRuns()).seconds or UNKNOWN_S) <= left_s]
    return min(fitting, key=record.place, default=None)


class Running:
    """A shard that runs in a process of its own."""

    def __init__(self, shard: str, tests: Sequence[str], options: Sequence[str], log: IO[str]) -> None:
        self.shard = shard
        self._log = log
        self._began_s = time.monotonic()
        command = [sys.executable, "-m", "pytest", *_RUN, *options, *tests]
        self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def outcome(self) -> str | None:
        """Return how it has ended, None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if code:
            return "red"
        return "green" if re.search(r"^(?:.*\D)?[1-9]\d* passed", self.printed(), re.MULTILINE) else "skipped"

    def cut(self) -> str:
        """Stop it, because the time is over; return how it has ended."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        return "cut"

    def seconds(self) -> int:
        """Return for how long it has run."""
        return round(time.monotonic() - self._began_s)

    def printed(self) -> str:
        """Return what it has printed so far."""
        self._log.flush()
        return Path(self._log.name).read_text()


def run_shards(
    shards: Mapping[str, Sequence[str]],
    record: Record,
    seconds: float,
    options: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> set[str]:
    """Run as many shards as there is time for; return the outcomes that there were.

    Args:
        shards: name -> tests.
        record: their last runs.
        seconds: the time for all of them.
        options: of pytest, for each.
        say: gets the lines, and all that a shard has printed which is not green.
    """
    git = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=False)
    commit = git.stdout.strip() or "unknown"
    deadline, waiting, running, outcomes = time.monotonic() + seconds, set(shards), list[Running](), list[str]()
    with tempfile.TemporaryDirectory(prefix="operate-") as folder:

        def end(one: Running, outcome: str) -> None:
            running.remove(one)
            outcomes.append(outcome)
            if outcome in ("red", "cut"):
                say(one.printed())
            today = datetime.datetime.now(tz=datetime.UTC).date()
            say(f"operate: {today} {commit} {one.seconds()} s {outcome} {one.shard}")

        try:
            while True:
                left_s = deadline - time.monotonic()
                for one in list(running):
                    if outcome := one.outcome():
                        end(one, outcome)
                while len(running) < LANES and (shard := next_shard(waiting, record, left_s)):
                    waiting.remove(shard)
                    log = tempfile.NamedTemporaryFile("w", dir=folder, delete=False)  # noqa: SIM115
                    running.append(Running(shard, shards[shard], options, log))
                if not running or left_s <= 0:
                    break
                time.sleep(0.2)
        finally:  # also after Ctrl-C or SIGTERM: no broker may be left
            for one in list(running):
                end(one, one.outcome() or one.cut())
    counts = ", ".join(f"{outcomes.count(one)} {one}" for one in ("green", "red", "cut", "skipped"))
    say(f"shards of the operate tests: {counts}; {len(waiting)} left for the next run")
    return set(outcomes)


def main(words: Sequence[str] | None = None) -> int:
    """Run shards for some seconds, or name those that are red or were not green lately."""
    parser = ArgumentParser(prog="python -m tests.support.operate_shards", description=__doc__)
    parser.add_argument("--seconds", type=float, help="time for all shards together")
    seconds = parser.parse_args(words).seconds
    collected = subprocess.run([sys.executable, "-m", "pytest", *_COLLECT], capture_output=True, text=True, check=False)
    if collected.returncode:
        sys.exit(f"the operate tests cannot be collected:\n{collected.stdout}{collected.stderr}")
    shards, record = shards_of(line for line in collected.stdout.splitlines() if "::" in line), load()
    if seconds is not None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        return int(bool({"red", "cut"} & run_shards(shards, record, seconds)))
    found = record.problems(shards)
    print(f"the last runs of CI: {', '.join(record.runs[-FRESH_RUNS:])}")
    print("\n".join(found) or f"each of the {len(shards)} shards was green in one of the last runs of CI")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
