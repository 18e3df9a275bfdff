"""A real S3 server for tests: moto's server, in a process of its own, with a proxy in front that can fail.

Every request goes through the proxy, so a test can make the store slow, let it refuse requests, or kill it, and can
look at the requests that the clients send.
"""

import http.client
import http.server
import os
import re
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, Self

from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.s3_access import S3Access

BUCKET = "bucket"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "not-a-secret-but-long-enough"}
"""Credentials; the server accepts any."""

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
_READY_S = 60.0


class Request(NamedTuple):
    """A request of a client, and the status of the answer; 0 if there was none."""

    method: str
    path: str
    headers: Mapping[str, str]
    status: int


class S3Server:
    """The store and its proxy.  Its content is in memory: a killed server has lost it, so `stop_answering` is there."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[Request] = []
        self.every_nth_fails = 0
        """One of so many requests is answered 503; 0: none."""
        self.delay_s = 0.0
        """Time that an answer takes longer."""
        self.is_dead = False
        """Whether connections are closed without an answer."""
        self.dies_after: int | None = None
        """Number of requests that are still answered; None: all."""
        self.revoked: set[str] = set()
        """Access keys that are rejected."""
        self.policy: Mapping[str, Any] | None = None
        """Policy of IAM that says what the clients may do; None: everything."""
        self._moto = Child(
            "moto",
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            log=folder / "moto.log",
            env={**os.environ, **KEYS},
        )
        self._lock = threading.Lock()
        self._counted = 0
        self._proxy = _Proxy(self)

    def __enter__(self) -> Self:
        self._moto.start()
        self._moto.wait_until(lambda: self._found_port() is not None, _READY_S)
        self.port = self._found_port() or 0
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        self.make_bucket(BUCKET)
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()
        self._moto.stop()

    @property
    def endpoint(self) -> str:
        """The URL of the proxy."""
        return f"http://127.0.0.1:{self._proxy.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client finds in its environment: AWS's own variables."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": "us-east-1"}

    def place(self, path: str) -> Place:
        """Return a place in the bucket."""
        return Place.of(f"s3a://{BUCKET}/{path}", S3Access(self.endpoint, "us-east-1"))

    def make_bucket(self, name: str) -> None:
        """Create a bucket."""
        headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request"}
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT", headers=headers)
        with urllib.request.urlopen(request, timeout=30):
            pass

    @contextmanager
    def failing(
        self, *, every_nth: int = 0, delay_s: float = 0.0, is_dead: bool = False, dies_after: int | None = None
    ) -> Iterator[None]:
        """Fail during a `with` block."""
        self.every_nth_fails, self.delay_s, self.is_dead, self.dies_after = every_nth, delay_s, is_dead, dies_after
        try:
            yield
        finally:
            self.every_nth_fails, self.delay_s, self.is_dead, self.dies_after = 0, 0.0, False, None

    def seen(self, method: str, pattern: str = "") -> list[Request]:
        """Return the requests of a method whose path has a match of a pattern."""
        with self._lock:
            return [one for one in self.requests if one.method == method and re.search(pattern, one.path)]

    def note(self, request: Request) -> None:
        """Keep what a client asked for."""
        with self._lock:
            self.requests.append(request)

    def fails_now(self) -> bool:
        """Return whether the next request is one that is refused; count it."""
        with self._lock:
            self._counted += 1
            if self.dies_after is not None:
                self.is_dead = self.dies_after <= 0
                self.dies_after -= 1
            return bool(self.every_nth_fails) and self._counted % self.every_nth_fails == 0

    def _found_port(self) -> int | None:
        with suppress(FileNotFoundError):
            found = re.findall(r"Running on http://127\.0\.0\.1:(\d+)", self._moto.log.read_text(encoding="utf-8"))
            return int(found[-1]) if found else None
        return None


class _Proxy(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.s3 = server

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that were killed."""


class _Answer(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Proxy

    def _answer(self) -> None:
        s3 = self.server.s3
        body = self._body()
        if s3.delay_s:
            time.sleep(s3.delay_s)
        is_refused = s3.fails_now()
        if s3.is_dead:
            s3.note(Request(self.command, self.path, {name.title(): value for name, value in self.headers.items()}, 0))
            self.close_connection = True
            return
        if is_refused:
            self._refuse(503, "SlowDown", "Please reduce your request rate.")
            return
        if any(f"Credential={key}/" in self.headers.get("Authorization", "") for key in s3.revoked):
            self._refuse(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
            return
        if s3.policy is not None and not is_allowed(s3.policy, self.command, self.path):
            self._refuse(403, "AccessDenied", "Access Denied")
            return
        upstream = http.client.HTTPConnection("127.0.0.1", s3.port, timeout=120)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in (*_HOP_BY_HOP, "expect"):
                    upstream.putheader(name, value)
            upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body)
            found = upstream.getresponse()
            content = found.read()
        finally:
            upstream.close()
        s3.note(
            Request(
                self.command, self.path, {name.title(): value for name, value in self.headers.items()}, found.status
            )
        )
        self.send_response_only(found.status)
        for name, value in found.getheaders():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        length = found.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        if length is not None:
            self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815 - the interface of http.server

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {name.title(): value for name, value in self.headers.items()}
        self.server.s3.note(Request(self.command, self.path, headers, status))
        content = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(0 if self.command == "HEAD" else len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing on the test's output."""


def is_allowed(policy: Mapping[str, Any], method: str, path: str) -> bool:
    """Return whether a policy of IAM with `Allow` statements allows a request of S3, as AWS's documentation has it."""
    url = urllib.parse.urlsplit(path)
    bucket, _, key = urllib.parse.unquote(url.path).removeprefix("/").partition("/")
    query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
    if "delete" in query or method == "DELETE":
        action = "s3:DeleteObject"
    elif method in ("PUT", "POST"):
        action = "s3:PutObject"
    else:
        action = "s3:GetObject" if key else "s3:ListBucket"
    resource = f"arn:aws:s3:::{bucket}/{key}" if key else f"arn:aws:s3:::{bucket}"
    prefix = query.get("prefix", [""])[0]
    return any(
        fnmatchcase(action, statement["Action"])
        and fnmatchcase(resource, statement["Resource"])
        and all(
            any(fnmatchcase(prefix, pattern) for pattern in condition["s3:prefix"])
            for condition in statement.get("Condition", {}).values()
        )
        for statement in policy["Statement"]
    )
