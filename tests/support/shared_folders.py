"""Folders that all processes of a test run share: one of them writes each, the others wait for it."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def written_once(folders: pytest.TempPathFactory, name: str, write: Callable[[Path], None]) -> Path:
    """Return the folder of this name; the first process that asks for it lets `write` fill it, and nobody else may."""
    shared = folders.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / name
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = shared / f"{name}-unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            write(unfinished)
            unfinished.rename(folder)
    return folder
