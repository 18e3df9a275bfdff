"""Makes the pictures of the page in `docs/img`: of the demo's tables, at a moment when its group is at work.

`make run` writes the tables, `make screenshots` calls this. It needs Chromium (Debian package `chromium`, and
`fonts-liberation`).
"""

import shutil
import sys
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Page, sync_playwright

from wakeroll.epoch_ms import EpochMs
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.local.local_page import local_page
from wakeroll_pipeline.settings import Settings

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "img"
HOME = ROOT / ".wakeroll" / "demo"
GROUP = "billing"
WIDTH = 1180
HEIGHTS = {"groups": 420, "group": 1000, "happened": 720}
"""Name of a picture -> its height (CSS pixels)."""
LARGEST_BYTES = 200_000
AFTER_MS = 3_000
"""A moment so long after the last join, the queues have moved (ms)."""


def main() -> None:
    """Make all pictures."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("chromium is not installed: apt-get install chromium fonts-liberation")
    settings = Settings(home=str(HOME))
    if not settings.warehouse.is_dir():
        sys.exit(f"no tables in {settings.warehouse}; run `make run` first")
    moment = f"at={quote(str(moment_of(settings)))}"
    paths = {
        "groups": f"?{moment}",
        "group": f"groups/{GROUP}?{moment}",
        "happened": f"groups/{GROUP}/happened?{moment}",
    }
    FOLDER.mkdir(exist_ok=True)
    with local_page(settings, 0) as served, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, path in paths.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHTS[name]}, color_scheme="light")
            picture(page, served.address + path, FOLDER / f"{name}.png")
        browser.close()


def moment_of(settings: Settings) -> EpochMs:
    """Return the moment that the pictures show: all members have joined, and none has left."""
    with duck_ledger(settings.warehouse) as ledger:
        query = "select max(at_ms) as at_ms from rebalances where group_id = $group_id and trigger = 'join'"
        [row] = ledger.rows(query, group_id=GROUP)
    return EpochMs(row.at_ms + AFTER_MS)


def picture(page: Page, address: str, file: Path) -> None:
    """Make one picture; end with an error if the page is empty or the file is too large."""
    answer = page.goto(address)
    if answer is None or not answer.ok:
        sys.exit(f"{address}: {answer and answer.status}")
    page.get_by_text(GROUP).first.wait_for()
    page.screenshot(path=file)
    size = file.stat().st_size
    if size > LARGEST_BYTES:
        sys.exit(f"{file} has {size:,} bytes; it must have at most {LARGEST_BYTES:,}")
    print(f"{file.relative_to(ROOT)}: {size:,} bytes")


if __name__ == "__main__":
    main()
