"""The two ways to start a worker: a command on this machine, and a request to an HTTP server."""

import contextlib
import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from wakeroll.errors import InvalidUsage
from wakeroll_model.queue import Queue
from wakeroll_model.sleeping_group import STUCK_MS

log = logging.getLogger("wakeroll")

SLICE_S = 0.05
"""Interval in which `Process.wait` checks whether the process has ended (s)."""

STOP_S = 30.0
"""How long a command may take to end after SIGTERM before it is killed (s): the default revoke timeout."""
REQUEST_S = 30.0
"""How long to wait for the answer to a request (s): for each read; twice as long for the whole answer."""
STUCK_S = STUCK_MS / 1_000
"""A requested worker counts as ended after this time without a decision about the group (s), because there is no
decision about its end if the coordinator lost its state."""
NAMED_BYTES = 64 * 1024
"""Longest value of WOKEN_QUEUES, bytes; Linux starts no process with a variable of more than 128 KiB."""


class GroupSize(NamedTuple):
    """How many members a group has now, and how many joined so far."""

    members: int
    joins: int
    heard: float = 0.0
    """When the newest decision about the group arrived (s, monotonic clock)."""


class Worker(Protocol):
    """A worker that was started."""

    def result(self, group: GroupSize) -> bool | None:
        """Return whether the worker has ended successfully; None while it works."""

    def stop(self) -> None:
        """Request the worker to end."""

    def wait(self) -> None:
        """Wait until the worker has ended, at most as long as it may take after `stop`."""


class Starter(Protocol):
    """Starts workers."""

    def start(self, group_id: str, queues: Sequence[Queue], group: GroupSize) -> Worker:
        """Start a worker for a group that has messages in these queues; without queues, the worker must only join."""


class CommandStarter:
    """Starts a command as a process. A worker ends with its process; exit status 0 is success."""

    def __init__(self, command: str, timeout: float | None) -> None:
        """Prepare.

        Args:
            command: program and arguments, quoted as in a shell; no shell is used.
            timeout: seconds after which a process is stopped; None: never.

        Raises:
            InvalidUsage: the command is empty, or there is no such program.
        """
        try:
            self._argv = shlex.split(command)
        except ValueError as problem:
            raise InvalidUsage(f"the command is {command!r}; it must be quoted as in a shell ({problem})") from None
        if not self._argv:
            raise InvalidUsage("the command is empty; it must be a program with its arguments")
        if shutil.which(self._argv[0]) is None:
            raise InvalidUsage(f"there is no program {self._argv[0]!r}; give its path, or the path in PATH")
        self._timeout = timeout

    def start(self, group_id: str, queues: Sequence[Queue], _: GroupSize) -> "Process":
        """Start the command with WOKEN_GROUP and WOKEN_QUEUES in its environment; the latter has at most `NAMED_BYTES`.

        Raises:
            OSError: the process cannot be started.
        """
        environment = {"WOKEN_GROUP": group_id, "WOKEN_QUEUES": _listed(queues)}
        return Process(self._argv, os.environ | environment, self._timeout)


class Process:
    """A command that was started."""

    def __init__(self, argv: Sequence[str], environment: dict[str, str], timeout: float | None) -> None:
        # A session of its own: Ctrl-C reaches only this process, which stops the command with all of its children.
        self._process = subprocess.Popen(argv, env=environment, start_new_session=True)
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._kill_at: float | None = None

    def __str__(self) -> str:
        return f"process {self._process.pid}"

    def result(self, _: GroupSize) -> bool | None:
        """Return whether the process ended with status 0; None while it runs."""
        status = self._process.poll()
        if status is not None:
            if self._kill_at is not None and self._is_there():  # its children
                if time.monotonic() <= self._kill_at:
                    return None
                self._signal(signal.SIGKILL)
            if status:
                log.warning("%s ended with %s", self, _in_words(status))
            return status == 0
        now = time.monotonic()
        if self._kill_at is not None and now > self._kill_at:
            self._signal(signal.SIGKILL)
        elif self._kill_at is None and self._deadline is not None and now > self._deadline:
            log.warning("%s runs for longer than its timeout; stopping it", self)
            self.stop()
        return None

    def stop(self) -> None:
        """Send SIGTERM; `result` and `wait` send SIGKILL if that has no effect."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + STOP_S
            self._signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until the process and its children have ended; kill them when their time after `stop` is over."""
        kill_at = time.monotonic() + STOP_S if self._kill_at is None else self._kill_at
        while self._is_there():
            if time.monotonic() > kill_at:
                self._signal(signal.SIGKILL)
                break
            time.sleep(SLICE_S)
        self._process.wait()

    def _is_there(self) -> bool:
        """Return whether the process or a child of it runs."""
        self._process.poll()  # else it would exist as a zombie
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # they run as another user
            return self._process.returncode is None
        return True

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


