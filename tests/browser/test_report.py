"""Reports in a real browser, Debian's chromium: they open without a word on the console and without a request, and
what can be clicked, typed and pressed does what it says. Without a chromium these are skipped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import rooflight
from rooflight.reporting.report.api import make
from tests.fixtures.paths import ROOT
from tests.fixtures.report_pages import hostile_ledger, once

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="needs a chromium (apt-get install chromium, or CHROMIUM=path)"),
]

WIDTHS = (1440, 820, 390)
"""A screen, a tablet, a phone."""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def resnet50(tmp_path_factory) -> Path:
    return once(
        tmp_path_factory, "resnet50.html", lambda path: rooflight.report("recorded:h200/resnet50-train-fp32", path)
    )


@pytest.fixture(scope="module")
def mnist(tmp_path_factory) -> Path:
    return once(
        tmp_path_factory, "mnist.html", lambda path: rooflight.report("recorded:h200/mnist-cnn-train-tf32", path)
    )


class Opened:
    """A page with everything it said and asked for."""

    def __init__(self, browser, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        self.page = context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-loaded=yes]")

    def see_all(self) -> None:
        """Scrolls to the end, so that every chart is drawn."""
        for place in self.page.query_selector_all(".plot"):
            place.scroll_into_view_if_needed()
            self.page.wait_for_function("place => place.dataset.ready === 'yes'", arg=place)

    def names(self) -> list[str]:
        return self.page.eval_on_selector_all(".tree tbody .name", "found => found.map(one => one.textContent)")

    def paths(self) -> list[str]:
        return self.page.eval_on_selector_all(".tree tbody .first", "found => found.map(one => one.title)")

    def column(self, title: str) -> list[str]:
        titles = self.page.eval_on_selector_all(
            ".tree tr:nth-child(2) th", "found => found.map(one => one.textContent)"
        )
        place = next(n for n, text in enumerate(titles) if text.rstrip(" ▾▴") == title) + 1
        return self.page.eval_on_selector_all(
            f".tree tbody tr[data-n] td:nth-child({place})", "found => found.map(one => one.textContent)"
        )

    def sort(self, title: str) -> None:
        self.page.locator(".tree thead button", has_text=title).first.click()


@pytest.fixture
def opened(browser, mnist):
    found = Opened(browser, mnist)
    yield found
    assert found.said == []
    assert found.asked == [mnist.as_uri()]
    found.page.context.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_resnet50_opens_quietly_and_fits_the_screen(browser, resnet50, width, dark):
    assert resnet50.stat().st_size < 3_000_000
    found = Opened(browser, resnet50, width=width, dark=dark)
    found.see_all()
    assert found.said == []
    assert found.asked == [resnet50.as_uri()]  # the file itself, and nothing else
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width
    assert found.page.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    charts = found.page.eval_on_selector_all(
        ".plot", "found => found.map(one => [one.dataset.chart, !!one.querySelector('canvas')])"
    )
    assert dict(charts) == dict.fromkeys(("roofline", "memory", "lanes", "shares", "sweep", "devices", "scaling"), True)
    drawn = found.page.eval_on_selector_all(
        ".plot canvas", "found => found.map(one => one.getBoundingClientRect().width)"
    )
    assert all(120 < one <= width for one in drawn)
    found.page.context.close()


def test_nothing_may_leave_the_page(opened):
    """Even what would try to is stopped by the page's own policy."""
    blocked = opened.page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'blocked')")
    assert blocked == "blocked"
    assert any("Content Security Policy" in line for line in opened.said)
    opened.said.clear()
    opened.asked[1:] = []


def test_rows_fold_and_unfold(opened):
    assert "conv2" in opened.names()
    assert "convolution_backward" not in opened.names()
    opened.page.locator(".tree tr", has_text="conv2").first.locator(".twist").click()
    assert "convolution_backward" in opened.names()
    opened.page.click(".tree .fold")
    assert "conv2" not in opened.names()
    opened.page.click(".tree .unfold")
    shown, whole = opened.page.inner_text(".tree .count").removesuffix(" rows").split(" of ")
    assert shown == whole


