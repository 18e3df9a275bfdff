"""`make site`: the site of the documentation has a list of its versions, without a network."""

import functools
import http.server
import json
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.running_processes import ROOT, run_process

pytestmark = pytest.mark.browser

WHO = {f"GIT_{role}_{part}": "x@example.org" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}


def run(folder: Path, *words: str | Path) -> str:
    done = run_process(words, folder=folder, patience_s=300, **WHO)
    assert done.returncode == 0, done.stderr
    return done.stdout


def publish(root: Path, version: str) -> str:
    """Commit a version, and add its site to the branch of the site."""
    (root / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n', encoding="utf-8")
    (root / "docs" / "index.md").write_text(f"# The page of {version}\n", encoding="utf-8")
    run(root, "git", "add", "--all")
    run(root, "git", "commit", "--quiet", "--message", version)
    return run(root, sys.executable, ROOT / "deploy" / "release.py", "site", "--root", root)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a site with this project's theme, one page, and three versions in the order of their release."""
    pytest.importorskip("mike")
    root, shown = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("site")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    theme = config[config.index("\ntheme:") : config.index("\nhooks:")]
    (root / "mkdocs.yml").write_text(f"site_name: wakeroll\nuse_directory_urls: false\n{theme}", encoding="utf-8")
    (root / ".gitignore").write_text("site/\n", encoding="utf-8")
    (root / "docs").mkdir()
    run(root, "git", "init", "--quiet")
    said = [publish(root, version) for version in ("0.2.0", "0.3.0", "0.2.1")]
    assert said[-1] == "the branch gh-pages has the site of 0.2, 0.3; to see it: .venv/bin/mike serve\n"
    versions = json.loads(run(root, "git", "show", "gh-pages:versions.json"))
    # A patch of an older version takes its place, and the newest one is still the first that a reader sees.
    assert [(one["version"], one["title"], one["aliases"]) for one in versions] == [
        ("0.3", "0.3.0", ["latest"]),
        ("0.2", "0.2.1", []),
    ]
    run(root, "git", "archive", "--output", shown / "site.tar", "gh-pages")
    with tarfile.open(shown / "site.tar") as tar:
        tar.extractall(shown, filter="data")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(shown)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_reader_chooses_a_version(site: str, open_page):
    """A user of an older release needs its pages; the address without a version leads to the newest."""
    page = open_page(f"{site}/")
    page.wait_for_selector("h1:has-text('The page of 0.3.0')")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.wait_for_selector(".md-version__current:has-text('0.3.0')")
    assert page.locator(".md-version__list a").all_text_contents() == ["0.3.0latest", "0.2.1"]
    page.locator(".md-version").hover()
    page.locator(".md-version__list a", has_text="0.2.1").click()
    page.wait_for_selector("h1:has-text('The page of 0.2.1')")
    page.wait_for_selector(".md-version__current:has-text('0.2.1')")

    assert [url for url in asked if not url.startswith((site, "data:"))] == []
