"""SIGTERM and SIGINT in a process: what the first one ends, what it lets finish, and what a second one cuts."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.running_processes import ROOT
from tests.support.waiting import PATIENCE_S, wait_until

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])

STARTING = """
stop = StopSignals(is_starting=True)
stop.release = lambda: print("released", flush=True)
print("ready", flush=True)
try:
    time.sleep(600)
finally:
    print("the start went on", flush=True)
"""

STUCK = """
stop = StopSignals(is_starting=True)
stop.release = lambda: time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""

FINISHING = """
stop = StopSignals(is_starting=True)
stop.finish()
print("ready", flush=True)
stop.asked.wait()
print("finished", flush=True)
"""

IN_A_CALL = """
import ctypes, threading
stop = StopSignals(is_starting={is_starting})
stop.release = lambda: print("released", flush=True)
def finish():
    stop.asked.wait()
    print("asked", flush=True)
if not {is_starting}:
    threading.Thread(target=finish).start()
lock, library = ctypes.create_string_buffer(256), ctypes.CDLL(None)
library.pthread_mutex_lock(lock)
print("ready", flush=True)
library.pthread_mutex_lock(lock)  # no signal interrupts it
"""

FORKED = """
import os
stop = StopSignals()
if child := os.fork():
    print("ready", flush=True)
    os.kill(child, {number})
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), stop.asked.wait(0.5), flush=True)
else:
    time.sleep(600)
"""

DEAF = """
stop = StopSignals()
print("ready", flush=True)
stop.asked.wait()
print("asked", flush=True)
time.sleep(600)
"""


@contextmanager
def started(program: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a program until it is ready."""
    head = (
        "import logging, time; from wakeroll_pipeline.runtime.stop_signals import StopSignals; "
        "logging.basicConfig(level=20)\n"
    )
    command = [sys.executable, "-c", head + program]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@BOTH
def test_a_start_is_undone(number):
    """A lease that is not released makes the next process wait until it expires; and nothing else begins meanwhile."""
    with started(STARTING) as process:
        process.send_signal(number)
        said, _ = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, said) == (0, "released\n")


@BOTH
def test_work_in_progress_is_finished(number):
    with started(FINISHING) as process:
        process.send_signal(number)
        said, _ = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, said) == (0, "finished\n")


@BOTH
def test_a_signal_is_received_while_the_main_thread_waits_in_a_library(number):
    """Python calls no handler then, nor if the signal comes just before the call: a stop would wait for its end."""
    with started(IN_A_CALL.format(is_starting=True)) as process:
        process.send_signal(number)
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (0, "released\n")

    with started(IN_A_CALL.format(is_starting=False)) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        wait_until(lambda: process.poll() is not None, "it ends", between=lambda: again(process, number))
    assert process.returncode == 128 + number


@BOTH
def test_a_forked_process_has_signals_of_its_own(number):
    """Else a signal for a child would stop the service that forked it, and the child would ignore it."""
    with started(FORKED.format(number=int(number))) as process:
        said, _ = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, said) == (0, f"{-number} False\n")


@BOTH
def test_a_second_signal_ends_the_process_at_once(number):
    """Somebody who presses Ctrl-C again does not want to wait for a batch."""
    with started(DEAF) as process:
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.poll() is not None, "it ends", between=lambda: again(process, number))
        said, log = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, said) == (128 + number, "asked\n")
    assert log.endswith(f"{number.name} again: stopping at once; the next start repeats what is cut now\n")


def again(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    """Send a signal, and give the process a moment for it."""
    process.send_signal(number)
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        return


def test_a_signal_that_arrives_twice_is_one_request():
    """`timeout 60 wakeroll run` sends SIGTERM to the process, and to the process group that it is in."""
    with started(FINISHING) as process:
        for _ in range(3):
            process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, said) == (0, "finished\n")


def test_a_release_that_hangs_does_not_keep_the_process():
    """Brokers may be gone too; a lease expires by itself."""
    with started(STUCK) as process:
        process.send_signal(signal.SIGTERM)

        assert process.wait(PATIENCE_S) == 0
