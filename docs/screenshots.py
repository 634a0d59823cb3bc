"""Take the screenshots of the documentation: ``python docs/screenshots.py``.

Runs two searches of a few minutes and compares them, then opens the pages in Debian's Chromium
(``apt-get install chromium``). The images are committed in ``docs/img``.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "img"
WIDTH = 1200
SEARCHES = {
    "first": ("+target=npu", "seed=0"),
    "second": ("+target=npu", "seed=0", "sampler=random"),
}
#: Page and height of each image, in pixels.
PAGES = {
    "report": ("first/report.html", 900),
    "comparison": ("comparison/report.html", 900),
}


def _run(folder: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "hwnas", *arguments], cwd=folder, check=True)


def _capture(folder: Path) -> None:
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (path, height) in PAGES.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": height})
            page.goto((folder / path).as_uri())
            page.wait_for_load_state("networkidle")
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


def main() -> None:
    """Take all screenshots; a folder with earlier runs may be given as argument."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        for name, arguments in SEARCHES.items():
            if not (folder / name / "report.html").exists():
                _run(folder, "search", *arguments, f"run.dir={name}")
        if not (folder / "comparison" / "report.html").exists():
            _run(folder, "compare", "runs=[first,second]", "run.dir=comparison")
        _capture(folder)


if __name__ == "__main__":
    main()
