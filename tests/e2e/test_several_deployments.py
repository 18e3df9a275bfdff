"""`wakeroll serve --deployment` as a process: two control planes on a real broker, and one whose broker is away."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.systems.changing_page import PASSWORD, USER, ChangingPage, changing_page
from tests.support.systems.page_client import PageClient
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll_model.events import Configure
from wakeroll_pipeline.serve.access.user_file import add_user

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def planes(broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ChangingPage]]:
    with (
        changing_page(broker.bootstrap, tmp_path_factory.mktemp("prod")) as prod,
        changing_page(broker.bootstrap, tmp_path_factory.mktemp("test")) as test,
    ):
        yield {"prod": prod, "test": test}


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], PageClient]]:
    """Run the command; provide the process, and a client of the address that it prints."""
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"(http://\S+)/ ", line)
        assert found, f"{line} {process.stderr and process.stderr.read()}"
        yield process, PageClient(found[1])
    finally:
        process.kill()
        process.communicate()


def test_several_deployments_are_one_page_of_which_each_part_works_by_itself(planes, tmp_path):
    """A change reaches the deployment on whose page it was requested, and no other one."""
    users, options = tmp_path / "users.toml", []
    add_user(users, USER, PASSWORD, groups=["test/*"])
    for name, plane in planes.items():
        file, settings = tmp_path / f"{name}.toml", plane.settings
        lines = {one: getattr(settings, one) for one in ("bootstrap", "prefix", "home", "keys")}
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()))
        options += ["--deployment", f"{name}={file}"]
    gone = tmp_path / "gone.toml"
    gone.write_text(f'bootstrap = "127.0.0.1:9"\nhome = "{tmp_path}"\nkeys = "{planes["prod"].settings.keys}"\n')
    options += ["--deployment", f"gone={gone}", "--allow-changes", "--auth-file", str(users)]
    group_id = "billing"
    with (
        member(planes["prod"], group_id),
        member(planes["test"], group_id),
        serving(*options) as (process, client),
    ):
        listed = wait_until(lambda: states(client) == ("live", "live", "stale") and rows(client), "two are followed")
        assert [(one["name"], one["groups"], one["members"]) for one in listed] == [
            ("prod", 1, 1),
            ("test", 1, 1),
            ("gone", 0, 0),
        ]
        assert "127.0.0.1:9" in listed[2]["health"]["notices"][0]["text"]
        assert client.get("/readyz").status == 200
        assert ready_by_deployment(client) == {"prod": 1, "test": 1, "gone": 0}

        client.log_in(USER, PASSWORD)
        paths = {name: f"/deployments/{name}/groups/{group_id}/change" for name in planes}
        forms = client.get(paths["test"])
        refused = client.post(f"{paths['prod']}/rebalance", forms.hidden(f"{paths['test']}/rebalance"))
        sent = client.post(f"{paths['test']}/rebalance", client.get(paths["test"]).hidden(f"{paths['test']}/rebalance"))
        assert (refused.status, sent.status) == (403, 303)
        assert sent.location.startswith("/deployments/test/changes/")
        wait_until(
            lambda: "Done: the group is rebalanced" in client.get(sent.location).plain, "the group is rebalanced"
        )
        assert {name: requested(plane, group_id) for name, plane in planes.items()} == {
            "prod": [],
            "test": [f"{USER}@127.0.0.1 via page"],
        }

        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        said = process.stderr.read()
        assert "Traceback" not in said
        assert "cannot follow the log: " in said


@contextmanager
def member(plane: ChangingPage, group_id: str) -> Iterator[Consumer]:
    """Run the only member of a group."""
    connection = plane.coordinator.connection
    topic = plane.coordinator.topic(1)
    with Consumer(group_id, [topic], connection.bootstrap, client_id="c1", prefix=connection.topics.prefix) as consumer:
        wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), "the member has its queue")
        yield consumer


def rows(client: PageClient) -> list[dict]:
    return json.loads(client.get("/api/deployments").text)["deployments"]


def states(client: PageClient) -> tuple[str, ...]:
    return tuple(one["health"]["state"] for one in rows(client))


def ready_by_deployment(client: PageClient) -> dict[str, float]:
    families = {one.name: one for one in text_string_to_metric_families(client.get("/metrics").text)}
    return {one.labels["deployment"]: one.value for one in families["wakeroll_ready"].samples}


def requested(plane: ChangingPage, group_id: str) -> list[str]:
    """Return who requested changes of a group."""
    heard = tuple(plane.coordinator.heard)
    return [one.by for one in heard if isinstance(one, Configure) and one.group_id == group_id]
