"""`wakeroll doctor` on a machine where `run` could not start: one line per check, with the remedy."""

import os
import struct
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from wakeroll.errors import NotReachable
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.observer.observer_loop import observe
from wakeroll_pipeline.observer.ticks import newest_tick
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
DOCTOR = (sys.executable, "-m", "wakeroll_pipeline.cli", "doctor")
Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a file system in memory with some options, and returns its folder."""
    with ExitStack() as stack:

        def mount(options: str) -> Path:
            folder = tmp_path / f"mounted-{uuid.uuid4().hex[:8]}"
            folder.mkdir()
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False)
            if done.returncode != 0:
                pytest.skip("this user may not mount file systems")
            stack.callback(subprocess.run, ["umount", folder], check=True)
            return folder

        yield mount


def line(check: str, *arguments: object, prefix: tuple[str, ...] = (), **environment: str) -> str:
    """Run the command as a process, and return the line of a check."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WAKEROLL_")}
    done = subprocess.run(
        [*prefix, *DOCTOR, *map(str, arguments)],
        env={**clean, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = [text for text in done.stdout.splitlines() if text.split()[1:2] == [check]]
    assert len(found) == 1, done.stdout + done.stderr
    return found[0]


def test_a_home_that_can_be_used_passes(tmp_path: Path):
    """Nothing is made in it: `doctor` may run as another user."""
    home = tmp_path / "home"

    said = line("folders", "--home", home)

    assert said == f"ok    folders  can be written: {home}, {home}/checkpoints, {home}"
    assert not home.exists()


def test_tables_of_another_user_are_named_with_their_owner(tmp_path: Path):
    """A volume, or tables that root has made by `maintain`: `run` would end at its first write."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    tables = tmp_path / "home" / "warehouse" / "events"
    tables.mkdir(parents=True)
    os.chown(tables, 10_001, 10_001)
    tables.chmod(0o755)
    # Root may write everywhere; without these capabilities it is a user like any other.
    as_user = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")

    said = line("folders", "--home", tmp_path / "home", prefix=as_user)

    assert said == (
        f"wrong folders  home: cannot write into {tables}, which belongs to user 10001; work: cannot write into "
        f"{tables}, which belongs to user 10001; run as the owner, or give the folder to user 0"
    )


def test_a_folder_that_is_mounted_read_only_is_named(mount: Mount):
    said = line("folders", "--home", mount("size=1m,ro"))

    assert said.startswith("wrong folders  home: cannot write into ")
    assert "Read-only file system" in said


def test_a_temporary_folder_without_exec_is_named(mount: Mount):
    """Hardened machines mount /tmp so; Spark's JVM then ends with an UnsatisfiedLinkError in the middle of its work."""
    folder = mount("size=1m,noexec")

    said = line("temp", JAVA_TOOL_OPTIONS=f"-Djava.io.tmpdir={folder}")

    assert said == (
        f"wrong temp     {folder} is mounted with noexec, and Spark loads native libraries from there; mount it "
        "without noexec, or name another folder: JAVA_TOOL_OPTIONS=-Djava.io.tmpdir=FOLDER"
    )


def test_a_disk_that_is_nearly_full_is_named(mount: Mount):
    home = mount("size=10m")
    (home / "filler").write_bytes(bytes(9_500_000))

    said = line("space", "--home", home)

    assert said.startswith(f"wrong space    free: home 0.0 of 0.0 GB at {home}, ")
    assert said.endswith("less than 10% is left; docs/runbook.md, WakerollDiskSpace, has what may go")


def test_a_limit_of_memory_below_the_heap_is_named():
    """The kernel kills a JVM that uses more, and nothing of it is in the log of `run`."""
    parent = next((one for one in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup") if Path(one).is_dir()), "")
    group = Path(parent, f"wakeroll-{uuid.uuid4().hex[:8]}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("this user may not make control groups")
    try:
        limit = group / "memory.limit_in_bytes"
        limit = limit if limit.exists() else group / "memory.max"
        limit.write_text(str(1_500 << 20))
        enter = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
        said = line("limit", prefix=enter, WAKEROLL_DRIVER_MEMORY="1g")
    finally:
        group.rmdir()

    assert said == (
        "wrong limit    the limit of memory is 1500 MiB; `run` with driver_memory 1g needs 2048; raise the limit, or "
        "lower driver_memory: else the kernel kills the JVM"
    )


def has_ticks(settings: Settings) -> bool:
    """Return whether there is a tick; a partition that was just made may have no leader yet."""
    with suppress(NotReachable):
        return newest_tick(settings.connection, settings.read_keys()) is not None
    return False


@pytest.mark.parametrize(("shift_s", "found"), [(-7_200, "s behind"), (7_200, "s ahead of"), (0, "s old")])
def test_a_clock_that_differs_from_that_of_the_brokers_is_named(broker, tmp_path: Path, shift_s: int, found: str):
    """Ticks are appended all the time: that they look old, or from the future, is a fault of this machine's clock."""
    library, shift = tmp_path / "shifted_clock.so", tmp_path / "shift"
    source = ROOT / "tests" / "support" / "systems" / "shifted_clock.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-pthread"], check=True)
    shift.write_bytes(struct.pack("q", shift_s))
    settings = Settings(bootstrap=broker.bootstrap, prefix=f"doctor-{uuid.uuid4().hex[:8]}")
    ensure_topics(settings.connection)
    stop = threading.Event()
    observer = threading.Thread(target=observe, args=(settings.connection, settings.read_keys(), stop))
    observer.start()
    try:
        wait_until(lambda: has_ticks(settings), "the observer sends ticks")
        said = line(
            "clock",
            *("--bootstrap", broker.bootstrap, "--prefix", settings.prefix),
            LD_PRELOAD=str(library),
            SHIFTED_CLOCK=str(shift),
        )
    finally:
        stop.set()
        observer.join()

    assert found in said
    assert said.startswith("ok" if shift_s == 0 else "wrong")
    if shift_s:
        offset_s = int(said.split(" about ")[1].split()[0])
        assert 7_000 < offset_s < 7_400
