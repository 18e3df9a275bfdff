"""A child process: it ends when it should, all of it, and above all when nobody is left to end it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running_processes import lives
from tests.support.waiting import wait_until
from wakeroll_pipeline.local.child_process import Child, ChildFailed

PATIENCE_S = 120.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "child.log"


def test_a_child_is_asked_to_stop(log):
    child = python("print('ready', flush=True); import time; time.sleep(600)", log)
    with child:
        child.wait_until(lambda: child.log_tail() == "ready", PATIENCE_S)
        running = child.is_running

    assert (running, child.is_running, child.returncode) == (True, False, -signal.SIGTERM)


def test_a_child_may_take_leave_in_its_own_words(log):
    """SIGTERM is a request: a Spark driver finishes its batch, and its exit code is its own."""
    leave = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('ready', flush=True)"
    )
    child = python(f"{leave}; time.sleep(600)", log)
    child.start()
    child.wait_until(lambda: child.log_tail() == "ready", PATIENCE_S)

    assert child.stop() == 7


def test_a_child_that_will_not_stop_is_killed(log):
    child = python(DEAF, log, grace_s=0.2)
    child.start()
    child.wait_until(lambda: child.log_tail() == "ready", PATIENCE_S)

    assert child.stop() == -signal.SIGKILL


def test_a_stop_reaches_the_child_s_own_children(log):
    """Though only the child itself is asked: a driver stops its JVM in better order than a signal would."""
    child = python(f"{PARENT}; time.sleep(600)", log, grace_s=0.2)
    child.start()
    child.wait_until(lambda: child.log_tail().isdigit(), PATIENCE_S)

    assert child.stop() == -signal.SIGTERM
    orphan = int(child.log_tail())
    wait_until(lambda: not lives(orphan), "the child's own child has ended")  # a signal is delivered soon, not at once


def test_a_kill_reaches_the_child_s_own_children(log):
    """A driver's JVM would otherwise go on writing to the tables."""
    child = python(f"{PARENT}; time.sleep(600)", log)
    child.start()
    child.wait_until(lambda: child.log_tail().isdigit(), PATIENCE_S)
    grandchild = int(child.log_tail())

    assert child.kill() == -signal.SIGKILL
    wait_until(lambda: not lives(grandchild), "the child's own child has ended")


def test_a_child_that_ends_leaves_no_children_behind(log):
    """Once it is said to have ended, folders and ports are free."""
    child = python(f"{PARENT}; sys.exit(0)", log, grace_s=0.2)
    run(child)

    assert child.returncode == 0
    orphan = int(child.log_tail())
    wait_until(lambda: not lives(orphan), "the child's own child has ended")  # a signal is delivered soon, not at once


@pytest.mark.parametrize("victims", ["parent", "guard", "parent and guard"])
def test_a_child_ends_with_its_parent(log, victims):
    """By SIGKILL, which leaves nobody time to say goodbye; `pkill -9 python` hits the process between them too."""
    if "guard" in victims and sys.platform != "linux":
        pytest.skip("only Linux tells a child that the process above it was killed")
    program = (
        "import sys, time; from pathlib import Path; from wakeroll_pipeline.local.child_process import Child\n"
        "child = Child('deaf', [sys.executable, '-c', sys.argv[2]], log=Path(sys.argv[1]), grace_s=0.2)\n"
        "child.start()\n"
        "child.wait_until(lambda: child.log_tail() == 'ready', 30)\n"
        "print(child.pid, child._guard.pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(log), DEAF]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child, guard = map(int, parent.stdout.readline().split())
        if "parent" in victims:
            parent.kill()
        if "guard" in victims:
            os.kill(guard, signal.SIGKILL)
        wait_until(lambda: not lives(child), "the child of the killed parent has ended")
        parent.kill()


def test_ctrl_c_does_not_reach_a_child(log):
    """A terminal sends it to a process group; who stops in which order is for the parent to say."""
    with python("import time; time.sleep(600)", log) as child:
        assert os.getpgid(child.pid) != os.getpgrp()
        assert os.getsid(child.pid) != os.getsid(0)


def test_a_program_that_is_not_there_is_named(log):
    with pytest.raises(ChildFailed, match=r"cannot start the observer: .*No such file.*'/nowhere/python'"):
        Child("the observer", ["/nowhere/python"], log=log).start()


def test_a_child_that_ends_too_early_is_quoted(log):
    """Only this start's lines: yesterday's failure in the same log would mislead."""
    run(python("print('yesterday')", log))
    child = python("print('no table'); import sys; sys.exit('no schema')", log)
    child.start()

    with pytest.raises(ChildFailed) as error:
        child.wait_until(lambda: False, PATIENCE_S)

    assert str(error.value) == f"a test ended with code 1; the end of {log}:\nno table\nno schema"


def test_a_child_that_ends_later_on_has_its_reason_in_the_message(log):
    """`up` then ends too: its terminal must show why, and not only where to look."""
    child = python("print('working'); import sys; sys.exit('the key file lacks a key')", log)
    child.start()
    wait_until(lambda: not child.is_running, "it ends")

    with pytest.raises(ChildFailed) as error:
        child.check()

    assert str(error.value) == f"a test ended with code 1; see {log}, which ends with:\nthe key file lacks a key"


def test_a_child_that_is_not_ready_in_time_is_quoted(log):
    with python("import time; print('thinking', flush=True); time.sleep(600)", log) as child:
        child.wait_until(lambda: child.log_tail() == "thinking", PATIENCE_S)
        with pytest.raises(ChildFailed, match=r"a test was not ready within 0\.1 s; the end of .*:\nthinking"):
            child.wait_until(lambda: False, 0.1)


def test_a_child_s_environment_and_folder_are_given(log, tmp_path):
    child = python("import os; print(os.getcwd(), os.environ['HOLA'])", log, env={"HOLA": "mundo"}, folder=tmp_path)
    run(child)

    assert child.log_tail() == f"{tmp_path} mundo"


def test_a_log_does_not_grow_for_ever(log):
    log.parent.mkdir()
    log.write_bytes(b"x" * (16 * 1024 * 1024 + 1))
    run(python("print('new')", log))

    assert log.read_text() == "new\n"
    assert log.with_name("child.log.1").stat().st_size == 16 * 1024 * 1024 + 1


# Programs that sleep for ten minutes do nothing on purpose, until the test ends them; no test waits for that long.
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
PARENT = (
    "import subprocess, sys, time; "
    "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)"
)


def python(program: str, log: Path, **options: object) -> Child:
    return Child("a test", [sys.executable, "-c", program], log=log, **options)


def run(child: Child) -> None:
    """Start a child and wait for its end."""
    child.start()
    wait_until(lambda: not child.is_running, "the child has ended")