class HttpStarter:
    """Sends a POST request for each worker, which has ended when members have joined the group and left again."""

    def __init__(self, url: str, lease: float) -> None:
        """Prepare.

        Args:
            url: http or https address.
            lease: seconds within which a member must join the group after a request; else the request has failed.

        Raises:
            InvalidUsage: the address is not valid.
        """
        if not url.startswith(("http://", "https://")):
            raise InvalidUsage(f"the address is {url!r}; it must begin with http:// or https://")
        self._url = url
        self._lease = lease
        self._opener = urllib.request.build_opener(_NoRedirect)

    def start(self, group_id: str, queues: Sequence[Queue], group: GroupSize) -> "Request":
        """Send the request; its body is JSON: ``{"group": ..., "queues": [{"topic": ..., "queue_id": ...}]}``."""
        named = [{"topic": queue.topic, "queue_id": queue.queue_id} for queue in queues]
        body = json.dumps({"group": group_id, "queues": named}).encode()
        answer: Future[None] = Future()
        # A daemon: the end of this process does not wait for a server that does not answer.
        threading.Thread(target=self._send, args=(body, answer), name="wake", daemon=True).start()
        return Request(answer, group.joins, self._lease)

    def _send(self, body: bytes, answer: Future[None]) -> None:
        try:
            request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"}, method="POST")
            with self._opener.open(request, timeout=REQUEST_S):
                pass
        except Exception as problem:
            answer.set_exception(problem)
        else:
            answer.set_result(None)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error: the request would be repeated as GET, which starts no worker."""

    def redirect_request(self, *_: object) -> None:
        """Follow no redirect."""


class Request:
    """A request that was sent."""

    def __init__(self, answer: Future[None], joins: int, lease: float) -> None:
        self._answer = answer
        self._joins = joins
        self._lease = lease
        self._answered: float | None = None
        self._sent = time.monotonic()

    def __str__(self) -> str:
        return "the request"

    def result(self, group: GroupSize) -> bool | None:
        """Return whether members joined and left again; False after an error or the lease; None before that."""
        now = time.monotonic()
        if not self._answer.done():
            if now - self._sent < 2 * REQUEST_S:
                return None
            log.warning("the request failed: no complete answer within %g s", 2 * REQUEST_S)
            return False
        if (problem := self._answer.exception()) is not None:
            log.warning("the request failed: %s", problem)
            return False
        if group.joins > self._joins:
            return True if not group.members or now - group.heard > STUCK_S else None
        self._answered = self._answered or now
        if now - self._answered < self._lease:
            return None
        log.warning("the request was answered, but no member joined the group within %g s", self._lease)
        return False

    def stop(self) -> None:
        """Do nothing: the server stops its workers."""

    def wait(self) -> None:
        """Do nothing: the server's workers are not waited for."""


def _listed(queues: Sequence[Queue]) -> str:
    """Return the queues, separated by spaces, as many as the environment of a process has room for."""
    text = " ".join(map(str, queues))
    return text if len(text) <= NAMED_BYTES else text[:NAMED_BYTES].rpartition(" ")[0]


def _in_words(status: int) -> str:
    """Return an exit status in words.

    >>> _in_words(1), _in_words(-9)
    ('status 1', 'signal 9')
    """
    return f"signal {-status}" if status < 0 else f"status {status}"
