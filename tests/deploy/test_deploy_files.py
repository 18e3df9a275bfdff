"""The files in deploy/ that others' programs read: the linter of container files, and Compose."""

import json
import os
import re
import shlex
import shutil
import subprocess
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.systems.containers import PROGRAMS
from wakeroll.last_will.executor_link import VARIABLE, path_of
from wakeroll_pipeline.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_hadolint_finds_nothing():
    """It also checks the shell commands inside."""
    done = subprocess.run(
        [PROGRAMS / "hadolint", DEPLOY / "container" / "Containerfile"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Return version and number of hashes of each package of a file of requirements."""
    text = (DEPLOY / "container" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines()]
    assert all("==" in line[0] and all(one.startswith("--hash=sha256:") for one in line[1:]) for line in lines)
    return {package: (version, len(line) - 1) for line in lines for package, _, version in [line[0].partition("==")]}


def needed(extras: set[str]) -> set[str]:
    """Return the names of all packages that wakeroll needs with these extras, on Linux and Python 3.11."""
    environment = {"python_version": "3.11", "python_full_version": "3.11.2", "sys_platform": "linux", "extra": ""}
    found: set[str] = set()
    waiting = [("wakeroll", frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        for one in map(Requirement, distribution(name).requires or ()):
            applies = [
                not one.marker or one.marker.evaluate({**environment, "extra": extra}) for extra in ("", *wanted)
            ]
            key = canonicalize_name(one.name)
            if any(applies) and (key not in found or key == "wakeroll"):
                found.add(key)
                waiting.append((one.name, frozenset(one.extras)))
    return found - {"wakeroll"}


def test_the_image_has_all_packages_each_with_its_version_and_hashes():
    """`deploy/container/lock.sh` writes the files; they must follow pyproject.toml and constraints.txt."""
    lines = [line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()]
    constraints = {canonicalize_name(name): version for name, version in lines}
    packages, builders = locked("requirements.txt"), locked("build-requirements.txt")

    assert set(packages) == needed({"spark", "serve", "oidc", "s3"})
    assert {"hatchling", "setuptools", "wheel"} <= set(builders)
    assert {name: version for name, (version, _) in packages.items()} == {name: constraints[name] for name in packages}
    assert all(hashes for _, hashes in (*packages.values(), *builders.values()))


def composed(*options: str, file: str = "compose.yaml", **environment: str) -> subprocess.CompletedProcess[str]:
    """Let Compose read a file."""
    return subprocess.run(
        [PROGRAMS / "podman-compose", "--file", DEPLOY / file, *options, "config"],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def services() -> dict[str, dict[str, Any]]:
    """Return the services as the file describes them, with its variables as they stand."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found


OURS = ["keys", "observe", "observe-2", "run", "serve"]
MONITORING = ["grafana", "prometheus"]
needs_podman = pytest.mark.skipif(shutil.which("podman") is None, reason="podman-compose needs podman")


@needs_podman
def test_compose_reads_the_file():
    read = yaml.safe_load(composed(KAFKA_BOOTSTRAP="kafka-1:9092").stdout)["services"]

    assert sorted(name for name in read if name not in MONITORING) == OURS
    assert {read[name]["environment"]["WAKEROLL_BOOTSTRAP"] for name in OURS} == {"kafka-1:9092"}


@needs_podman
def test_compose_names_the_variable_that_is_missing():
    done = composed()

    assert done.returncode != 0
    assert "the addresses of the Kafka brokers, host:port" in done.stderr


def test_the_services_are_those_that_the_tests_below_know():
    assert sorted(services()) == sorted(OURS + MONITORING)
    assert services()["observe"] == services()["observe-2"], "a crash of one must not stop the clock"


@pytest.mark.parametrize("name", OURS + MONITORING)
def test_each_service_has_few_rights_and_limits(name):
    """A log without a limit fills the disk of the tables."""
    service = services()[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "pids_limit", "stop_grace_period"} <= service.keys()
    assert service["logging"] == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "5"}}
    if name in OURS:
        assert shlex.join(service["command"]).startswith(name.removesuffix("-2"))
    assert service.get("profiles", []) == (["monitoring"] if name in MONITORING else [])


def test_the_jvm_has_a_limit_below_that_of_its_container():
    service = services()["run"]

    assert service["environment"]["WAKEROLL_DRIVER_MEMORY"] == "${WAKEROLL_DRIVER_MEMORY:-1g}"
    assert service["mem_limit"] == "${WAKEROLL_RUN_MEMORY:-3g}"


@pytest.mark.parametrize(("name", "port"), [("serve", 8420), ("prometheus", 9090), ("grafana", 3000)])
def test_only_this_machine_reaches_a_page(name, port):
    """None has a login unless somebody configures one."""
    [published] = services()[name]["ports"]

    assert re.fullmatch(rf"127\.0\.0\.1:\$\{{\w+_PORT:-{port}\}}:{port}", published)
    assert [one for one in services() if "ports" in services()[one]] == ["serve", "prometheus", "grafana"]


# --- the profile `monitoring` ---

MOUNTED = DEPLOY / "observability"


