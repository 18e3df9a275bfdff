"""The image in deploy/container, built and run: each role works with few rights, and ends in good order."""

import json
import os
import socket
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.support.systems.containers import IMAGE, WHY_NOT, Podman
from tests.support.systems.fleet import make_topic
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll import Consumer
from wakeroll.connection import Connection, Topics
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.broker_settings import Node
from wakeroll_pipeline.local.ports import HOST, free_ports

pytestmark = [pytest.mark.container, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

LARGEST_BYTES = 1_350_000_000
"""Of the image; deploy/container/README.md has the parts of its size."""
GRACE_S = 90

until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    with Podman(tmp_path_factory.mktemp("podman")) as podman:
        yield podman


@pytest.fixture(scope="module")
def image(podman: Podman) -> str:
    return podman.build()


def address_of_this_machine() -> str:
    """Return an address of this machine that others can reach; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        return address


def status(port: int, path: str) -> int:
    """Return the status of an answer; 0: nobody listens yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_the_image_is_as_small_as_its_page_says(podman: Podman, image: str, tell):
    size = int(podman("image", "inspect", "--format", "{{.Size}}", image).stdout)

    tell(f"the image has {size / 1e6:.0f} MB")
    assert size < LARGEST_BYTES


def test_the_image_is_no_roots_and_has_labels(podman: Podman, image: str):
    [found] = json.loads(podman("image", "inspect", image).stdout)

    assert found["User"] == "10001:10001"
    assert found["Config"]["Entrypoint"] == ["tini", "--", "wakeroll"]
    assert found["Labels"]["org.opencontainers.image.title"] == "wakeroll"
    assert len(found["Labels"]["org.opencontainers.image.revision"]) == 40


def test_a_release_replaces_only_the_last_small_layers(podman: Podman, image: str, tell):
    """Who pulls it again has Debian, Java, the packages of others and the JARs already."""
    layers = json.loads(podman("image", "inspect", "--format", "{{json .RootFS.Layers}}", image).stdout)
    history = json.loads(podman("history", "--format", "json", image).stdout)
    sizes = [size for step in history if (size := step.get("size", 0))]
    if IMAGE in os.environ:
        pytest.skip("the image was not built here")
    released = podman.build(changed="wakeroll/py.typed")
    others = json.loads(podman("image", "inspect", "--format", "{{json .RootFS.Layers}}", released).stdout)

    same = sum(one == other for one, other in zip(layers, others, strict=True))
    new_bytes = sum(sizes[: len(layers) - same])
    tell(f"{same} of {len(layers)} layers are the same; the others have {new_bytes / 1e6:.1f} MB")
    assert 0 < len(layers) - same <= 2
    assert new_bytes < 15e6


def test_the_bill_of_materials_lists_all_of_the_image(podman: Podman, image: str):
    bill = json.loads(podman("run", "--rm", "--entrypoint", "cat", image, "/opt/wakeroll/bom.json").stdout)

    named = {one["name"] for one in bill["components"]}
    assert {"wakeroll", "pyspark", "spark-core_2.13", "delta-storage", "openjdk", "tini", "libc6"} <= named
    assert not {"pip", "setuptools", "hatchling", "openjdk-17-jdk-headless"} & named


def test_each_role_works_with_few_rights_and_ends_with_0(broker, podman: Podman, image: str, tell):
    """Read-only, without capabilities and as a user without rights, as platforms require it."""
    prefix = f"boxed-{uuid.uuid4().hex[:6]}"
    jobs_port, observer_port, page_port = free_ports(3)
    connection = Connection(broker.bootstrap, topics=Topics(prefix))
    make_topic(connection, f"{prefix}-orders", 4)

    def environment(port: int) -> Mapping[str, str]:
        named = {"BOOTSTRAP": broker.bootstrap, "PREFIX": prefix, "LOG_FORMAT": "json", "METRICS_PORT": str(port)}
        named["KEYS"] = "/var/lib/wakeroll/keys.toml"
        return {f"WAKEROLL_{name}": value for name, value in named.items()}

    where = ["--volume", f"{podman.volume}:/var/lib/wakeroll"]
    refused = podman("run", "--rm", *where, image, "observe", "--bootstrap", broker.bootstrap, is_checked=False)
    assert (refused.returncode, "no key file is named" in refused.stderr) == (2, True)
    podman("run", "--rm", *where, image, "keys", "ensure", "--file", "/var/lib/wakeroll/keys.toml")
    jobs = podman.start(image, "run", environment=environment(jobs_port))
    observer = podman.start(image, "observe", environment=environment(observer_port))
    page = podman.start(image, "serve", "--port", str(page_port), environment=environment(jobs_port))
    logs = {name: partial(podman.logs, name) for name in (jobs, observer, page)}
    begun = time.monotonic()
    for port, name in ((jobs_port, jobs), (observer_port, observer), (page_port, page)):
        until(lambda port=port: status(port, "/readyz") == 200, f"{name} is ready", state=logs[name])
        assert status(port, "/healthz") == 200
    tell(f"ready {time.monotonic() - begun:.0f} s after the start of the containers")

    owned: dict[str, set[int]] = {}
    consumers = [
        Consumer(
            "billing",
            [f"{prefix}-orders"],
            broker.bootstrap,
            client_id=name,
            prefix=prefix,
            on_assigned=lambda _, queues, name=name: owned.setdefault(name, set()).update(
                one.queue_id for one in queues
            ),
            on_revoked=lambda _, queues, name=name: owned[name].difference_update(one.queue_id for one in queues),
        )
        for name in ("c1", "c2")
    ]
    until(
        lambda: sorted(len(queues) for queues in owned.values()) == [2, 2],
        "two consumers own two queues each",
        between=lambda: [one.poll(0.1) for one in consumers],
        state=lambda: owned,
    )
    assert set.union(*owned.values()) == {0, 1, 2, 3}
    with urllib.request.urlopen(f"http://127.0.0.1:{page_port}/api/groups", timeout=30) as answer:
        assert [one["group_id"] for one in json.load(answer)["groups"]] == ["billing"]
    for name in (jobs, observer):
        assert podman("healthcheck", "run", name, is_checked=False).returncode == 0
    tell(podman("stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}", jobs, observer, page).stdout)
    for one in consumers:
        one.close()

    begun = time.monotonic()
    assert [podman.stop(name, GRACE_S) for name in (page, jobs, observer)] == [0, 0, 0]
    tell(f"all stopped in {time.monotonic() - begun:.0f} s")
    for name in (jobs, observer, page):
        text = podman.logs(name)
        assert "Traceback" not in text
        assert all(json.loads(line)["message"] for line in text.splitlines()), text


def test_the_tables_outlive_the_container_and_are_read_without_java(podman: Podman, image: str):
    """A question is a container of its own, on the same volume."""
    where = ["--volume", f"{podman.volume}:/var/lib/wakeroll:ro"]
    groups = podman("run", "--rm", "--read-only", "--network", "none", *where, image, "groups", "--json").stdout

    assert [one["group_id"] for one in json.loads(groups)["groups"]] == ["billing"]


@pytest.fixture
def reachable_broker(tmp_path: Path) -> Iterator[str]:
    """The address of a broker that containers with a network of their own reach."""
    port, controller = free_ports(2)
    listeners = f"CLIENTS://0.0.0.0:{port},CONTROLLER://{HOST}:{controller}"
    address = f"{address_of_this_machine()}:{port}"
    settings = {"listeners": listeners, "advertised.listeners": f"CLIENTS://{address}"}
    with EmbeddedBroker(tmp_path / "broker", port=port, node=Node(1, {1: controller}), settings=settings):
        yield address


def test_compose_starts_the_control_plane_as_its_file_says(
    reachable_broker: str, podman: Podman, image: str, tmp_path: Path, tell
):
    """The three services share a volume and a network, and read the settings of a folder."""
    settings = tmp_path / "settings"
    settings.mkdir(mode=0o755)
    (settings / "wakeroll.toml").write_text('prefix = "composed"\n')
    make_topic(Connection(reachable_broker, topics=Topics("composed")), "orders", 4)
    [port] = free_ports(1)
    environment = {
        "WAKEROLL_IMAGE": image,
        "KAFKA_BOOTSTRAP": reachable_broker,
        "WAKEROLL_PORT": str(port),
        "WAKEROLL_SETTINGS": str(settings),
    }
    logs = partial(podman.compose, "logs", **environment)
    podman.compose("up", "--detach", **environment)
    try:
        until(lambda: status(port, "/readyz") == 200, "the page is ready", state=lambda: logs().stdout)
        owned: set[int] = set()
        with Consumer(
            "billing",
            ["orders"],
            reachable_broker,
            client_id="c1",
            prefix="composed",
            on_assigned=lambda _, queues: owned.update(one.queue_id for one in queues),
        ) as consumer:
            until(
                lambda: owned == {0, 1, 2, 3},
                "a consumer owns all queues",
                between=lambda: consumer.poll(0.1),
                state=lambda: logs().stdout,
            )
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/groups", timeout=30) as answer:
            assert [one["group_id"] for one in json.load(answer)["groups"]] == ["billing"]
        read = ("cat", "/var/lib/wakeroll-keys/keys.toml")
        files = {name: podman.compose("exec", "-T", name, *read, **environment).stdout for name in ("run", "serve")}
        assert {name: file.count("private_key = ") for name, file in files.items()} == {"run": 2, "serve": 0}
        assert files["serve"].count("public_key = ") == 2
        said = logs()
        assert "Traceback" not in said.stdout + said.stderr
    finally:
        begun = time.monotonic()
        podman.compose("down", "--volumes", **environment)
        tell(f"down in {time.monotonic() - begun:.0f} s")


def test_what_is_not_healthy_is_called_so(podman: Podman, image: str):
    """The health check must be able to fail."""
    checked = ["--entrypoint", "python3", image, "-I", "-S", "/opt/wakeroll/bin/healthy.py"]
    done = podman("run", "--rm", "--network", "none", *checked, is_checked=False)

    assert (done.returncode, done.stdout) == (1, "no port answers\n")
