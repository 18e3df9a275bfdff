"""Run a command that ends at the latest when the parent process does; see `wakeroll_pipeline.local.child_process`.

    python -I -S parent_watchdog.py GRACE_S COMMAND [ARGUMENT...]

Standard input is a pipe from the parent, called the leash. Only the parent has its other end, so the pipe is closed
when the parent ends, even by SIGKILL; this needs only a pipe, works on any Unix, and from any thread of the parent. A
byte from the pipe is a command: "t" sends SIGTERM to the command, "k" sends SIGKILL to its whole process group. A
closed pipe means "t", and GRACE_S seconds later "k". The first line of standard output is the command's pid, or "error"
and the reason. The command's output goes to standard error. The exit code is the command's; if a signal ended the
command, the same signal ends this process.

The command has its own session: Ctrl-C in a terminal reaches the parent first, which then stops its children in the
right order. Only the standard library is used, for a quick start.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

LEASH = 0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: Sequence[str]) -> int:
    """Run the command until it ends, and follow the leash; return its exit code, or minus the signal that ended it."""
    grace_s, command = float(arguments[0]), arguments[1:]
    # A signal handler writes the signal's number to this pipe, so that `select` waits for the leash and for signals.
    signals, number_of_signal = os.pipe()
    os.set_blocking(signals, False)
    os.set_blocking(number_of_signal, False)
    signal.set_wakeup_fd(number_of_signal)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True, preexec_fn=_bind_to_guard()
        )
    except OSError as error:
        print("error", error, flush=True)
        return 127
    print(child.pid, flush=True)
    _watch(child, signals, grace_s)
    _sweep(child.pid, grace_s)
    return child.returncode


def _watch(child: "subprocess.Popen[bytes]", signals: int, grace_s: float) -> None:
    """Wait for the child's end; forward signals from the leash, and a SIGTERM to this process."""
    sources, deadline = [LEASH, signals], float("inf")
    while child.poll() is None:
        _reap(but=child.pid)
        patience = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(sources, [], [], patience)
        orders = b""
        if signals in ready and signal.SIGTERM in os.read(signals, 4096):
            orders += b"t"
        if LEASH in ready:
            received = os.read(LEASH, 4096)
            if not received:
                sources.remove(LEASH)
                orders, deadline = b"t", time.monotonic() + grace_s
            orders += received
        if b"k" in orders or time.monotonic() >= deadline:
            _kill_group(child.pid)
            deadline = float("inf")
        elif b"t" in orders:
            child.terminate()


def _sweep(group: int, grace_s: float) -> None:
    """Wait for the rest of the child's process group; kill it after the grace period, or when "k" is received."""
    sources, deadline = [LEASH], time.monotonic() + grace_s
    while time.monotonic() < deadline:
        _reap()
        try:
            os.killpg(group, 0)
        except OSError:
            return
        if select.select(sources, [], [], 0.02)[0]:
            orders = os.read(LEASH, 4096)
            if b"k" in orders:
                break
            if not orders:
                sources.clear()
    _kill_group(group)


def _reap(but: int = 0) -> None:
    """Reap ended grandchildren that this process has inherited; as zombies, they would count as alive."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == but:
                return
            os.waitpid(ended.si_pid, 0)


def _kill_group(group: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def _bind_to_guard() -> Callable[[], object] | None:
    """Prepare the protections that only Linux has; return the function that the child calls before `exec`.

    This process inherits the child's children when the child ends, because many containers have no init process to reap
    them. And the child is killed when this process is killed: the kernel ties that to the thread that forks, and this
    process has only one thread.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
