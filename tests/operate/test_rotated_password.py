"""Passwords are changed while processes run: they end with the reason, and work again with the new files."""

from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.systems.secured_deployment import SecuredDeployment, secured_deployment
from tests.support.waiting import wait_until
from wakeroll_pipeline.local.ports import free_ports

pytestmark = pytest.mark.operate


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[SecuredDeployment]:
    """A deployment without its processes."""
    with secured_deployment(tmp_path) as deployment:
        yield deployment


def probe(port: int, path: str) -> str:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return f"{answer.status} {answer.read().decode()}"
    except HTTPError as error:
        return f"{error.code} {error.read().decode()}"
    except OSError as error:
        return type(error).__name__


def test_observer_and_page_end_and_work_again(secured: SecuredDeployment):
    """Nobody is told by a process that stays and calls itself ready, while no tick is delivered and no record read."""
    ports = dict(zip(("observe", "serve"), free_ports(2), strict=True))
    commands = {
        "observe": ("observer", "observer", ["observe", "--metrics-port", str(ports["observe"])]),
        "serve": ("page", "all", ["serve", "--port", str(ports["serve"])]),
    }

    def ready(name: str) -> bool:
        return probe(ports[name], "/readyz").startswith("200")

    for name, (user, keys, words) in commands.items():
        with secured.process(name, words, secured.options(user, keys)) as process:
            wait_until(lambda name=name: ready(name), f"{name} is ready", state=process.log_tail)
            secured.broker.rotate(user)
            secured.broker.restart()
            wait_until(lambda process=process: not process.is_running, f"{name} ends", state=process.log_tail)
            last = process.log_tail(lines=1)
            assert process.returncode == 1
            assert f"authentication failed for '{user}'" in last
        # `options` writes the file again, as the platform does with a changed Secret.
        with secured.process(f"{name}-again", words, secured.options(user, keys)) as process:
            wait_until(lambda name=name: ready(name), f"{name} works again", state=process.log_tail)