def mounts(name: str) -> dict[str, Path]:
    """Return the files that a service mounts: path in the container -> file of the checkout."""
    found = [volume.split(":") for volume in services()[name]["volumes"]]
    return {target: (DEPLOY / source).resolve() for source, target, *_ in found if source.startswith(".")}


def test_prometheus_scrapes_each_process_under_the_job_of_its_alerts():
    config = yaml.safe_load(mounts("prometheus")["/etc/prometheus/prometheus.yml"].read_text(encoding="utf-8"))
    scraped = {
        target: job["job_name"]
        for job in config["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    image = (DEPLOY / "container" / "Containerfile").read_text(encoding="utf-8")
    [port] = re.findall(r"WAKEROLL_METRICS_PORT=(\d+)", image)

    assert scraped == {
        f"run:{port}": "wakeroll-run",
        f"observe:{port}": "wakeroll-observe",
        f"observe-2:{port}": "wakeroll-observe",
        "serve:8420": "wakeroll-serve",
    }
    labels = [group["labels"] for job in config["scrape_configs"] for group in job["static_configs"]]
    assert all(one == {"deployment": "compose"} for one in labels)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_prometheus_accepts_its_files_where_they_are_mounted(tmp_path):
    """The rules are named by a path beside the configuration."""
    for target, file in mounts("prometheus").items():
        shutil.copy(file, tmp_path / Path(target).name)
    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"SUCCESS: \d+ rules found", done.stdout)


def test_grafana_has_the_dashboard_and_its_data_source():
    mounted = mounts("grafana")
    [source] = yaml.safe_load(mounted["/etc/grafana/provisioning/datasources/wakeroll.yml"].read_text())["datasources"]
    [provider] = yaml.safe_load(mounted["/etc/grafana/provisioning/dashboards/wakeroll.yml"].read_text())["providers"]
    dashboards = {target: file for target, file in mounted.items() if target.endswith(".json")}

    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    assert "prometheus" in services()
    assert {str(Path(target).parent) for target in dashboards} == {provider["options"]["path"]}
    assert sorted(dashboards.values()) == sorted(MOUNTED.glob("*.json"))
    assert all(json.loads(file.read_text(encoding="utf-8"))["panels"] for file in dashboards.values())


def test_nobody_has_a_known_password_of_grafana():
    """Its default is admin, with the right to add data sources."""
    settings = services()["grafana"]["environment"]

    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_each_service_has_its_own_keys_only():
    """Somebody who gets into the page finds nothing with which to act as operator, and no observer's key either."""
    keys = "/var/lib/wakeroll-keys"
    command = services()["keys"]["command"]
    mounted = {
        name: [volume for volume in services()[name]["volumes"] if volume.partition(":")[2].startswith(keys)]
        for name in OURS
    }

    assert command[2:] == [
        f"--file={keys}/all/keys.toml",
        f"--observer={keys}/observer/keys.toml",
        f"--public={keys}/public/keys.toml",
    ]
    assert mounted == {
        "keys": [f"{name}-keys:{keys}/{name}" for name in ("all", "observer", "public")],
        "observe": [f"observer-keys:{keys}:ro"],
        "observe-2": [f"observer-keys:{keys}:ro"],
        "run": [f"all-keys:{keys}:ro"],
        "serve": [f"public-keys:{keys}:ro"],
    }
    assert {services()[name]["environment"]["WAKEROLL_KEYS"] for name in OURS} == {f"{keys}/keys.toml"}


# --- a consumer with last wills ---


@needs_podman
def test_compose_reads_the_consumer_and_the_executor_of_its_last_wills():
    """Both see the socket, and find the files of the login at one path; only the folder of the socket is written to."""
    read = yaml.safe_load(composed(file="compose-consumer.yaml", BILLING_IMAGE="billing:1").stdout)["services"]
    executor, consumer = read["last-will"], read["billing"]
    address = consumer["environment"][VARIABLE]

    assert executor["entrypoint"] == ["wakeroll", "last-will", "--listen", address]
    assert executor["volumes"] == consumer["volumes"]
    assert path_of(VARIABLE, address) == "/run/wakeroll/will.sock"
    assert "last-will:/run/wakeroll" in executor["volumes"]
    assert executor["image"] == consumer["image"] == "billing:1"
    assert "last-will" in consumer["depends_on"], "it is stopped after the consumer"
    for service in (executor, consumer):
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert {"mem_limit", "pids_limit", "stop_grace_period"} <= service.keys()
        assert service["logging"] == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "5"}}


def test_the_settings_of_units_and_of_compose_exist():
    """A misspelt variable would be ignored."""
    texts = [path.read_text(encoding="utf-8") for path in (DEPLOY / "systemd").iterdir()]
    texts += [(DEPLOY / "compose.yaml").read_text(), (DEPLOY / "container" / "Containerfile").read_text()]
    words = {word for text in texts for word in text.translate(dict.fromkeys(map(ord, "=:#`"), " ")).split()}
    named = {word.removeprefix(PREFIX).lower() for word in words if word.startswith(PREFIX)} - {""}
    not_settings = {"last_will", "maven_url", "jars", "settings", "image", "port", "run_memory"}

    assert {"bootstrap", "log_format", "home", "metrics_port"} <= named
    assert named - not_settings <= set(Settings.__struct_fields__)
