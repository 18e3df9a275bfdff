"""The memory of a last will: whatever a writer was about when it died, a reader finds what was true."""

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeroll.client_properties import INLINE
from wakeroll.client_settings import CONNECTION
from wakeroll.last_will.executor import READY, execute
from wakeroll.last_will.login_settings import (
    ACCEPTED,
    MECHANISMS,
    OF_THE_EXECUTOR,
    PASSED,
    content_of,
    not_accepted,
    opened,
)
from wakeroll.last_will.will_file import Sending, WillFile, read_will
from wakeroll_model.client_actions import Give
from wakeroll_model.client_queues import ClientQueue
from wakeroll_model.decisions import Start
from wakeroll_model.last_will import LastWill
from wakeroll_model.queue import Queue

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="last wills need memory files")

SENDING = Sending({"bootstrap.servers": "localhost:9092", "linger.ms": 0}, "wakeroll.groups", None)


@pytest.fixture
def file() -> Iterator[WillFile]:
    its = WillFile(SENDING)
    yield its
    its.close()


def give_of(number: int, assigned_epoch: int = 1) -> Give:
    return Give(Queue("orders", "", number), Start(), assigned_epoch, "life-1")


def will_of(*gives: Give, epoch: int = 1, **fields: object) -> LastWill:
    queues = tuple(ClientQueue(give, give.assigned_epoch, None, least=0, done=0, **fields) for give in gives)  # type: ignore[arg-type]
    return LastWill(
        group_id="billing",
        client_id="c1",
        instance_id="life-1",
        secret="",
        epoch=epoch,
        commits_itself=True,
        queues=queues,
    )


def write(file: WillFile, will: LastWill) -> None:
    file.begin([held.give for held in will.queues])
    file.write(will)


def read(file: WillFile) -> tuple[int, dict[int, int]] | None:
    """The epoch of the will, and the progress of each queue."""
    found = read_will(file.will_fd, file.progress_fd)
    if found is None:
        return None
    assert found.sending == SENDING
    return found.will.epoch, {queue.queue_id: offset for queue, offset in found.progress.items()}


LAYOUTS = {b"ready 4": "aed4ee31bc0bddd7"}
"""First message of an executor -> the hash of files that it can read. A new layout needs a new number in `READY`."""


def test_another_layout_of_the_files_has_another_number(file: WillFile):
    """A member of one release uses a listening executor of another only if both read the same."""
    first, second = give_of(0), give_of(1)
    write(file, will_of(first, second))
    file.note(first, 7)
    file.keep(second, 4)
    content = hashlib.sha256()
    for fd in (file.will_fd, file.progress_fd):
        content.update(os.pread(fd, os.fstat(fd).st_size, 0))

    assert LAYOUTS[READY] == content.hexdigest()[:16]


def test_there_is_no_will_before_the_first_one(file: WillFile):
    assert read(file) is None


def test_a_will_that_was_revoked_is_none(file: WillFile):
    write(file, will_of(give_of(0)))
    file.write(None)
    assert read(file) is None


def test_progress_is_that_of_the_newest_assignment(file: WillFile):
    old, new = give_of(0), give_of(0, assigned_epoch=2)
    write(file, will_of(old))
    file.note(old, 7)
    assert read(file) == (1, {0: 7})
    write(file, will_of(new, epoch=2))
    file.note(old, 8)
    assert read(file) == (2, {})
    file.note(new, 9)
    assert read(file) == (2, {0: 9})


def test_a_bound_note_counts_for_its_own_assignment_only(file):
    """`poll` binds the place of its messages once; the queue may be assigned again before it looks."""
    old, new = give_of(1, assigned_epoch=1), give_of(1, assigned_epoch=2)
    will = will_of(old)
    write(file, will)
    [held] = will.queues
    note = file.noting(held)
    assert note is not None
    note(7)
    assert (held.done, read(file)) == (7, (1, {1: 7}))
    note(2**62)
    assert read(file) == (1, {})

    later = will_of(new, epoch=2)
    write(file, later)
    note(8)
    assert read(file) == (2, {})
    assert file.noting(held) is None
    renewed = file.noting(later.queues[0])
    assert renewed is not None
    renewed(9)
    assert read(file) == (2, {1: 9})


def test_a_thread_that_was_interrupted_writes_into_no_other_assignment(file: WillFile):
    """It has looked up the place of its queue, which belongs to another queue when it goes on."""
    first, second = give_of(0), give_of(1)
    write(file, will_of(first))
    place = file._places[first.queue]
    write(file, will_of(second, epoch=2))
    assert file._places[second.queue].at == place.at
    file.note(second, 5)
    file._places[first.queue] = place
    file.note(first, 900)
    assert read(file) == (2, {})


def test_a_word_that_is_torn_is_not_used(file: WillFile):
    give = give_of(0)
    write(file, will_of(give))
    file.note(give, 70_000)
    place = file._places[give.queue]
    for byte in range(8):
        before = os.pread(file.progress_fd, 1, place.at * 8 + byte)
        os.pwrite(file.progress_fd, bytes([before[0] ^ 1]), place.at * 8 + byte)
        assert read(file) == (1, {}), f"byte {byte}"
        os.pwrite(file.progress_fd, before, place.at * 8 + byte)
    assert read(file) == (1, {0: 70_000})