def test_a_click_on_a_column_sorts_and_a_third_puts_back(opened):
    before = opened.names()
    opened.sort("FLOPs")
    falling = opened.names()
    top = [name for name in falling if name in ("conv1", "conv2", "fc1", "fc2")]
    assert top == ["conv2", "fc1", "conv1", "fc2"]  # 4.08 G, 453 M, 49.8 M, 492 k: see test_report.py
    opened.sort("FLOPs")
    assert [name for name in opened.names() if name in top] == top[::-1]
    opened.sort("FLOPs")
    assert opened.names() == before


def test_ops_can_be_seen_flat_and_unknown_values_sort_last(opened):
    opened.page.select_option(".tree .view", "op")
    opened.sort("exec/useful")
    cells = opened.column("exec/useful")
    known = [float(cell.replace(",", "")) for cell in cells if cell != "–"]
    assert known == sorted(known, reverse=True)
    assert cells[len(known) :] == ["–"] * (len(cells) - len(known))
    opened.sort("exec/useful")  # and the other way round
    assert opened.column("exec/useful")[0] != "–"


def test_cells_show_what_python_wrote_and_titles_all_digits(opened):
    tree = next(make("recorded:h200/mnist-cnn-train-tf32").trees)
    opened.page.click(".tree .unfold")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")  # every row is in the page
    place = {path: number for number, path in enumerate(opened.paths())}
    for one in tree.columns:
        cells = opened.column(one.column.name)
        for path, value in zip(tree.paths, one.values, strict=True):
            if tree.paths.count(path) == 1 and path:
                assert cells[place[path]] == ("–" if value is None else one.column.write(value)), (
                    path,
                    one.column.name,
                )
    assert opened.page.locator(".tree td[title='FLOPs: 4,076,863,488']").count() == 1  # of conv2: see test_report.py
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")


def test_search_finds_layers_ops_and_causes_with_their_parents(opened):
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("conv2 backward")
    assert opened.names() == ["mnist-cnn", "conv2", "convolution_backward"]
    opened.page.fill(".tree input", "tile padding")
    assert "conv2" in opened.names()
    opened.page.fill(".tree input", "no such layer")
    assert opened.names() == []


def test_a_row_shows_its_derivation_by_pen_and_paper(opened):
    opened.page.locator(".tree .name", has_text="conv2").first.click()
    text = opened.page.inner_text("#detail")
    assert "N × Cout × Ho × Wo × Cin × Kh × Kw" in text
    assert "64 × 64 × 24 × 24 × 32 × 3 × 3" in text
    assert "679,477,248" in text
    opened.page.keyboard.press("Escape")
    assert not opened.page.is_visible("#detail")


def test_an_op_shows_its_causes_and_kernels(opened):
    opened.page.select_option(".tree .view", "op")
    opened.page.fill(".tree input", "conv2 forward")
    opened.page.locator(".tree .name", has_text="convolution").first.click()
    text = opened.page.inner_text("#detail")
    for word in ("asked for", "unexplained", "measured", "evidence", "Kernels"):
        assert word in text
    assert "asked for\t1.36 G" in text  # 2 x 64 x 64 x 24 x 24 x 32 x 3 x 3, and the same in full below
    assert "FLOPs\t1.36 G (1,358,954,496)" in text


def test_the_keyboard_is_enough(opened):
    focused = "document.activeElement.querySelector('.name')?.textContent"
    opened.page.locator(".tree tr[data-n='0']").focus()
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowDown")
    assert opened.page.evaluate(focused) == "conv2"
    opened.page.keyboard.press("ArrowRight")  # opens it
    opened.page.keyboard.press("ArrowRight")  # goes into it
    assert opened.page.evaluate(focused) == "convolution"
    opened.page.keyboard.press("ArrowLeft")
    assert opened.page.evaluate(focused) == "conv2"
    opened.page.keyboard.press("Enter")
    assert opened.page.is_visible("#detail")
    opened.page.keyboard.press("Escape")
    opened.page.keyboard.press("End")
    assert opened.page.evaluate(focused) == opened.names()[-1]


def test_every_control_is_reached_with_tab(opened):
    seen = set()
    for _ in range(60):
        opened.page.keyboard.press("Tab")
        seen.add(
            opened.page.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
            )
        )
    assert {"theme", "view", "unfold", "fold"} <= seen


