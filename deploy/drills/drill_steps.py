"""The steps that the drills share: each is printed with its time, and a drill ends at the first one that fails."""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("bootstrap", "prefix", "home", "checkpoints")
"""Settings of the deployment that a drill accepts as options; others come from WAKEROLL_* or wakeroll.toml."""
_POLL_S = 1.0
STOP = "command that stops `wakeroll run` and waits for its end"
START = "command that starts `wakeroll run` and returns at once"


def drill_parser(name: str, text: str | None, *, stop: str = STOP, start: str = START) -> argparse.ArgumentParser:
    """Return a parser with the options of all drills; `text` says what the drill does and what it changes.

    Args:
        name: file name of the drill.
        text: what `--help` prints.
        stop: help of the option --stop; empty: the drill has no options --stop and --start.
        start: help of the option --start.
    """
    parser = argparse.ArgumentParser(
        prog=f"deploy/drills/{name}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in NAMES:
        parser.add_argument(f"--{option}", help=f"as of `wakeroll run`; default: WAKEROLL_{option.upper()}")
    if stop:
        parser.add_argument("--stop", required=True, metavar="COMMAND", help=stop)
        parser.add_argument("--start", required=True, metavar="COMMAND", help=start)
    parser.add_argument(
        "--patience", type=float, default=600.0, help="longest wait of a step, in seconds (%(default)g)"
    )
    return parser


class DrillFailed(Exception):
    """A step failed; the message names the step, and what was expected."""


class Drill:
    """A deployment, and the steps that an operator does with it."""

    def __init__(self, given: argparse.Namespace) -> None:
        named = {f"WAKEROLL_{name.upper()}": getattr(given, name) for name in NAMES}
        self.environment = {**os.environ, **{name: value for name, value in named.items() if value is not None}}
        self.patience_s: float = given.patience
        self.home = Path(self.environment.get("WAKEROLL_HOME", ".wakeroll"))
        beside = Path() if self.environment.get("WAKEROLL_HOME") is None else self.home
        self.checkpoints = Path(self.environment.get("WAKEROLL_CHECKPOINTS") or beside / "checkpoints")
        self.warehouse = self.home / "warehouse"
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the seconds since the drill began."""
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", flush=True)

    def service(self, command: str) -> None:
        """Run the operator's own command that stops or starts a process."""
        self.say(f"$ {command}")
        if subprocess.run(command, shell=True, env=self.environment, check=False).returncode != 0:
            raise DrillFailed(f"the command failed: {command}")

    def wakeroll(self, *arguments: str, expected: int = 0, quiet: bool = False) -> str:
        """Run a command of wakeroll; return what it prints.

        Raises:
            DrillFailed: its exit code is not the expected one.
        """
        if not quiet:
            self.say(f"$ wakeroll {shlex.join(arguments)}")
        done = self._run(*arguments)
        said = (done.stdout + done.stderr).strip()
        if not quiet:
            print("\n".join(f"          {line}" for line in said.splitlines()), flush=True)
        if done.returncode != expected:
            raise DrillFailed(f"wakeroll {arguments[0]} ended with {done.returncode}, expected {expected}:\n{said}")
        return done.stdout

    def query(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query of the tables."""
        said = self.wakeroll("sql", query, "--format", "json", quiet=True)
        return [json.loads(line) for line in said.splitlines()]

    def rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        [row] = self.query(f"select count(*) as n from {table}")
        return int(row["n"])

    def until(self, what: str, done: Callable[[], bool], patience_s: float | None = None) -> None:
        """Wait for a condition.

        Raises:
            DrillFailed: it is not true in time.
        """
        limit_s = self.patience_s if patience_s is None else patience_s
        deadline_s = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > deadline_s:
                raise DrillFailed(f"not within {limit_s:g} s: {what}")
            time.sleep(_POLL_S)
        self.say(what)

    def runs(self) -> bool:
        """Return whether `wakeroll doctor` finds nothing wrong: broker, topics, clock, and a coordinator at work."""
        return self._run("doctor").returncode == 0

    def until_it_runs(self) -> None:
        """Wait until `wakeroll doctor` finds nothing wrong."""
        self.until("`wakeroll doctor` finds nothing wrong", self.runs)

    def set_aside(self, folder: Path) -> Path:
        """Rename a folder, so that nothing of it is lost; return its new place."""
        aside = folder.with_name(f"{folder.name}.drill-{time.strftime('%Y%m%dT%H%M%S')}")
        folder.rename(aside)
        self.say(f"moved {folder} to {aside}; delete it when you need it no longer")
        return aside

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-m", "wakeroll_pipeline.cli", *arguments]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False)


def perform(given: argparse.Namespace, steps: Callable[[Drill], None]) -> int:
    """Do the steps; return 0, or 1 if one failed."""
    drill = Drill(given)
    try:
        steps(drill)
    except DrillFailed as problem:
        drill.say(f"the drill failed: {problem}")
        return 1
    drill.say("the drill is over")
    return 0
