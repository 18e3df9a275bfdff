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
    assert users("list", path=path).splitlines() == [
        "mia: administrator of all groups",
        "tom@example.org: administrator of all groups",
    ]
    users("add", "mia", "--replace", path=path, answers=f"{PASSWORD} 2\n")
    assert [UserFile(path).verify("mia", one) for one in (PASSWORD, f"{PASSWORD} 2")] == [False, True]
    users("remove", "mia", path=path)
    assert users("list", path=path).splitlines() == ["tom@example.org: administrator of all groups"]
    assert [one.name for one in tmp_path.iterdir()] == ["users.toml"]


def test_a_user_has_a_role_for_some_groups_which_may_change(tmp_path):
    """A new password leaves the role as it is, and a new role leaves the password."""
    path = tmp_path / "users.toml"
    words = ("--role", "operator", "--groups", "orders-*", "--groups", 'a "b" \\ é')
    assert users("add", "mia", *words, path=path, answers=f"{PASSWORD}\n").endswith(
        f'mia may log in with {path}, as operator of orders-*, a "b" \\ é\n'
    )
    users("add", "tom", "--role", "viewer", "--no-password", path=path)
    users("add", "mia", "--replace", path=path, answers=f"{PASSWORD} 2\n")
    assert users("list", path=path).splitlines() == [
        'mia: operator of orders-*, a "b" \\ é',
        "tom: viewer, by a proxy only",
    ]

    assert users("grant", "mia", "--groups", "*", path=path) == "mia is operator of all groups\n"
    assert users("grant", "tom", "--role", "administrator", path=path) == "tom is administrator of all groups\n"
    file = UserFile(path)
    assert file.verify("mia", f"{PASSWORD} 2")
    assert not file.verify("tom", "")
    assert not file.verify("tom", PASSWORD)


def test_a_file_of_an_earlier_release_has_administrators(tmp_path):
    path = tmp_path / "users.toml"
    users("add", "mia", path=path, answers=f"{PASSWORD}\n")
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if line[0] in '["p'))
    assert "role" not in path.read_text()

    assert users("list", path=path) == "mia: administrator of all groups\n"


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
        (("add", "new", "--groups", ""), f"{PASSWORD}\n", "a pattern of groups is ''"),
        (("grant", "known"), "", "name --role or --groups"),
        (("grant", "nobody", "--role", "viewer"), "", "there is no user 'nobody' in .*; there are: known"),
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