def test_the_theme_can_be_chosen_and_charts_follow(opened):
    place = opened.page.locator(".plot[data-chart=shares]")
    # How bright the ink of the chart is: its labels are dark on a light page and light on a dark one.
    ink = """place => {
      const canvas = place.querySelector('canvas'), {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      let grey = [];
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 250 && Math.abs(data[i] - data[i + 1]) < 12 && Math.abs(data[i + 1] - data[i + 2]) < 16) grey.push(data[i]);
      grey.sort((a, b) => a - b);
      return [grey[0], grey.at(-1)];
    }"""
    seen = []
    for _ in range(2):
        opened.page.evaluate("scrollTo(0, 0)")
        opened.page.click("#theme")
        theme = opened.page.evaluate("document.documentElement.dataset.theme")
        place.scroll_into_view_if_needed()
        opened.page.wait_for_function("place => place.dataset.ready === 'yes'", arg=place.element_handle())
        legible = "([least]) => least < 60" if theme == "light" else "([, most]) => most > 200"  # of the letters
        opened.page.wait_for_function(f"place => ({legible})(({ink})(place))", arg=place.element_handle())
        seen.append(theme)
    assert seen == ["light", "dark"]
    colour = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) < 60
    opened.page.evaluate("scrollTo(0, 0)")
    opened.page.click("#theme")
    assert opened.page.evaluate("document.documentElement.dataset.theme") == "light"  # as the system says


SYMBOLS = """() => {
  const view = document.querySelector('.plot[data-chart=roofline]').view, found = [];
  const walk = (item, x, y) => {
    if (item.marktype === 'symbol' && item.role === 'mark') for (const one of item.items) if (one.opacity !== 0 && one.size > 0) found.push([x + one.x, y + one.y, one.size, one.opacity ?? 1]);
    if (item.marktype === 'symbol' && item.role === 'legend-symbol') for (const one of item.items) found.push([x + one.x, y + one.y, -1, 1]);
    for (const below of item.items || []) walk(below, x + (below.x && below.items ? below.x : 0), y + (below.y && below.items ? below.y : 0));
  };
  walk(view.scenegraph().root, 0, 0);
  const [ox, oy] = view.origin();
  return found.map(([x, y, size, opacity]) => [x + ox, y + oy, size, opacity]);
}"""


def roofline(opened):
    """The box of its canvas, and its marks; those of size -1 are of legends."""
    place = opened.page.locator(".plot[data-chart=roofline]")
    place.scroll_into_view_if_needed()
    opened.page.wait_for_function("document.querySelector('.plot[data-chart=roofline]').dataset.ready === 'yes'")
    return opened.page.locator(".plot[data-chart=roofline] canvas").bounding_box(), opened.page.evaluate(SYMBOLS)


def test_a_click_on_the_legend_shows_one_kind_of_work_alone(opened):
    box, marks = roofline(opened)
    before = sum(opacity > 0.4 for _, _, size, opacity in marks if size > 0)
    legend = max((mark for mark in marks if mark[2] == -1), key=lambda mark: mark[1])  # the lowest: what an op does
    opened.page.mouse.click(box["x"] + legend[0], box["y"] + legend[1])
    bright = f"({SYMBOLS})().filter(([, , size, opacity]) => size > 0 && opacity > 0.4).length"
    opened.page.wait_for_function(f"before => {{ const now = {bright}; return 0 < now && now < before }}", arg=before)


def test_a_point_of_the_roofline_tells_its_numbers(opened):
    box, marks = roofline(opened)
    x, y, *_ = max(marks, key=lambda mark: mark[2])
    opened.page.mouse.move(box["x"] + x, box["y"] + y)
    opened.page.wait_for_selector("#vg-tooltip-element.visible")
    text = opened.page.inner_text("#vg-tooltip-element")
    for word in ("FLOP/B", "FLOP/s", "time", "roof"):
        assert word in text


