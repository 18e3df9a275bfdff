"""A release: its version in every file that names it, its changelog, wheel and sdist, and the tag.

``make dist`` builds wheel and sdist twice, refuses files that differ, and writes their sums. ``make release
VERSION=0.2.0`` prepares the commit, builds, adds the version to the site, and sets the tag; it pushes nothing.
"""

import argparse
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

NAMED = (
    "deploy/compose.yaml",
    "deploy/container/README.md",
    "deploy/systemd/README.md",
    "deploy/kubernetes/components/common/kustomization.yaml",
    "deploy/kubernetes/components/volume-snapshots/kustomization.yaml",
    "deploy/kubernetes/example/kustomization.yaml",
    "deploy/kubernetes/rendered/local-volume.yaml",
    "deploy/kubernetes/rendered/s3-replicas.yaml",
)
"""Files that name the version of the package or of its image; the version itself stands in pyproject.toml."""
SECTIONS = ("Added", "Changed", "Removed", "Fixed")
"""Headings of a release in the changelog, in this order; at least one is there."""
SITE = "gh-pages"
"""Branch with the site of the documentation: a folder per minor version, and versions.json, which the theme reads."""
_VERSION = re.compile(r'^version = "(.+)"$', re.MULTILINE)
_NAMES = r'(?<=wakeroll[:=])(=?){}|(?<=newTag: "){}(?=")'


