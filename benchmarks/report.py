"""How large reports are, how long they take to be made, and how fast a browser opens and sorts them.

    python benchmarks/report.py             prints the table
    python benchmarks/report.py --write     puts it into docs/reports.md, and the numbers into benchmarks/results

Needs a chromium; no GPU, no network. Opening is from the address to a page whose table and first chart are drawn; what
is done in the page is from the click to the second frame after it.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reports.md"
RESULTS = ROOT / "benchmarks" / "results" / "report.json"
MARKED = re.compile(r"(<!-- sizes: written by benchmarks/report.py -->\n).*?(<!-- end -->)", re.DOTALL)
ROUNDS = 5
SOURCES = {
    "MNIST net, training, measured": "recorded:h200/mnist-cnn-train-tf32",
    "ResNet-50, training, measured": "recorded:h200/resnet50-train-fp32",
    "ViT-B/16, training, measured": "recorded:h200/vit-b-16-train-bf16",
    "GPT-2, 22 training steps as one, measured": "large",
    "Llama 3 70B, training, two accumulated batches": "llama",
    "study of 42 cells": "studies/recorded/h200/resnet-memory-roofline",
}
FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for what, source in SOURCES.items():
            rows.append(measured(browser, what, MADE[source](folder) if source in MADE else source, folder))
            print(rows[-1], flush=True)
        version = browser.version
        browser.close()
    table = written(rows, version)
    print(table)
    if "--write" in sys.argv:
        RESULTS.write_text(json.dumps({"chromium": version, "rounds": ROUNDS, "rows": rows}, indent=1) + "\n")
        PAGE.write_text(MARKED.sub(lambda found: f"{found[1]}{table}{found[2]}", PAGE.read_text()))


def llama(folder: Path) -> str:
    path = folder / "llama.json.gz"
    line = ["estimate", "llama3-70b", "--step", "train", "--dtype", "bf16", "--accumulate", "2", "-o", str(path)]
    subprocess.run([sys.executable, "-m", "rooflight", *line], check=True, capture_output=True)
    return str(path)


def large(folder: Path) -> str:
    path = folder / "large.json.gz"
    subprocess.run([sys.executable, ROOT / "benchmarks" / "large_ledger.py", path], check=True)
    return str(path)


MADE = {"large": large, "llama": llama}


def measured(browser: Browser, what: str, source: str, folder: Path) -> dict[str, object]:
    path = folder / "report.html"
    made_s = []
    for _ in range(4):  # the first time a model is traced, and its trace is kept
        began = cpu_s()
        subprocess.run([sys.executable, "-m", "rooflight", "report", source, "-o", str(path), "--force"], check=True,
                       capture_output=True, cwd=ROOT)  # fmt: skip
        made_s.append(cpu_s() - began)
    times: dict[str, list[float]] = {}
    asked: set[str] = set()
    count = 0
    for _ in range(ROUNDS):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.on("request", lambda request: asked.add(request.url))
        began = time.perf_counter()
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-loaded=yes]")
        page.evaluate("document.querySelector('.plot')?.scrollIntoView()")
        page.wait_for_function("document.querySelector('.plot')?.dataset.ready === 'yes'")
        times.setdefault("open", []).append(time.perf_counter() - began)
        if page.query_selector(".tree"):
            count = page.evaluate("JSON.parse(document.getElementById('data').textContent).trees.layers.names.length")
            for name, took in in_the_page(page).items():
                times.setdefault(name, []).append(took)
        context.close()
    outside = sorted(url for url in asked if url != path.as_uri())
    return {"what": what, "bytes": path.stat().st_size, "rows": count, "made_s": min(made_s[1:]), "requests_outside": outside,
            **{f"{name}_s": statistics.median(found) for name, found in times.items()}}  # fmt: skip


def cpu_s() -> float:
    """Of all processes that ended: other work on the machine changes it little."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_the_page(page: Page) -> dict[str, float]:
    steps = {
        "unfold": lambda: page.click(".unfold"),
        "sort": lambda: page.locator(".tree thead button", has_text="FLOPs").first.click(),
        "search": lambda: page.fill(".tree input", "backward"),
        "scroll": lambda: page.evaluate("document.querySelector('.tree .scroll').scrollTop = 1e6"),
    }
    found = {}
    for name, do in steps.items():
        began = time.perf_counter()
        do()
        page.evaluate(FRAME)
        found[name] = time.perf_counter() - began
    return found


def written(rows: list[dict], version: str) -> str:
    def ms(row: dict, name: str) -> str:
        return f"{1e3 * row[name]:.0f} ms" if name in row else "–"

    lines = [
        f"Made by `python benchmarks/report.py --write` on 2 CPU cores, headless Chromium {version.partition('.')[0]}; "
        f"medians of {ROUNDS}. Making is CPU time, the least of three after a first that traces the model. Opening is from the address "
        f"to the table and the first chart drawn. Requests that left a page: {sum(len(row['requests_outside']) for row in rows)}.",
        "",
        "| report | size | rows | made in | opens in | unfold all | sort | search | scroll |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {row['what']} | {row['bytes'] / 1e6:.2f} MB | {row['rows']:,} | {row['made_s']:.1f} s | "
            f"{ms(row, 'open_s')} | {ms(row, 'unfold_s')} | {ms(row, 'sort_s')} | {ms(row, 'search_s')} | {ms(row, 'scroll_s')} |"
            if row["rows"] else
            f"| {row['what']} | {row['bytes'] / 1e6:.2f} MB | – | {row['made_s']:.1f} s | {ms(row, 'open_s')} | – | – | – | – |"
            for row in rows
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
