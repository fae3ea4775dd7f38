"""Both pages in a real browser: nothing is loaded, nothing complains, nothing sticks out."""

import os
import shutil
from types import SimpleNamespace

import pytest

from canal.report.render import render
from canal.report.run import Run

CHROMIUM = shutil.which("chromium")
WIDTHS = {"phone": 390, "desk": 1200}
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not there; install canal[dev]"
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium here; `make browser` gets it from Debian"
)


@pytest.fixture(scope="module")
def browser():
    # Chromium refuses its sandbox to root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, made_run, arrays):
    """Files to open: the report with and without pictures, and the privacy card."""
    folder, run = tmp_path_factory.mktemp("pages"), Run.read(made_run)
    made = {
        "pictures": render(run, arrays),
        "report": render(run),
        "card": (made_run / "releases" / "canal" / "card.html").read_text(),
    }
    for name, html in made.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


@pytest.fixture
def visit(browser, pages):
    """Open a page in a window; what it says to the console and asks of the network is kept."""
    windows = []

    def open_page(name, width):
        window = browser.new_page(viewport={"width": width, "height": 844})
        windows.append(window)
        heard, asked = [], []
        window.on("console", lambda message: heard.append(message.text))
        window.on("pageerror", lambda error: heard.append(str(error)))
        window.on("request", lambda request: asked.append(request.url))
        window.on("requestfailed", lambda request: heard.append(f"failed: {request.url}"))
        window.goto(pages[name].as_uri(), wait_until="load")
        return SimpleNamespace(window=window, heard=heard, asked=asked)

    yield open_page
    for window in windows:
        window.close()


PAGES = pytest.mark.parametrize("name", ["pictures", "report", "card"])
EVERY = pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)


@PAGES
@EVERY
def test_a_page_is_quiet_and_fits(visit, pages, name, width):
    seen = visit(name, width)
    assert seen.heard == []
    # The page itself, and what is written into it.
    assert [url for url in seen.asked if not url.startswith("data:")] == [pages[name].as_uri()]
    wide, there = seen.window.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= there
    boxes = seen.window.evaluate(
        """[...document.querySelectorAll('body *')].map(e => e.getBoundingClientRect())
           .filter(box => box.width && (box.right > innerWidth + 1 || box.left < -1)).length"""
    )
    assert boxes == 0


@PAGES
def test_what_is_drawn_has_words(visit, name):
    window = visit(name, WIDTHS["desk"]).window
    titles = window.evaluate(
        "[...document.querySelectorAll('svg')].map(s => s.querySelector('title')?.textContent)"
    )
    assert titles
    assert all(titles)
    images = window.evaluate("[...document.images].map(i => [i.naturalWidth, i.alt])")
    assert len(images) == (30 if name == "pictures" else 0)
    assert all(width > 0 and alt for width, alt in images)


@PAGES
def test_a_page_prints(visit, name):
    printed = visit(name, WIDTHS["desk"]).window.pdf(prefer_css_page_size=True)
    assert printed.startswith(b"%PDF-")
    assert len(printed) > 10_000


@EVERY
def test_names_stand_clear_of_the_drawings(visit, width):
    """The rows of the forest plot: no cell lies on another, and dots are within their cells."""
    window = visit("pictures", width).window
    overlaps = window.evaluate(
        """[...document.querySelectorAll('.forest tbody tr')].flatMap(row => {
             const boxes = [...row.children].map(c => c.getBoundingClientRect());
             return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b =>
               Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
               Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)) }).length"""
    )
    assert overlaps == 0
    outside = window.evaluate(
        """[...document.querySelectorAll('.forest tbody th')]
             .filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(c => c.textContent)"""
    )
    assert outside == []


def test_the_policy_holds(browser, tmp_path, made_run):
    """A negative control: a script and an image from elsewhere are refused, and heard of."""
    html = render(Run.read(made_run)).replace(
        "</body>",
        '<script>document.title = "changed"</script><img src="nowhere.png" alt=""></body>',
    )
    path = tmp_path / "forged.html"
    path.write_text(html, encoding="utf-8")
    window, heard = browser.new_page(), []
    window.on("console", lambda message: heard.append(message.text))
    window.goto(path.as_uri())
    assert window.title() == "Report of a CANAL run"
    assert len([text for text in heard if "Content Security Policy" in text]) == 2
    window.close()