class NotReleased(Exception):
    """There is no release; the message says what to do first."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a step; return 2 with a sentence if it is refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("dist", "prepare", "site", "tag"))
    parser.add_argument("version", nargs="?", default="", help="of the release, such as 0.2.0")
    parser.add_argument("--tag", default="", help="with dist: the tag that is built, which must be that of the version")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout")
    given = parser.parse_args(arguments)
    try:
        match given.step:
            case "dist":
                for name in dist(given.root, given.tag):
                    print(name)
            case "prepare":
                prepare(given.root, given.version)
            case "site":
                print(site(given.root))
            case _:
                tag(given.root)
    except NotReleased as problem:
        print(f"release: {problem}", file=sys.stderr)
        return 2
    return 0


def version_of(root: Path) -> str:
    """Return the version of the checkout."""
    found = _VERSION.search((root / "pyproject.toml").read_text(encoding="utf-8"))
    assert found is not None, "pyproject.toml has a version"
    return found[1]


def prepare(root: Path, version: str) -> None:
    """Write the version to all files that name it, and its heading to the changelog; commit that.

    Raises:
        NotReleased: the version is not newer, there are changes that are not committed, or nothing is to be released.
    """
    before = version_of(root)
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NotReleased(f"VERSION is {version!r}; it must be three numbers, such as 0.2.0")
    if _numbers(version) <= _numbers(before):
        raise NotReleased(f"VERSION is {version}; it must be newer than {before}")
    if git(root, "status", "--porcelain"):
        raise NotReleased("the checkout has changes that are not committed; commit them first")
    log = root / "CHANGELOG.md"
    log.write_text(_released(log.read_text(encoding="utf-8"), version), encoding="utf-8")
    project = root / "pyproject.toml"
    project.write_text(
        project.read_text(encoding="utf-8").replace(f'\nversion = "{before}"\n', f'\nversion = "{version}"\n'),
        encoding="utf-8",
    )
    for name in NAMED:
        file = root / name
        file.write_text(renamed(file.read_text(encoding="utf-8"), before, version), encoding="utf-8")
    git(root, "commit", "--quiet", "--all", "--message", f"Release {version}")


def renamed(text: str, before: str, version: str) -> str:
    """Return a text with another version of the package and its image."""
    old = re.escape(before)
    return re.sub(_NAMES.format(old, old), lambda found: (found[1] or "") + version, text)


def _released(text: str, version: str) -> str:
    """Return the changelog with the unreleased changes under their version."""
    changes = text.partition("\n## Unreleased\n")[2].partition("\n## ")[0]
    found = re.findall(r"^### (.+)$", changes, flags=re.MULTILINE)
    if not found or found != [name for name in SECTIONS if name in found]:
        raise NotReleased(
            f"the part Unreleased of CHANGELOG.md has the headings {found}; it must have some of "
            f"{', '.join(f'### {name}' for name in SECTIONS)}, in this order"
        )
    if loose := changes.partition("### ")[0].strip():
        raise NotReleased(f"a change in CHANGELOG.md has no heading: {loose.splitlines()[0][:80]!r}; move it below one")
    today = datetime.datetime.now(datetime.UTC).date()
    return text.replace("\n## Unreleased\n", f"\n## Unreleased\n\n## {version} ({today})\n", 1)


def dist(root: Path, tag: str = "") -> list[str]:
    """Build wheel and sdist of the last commit, and write `dist/SHA256SUMS`; return the lines of that.

    Raises:
        NotReleased: the tag is not that of the version, or two builds differ.
    """
    version = version_of(root)
    if tag and tag != f"v{version}":
        raise NotReleased(f"the tag is {tag}, and pyproject.toml has the version {version}; the tag must be v{version}")
    builds = [_build(root), _build(root)]
    if builds[0] != builds[1]:
        differing = sorted({name for name, _ in builds[0].items() ^ builds[1].items()})
        raise NotReleased(f"two builds of the same commit differ in {', '.join(differing)}")
    folder = root / "dist"
    folder.mkdir(exist_ok=True)
    for old in (*folder.glob("*.whl"), *folder.glob("*.tar.gz")):
        old.unlink()
    sums = []
    for name, content in sorted(builds[0].items()):
        (folder / name).write_bytes(content)
        sums.append(f"{hashlib.sha256(content).hexdigest()}  {name}")
    (folder / "SHA256SUMS").write_text("\n".join(sums) + "\n", encoding="utf-8")
    return sums


def _build(root: Path) -> dict[str, bytes]:
    """Build the committed files in a folder of its own; return name -> content of wheel and sdist."""
    with tempfile.TemporaryDirectory() as folder:
        sources, built = Path(folder, "sources"), Path(folder, "built")
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=root, capture_output=True, check=True).stdout
        archived = Path(folder, "sources.tar")
        archived.write_bytes(archive)
        with tarfile.open(archived) as tar:
            tar.extractall(sources, filter="data")
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "--directory", str(built)],
            cwd=sources,
            env={**os.environ, "SOURCE_DATE_EPOCH": git(root, "log", "-1", "--format=%ct")},
            check=True,
            capture_output=True,
        )
        return {file.name: file.read_bytes() for file in built.iterdir()}


def site(root: Path) -> str:
    """Commit the site of this version to the branch of the site, beside those of other versions; return a sentence.

    Patches of a minor version have one folder (0.2).  The newest version is also `latest`, which the site begins with.

    Raises:
        NotReleased: there are changes that are not committed, or the site cannot be built.
    """
    if git(root, "status", "--porcelain"):
        raise NotReleased("the checkout has changes that are not committed; commit them first")
    version = version_of(root)
    minor = version.rpartition(".")[0]
    there = [one["version"] for one in json.loads(_mike(root, "list", "--json", "--branch", SITE))]
    newest = all(_numbers(other) <= _numbers(minor) for other in there)
    aliases = ("--update-aliases", minor, "latest") if newest else (minor,)
    _mike(root, "deploy", "--branch", SITE, "--title", version, *aliases)
    if not there:
        _mike(root, "set-default", "--branch", SITE, "latest")
    versions = ", ".join(sorted({minor, *there}, key=_numbers))
    return f"the branch {SITE} has the site of {versions}; to see it: .venv/bin/mike serve"


def _mike(root: Path, *words: str) -> str:
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [programs / "mike", *words], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotReleased(f"mike {words[0]} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def tag(root: Path) -> None:
    """Set the tag of the version at the last commit.

    Raises:
        NotReleased: the tag exists, or the last commit is not that of the release.
    """
    version = version_of(root)
    subject = git(root, "log", "-1", "--format=%s")
    if subject != f"Release {version}":
        raise NotReleased(f"the last commit is {subject!r}; it must be 'Release {version}'")
    if git(root, "tag", "--list", f"v{version}"):
        raise NotReleased(f"the tag v{version} exists already")
    git(root, "tag", "--annotate", f"v{version}", "--message", f"Release {version}")
    print(f"tagged v{version}; next: push the commit, the tag and the branch {SITE}")


def git(root: Path, *words: str) -> str:
    """Run git in the checkout; return what it prints.

    Raises:
        NotReleased: git fails.
    """
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReleased(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


if __name__ == "__main__":
    sys.exit(main())
