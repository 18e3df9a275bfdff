"""Joins, leaves and crashes of consumers in wakeroll's groups, compared with Kafka's own groups on the same broker.

``python -m bench.group_changes [--rounds 3]`` writes `changes.json` and `docs/performance.md`. A round takes 15
minutes, mostly because sessions must end; it has 30 kills of consumers with last wills. Ctrl-C stops everything that
it has started.
"""

import argparse
import shutil
import signal
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException

from bench import change_figures, report
from bench.arguments import add_folder
from bench.change_figures import Changes, Measured
from bench.changing_group import PER_SECOND, QUEUES, ChangingGroup, NotSettled
from bench.group_cases import BROKER_SETTINGS, CASES, Case
from bench.handed_out import Change, Effect, Kind, effect_of
from bench.machine import this_machine
from bench.results import write
from bench.running_system import running_system, settings_in
from wakeroll.connection import Connection
from wakeroll.errors import WakerollError
from wakeroll_model.config import COMMIT_INTERVAL_MS
from wakeroll_pipeline.local.broker import EmbeddedBroker

ROUNDS = 1
LIMIT_S = 180.0
COMMIT_S = COMMIT_INTERVAL_MS / 1_000
"""Interval of commits of all groups, also of Kafka's (s). The kills are distributed evenly over it, because a crash
repeats what was handled since the last commit."""
FIRST = ("c1", "c2", "c3")
NEWCOMER = "c4"


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; return 1 if a message was lost or a group did not settle, 130 if it was stopped."""
    parser = argparse.ArgumentParser(prog="python -m bench.group_changes", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=_count, default=ROUNDS, help="of each group (default %(default)s)")
    parser.add_argument("--only", default="", help="only groups whose name contains this text (default: all groups)")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="longest step, seconds (default %(default)g)")
    add_folder(parser)
    parser.add_argument("--json", type=Path, default=change_figures.CHANGES, help="where the figures go (%(default)s)")
    given = parser.parse_args(arguments)
    cases = [case for case in CASES if given.only in case.name]
    if not cases:
        parser.error(f"--only is {given.only!r}; no group has it in its name: {', '.join(case.name for case in CASES)}")
    if given.only and given.json == change_figures.CHANGES:
        parser.error("with --only, the figures of some groups are missing; choose another file with --json")
    for stop in (signal.SIGINT, signal.SIGTERM):  # also SIGINT: shells let background jobs ignore it
        signal.signal(stop, signal.default_int_handler)
    try:
        found = measure(given.folder, cases, given.rounds, given.limit)
    except KeyboardInterrupt:
        print("stopped; everything is down, and no figures were written", file=sys.stderr)
        return 130
    except (NotSettled, WakerollError, KafkaException) as problem:
        print(problem, file=sys.stderr)
        return 1
    write(found, given.json)
    if given.json == change_figures.CHANGES:
        report.make()
    return 1 if any(group.lost for group in found.groups) else 0


def measure(folder: Path, cases: Sequence[Case], rounds: int, limit_s: float) -> Changes:
    """Let each group have its rounds, one group after the other.

    Raises:
        NotSettled: a step took longer than `limit_s` seconds.
    """
    machine = this_machine()
    shutil.rmtree(folder, ignore_errors=True)
    with (
        EmbeddedBroker(folder / "broker", settings=BROKER_SETTINGS) as broker,
        running_system(settings_in(folder, "changes", broker)) as connection,
    ):
        groups = [_measure(connection, folder, case, rounds, limit_s) for case in cases]
    return Changes(machine, rounds, QUEUES, PER_SECOND, groups)


def _measure(connection: Connection, folder: Path, case: Case, rounds: int, limit_s: float) -> Measured:
    print(f"{case.name} ...", flush=True)
    name = f"changes-{uuid.uuid4().hex[:6]}"
    changes: list[Change] = []
    with ChangingGroup(connection, case, name, folder / name, limit_s) as group:
        group.start(FIRST)
        for number in range(rounds):
            changes += [group.join(NEWCOMER), group.leave(NEWCOMER)]
            for kill in range(case.kills):
                changes.append(group.join(NEWCOMER))
                changes.append(group.crash(NEWCOMER, (number + kill / case.kills) * COMMIT_S / rounds))
        lost = group.finish()
    handed = group.handed
    effects: dict[Kind, list[Effect]] = {}
    for change in changes:
        effects.setdefault(change.kind, []).append(effect_of(change, handed))
    measured = Measured(case.name, case.session_ms, case.heartbeat_ms, effects, lost)
    print(change_figures.summary(measured), flush=True)
    return measured


def _count(text: str) -> int:
    """Return a number of rounds."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


if __name__ == "__main__":
    raise SystemExit(main())
