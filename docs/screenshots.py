"""Take the screenshots of the documentation: ``python docs/screenshots.py [FOLDER]``.

Runs a search of a few minutes, and opens its page in Debian's Chromium (``apt-get install
chromium``). The images are committed in ``docs/img``.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "img"
RUN = "report"
SEARCH = ("+target=npu", "n_trials=45", "finish.max_candidates=9", f"run.dir={RUN}")
SIZE = {"width": 1200, "height": 1480}


def _capture(page_file: Path, image: Path) -> None:
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": SIZE["width"], "height": SIZE["height"]})
        page.goto(page_file.as_uri())
        page.wait_for_load_state("networkidle")
        page.screenshot(path=image)
        browser.close()


def main() -> None:
    """Take the screenshots; a folder with an earlier run may be given as argument."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        if not (folder / RUN / "report.html").exists():
            command = [sys.executable, "-m", "hwnas", "search", *SEARCH]
            subprocess.run(command, cwd=folder, check=True)
        _capture((folder / RUN / "report.html").absolute(), IMAGES / "report.png")


if __name__ == "__main__":
    main()
