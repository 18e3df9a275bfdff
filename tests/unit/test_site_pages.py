"""The pages that `make docs` makes of the code: nothing that a user can name is missing, and nothing leads nowhere."""

import importlib.util
import re
from types import ModuleType, SimpleNamespace

import msgspec
import pytest
import yaml

import wakeroll
import wakeroll.testing
from tests.support.running_processes import ROOT
from wakeroll_pipeline.cli.app import app_for
from wakeroll_pipeline.settings import Settings


@pytest.fixture(scope="module")
def site() -> ModuleType:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(site: ModuleType) -> dict[str, str]:
    return site.pages()


def test_the_reference_has_every_name_setting_command_and_record(pages: dict[str, str]):
    """It is made of the declarations, so it cannot name what is not there; nor may it leave something out."""
    api = re.findall(r"^::: \S+?(\w+)$", pages["reference/api.md"], flags=re.MULTILINE)
    assert set(api) == {*wakeroll.__all__, *wakeroll.testing.__all__}
    settings = re.findall(r"^\| `(\w+)` \|", pages["reference/settings.md"], flags=re.MULTILINE)
    assert set(settings) == {field.name for field in msgspec.structs.fields(Settings)}
    commands = set(re.findall(r"^## wakeroll (\S+)$", pages["reference/commands.md"], flags=re.MULTILINE))
    app = app_for([])
    names = {one.name for one in (*app.registered_commands, *app.registered_groups)}
    assert commands == names
    assert "`--until TIME`" in pages["reference/commands.md"]
    assert "## Heartbeat\n" in pages["reference/events.md"]
    assert "## Handover\n" in pages["reference/decisions.md"]


def test_every_page_is_in_the_navigation(pages: dict[str, str]):
    """What is not there, nobody finds."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = set(re.findall(r"^ +- .*?([\w/.-]+\.md)$", text, flags=re.MULTILINE))
    here = {file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs").rglob("*.md")}

    assert nav == {page for page in here | pages.keys() if not page.startswith("decisions/0")}
    chapters = [*(next(iter(one)) for one in yaml.safe_load(text.partition("\nnav:\n")[2]))]
    assert chapters == ["Home", "Learn", "Use", "Operate", "Ask", "Understand", "Reference"]


def test_links_of_a_checkout_lead_to_pages_of_the_site(site: ModuleType, pages: dict[str, str]):
    """On a checkout, a link may lead to any file; in the site, to its pages only."""
    files = SimpleNamespace(src_uris={**dict.fromkeys(pages), "security.md": None, "sdk.md": None})

    def shown(markdown: str, page: str = "web.md") -> str:
        return site.on_page_markdown(markdown, SimpleNamespace(file=SimpleNamespace(src_uri=page)), files)

    assert shown("[a](../model/README.md#glossary)") == "[a](model.md#glossary)"
    assert shown("[a](../sdk.md#run)", "decisions/0001-x.md") == "[a](../sdk.md#run)"
    assert shown("[a](docs/security.md)", "changelog.md") == "[a](security.md)"
    assert shown("[a](schemas/) [b](../Makefile)") == "[a](reference/schemas.md) b"
    assert shown("```\n[a](../nothing.md)\n```") == "```\n[a](../nothing.md)\n```"
    with pytest.raises(site.PluginError, match=r"docs/web\.md: the link to \.\./nothing\.md leads nowhere"):
        shown("[a](../nothing.md)")


@pytest.mark.parametrize(
    ("page", "loads"),
    [
        ('<a href="https://example.org">elsewhere</a><script src="assets/a.js"></script>', None),
        ('<script src="https://cdn.example/a.js"></script>', "https://cdn.example/a.js"),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', "//fonts.example/a.css"),
    ],
)
def test_a_page_that_needs_a_network_is_refused(site: ModuleType, tmp_path, page, loads):
    (tmp_path / "page.html").write_text(page, encoding="utf-8")

    if loads is None:
        site.on_post_build(SimpleNamespace(site_dir=tmp_path))
    else:
        with pytest.raises(site.PluginError, match=re.escape(f"page.html loads {loads}; a page must not need")):
            site.on_post_build(SimpleNamespace(site_dir=tmp_path))
