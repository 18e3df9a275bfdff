"""The parts of a deployment that grow beside its tables: marts, stored results of `check`, leftovers of checkpoints."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, Protocol

from wakeroll_pipeline.ledger.expired_versions import delete_expired, expired_of
from wakeroll_pipeline.ledger.stored_marts import derived_paths
from wakeroll_pipeline.recovery.checkpoint_state import ASIDE
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.small_files import FoundFile

Kind = Literal["table", "mart", "results", "checkpoints"]

ForgetResults = Callable[[Path, int], None]
"""Deletes the results of `check` in a folder that are from before a moment (epoch ms)."""

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_UNFINISHED = (".tmp", ".unfinished")
"""Name suffixes of unfinished files; the process that writes one renames it within seconds, or has died."""


class Part(Protocol):
    """A part that any process may clean at any time, while others run."""

    name: str
    kind: Kind

    def files(self) -> list[FoundFile]:
        """Return all files of the part."""
        ...

    def old(self, now_ms: int) -> list[FoundFile]:
        """Return the files that are not needed any more."""
        ...

    def clean(self, now_ms: int) -> None:
        """Delete the files that are not needed any more."""
        ...


class Mart:
    """A mart: a Delta table that each run of `marts` replaces or extends."""

    kind: Kind = "mart"

    def __init__(self, name: str, folder: Place, keep_versions_ms: int) -> None:
        self.name = name
        self._folder = folder
        # A build may have written files that it has not committed yet.
        self._keep_ms = max(keep_versions_ms, _HOUR_MS)

    def files(self) -> list[FoundFile]:
        """Return the files of all its versions, and of its log."""
        return small_files.files(self._folder)

    def old(self, now_ms: int) -> list[FoundFile]:
        """Return the files that only expired versions need."""
        return list(expired_of(self._folder, self._keep_ms, now_ms).files)

    def clean(self, now_ms: int) -> None:
        """Delete the files that only expired versions need."""
        delete_expired(self._folder, self._keep_ms, now_ms)


class Results:
    """The stored results of `check`, with their pages in the Data Docs, in the work folder of this machine."""

    name = "quality"
    kind: Kind = "results"

    def __init__(self, settings: Settings, forget: ForgetResults) -> None:
        self._folder = settings.work_folder / "quality"
        self._keep_ms = settings.keep_results_ms
        self._forget = forget

    def files(self) -> list[FoundFile]:
        """Return the files of all projects of Great Expectations."""
        return small_files.files(Place.of(self._folder))

    def old(self, now_ms: int) -> list[FoundFile]:
        """Return the results and pages of old runs."""
        of_runs = (one for one in self.files() if "/validations/" in str(one.place) and one.place.name[0] != ".")
        return [one for one in of_runs if one.modified_ms < now_ms - self._keep_ms]

    def clean(self, now_ms: int) -> None:
        """Delete the results and pages of old runs."""
        if self.old(now_ms):  # the program that made them takes seconds to start
            self._forget(self._folder, now_ms - self._keep_ms)


class Checkpoints:
    """The checkpoints of the queries. Spark deletes old files of present checkpoints, but not replaced checkpoints."""

    name = "checkpoints"
    kind: Kind = "checkpoints"

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.checkpoints_folder
        self._keep_ms = settings.keep_results_ms

    def files(self) -> list[FoundFile]:
        """Return the files of all checkpoints."""
        return small_files.files(self._folder)

    def old(self, now_ms: int) -> list[FoundFile]:
        """Return the files of replaced checkpoints, and those that were never finished."""
        found = self.files()
        aside: dict[str, list[FoundFile]] = {}
        for one in found:
            checkpoint = str(one.place).removeprefix(f"{self._folder}/").partition("/")[0]
            if checkpoint.endswith(ASIDE):
                aside.setdefault(checkpoint, []).append(one)
        # As a whole, or not at all: an old part of a checkpoint is still needed by its newer ones.
        old = [its for its in aside.values() if max(one.modified_ms for one in its) < now_ms - self._keep_ms]
        unfinished = [
            one for one in found if one.place.name.endswith(_UNFINISHED) and one.modified_ms < now_ms - _DAY_MS
        ]
        return list(dict.fromkeys([*(one for its in old for one in its), *unfinished]))

    def clean(self, now_ms: int) -> None:
        """Delete the old files."""
        for one in self.old(now_ms):
            small_files.delete(one.place)
        for name in small_files.names(self._folder):
            checkpoint = self._folder / name
            if name.endswith(ASIDE) and not small_files.files(checkpoint):
                small_files.delete_folder(checkpoint)  # it has empty folders left


def parts_of(settings: Settings, forget: ForgetResults) -> Iterator[Part]:
    """Yield the existing parts of a deployment."""
    for name, folder in derived_paths(settings.warehouse).items():
        yield Mart(name, folder, settings.keep_versions_ms)
    for part in (Results(settings, forget), Checkpoints(settings)):
        if part.files():
            yield part
