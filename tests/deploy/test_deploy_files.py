"""The files in deploy/ that others' programs read: the linter of container files, and Compose."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.systems.containers import PROGRAMS
from wakeroll_pipeline.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_hadolint_finds_nothing():
    """It also checks the shell commands inside."""
    done = subprocess.run(
        [PROGRAMS / "hadolint", DEPLOY / "container" / "Containerfile"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def composed(**environment: str) -> subprocess.CompletedProcess[str]:
    """Let Compose read the file."""
    return subprocess.run(
        [PROGRAMS / "podman-compose", "--file", DEPLOY / "compose.yaml", "config"],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def services() -> dict[str, dict[str, Any]]:
    """Return the services as the file describes them, with its variables as they stand."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found


needs_podman = pytest.mark.skipif(shutil.which("podman") is None, reason="podman-compose needs podman")


@needs_podman
def test_compose_reads_the_file():
    read = yaml.safe_load(composed(KAFKA_BOOTSTRAP="kafka-1:9092").stdout)["services"]

    assert sorted(read) == sorted(services()) == ["keys", "observe", "run", "serve"]
    assert {one["environment"]["WAKEROLL_BOOTSTRAP"] for one in read.values()} == {"kafka-1:9092"}


@needs_podman
def test_compose_names_the_variable_that_is_missing():
    done = composed()

    assert done.returncode != 0
    assert "the addresses of the Kafka brokers, host:port" in done.stderr


@pytest.mark.parametrize("name", ["keys", "observe", "run", "serve"])
def test_each_service_has_few_rights_and_a_limit(name):
    service = services()[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "pids_limit", "stop_grace_period"} <= service.keys()
    assert shlex.join(service["command"]).startswith(name)


def test_only_this_machine_reaches_the_page():
    """It has no login unless somebody configures one."""
    assert services()["serve"]["ports"] == ["127.0.0.1:${WAKEROLL_PORT:-8420}:8420"]


def test_each_service_has_its_own_keys_only():
    """Somebody who gets into the page finds nothing with which to act as operator, and no observer's key either."""
    keys = "/var/lib/wakeroll-keys"
    command = services()["keys"]["command"]
    mounted = {
        name: [volume for volume in service["volumes"] if volume.partition(":")[2].startswith(keys)]
        for name, service in services().items()
    }

    assert command[2:] == [
        f"--file={keys}/all/keys.toml",
        f"--observer={keys}/observer/keys.toml",
        f"--public={keys}/public/keys.toml",
    ]
    assert mounted == {
        "keys": [f"{name}-keys:{keys}/{name}" for name in ("all", "observer", "public")],
        "observe": [f"observer-keys:{keys}:ro"],
        "run": [f"all-keys:{keys}:ro"],
        "serve": [f"public-keys:{keys}:ro"],
    }
    assert {service["environment"]["WAKEROLL_KEYS"] for service in services().values()} == {f"{keys}/keys.toml"}


def test_the_settings_of_units_and_of_compose_exist():
    """A misspelt variable would be ignored."""
    texts = [path.read_text(encoding="utf-8") for path in (DEPLOY / "systemd").iterdir()]
    texts += [(DEPLOY / "compose.yaml").read_text(), (DEPLOY / "container" / "Containerfile").read_text()]
    words = {word for text in texts for word in text.translate(dict.fromkeys(map(ord, "=:#`"), " ")).split()}
    named = {word.removeprefix(PREFIX).lower() for word in words if word.startswith(PREFIX)} - {""}
    not_settings = {"maven_url", "jars", "settings", "image", "port"}

    assert {"bootstrap", "log_format", "home", "metrics_port"} <= named
    assert named - not_settings <= set(Settings.__struct_fields__)
