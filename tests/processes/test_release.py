"""`make release`: one version everywhere, a changelog with headings, the same bytes from the same commit, and a tag."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.running_processes import ROOT, run_process

SCRIPT = ROOT / "deploy" / "release.py"


def release(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    who = {
        f"GIT_{role}_{what}": "release@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    return run_process([sys.executable, SCRIPT, *words, "--root", root], patience_s=300, **who)


def git(root: Path, *words: str) -> str:
    done = run_process(["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *words], folder=root)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this checkout as a repository of their own, with changes to release."""
    root = tmp_path_factory.mktemp("checkout")
    tracked = run_process(["git", "ls-files", "--cached", "--others", "--exclude-standard"]).stdout.splitlines()
    for name in tracked:
        if not name.startswith(("tests/", "docs/", "bench/")) or name == "docs/installation.md":
            if not (ROOT / name).is_file():
                continue
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes((ROOT / name).read_bytes())
    log = root / "CHANGELOG.md"
    text = log.read_text(encoding="utf-8")
    before, _, rest = text.partition("\n## Unreleased\n")
    older = rest.partition("\n## ")[2]
    log.write_text(f"{before}\n## Unreleased\n\n### Added\n\n- A thing.\n\n## {older}", encoding="utf-8")
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Begin")
    return root


def version_of(root: Path) -> str:
    return re.findall(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[0]


def test_every_file_that_names_the_version_names_that_of_the_project():
    """Otherwise a manifest would start an older image than the one that was built."""
    version = version_of(ROOT)
    named = {
        file.relative_to(ROOT).as_posix(): set(re.findall(r'(?:wakeroll[:=]=?|newTag: ")(\d+\.\d+\.\d+)', text))
        for file in (ROOT / "deploy").rglob("*")
        if file.suffix in (".md", ".yaml")
        and "jars" not in file.parts
        and (text := file.read_text(encoding="utf-8"))
        and re.search(r'(?:wakeroll[:=]=?|newTag: ")\d+\.\d+\.\d+', text)
    }

    assert named == {name: {version} for name in named}
    declared = re.findall(r'^    "(deploy/.+)",$', SCRIPT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(declared) == sorted(named)


def test_two_builds_of_a_commit_have_the_same_bytes(checkout: Path):
    """A user can build what was published, and compare."""
    built = release(checkout, "dist")
    assert built.returncode == 0, built.stderr
    sums = (checkout / "dist" / "SHA256SUMS").read_text(encoding="utf-8")
    version = version_of(checkout)

    assert [line.split()[1] for line in sums.splitlines()] == [
        f"wakeroll-{version}-py3-none-any.whl",
        f"wakeroll-{version}.tar.gz",
    ]
    assert subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=checkout / "dist", check=False).returncode == 0
    assert built.stdout == sums
    refused = release(checkout, "dist", "--tag", "v9.9.9")
    assert (refused.returncode, refused.stderr) == (
        2,
        f"release: the tag is v9.9.9, and pyproject.toml has the version {version}; the tag must be v{version}\n",
    )


def test_a_release_has_one_version_a_dated_changelog_and_a_tag(checkout: Path, tmp_path: Path):
    root = tmp_path / "clone"
    git(checkout, "clone", "--quiet", str(checkout), str(root))
    before = version_of(root)

    assert "it must be newer than" in release(root, "prepare", before).stderr
    assert "three numbers" in release(root, "prepare", "2").stderr
    prepared = release(root, "prepare", "9.9.9")
    assert prepared.returncode == 0, prepared.stderr
    changed = git(root, "show", "--stat=200", "--format=%s", "HEAD")
    assert changed.startswith("Release 9.9.9")
    assert before not in git(
        root, "grep", "--extended-regexp", r"wakeroll[:=]|newTag", "--", "deploy/*.md", "deploy/*.yaml"
    )
    log = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"\n## Unreleased\n\n## 9\.9\.9 \(\d{4}-\d\d-\d\d\)\n\n### Added\n\n- A thing\.\n", log)

    assert release(root, "dist", "--tag", "v9.9.9").returncode == 0
    with zipfile.ZipFile(root / "dist" / "wakeroll-9.9.9-py3-none-any.whl") as wheel:
        assert "\nVersion: 9.9.9\n" in wheel.read("wakeroll-9.9.9.dist-info/METADATA").decode()
    assert release(root, "tag").stdout == "tagged v9.9.9; next: push the commit, the tag and the branch gh-pages\n"
    assert git(root, "cat-file", "-t", "v9.9.9") == "tag"
    assert release(root, "tag").stderr == "release: the tag v9.9.9 exists already\n"
    assert "some of ### Added, ### Changed, ### Removed, ### Fixed" in release(root, "prepare", "9.9.10").stderr
    loose = re.sub(r"## 9\.9\.9 .*\n", "- One more change.\n", log)
    (root / "CHANGELOG.md").write_text(loose, encoding="utf-8")
    git(root, "commit", "--quiet", "--all", "--message", "Change")
    assert "has no heading: '- One more change.'; move it below one" in release(root, "prepare", "9.9.10").stderr


def test_a_checkout_with_changes_is_not_released(checkout: Path):
    (checkout / "README.md").write_text("changed", encoding="utf-8")
    try:
        refused = release(checkout, "prepare", "9.9.9")
    finally:
        git(checkout, "checkout", "--quiet", "README.md")

    assert refused.stderr == "release: the checkout has changes that are not committed; commit them first\n"
