"""A real HTTP server that receives notifications."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver(ThreadingHTTPServer):
    """An HTTP server that keeps what it receives, and answers as it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        """Status of the next answers; then 204."""
        self.hangs = threading.Event()
        self.hangs.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/secret-path"

    def told(self) -> list[str]:
        return [
            f"{one['event']} {one['group_id']}"
            for _, body in tuple(self.received)
            for one in json.loads(body)["notifications"]
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.hangs.wait(60)
        status = self.server.answers.pop(0) if self.server.answers else 204
        if status == 204:
            self.server.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://elsewhere.example/other")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver during the block."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.hangs.set()
        server.shutdown()
        thread.join()
