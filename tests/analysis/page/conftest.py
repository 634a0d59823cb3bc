"""A browser, and pages that it has opened as files."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, sync_playwright
from playwright.sync_api import Page as Tab

from hwnas.analysis.page.data import Page
from hwnas.analysis.page.html import render

#: Where the ring is that marks a point, in pixels of its canvas.
_RING = """canvas => {
  const {width, height} = canvas;
  const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
  let n = 0, x = 0, y = 0;
  for (let i = 0; i < width * height; i++) {
    if (data[4 * i + 3]) { n += 1; x += i % width; y += Math.floor(i / width); }
  }
  return [x / n + 0.5, y / n + 0.5];
}"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"], timeout=120_000
        )
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page in the browser, with what it asked for and complained of."""

    tab: Tab
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def counts(self) -> str:
        return self.tab.locator(".counts").first.inner_text()

    def ids(self) -> list[str]:
        return self.tab.locator(".members tbody td:nth-child(2)").all_inner_texts()

    def limit(self, number: int, value: str) -> None:
        box = self.tab.locator(".slider input[type=number]").nth(number)
        box.fill(value)
        box.press("Enter")

    def at(self, canvas: Locator, point: int) -> tuple[float, float]:
        """Return where a member is drawn: a ring marks it while its row is hovered."""
        self.tab.locator(f"tr[data-point='{point}']").hover()
        x, y = canvas.locator("canvas.top").evaluate(_RING)
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box is not None
        return box["x"] + x, box["y"] + y


@pytest.fixture
def visited(browser: Browser) -> Iterator[Callable[[Path], Opened]]:
    """Open a file."""
    context = browser.new_context(viewport={"width": 1280, "height": 1400})

    def visit(path: Path) -> Opened:
        found = Opened(context.new_page())
        found.tab.on("request", lambda request: found.requests.append(request.url))
        found.tab.on("console", lambda message: found.complaints.append(message.text))
        found.tab.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.tab.on("dialog", lambda dialog: found.dialogs.append(dialog.message))
        found.tab.goto(path.as_uri())
        found.tab.wait_for_selector("html[data-ready]", timeout=60_000, state="attached")
        found.tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        return found

    yield visit
    context.close()


@pytest.fixture
def opened(visited: Callable[[Path], Opened], tmp_path: Path) -> Callable[[Page], Opened]:
    """Render a page and open it."""

    def open_(page: Page) -> Opened:
        (tmp_path / "page.html").write_text(render(page), encoding="utf-8")
        return visited(tmp_path / "page.html")

    return open_
