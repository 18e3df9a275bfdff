"""`wakeroll serve` during a measurement, and readers of its event streams, of which one may never read."""

import asyncio
import http.client
import json
import os
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from bench.figures import Latency, latency_of
from bench.frame import NotMeasured
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.settings import Settings

READY_S = 240.0
"""Longest wait until the log is read (s)."""
_ADDRESS = re.compile(rb"http://\S+:\d+/")
_ANSWER_S = 10.0


class ServedPage(Child):
    """`wakeroll serve` as a child process, on a port that the system chooses."""

    def __init__(self, settings: Settings, log: Path) -> None:
        """Describe the process; `log` must not exist yet, because the address is read from it."""
        super().__init__(
            "wakeroll serve",
            [sys.executable, "-m", "wakeroll_pipeline.cli", "serve", "--port", "0", "--bootstrap", settings.bootstrap],
            log=log,
            env={**os.environ, **settings.environment()},
            grace_s=15,
        )
        self.address = ""
        """Of the page, once it listens."""

    def until_ready(self) -> float:
        """Wait until the page shows the present; return the seconds since this call.

        Raises:
            ChildFailed: it ended, or was not ready in time.
        """
        began_s = time.monotonic()
        self.wait_until(self._is_ready, READY_S)
        return time.monotonic() - began_s

    def get(self, path: str, timeout_s: float = _ANSWER_S) -> str:
        """Return the text of a page.

        Raises:
            NotMeasured: it is not answered with 200.
            OSError: no answer.
        """
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise NotMeasured(f"GET {path} was answered with {answer.status}: {text[-2_000:]}")
        return text

    def health(self) -> dict[str, Any]:
        """Return what the page says of itself; its `state` is such as ``live``."""
        return dict(json.loads(self.get("/api/groups?limit=1", timeout_s=30))["health"])

    def _is_ready(self) -> bool:
        if not self.address:
            told = _ADDRESS.search(self.log.read_bytes())
            if told is None:
                return False
            self.address = told[0].decode()
        try:
            self.get("/readyz")
        except (NotMeasured, OSError):
            return False
        return True


_VISITOR = re.compile(rb"visitor-\d{6}")
_LIMIT_BYTES = 16 * 1024 * 1024
"""Largest chunk of a stream that a reader accepts."""
_SMALL_BYTES = 4_096
"""Receive buffer of the reader that never reads, so that the server soon cannot send to it."""
_CONNECT_S = 30.0


class Heard(Struct, frozen=True):
    """What all readers received in the seconds that count."""

    events: int
    bytes: int
    latency: Latency
    """From the join of a client to the event that shows it, at each reader of that group."""
    unsent_bytes: int
    """What the server's socket holds at the end for the reader that never reads; 0 without one."""


class _Counter:
    """Counts events while it is on."""

    def __init__(self, changes: Mapping[str, float]) -> None:
        self.is_on = False
        self.events = 0
        self.bytes = 0
        self.latencies_ms: list[int] = []
        self._changes = changes
        self._since_s = 0.0

    def begin(self) -> None:
        """Count from now on; changes before now do not count."""
        self.is_on, self._since_s = True, time.monotonic()

    def note(self, event: bytes, seen: set[bytes]) -> None:
        """Count an event of one reader, which has `seen` these changes so far."""
        now_s = time.monotonic()
        new = set(_VISITOR.findall(event)) - seen
        seen |= new
        if not self.is_on:
            return
        self.events += 1
        self.bytes += len(event)
        for name in new:
            appended_s = self._changes.get(name.decode())
            if appended_s is not None and appended_s >= self._since_s:
                self.latencies_ms.append(round((now_s - appended_s) * 1_000))


async def listen(
    address: str, paths: Sequence[str], slow: str | None, changes: Mapping[str, float], warmup_s: float, seconds: float
) -> Heard:
    """Read streams for some time.

    Args:
        address: of the page, ``http://host:port/``.
        paths: one stream each.
        slow: path of one more stream that is opened and never read; None: there is none.
        changes: client id -> when it joined (s, monotonic clock); it grows meanwhile.
        warmup_s: before the seconds that count.
        seconds: that count.

    Raises:
        NotMeasured: a stream was refused, or ended early.
    """
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or 80
    counter = _Counter(changes)
    stalled = _never_read(host, port, slow) if slow is not None else None
    tasks = [asyncio.create_task(_read(host, port, path, counter)) for path in paths]
    try:
        await _unless_failed(tasks, warmup_s)
        counter.begin()
        await _unless_failed(tasks, seconds)
        unsent = _unsent(stalled) if stalled is not None else 0
        return Heard(counter.events, counter.bytes, latency_of(counter.latencies_ms), unsent)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if stalled is not None:
            stalled.close()


async def _unless_failed(tasks: Sequence[asyncio.Task[None]], seconds: float) -> None:
    if not tasks:
        await asyncio.sleep(seconds)
        return
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        await task


async def _read(host: str, port: int, path: str, counter: _Counter) -> None:
    opening = asyncio.open_connection(host, port, limit=_LIMIT_BYTES)
    reader, writer = await asyncio.wait_for(opening, _CONNECT_S)
    try:
        writer.write(_request(host, port, path))
        status = await asyncio.wait_for(reader.readline(), _CONNECT_S)
        if b" 200 " not in status:
            raise NotMeasured(f"{path} answered {status.decode(errors='replace').strip()!r}, not 200")
        await reader.readuntil(b"\r\n\r\n")
        seen: set[bytes] = set()
        async for event in _events(reader):
            counter.note(event, seen)
        raise NotMeasured(f"the stream {path} has ended")
    except asyncio.IncompleteReadError:
        raise NotMeasured(f"the connection of {path} was cut") from None
    except OSError as problem:
        raise NotMeasured(f"the stream {path} cannot be read: {problem}") from None
    finally:
        writer.close()


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the events of a chunked response."""
    rest = b""
    while size := int(await reader.readline() or b"0", 16):
        rest += (await reader.readexactly(size + 2))[:-2]
        *events, rest = rest.split(b"\n\n")
        for event in events:
            if event.startswith(b"event: "):
                yield event


def _never_read(host: str, port: int, path: str) -> socket.socket:
    stalled = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BYTES)
    stalled.settimeout(_CONNECT_S)
    stalled.connect((host, port))
    stalled.sendall(_request(host, port, path))
    return stalled


def _unsent(stalled: socket.socket) -> int:
    """Return how many bytes wait at the other end of a connection within this machine, by Linux's table of sockets."""
    here, there = (address[1] for address in (stalled.getsockname(), stalled.getpeername()))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            _, local, remote, _, queues, *_ = line.split()
            if (int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)) == (there, here):
                return int(queues.partition(":")[0], 16)
    return 0


def _request(host: str, port: int, path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n\r\n".encode()
