"""A cold start: a process waits for brokers and stores that start later than itself.

It does not end with an error, because a supervisor would restart it with longer and longer pauses, so it would begin
minutes after the brokers. It still ends if waiting does not help, as for a wrong login.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from wakeroll.errors import AccessDenied, LoginFailed, NotReachable
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka.control_topics import FewerBrokers
from wakeroll_pipeline.metrics.health import Health
from wakeroll_pipeline.storage.small_files import StorageDenied, StorageFailed

log = logging.getLogger(__name__)

T = TypeVar("T")

_AGAIN_S = 1.0
"""Pause between two attempts (s); an attempt itself waits for the brokers too."""


def when_reachable(attempt: Callable[[], T], health: Health, *, meanwhile: Callable[[], object] | None = None) -> T:
    """Repeat an attempt until brokers and stores answer, and return its result.

    The log has one line when the wait begins and one when it ends; `/readyz` has the reason meanwhile.

    Args:
        attempt: called until it succeeds; its exception is raised only if waiting does not help.
        health: health of this process.
        meanwhile: called once, when the first attempt has failed, for preparations that do not need brokers or stores.

    Raises:
        LoginFailed, AccessDenied, StorageDenied: brokers or a store refuse this process.
    """
    trouble = Trouble(log, "what this process waited for is there; it starts now")
    while True:
        health.beat("start")
        try:
            result = attempt()
        except (LoginFailed, AccessDenied, StorageDenied):
            raise
        except (NotReachable, StorageFailed, FewerBrokers) as error:
            health.awaits(str(error))
            trouble.began(f"{error}; waiting for it")
            if meanwhile is None:
                time.sleep(_AGAIN_S)
            else:
                meanwhile()
                meanwhile = None
        else:
            trouble.ended()
            health.begun("start")
            return result
