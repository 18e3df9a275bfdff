"""The past: states at earlier moments, and queries of the ledger, computed in threads beside the event loop."""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import Struct

from wakeroll.connection import Topics
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll_model.rows import SNAPSHOTS, Table
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.shared_ledger import CHECK_EVERY_S, SharedLedger, refuse_outside
from wakeroll_pipeline.live.ledger_reader import model_of
from wakeroll_pipeline.live.live_model import ViewSource
from wakeroll_pipeline.serve.access.refusal import NoAnswer
from wakeroll_pipeline.serve.page_regions import PageRegions
from wakeroll_pipeline.serve.page_threads import WorkerThreads
from wakeroll_pipeline.storage.place import Folder

MOST_MOMENTS = 6
"""Maximum number of moments that are kept; one with 1,000 groups of 100 queues each has some 100 MB."""

SETTLED_MS = 60_000
"""All records up to a moment are archived when a record that is later by this time is archived (ms), because a batch
takes seconds."""

_Answer = TypeVar("_Answer")


class Extent(Struct, frozen=True, kw_only=True):
    """The period of the past that can be shown."""

    first_ms: int | None = None
    """Log time of the first archived record (epoch ms); None if nothing is archived."""
    last_ms: int | None = None
    reason: str = ""
    """Reason why the past is not available; empty if it is."""


class Moment(Struct, frozen=True, kw_only=True):
    """The state of all groups at an earlier moment, and the pages that show it."""

    at_ms: int
    regions: PageRegions
    last_ms: int
    """Log time of the last archived record when the moment was rebuilt (epoch ms)."""

    def is_valid(self, extent: Extent) -> bool:
        """Return whether no record of the moment can have been archived since."""
        return extent.last_ms == self.last_ms or self.at_ms < self.last_ms - SETTLED_MS


class _Abandoned(Exception):
    """No caller waits for this moment any more."""


class _Job:
    """The rebuilding of one moment, for all requests that wait for it."""

    def __init__(self) -> None:
        self.waiting = 0
        self.is_abandoned = threading.Event()
        self.result: asyncio.Future[Moment]


class History:
    """Answers queries about the past. Its coroutines belong to one event loop; the work is done in threads."""

    def __init__(
        self,
        warehouse: Folder,
        topics: Topics,
        partitions: int,
        *,
        deployment: str = "",
        most_moments: int = MOST_MOMENTS,
    ) -> None:
        """Prepare; the tables may be created later.

        Args:
            warehouse: folder of the tables.
            topics: names of the control topics.
            partitions: number of partitions of each.
            deployment: name of the deployment, if the site shows several.
            most_moments: maximum number of moments that are kept.
        """
        self._deployment = deployment
        self._most_moments = most_moments
        self._ledger = SharedLedger(warehouse)
        self._topics = topics
        self._partitions = partitions
        self.workers = WorkerThreads()
        self._extent: Extent | None = None
        self._extent_s = 0.0
        self._moments: OrderedDict[int, Moment] = OrderedDict()
        self._jobs: dict[int, _Job] = {}

    @property
    def known(self) -> Iterable[int]:
        """Moments that are kept (epoch ms), the longest unused one first."""
        return self._moments.keys()

    def close(self) -> None:
        """Begin no further work, and free the memory."""
        for job in self._jobs.values():
            job.is_abandoned.set()
        self.workers.close()
        self._ledger.close()

    async def ask(self, question: Callable[[DuckLedger], _Answer], only: Table | None = None) -> _Answer:
        """Run a query on the ledger in a thread, and return its result.

        Args:
            question: function that queries the ledger.
            only: as for `SharedLedger.cursor`.

        Raises:
            NoAnswer: there are no tables, or too many requests wait.
        """
        extent = await self.extent()
        if extent.reason:
            raise NoAnswer(extent.reason, 404)

        def answer() -> _Answer:
            with self._ledger.cursor(only) as ledger:
                return question(ledger)

        return await self.workers.run(answer)

    async def extent(self) -> Extent:
        """Return the archived period or, without tables, the reason. The answer may be some seconds old.

        Every page needs it, so it does not wait for a worker.
        """
        now_s = time.monotonic()
        if self._extent is None or now_s - self._extent_s >= CHECK_EVERY_S:
            self._extent, self._extent_s = await asyncio.to_thread(self._read_extent), now_s
        return self._extent

    async def moment(self, at_ms: int) -> Moment:
        """Return the state at a moment; rebuild it, unless it is known or being rebuilt already.

        The rebuilding ends early when all callers that wait for it are cancelled.

        Args:
            at_ms: the moment in log time (epoch ms), inclusive.

        Raises:
            NoAnswer: the moment is not in the archived log, or too many requests wait.
        """
        extent = await self.extent()
        known = self._moments.get(at_ms)
        if known is not None and known.is_valid(extent):
            self._moments.move_to_end(at_ms)
            return known
        if extent.first_ms is None or extent.last_ms is None:
            raise NoAnswer(extent.reason, 404)
        try:
            refuse_outside(Period(extent.first_ms, extent.last_ms), at_ms)
        except InvalidUsage as error:
            raise NoAnswer(str(error)) from None
        last_ms = extent.last_ms
        job = self._jobs.get(at_ms)
        if job is None:
            job = self._jobs[at_ms] = self._begin(at_ms, last_ms)
        job.waiting += 1
        try:
            return await asyncio.shield(job.result)
        finally:
            job.waiting -= 1
            if not job.waiting:
                job.is_abandoned.set()
                job.result.cancel()
                if self._jobs.get(at_ms) is job:
                    del self._jobs[at_ms]

    def _read_extent(self) -> Extent:
        try:
            found: Period = self._ledger.extent()
        except InvalidUsage as problem:
            return Extent(reason=str(problem))
        if found.from_ms is None:
            return Extent(reason="the tables hold no records yet")
        return Extent(first_ms=found.from_ms, last_ms=found.to_ms)

    def _begin(self, at_ms: int, last_ms: int) -> _Job:
        job = _Job()
        job.result = asyncio.ensure_future(self._rebuilt(at_ms, last_ms, job))
        return job

    async def _rebuilt(self, at_ms: int, last_ms: int, job: _Job) -> Moment:
        source = await self.workers.run(lambda: self._rebuild(at_ms, job))
        regions = PageRegions(source, str(EpochMs(at_ms)), deployment=self._deployment)
        moment = Moment(at_ms=at_ms, regions=regions, last_ms=last_ms)
        self._moments[at_ms] = moment
        if len(self._moments) > self._most_moments:
            self._moments.popitem(last=False)
        return moment

    def _rebuild(self, at_ms: int, job: _Job) -> ViewSource:
        def go_on() -> None:
            """Return if a caller still waits.

            Raises:
                _Abandoned: no caller waits.
            """
            if job.is_abandoned.is_set():
                raise _Abandoned

        with self._ledger.cursor(SNAPSHOTS) as ledger:
            go_on()
            try:
                return ViewSource(model_of(ledger, self._topics, self._partitions, at_ms, go_on))
            except ValueError as error:
                raise NoAnswer(f"the state at {EpochMs(at_ms)} cannot be rebuilt: {error}", 500) from error