def test_printed_it_is_light_and_whole(browser, mnist, tmp_path):
    """On paper nothing can be clicked: notes are open, rows are there, empty space for rows is not."""
    found = Opened(browser, mnist, dark=True)
    found.page.click(".tree .unfold")
    rows = int(found.page.inner_text(".tree .count").split(" ")[0])
    found.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    found.page.emulate_media(media="print", color_scheme="dark")
    assert found.page.evaluate("document.documentElement.dataset.theme") == "light"
    assert not found.page.is_visible("header.top")
    assert found.page.evaluate("[...document.querySelectorAll('section > details')].every(one => one.open)")
    assert not found.page.locator(".tree tr.spacer").first.is_visible()
    assert not any(hint.is_visible() for hint in found.page.locator(".hint").all())
    assert found.page.locator(".tree tr[data-n]").count() == rows
    assert found.page.evaluate("document.querySelectorAll('.plot[data-ready=yes]').length") >= 1
    found.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert found.page.evaluate("document.documentElement.dataset.theme") == "dark"
    path = tmp_path / "report.pdf"
    found.page.pdf(path=path)
    pages = path.read_bytes().count(b"/Type /Page\n") + path.read_bytes().count(b"/Type /Page ")
    assert path.read_bytes().startswith(b"%PDF")
    assert pages < 40
    found.page.context.close()


def test_hostile_names_do_nothing(browser, tmp_path):
    path = tmp_path / "hostile.html"
    rooflight.report(hostile_ledger(), path, on="h200")
    found = Opened(browser, path)
    found.see_all()
    found.page.click(".tree .unfold")
    found.page.locator(".tree tr[data-n]").nth(1).click()
    assert found.page.evaluate("typeof hacked") == "undefined"
    assert "</script><script>hacked=1</script>" in found.page.inner_text("#detail")
    assert found.said == []
    assert found.asked == [path.as_uri()]
    found.page.context.close()


def test_twenty_thousand_ops_scroll_sort_and_open(browser, tmp_path_factory):
    """Llama 3 70B training, two accumulated batches: only the rows on the screen are in the page."""
    path = once(tmp_path_factory, "llama.html", _llama)
    found = Opened(browser, path)
    found.page.click(".tree .unfold")
    shown, whole = (
        int(part.replace(",", "")) for part in found.page.inner_text(".tree .count").removesuffix(" rows").split(" of ")
    )
    assert shown == whole > 20_000
    assert found.page.evaluate("document.querySelectorAll('.tree tbody tr').length") < 120
    found.page.evaluate("document.querySelector('.tree .scroll').scrollTop = 1e9")
    found.page.wait_for_function(
        "[...document.querySelectorAll('.tree tbody .name')].at(-1).textContent.includes('_foreach')"
    )
    found.page.select_option(".tree .view", "op")
    found.sort("FLOPs")
    assert found.column("FLOPs")[0] != "0"
    found.page.locator(".tree tr[data-n='0']").click()
    assert "MACs" in found.page.inner_text("#detail")
    assert found.said == []
    found.page.context.close()


def _llama(path: Path) -> None:
    from dataclasses import replace

    from rooflight.analysis.verdicts import Judge
    from rooflight.prediction.resolve_devices import device_of
    from rooflight.reporting.document import Document, Section
    from rooflight.reporting.report.tree import details_of, tree_of
    from rooflight.reporting.writers.page import to_page

    ledger = rooflight.estimate("llama3-70b", batch=1, step="train", dtype="bf16", accumulate=2)
    tree = tree_of(Judge(ledger, on=device_of("h200")), None)
    report = Document(
        "llama3-70b", sections=(Section("layers", "Layers", tree=tree),), details=details_of(ledger, None)
    )
    path.write_text(to_page(replace(report, title="llama3-70b, training")))


@pytest.mark.parametrize("name", ["mnist-conv2", "paleo-k80"])
def test_studies_open_quietly(browser, tmp_path, name):
    path = tmp_path / "study.html"
    rooflight.report(ROOT / "studies" / "recorded" / "h200" / name, path)
    for width in (1280, 390):
        found = Opened(browser, path, width=width)
        found.see_all()
        assert found.said == []
        assert found.asked == [path.as_uri()]
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width
        assert found.page.locator(".v.held").count() > 0
        found.page.context.close()


def test_a_pair_opens_quietly(browser, tmp_path):
    pair = ["recorded:h200/mnist-cnn-infer-fp32", "recorded:h200/mnist-cnn-infer-tf32"]
    rooflight.report(pair, tmp_path / "pair.html")
    found = Opened(browser, tmp_path / "pair.html")
    found.see_all()
    assert found.said == []
    assert found.page.locator(".plot").count() >= 4
    found.page.context.close()
