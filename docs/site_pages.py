"""What `make docs` adds to the pages of this folder: a reference made from the code, and pages of other folders.

MkDocs calls the functions `on_*`.  Links that work on a checkout are changed to those of the site.
"""

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import wakeroll
import wakeroll.testing
from wakeroll.installed_version import installed_version
from wakeroll_pipeline.cli.app import app_for
from wakeroll_pipeline.settings import PREFIX, Settings

ROOT = Path(__file__).parents[1]
DIAGRAMS = ROOT / "docs" / "img" / "diagrams"
"""Pictures that `make_diagrams.py` has made of diagrams."""
ELSEWHERE = {
    "model/README.md": "model.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "deploy/container/README.md": "deploy/container.md",
    "deploy/kubernetes/README.md": "deploy/kubernetes.md",
    "deploy/systemd/README.md": "deploy/systemd.md",
    "deploy/spark-submit.md": "deploy/spark-submit.md",
}
"""File of the repository -> its page in the site."""
_BOUNDS = {
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "minLength": "length ≥ {}",
    "maxLength": "length ≤ {}",
    "pattern": "`{}`",
}
"""Word of JSON Schema -> how the page says it."""
_FOLDERS = {"docs/decisions": "decisions/index.md", "docs/schemas": "reference/schemas.md"}
"""Folder of the repository -> the page that lists its files."""
_LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]\[]*\])*)\]\(([^()\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version that the site describes, unless mike adds it to a list of versions."""
    if "MIKE_DOCS_VERSION" not in os.environ:
        config.site_name = f"wakeroll {installed_version()}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and those of other folders."""
    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def pages() -> dict[str, str]:
    """Return page -> text of all that this folder does not have."""
    return {
        **{page: (ROOT / path).read_text(encoding="utf-8") for path, page in ELSEWHERE.items()},
        "reference/api.md": api(),
        "reference/commands.md": commands(),
        "reference/settings.md": settings(),
        "reference/events.md": records("events", "Events", "An event is a record of a control topic"),
        "reference/decisions.md": records("decisions", "Decisions", "A decision is a record of the decision log"),
        "reference/schemas.md": schemas(),
        "decisions/index.md": list_of(
            "decisions", "Decisions about the design", "Each page: the options, the outcome, the price."
        ),
    }


# --- the reference ---


def api() -> str:
    """Return the page of all that an application imports."""
    text = "# API\n\nAll that an application imports. [The SDK](../sdk.md) explains it by examples.\n"
    for module in (wakeroll, wakeroll.testing):
        text += f"\n## {module.__name__}\n"
        for name in module.__all__:
            its = getattr(module, name)
            text += f"\n::: {its.__module__}.{its.__qualname__}\n"
    return text


def commands() -> str:
    """Return the page of all commands with their arguments and options."""
    group = typer.main.get_command(app_for([]))
    text = "# Commands\n\n`wakeroll COMMAND --help` shows the same.\n"
    for name, command in sorted(group.commands.items()):  # type: ignore[attr-defined]
        text += _command(f"wakeroll {name}", command, 2)
    return text


def _command(name: str, command: Any, level: int) -> str:
    text = f"\n{'#' * level} {name}\n\n{_cell(command.help or '', keeps_lines=True)}\n"
    context = typer.Context(command, info_name=name)
    shown = [one.get_help_record(context) for one in command.get_params(context) if one.name != "help"]
    rows = [f"| `{words}` | {_cell(meaning)} |" for words, meaning in filter(None, shown)]
    if rows:
        text += "\n| argument or option | meaning |\n| --- | --- |\n" + "\n".join(rows) + "\n"
    for inner, subcommand in sorted(getattr(command, "commands", {}).items()):
        text += _command(f"{name} {inner}", subcommand, level + 1)
    return text


def settings() -> str:
    """Return the page of all settings of a deployment."""
    declared = msgspec.json.schema(Settings)["$defs"]["Settings"]["properties"]
    text = (
        "# Settings\n\nA setting comes from an option, from the environment, or from `wakeroll.toml`, in this order. "
        f"Its name in the environment begins with `{PREFIX}`, as in `{PREFIX}BOOTSTRAP`. Durations are in "
        "milliseconds.\n\n"
        "| setting | default | bounds | meaning |\n| --- | --- | --- | --- |\n"
    )
    for name, its in declared.items():
        default, meaning = json.dumps(its.get("default")), _cell(its.get("description", ""))
        text += f"| `{name}` | `{default}` | {_bounds(its)} | {meaning} |\n"
    return text


def records(file: str, title: str, sentence: str) -> str:
    """Return the page of the records of a kind, from their JSON Schema."""
    schema = json.loads((ROOT / "docs" / "schemas" / f"{file}.json").read_text(encoding="utf-8"))
    text = (
        f"# {title}\n\n{sentence}, as JSON. [The protocol](../protocol.md) says what they mean together; the schema "
        f"for programs is [{file}.json](../schemas/{file}.json).\n"
    )
    for name, its in sorted(schema["$defs"].items()):
        if "properties" not in its:
            continue
        text += f"\n## {name}\n\n{_cell(its.get('description', ''), keeps_lines=True)}\n\n"
        text += "| field | type | always | bounds | meaning |\n| --- | --- | --- | --- | --- |\n"
        for field, one in its["properties"].items():
            always = "yes" if field in its.get("required", ()) else ""
            text += f"| `{field}` | {_type(one)} | {always} | {_bounds(one)} | {_cell(one.get('description', ''))} |\n"
    return text


def _type(one: Mapping[str, Any]) -> str:
    if "$ref" in one:
        name = one["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in one:
        return " or ".join(_type(each) for each in one["anyOf"])
    if "enum" in one:
        return ", ".join(f"`{word}`" for word in one["enum"])
    if one.get("type") == "array":
        return f"array of {_type(one.get('items', {}))}"
    return str(one.get("type", one.get("const", "any")))


def _bounds(one: Mapping[str, Any]) -> str:
    words = {
        "minimum": "≥ {}",
        "maximum": "≤ {}",
        "minLength": "length ≥ {}",
        "maxLength": "length ≤ {}",
        "pattern": "`{}`",
    }
    return _cell(", ".join(form.format(one[word]) for word, form in words.items() if word in one))


def schemas() -> str:
    """Return the page that lists the JSON Schemas."""
    text = "# JSON Schemas\n\nAnswers with `--json`, events and decisions. A later release may add fields.\n\n"
    for file in sorted((ROOT / "docs" / "schemas").glob("*.json")):
        title = json.loads(file.read_text(encoding="utf-8")).get("title", "")
        text += f"- [{file.name}](../schemas/{file.name}): {title}\n"
    return text


def list_of(folder: str, title: str, sentence: str) -> str:
    """Return a page with links to all pages of a folder."""
    text = f"# {title}\n\n{sentence}\n\n"
    for file in sorted((ROOT / "docs" / folder).glob("*.md")):
        heading = file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        text += f"- [{heading}]({file.name})\n"
    return text


def _cell(text: str, *, keeps_lines: bool = False) -> str:
    """Return a text as Markdown, on one line unless it may keep its lines."""
    text = re.sub(r"``([^`]*)``", r"`\1`", text).strip()
    return text if keeps_lines else re.sub(r"\s+", " ", text.replace("|", "\\|"))


# --- links and diagrams ---


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Change links to files of the repository to links to pages of the site."""
    source = {target: path for path, target in ELSEWHERE.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    if page.file.src_uri.startswith("reference/"):
        return markdown
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    for number, part in enumerate(parts):
        if number % 2 == 0:  # the odd ones are code
            parts[number] = _LINK.sub(lambda found: _link(found, source, page, files), part)
        elif (drawn := diagrams_of(part)) and (DIAGRAMS / picture_of(drawn[0])).is_file():
            parts[number] = f"![diagram]({_from(page, f'img/diagrams/{picture_of(drawn[0])}')})"
    return "".join(parts)


def diagrams_of(markdown: str) -> list[str]:
    """Return the diagrams of a page."""
    return re.findall(r"^```mermaid\n(.*?)^```$", markdown, flags=re.DOTALL | re.MULTILINE)


def picture_of(diagram: str) -> str:
    """Return the name of the picture of a diagram; another diagram has another one."""
    return f"{hashlib.sha256(diagram.encode()).hexdigest()[:16]}.svg"


def _from(page: Page, place: str) -> str:
    """Return a place of the site as a link on a page."""
    return posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")


def _link(found: re.Match[str], source: str, page: Page, files: Files) -> str:
    """Return a link as the site has it; its text alone, if it leads to a file that the site does not have.

    Raises:
        PluginError: it leads nowhere.
    """
    picture, text, target = found.groups()
    path, mark, anchor = target.partition("#")
    if not path or "://" in target:
        return found[0]
    there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    place = _FOLDERS.get(there) or ELSEWHERE.get(there) or there.removeprefix("docs/")
    if place in files.src_uris:
        return (
            f"{picture}[{text}]({posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or '.')}{mark}{anchor})"
        )
    if not (ROOT / there).exists():
        raise PluginError(f"{source}: the link to {target} leads nowhere")
    return text


class _Resources(HTMLParser):
    """Collects the addresses that a browser loads with a page, not those that a reader may follow."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the address of a script, style, picture or frame."""
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(given.get("src") or "")
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(given.get("href") or "")


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that a browser cannot show without a network.

    Raises:
        PluginError: a page loads something from another host.
    """
    for page in Path(config.site_dir).rglob("*.html"):
        parser = _Resources()
        parser.feed(page.read_text(encoding="utf-8"))
        if elsewhere := [address for address in parser.found if address.startswith(("http:", "https:", "//"))]:
            raise PluginError(f"{page.name} loads {elsewhere[0]}; a page must not need a network")
