"""Logs of a process: as text, or one JSON object per line on standard error, including lines of libraries."""

import atexit
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec
from rich.console import Console

from wakeroll.epoch_ms import EpochMs, now_ms

_USUAL = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""Attributes of every log record; all others are fields of `extra`."""
_LIBRDKAFKA = re.compile(r"%(?P<severity>[0-7])\|[\d.]+\|(?P<message>.*)")
"""A log line of Kafka's client: severity as in syslog, time (s), facility, client, text."""
_SEVERITIES = ("CRITICAL", "CRITICAL", "CRITICAL", "ERROR", "WARNING", "INFO", "INFO", "DEBUG")
_CHUNK_BYTES = 64 * 1024
_LAST_LINES_S = 0.2
"""Longest wait at the end of the process for lines that were written but not forwarded yet (s)."""


class TextFormatter(logging.Formatter):
    """Formats a record as one line: time of day, level, logger, message; further lines of it are indented.

    Control characters are escaped, so that names and texts of clients cannot look like separate records.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        lines = super().format(record).split("\n")
        return "\n    ".join("".join(one if one.isprintable() else repr(one)[1:-1] for one in line) for line in lines)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time (RFC 3339, UTC), level, logger, message, the fields of `extra`.

    A traceback is the field `exception`. A value without a form in JSON is converted to text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        fields = {name: value for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        at_ms = int(record.created * 1_000)
        return line_of(at_ms, record.levelname, record.name, record.getMessage(), fields)


def line_of(at_ms: int, level: str, logger: str, message: str, fields: Mapping[str, Any] | None = None) -> str:
    """Return one line; further fields never have the names of the first four.

    Args:
        at_ms: time of the record, epoch milliseconds.
        level: Python's name of the level, such as WARNING.
        logger: name of the logger.
        message: one sentence.
        fields: further fields.
    """
    first = {"time": str(EpochMs(at_ms)), "level": level, "logger": logger, "message": message}
    return msgspec.json.encode({**(fields or {}), **first}, enc_hook=str).decode()


def record_of(line: str, at_ms: int) -> str:
    """Return a line of another library as a record; a line that is a JSON object is returned unchanged.

    >>> record_of("%4|1700000000.1|FAIL|rdkafka#producer-1| broker down", 0)
    '{"time":"1970-01-01T00:00:00.000Z","level":"WARNING","logger":"librdkafka","message":"FAIL|rdkafka#producer-1| broker down"}'
    """  # noqa: E501
    if line.startswith("{"):
        try:
            msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeError):
            pass
        else:
            return line
    if found := _LIBRDKAFKA.fullmatch(line):
        return line_of(at_ms, _SEVERITIES[int(found["severity"])], "librdkafka", found["message"])
    return line_of(at_ms, "WARNING", "stderr", line)


class StandardError(threading.Thread):
    """Replaces standard error by a pipe, and writes each line that comes through it as a record.

    Kafka's client, the JVM and its children write to this file by its number, without Python's `logging`.
    """

    def __init__(self) -> None:
        """Replace standard error until the process ends."""
        super().__init__(name="standard-error", daemon=True)
        sys.stderr.flush()
        self.real = os.dup(2)
        """File descriptor of the original standard error."""
        self._pipe, into = os.pipe()
        os.dup2(into, 2)
        os.close(into)
        self._ended = threading.Event()
        self._rest = b""

    def run(self) -> None:
        """Forward lines until all writers have closed the pipe, or `close` has ended it."""
        while chunk := os.read(self._pipe, _CHUNK_BYTES):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._write(line)
        self._write(self._rest)
        self._ended.set()

    def close(self) -> None:
        """Give the process its standard error back, and wait for the last lines, unless a child still has the pipe."""
        sys.stderr.flush()
        os.dup2(self.real, 2)
        self._ended.wait(_LAST_LINES_S)

    def _write(self, line: bytes) -> None:
        if text := line.decode("utf-8", "replace").rstrip():
            with suppress(OSError):  # nobody reads any more; without a reader of the pipe, all writers would block
                os.write(self.real, f"{record_of(text, now_ms())}\n".encode())


def log_as_json() -> None:
    """Write all logs of this process as JSON from now on, including unexpected errors and warnings; call it once."""
    if is_json():
        return
    pump = StandardError()
    pump.start()
    handler = logging.StreamHandler(os.fdopen(pump.real, "w", encoding="utf-8", errors="replace", closefd=False))
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], force=True)
    logging.captureWarnings(True)
    warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}"
    sys.excepthook = _log_error
    threading.excepthook = lambda given: _log_error(given.exc_type, given.exc_value, given.exc_traceback)
    atexit.register(pump.close)


def is_json() -> bool:
    """Return whether this process writes its logs as JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def _log_error(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if error is not None and not issubclass(kind, KeyboardInterrupt | SystemExit):
        logging.getLogger("wakeroll").critical("unexpected error: %s", error, exc_info=(kind, error, trace))


def complain(sentence: str) -> None:
    """Write an error about the tables or the usage to standard error, in the format of the logs."""
    if is_json():
        logging.getLogger("wakeroll").error("%s", sentence)
    else:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"wakeroll: {sentence}", markup=False)
