"""The units in deploy/systemd: systemd understands each line, and they give little away."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wakeroll.last_will.executor import FLUSH_S
from wakeroll.last_will.executor_link import VARIABLE, path_of
from wakeroll_pipeline.metrics.systemd_reports import LONGEST_PAUSE_S, START_S

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
NAMES = sorted(unit.name for unit in UNITS.glob("*.service"))
LAST_WILL = "wakeroll-last-will@.service"
PROCESSES = [name for name in NAMES if name != LAST_WILL]
"""The units of the control plane."""
MOST_EXPOSURE = 1.5
"""Systemd's own measure, from 0 (best) to 10; below 2 is called OK, and a service without any hardening has 9.6."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as they are, except that the command is one that exists here, and that replicas have a name."""
    for name in NAMES:
        text = (UNITS / name).read_text(encoding="utf-8")
        there = text.replace("/opt/wakeroll/bin/wakeroll", str(Path(sys.executable).with_name("wakeroll")))
        (tmp_path / name.replace("@.", "@a.")).write_text(there, encoding="utf-8")
    return tmp_path


def analyze(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *map(str, words)], capture_output=True, text=True, check=False)


def test_there_is_a_unit_for_each_process():
    assert NAMES == [
        LAST_WILL,
        "wakeroll-observe.service",
        "wakeroll-run.service",
        "wakeroll-run@.service",
        "wakeroll-serve.service",
    ]


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_systemd_understands_each_line(installed, name):
    """It only warns of a key that it does not know, and ignores it: a misspelt protection protects nothing."""
    done = analyze("verify", "--man=no", installed / name.replace("@.", "@a."))
    ours = [line for line in (done.stdout + done.stderr).splitlines() if str(installed) in line or "wakeroll" in line]

    assert (done.returncode, ours) == (0, [])


@needs_systemd
def test_a_misspelt_key_is_found(installed):
    unit = installed / "wakeroll-run.service"
    unit.write_text(unit.read_text().replace("ProtectHome=", "ProtektHome="))

    assert re.search("Unknown key.* 'ProtektHome'", analyze("verify", "--man=no", unit).stderr)


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_a_process_may_do_little(installed, name, tell):
    done = analyze(
        "security", "--offline=true", f"--threshold={MOST_EXPOSURE * 10:.0f}", installed / name.replace("@.", "@a.")
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)

    assert found, done.stdout + done.stderr
    assert done.returncode == 0, found[0]
    tell(found[0].strip())


@pytest.mark.parametrize(
    ("name", "own", "others"),
    [
        ("wakeroll-observe.service", "observer", ["keys"]),
        ("wakeroll-serve.service", "public", ["keys", "observer"]),
    ],
)
def test_a_process_cannot_read_keys_that_it_does_not_need(name, own, others):
    """All units share a user, so the modes of the files do not keep them apart."""
    text = (UNITS / name).read_text(encoding="utf-8")
    [hidden] = re.findall(r"^InaccessiblePaths=(.*)$", text, flags=re.MULTILINE)

    assert re.search(rf"^ExecStart=.* --keys /etc/wakeroll/{own}\.toml$", text, flags=re.MULTILINE)
    assert hidden.split() == [f"-/etc/wakeroll/{other}.toml" for other in others]
    for file in ("keys", "observer", "public"):
        assert f"{file}.toml" in (UNITS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PROCESSES)
def test_a_unit_has_started_when_its_process_is_ready_and_a_stuck_one_is_restarted(name):
    """Wrong settings end with code 2, and a restart would not mend them."""
    lines = (UNITS / name).read_text(encoding="utf-8").splitlines()

    assert {"Type=notify", "Restart=always", "RestartPreventExitStatus=2", "StartLimitIntervalSec=0"} <= set(lines)
    [watchdog_s] = [int(line.removeprefix("WatchdogSec=")) for line in lines if line.startswith("WatchdogSec=")]
    assert watchdog_s > 3 * LONGEST_PAUSE_S, "a busy machine delays a keep-alive"
    [start_s] = [int(line.removeprefix("TimeoutStartSec=")) for line in lines if line.startswith("TimeoutStartSec=")]
    assert start_s == START_S, "each round of a loop gives the start as much time again"


@pytest.mark.parametrize("name", ["wakeroll-run.service", "wakeroll-run@.service"])
def test_the_jobs_get_the_signal_before_their_jvm(name):
    """Systemd would otherwise signal all processes at once, and Spark would end in the middle of a batch."""
    text = (UNITS / name).read_text(encoding="utf-8")

    assert re.search(r"^KillMode=mixed$", text, flags=re.MULTILINE)
    assert re.search(r"^TimeoutStopSec=90$", text, flags=re.MULTILINE)


def test_only_its_user_reaches_an_executor_of_last_wills_and_it_ends_after_its_work():
    """Applications send it their logins. Containers mount its folder, so a restart must not replace that."""
    lines = (UNITS / LAST_WILL).read_text(encoding="utf-8").splitlines()
    address = "unix:/run/wakeroll/%i/will.sock"

    assert {"User=%i", "RuntimeDirectory=wakeroll/%i", "RuntimeDirectoryMode=0700"} <= set(lines)
    assert {"RuntimeDirectoryPreserve=yes", "Restart=always", "RestartPreventExitStatus=2"} <= set(lines)
    assert f"ExecStart=/opt/wakeroll/bin/wakeroll last-will --listen {address}" in lines
    assert path_of("--listen", address) == "/run/wakeroll/%i/will.sock"
    assert f"# An application finds it by {VARIABLE}={address}." in lines
    [stop_s] = [int(line.removeprefix("TimeoutStopSec=")) for line in lines if line.startswith("TimeoutStopSec=")]
    assert stop_s > FLUSH_S


def test_the_page_installs_the_packages_of_the_image_by_their_hashes():
    """The files are named from the folder of the units, and the release is the one of this checkout."""
    page = (UNITS / "README.md").read_text(encoding="utf-8")
    [requirements] = re.findall(r"pip install --require-hashes --requirement (\S+)$", page, flags=re.MULTILINE)
    [version] = re.findall(r"pip install --no-deps wakeroll==(\S+)$", page, flags=re.MULTILINE)
    ours = re.findall(r'^version = "(.+)"$', (UNITS.parents[1] / "pyproject.toml").read_text(), flags=re.MULTILINE)

    assert "--hash=sha256:" in (UNITS / requirements).read_text(encoding="utf-8")
    assert [version] == ours
