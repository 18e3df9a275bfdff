"""The arguments that several measurements have."""

import argparse
from pathlib import Path

SECONDS = 60.0
WARMUP_S = 60.0
"""The JVM compiles what it runs often; until then everything takes two or three times as long."""


def add_times(
    parser: argparse.ArgumentParser, each: str, *, seconds: float = SECONDS, warmup_s: float = WARMUP_S
) -> None:
    """Add ``--seconds``, the length of each measurement, and ``--warmup``, the time before it; both from 1 to 3600."""
    parser.add_argument("--seconds", type=_seconds, default=seconds, help=f"that count, of each {each} (%(default)g)")
    parser.add_argument("--warmup", type=_seconds, default=warmup_s, help="seconds before that (%(default)g)")


def add_folder(parser: argparse.ArgumentParser, name: str = "bench") -> None:
    """Add ``--folder``, which a measurement empties before it begins."""
    folder = Path(".wakeroll") / name
    parser.add_argument("--folder", type=Path, default=folder, help="emptied first (%(default)s)")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 3_600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 3600")
    return seconds
