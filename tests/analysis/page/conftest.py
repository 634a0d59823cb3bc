"""A browser and HTML pages opened in it."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, sync_playwright
from playwright.sync_api import Page as Tab

from hwnas.analysis.page.data import Page
from hwnas.analysis.page.html import render

#: Script that returns the position of the ring that marks a point, in canvas pixels.
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
class OpenedPage:
    """A page in the browser with its requests, console messages and dialogs."""

    tab: Tab
    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def counts(self) -> str:
        return self.tab.locator(".counts").first.inner_text()

    def ids(self) -> list[str]:
        return self.tab.locator(".members tbody td:nth-child(2)").all_inner_texts()

    def limit(self, number: int, value: str) -> None:
        box = self.tab.locator(".slider input[type=number]").nth(number)
        box.fill(value)
        box.press("Enter")

    def position(self, canvas: Locator, point: int) -> tuple[float, float]:
        """Return the position of a member: hovering its row marks it with a ring."""
        self.tab.locator(f"tr[data-point='{point}']").hover()
        x, y = canvas.locator("canvas.top").evaluate(_RING)
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box is not None
        return box["x"] + x, box["y"] + y


@pytest.fixture
def open_file(browser: Browser) -> Iterator[Callable[[Path], OpenedPage]]:
    """Return a function that opens a file in the browser."""
    context = browser.new_context(viewport={"width": 1280, "height": 1400})

    def visit(path: Path) -> OpenedPage:
        page = OpenedPage(context.new_page())
        page.tab.on("request", lambda request: page.requests.append(request.url))
        page.tab.on("console", lambda message: page.console.append(message.text))
        page.tab.on("pageerror", lambda error: page.console.append(str(error)))
        page.tab.on("dialog", lambda dialog: page.dialogs.append(dialog.message))
        page.tab.goto(path.as_uri())
        page.tab.wait_for_selector("html[data-ready]", timeout=60_000, state="attached")
        page.tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        return page

    yield visit
    context.close()


@pytest.fixture
def open_page(
    open_file: Callable[[Path], OpenedPage], tmp_path: Path
) -> Callable[[Page], OpenedPage]:
    """Return a function that renders a page and opens it."""

    def open_(page: Page) -> OpenedPage:
        (tmp_path / "page.html").write_text(render(page), encoding="utf-8")
        return open_file(tmp_path / "page.html")

    return open_
