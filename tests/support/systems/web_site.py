"""The web page, served by a thread of this process, for tests that open it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until
from wakeroll_pipeline.serve.access.access_options import AccessOptions
from wakeroll_pipeline.serve.web_app import WebApp
from wakeroll_pipeline.serve.web_server import PageServer, listening, serve
from wakeroll_pipeline.settings import Settings


@contextmanager
def served(
    settings: Settings, access: AccessOptions | None = None, port: int = 0, notify: Path | None = None
) -> Iterator[str]:
    """Serve the page of a deployment; provide its address without the last slash.  Port 0: the system chooses one."""
    told: list[tuple[str, Any]] = []
    thread = threading.Thread(
        target=serve,
        args=(settings, "127.0.0.1", port, lambda *address: told.append(address), access, notify),
        daemon=True,
    )
    thread.start()
    address, server = wait_until(lambda: told and told[0], "the page is served")
    wait_until(lambda: server.started, "the server answers")
    yield address.rstrip("/")
    server.should_exit = True
    thread.join()


@contextmanager
def answering(web: WebApp, beat: Callable[[str], object] = lambda _: None) -> Iterator[str]:
    """Serve an application on a port that the system chooses; provide its address without the last slash.

    `beat` receives the name of the loop that answers.
    """
    with listening("127.0.0.1", 0) as listener:
        server = PageServer(web, beat=beat)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_until(lambda: server.started, "the server answers")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()
