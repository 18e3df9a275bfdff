"""The changes that users requested: each runs in a thread, and its state is shown until newer ones replace it."""

import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from wakeroll.errors import RequestRefused, RequestUnanswered, WakerollError
from wakeroll_pipeline.serve.page_threads import DaemonThreads

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Maximum number of changes and plans that are carried out at the same time; each waits for the coordinator."""
MOST_WAITING = 20
"""Maximum number of changes that wait for a thread or for the coordinator; more are refused."""
MOST_KEPT = 200
"""Maximum number of changes whose state is kept."""

_OTHER_KEY = (
    "The coordinator does not know the operator's key of this page: add the key to the coordinator's file and restart "
    "`wakeroll run`"
)

State = Literal["waiting", "done", "refused", "unanswered", "failed"]


@dataclass(frozen=True)
class Result:
    """The result of a change."""

    sentence: str
    notes: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    text: str = ""
    """Lines that are shown unchanged."""


@dataclass
class Job:
    """One change."""

    group_id: str
    title: str
    by: str
    token: str
    """Token of the form that requested it."""
    job_id: str = field(default_factory=lambda: secrets.token_hex(8))
    began_s: float = field(default_factory=time.monotonic)
    state: State = "waiting"
    result: Result = Result("")
    remedy: str = ""

    @property
    def waited_s(self) -> int:
        """Time since the request (s)."""
        return int(time.monotonic() - self.began_s)


class ChangeJobs:
    """Carries out changes, a few at the same time."""

    def __init__(self) -> None:
        self.threads = DaemonThreads("change", AT_ONCE, MOST_WAITING)
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    def begin(self, job: Job, work: Callable[[], Result]) -> None:
        """Carry out a change in a thread.

        Raises:
            Refused: too many changes are waiting.
        """
        self.threads.submit(partial(_carry_out, job, work))
        self._jobs[job.job_id] = job
        while len(self._jobs) > MOST_KEPT:
            self._jobs.popitem(last=False)
        log.info("%s requests for group %s: %s", job.by, job.group_id, job.title)

    def get(self, job_id: str) -> Job | None:
        """Return a change; None if it does not exist, or newer ones have replaced it."""
        return self._jobs.get(job_id)

    def of_token(self, token: str) -> Job | None:
        """Return the change that a form has requested; None if there is none."""
        return next((job for job in self._jobs.values() if job.token == token), None)


def _carry_out(job: Job, work: Callable[[], Result]) -> None:
    """Run a change and note its end. The state is set last: other threads read the result only after that."""
    job.result, job.remedy, state = _end_of(job, work)
    job.state = state
    log.info("%s's request for group %s: %s (%s)", job.by, job.group_id, state, job.result.sentence)


def _end_of(job: Job, work: Callable[[], Result]) -> tuple[Result, str, State]:
    """Run a change; return its result, advice for the user, and its state."""
    try:
        return work(), "", "done"
    except RequestRefused as refused:
        return Result(str(refused)), _OTHER_KEY if refused.rule == "signature" else "", "refused"
    except RequestUnanswered as unanswered:
        return Result(str(unanswered)), "", "unanswered"
    except (WakerollError, OSError) as problem:
        return Result(str(problem)), "", "failed"
    except Exception:
        log.exception("a change of group %s failed", job.group_id)
        return Result("an internal error; the log of `wakeroll serve` has the details"), "", "failed"
