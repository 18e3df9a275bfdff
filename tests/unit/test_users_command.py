"""`wakeroll users`: who may log in to the page."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.app import app_for
from wakeroll_pipeline.serve.access.user_file import UserFile

PASSWORD = "correct horse battery"


def users(*arguments: str, path: Path, answers: str = "") -> str:
    """Run the command; return its output. An error of the project is raised."""
    result = CliRunner().invoke(app_for(["users"]), ["users", *arguments, "--auth-file", str(path)], input=answers)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_a_user_is_added_listed_changed_and_removed(tmp_path):
    path = tmp_path / "users.toml"
    shown = users("add", "mia", path=path, answers=f"{PASSWORD}\n")
    users("add", "tom@example.org", path=path, answers=f"{PASSWORD}\n")

    assert PASSWORD not in shown + path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert users("list", path=path).splitlines() == ["mia", "tom@example.org"]
    users("add", "mia", "--replace", path=path, answers=f"{PASSWORD} 2\n")
    assert [UserFile(path).verify("mia", one) for one in (PASSWORD, f"{PASSWORD} 2")] == [False, True]
    users("remove", "mia", path=path)
    assert users("list", path=path).splitlines() == ["tom@example.org"]
    assert [one.name for one in tmp_path.iterdir()] == ["users.toml"]


def test_a_terminal_is_asked_twice_and_shows_no_password(tmp_path):
    path = tmp_path / "users.toml"
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", "users", "add", "mia", "--auth-file", str(path)]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    for prompt, answer in (
        ("Password of mia", PASSWORD),
        ("Repeat", "other"),
        ("Password of mia", PASSWORD),
        ("Repeat", PASSWORD),
    ):
        seen = len(shown)
        while prompt.encode() not in shown[seen:] or not shown.endswith(b": "):  # then the terminal does not echo
            shown += os.read(ours, 1_000)
        os.write(ours, f"{answer}\n".encode())
    while b"may log in" not in shown:
        shown += os.read(ours, 1_000)
    process.wait()
    os.close(ours)

    assert PASSWORD.encode() not in shown
    assert UserFile(path).verify("mia", PASSWORD)


@pytest.mark.parametrize(
    ("arguments", "answers", "sentence"),
    [
        (("add", "a b"), "", "the name is 'a b'"),
        (("add", "known"), "", "already has a user 'known'"),
        (("add", "new"), "short\n", "at least 12 characters"),
        (("remove", "nobody"), "", "there is no user 'nobody' in .*; there are: known"),
    ],
)
def test_a_mistake_is_a_sentence_before_anything_changes(tmp_path, arguments, answers, sentence):
    path = tmp_path / "users.toml"
    users("add", "known", path=path, answers=f"{PASSWORD}\n")
    before = path.read_text()

    with pytest.raises(InvalidUsage, match=sentence):
        users(*arguments, path=path, answers=answers)
    assert path.read_text() == before


def test_a_file_that_does_not_exist_is_explained(tmp_path):
    with pytest.raises(InvalidUsage, match=r"`wakeroll users add NAME --auth-file .*` creates the file"):
        users("list", path=tmp_path / "nothing.toml")