def test_without_its_bound_no_progress_is_committed(file: WillFile):
    give, other = give_of(0), give_of(1)
    write(file, will_of(give, other))
    file.note(give, 9)
    file.keep(give, 4)
    found = read_will(file.will_fd, file.progress_fd)
    assert found is not None
    assert [held.kept for held in found.will.queues] == [4, None]
    os.pwrite(file.progress_fd, b"\x01" * 8, (file._places[give.queue].at + 1) * 8)
    found = read_will(file.will_fd, file.progress_fd)
    assert found is not None
    assert [held.give for held in found.will.queues] == [other]
    assert found.progress == {}


def test_an_offset_that_has_no_room_counts_as_no_progress(file: WillFile):
    give = give_of(0)
    write(file, will_of(give))
    file.note(give, 2**62)
    assert read(file) == (1, {})


def test_there_is_room_for_all_queues_of_a_member(file: WillFile):
    gives = [give_of(number) for number in range(1_000)]
    write(file, will_of(*gives))
    for give in gives:
        file.note(give, give.queue.queue_id + 1)
    assert read(file) == (1, {number: number + 1 for number in range(1_000)})


@given(st.data(), st.lists(st.integers(0, 40), min_size=2, max_size=8))
def test_a_writer_may_die_at_any_byte(data: st.DataObject, sizes: list[int]):
    """Wills of different sizes follow each other; the last one is written up to some byte only."""
    file = WillFile(SENDING)
    try:
        for epoch, size in enumerate(sizes[:-1]):
            write(file, will_of(*map(give_of, range(size)), epoch=epoch))
        before = os.pread(file.will_fd, os.fstat(file.will_fd).st_size, 0)
        write(file, will_of(*map(give_of, range(sizes[-1])), epoch=len(sizes) - 1))
        after = os.pread(file.will_fd, os.fstat(file.will_fd).st_size, 0)
        before = before.ljust(len(after), b"\0")
        changed = [at for at in range(len(after)) if after[at] != before[at]]
        body = [at for at in changed if at >= 128]
        order = body + [at for at in changed if at < 128]  # the header is written last
        done = data.draw(st.integers(0, len(order) - 1))
        torn = bytearray(before)
        for at in order[:done]:
            torn[at] = after[at]
        os.pwrite(file.will_fd, torn, 0)
        assert read(file) == (len(sizes) - 2, {})
        os.pwrite(file.will_fd, after, 0)
        assert read(file) == (len(sizes) - 1, {})
    finally:
        file.close()


def test_a_will_that_cannot_be_sent_is_named(capfd: pytest.CaptureFixture[str]):
    """A certificate is read when the process has ended, and the container of the executor may lack it."""
    login = {"bootstrap.servers": "localhost:9", "security.protocol": "ssl", "ssl.ca.location": "/nowhere/ca.pem"}
    file = WillFile(Sending(login, "wakeroll.groups", None))
    write(file, will_of())
    execute([(file.will_fd, file.progress_fd)], lambda: "SIGKILL", is_shared=False)
    file.close()

    said = capfd.readouterr().err.splitlines()[-1]  # Kafka's client has written a line of its own
    assert said.startswith("cannot execute the last will of the client 'c1' of the group 'billing': ")
    assert "/nowhere/ca.pem" in said or "ssl.ca.location" in said
    assert said.endswith("; its session will end")


def test_the_page_lists_the_settings_that_a_listening_executor_accepts():
    """Its readers decide by it whether their login works in containers."""
    page = (Path(__file__).parents[2] / "docs/last-will.md").read_text().partition("### Settings that")[2]
    rows = [line for line in page.splitlines() if line.startswith("| ") and "`" in line]
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row) if name not in MECHANISMS]

    assert sorted(listed) == sorted(ACCEPTED | PASSED | OF_THE_EXECUTOR)


@pytest.mark.parametrize(
    "name", sorted({*CONNECTION, *INLINE} - {"logger", "oauth_cb", "enable.sasl.oauthbearer.unsecure.jwt"})
)
def test_settings_of_connections_have_a_place(name: str):
    """A new one must not take the will away from all who set it in containers."""
    java = {"ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.certificates"}

    assert not_accepted({name: "1"}, ()) == ([name] if name in java else [])


def test_a_folder_of_certificates_is_passed_as_one_file(tmp_path: Path):
    """OpenSSL finds them by names of links, which would lead the executor to other files."""
    (tmp_path / "a.pem").write_text("-----BEGIN CERTIFICATE-----\na\n-----END CERTIFICATE-----\n")
    (tmp_path / "1a2b3c4d.0").symlink_to("a.pem")
    (tmp_path / "b.pem").write_text("-----BEGIN CERTIFICATE-----\nb\n-----END CERTIFICATE-----\n")
    (tmp_path / "client.key").write_text("-----BEGIN PRIVATE KEY-----\n")
    fd = opened(str(tmp_path))
    content = content_of(fd).decode()
    os.close(fd)

    assert re.findall(r"\n(.)\n", content) == ["a", "b"]
    assert "PRIVATE" not in content
