"""Makes pictures of the diagrams in the pages of the site, so that it needs no script of others to show them.

`npm pack mermaid` fetches the program that draws them; `docs/make_diagrams.py package/dist/mermaid.min.js` uses it in
Chromium.  A diagram that has no picture is shown as its text.
"""

import shutil
import sys

from playwright.sync_api import sync_playwright
from site_pages import DIAGRAMS, ELSEWHERE, ROOT, diagrams_of, picture_of

_DRAW = """async (text) => {
    mermaid.initialize({startOnLoad: false, theme: "neutral", htmlLabels: false, flowchart: {htmlLabels: false}});
    return (await mermaid.render("diagram", text)).svg;
}"""


def main() -> None:
    """Make the missing pictures, and delete those of diagrams that have changed."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or len(sys.argv) != 2:
        sys.exit("usage: make_diagrams.py mermaid.min.js; Chromium must be installed")
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / path for path in ELSEWHERE)]
    wanted = {picture_of(text): text for page in pages for text in diagrams_of(page.read_text(encoding="utf-8"))}
    DIAGRAMS.mkdir(exist_ok=True)
    for file in DIAGRAMS.iterdir():
        if file.name not in wanted:
            file.unlink()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_content("<html><body></body></html>")
        page.add_script_tag(path=sys.argv[1])
        for name, text in wanted.items():
            if not (DIAGRAMS / name).exists():
                (DIAGRAMS / name).write_text(page.evaluate(_DRAW, text) + "\n", encoding="utf-8")
                print(f"{name}: {(DIAGRAMS / name).stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main()
