"""Draws the pictures of README.md and docs/: reports as a browser shows them, from recordings that come along, and the
charts of the founding documents, each by one command.

    python benchmarks/pictures.py [NAME ...]     writes docs/pictures/NAME.png, all of them by default

Reports need a chromium; nothing needs a GPU or a network.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import rooflight

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
STUDIES = ROOT / "studies" / "recorded" / "h200"
COLOURS = 256
"""Of a picture: a page has few, and the files stay small."""


@dataclass(frozen=True)
class Shot:
    source: object
    width: int = 1280
    height: int = 900
    dark: bool = False
    section: str = ""
    """The top of the page where none is named."""
    before: Callable[[Page], None] | None = None


def open_conv2(page: Page) -> None:
    page.fill(".tree input", "layer1.0.conv2")
    page.locator(".tree .name", has_text="conv2").first.click()


RESNET, VIT = "recorded:h200/resnet50-train-fp32", "recorded:h200/vit-b-16-train-bf16"
SHOTS = {
    "report": Shot(RESNET, height=1180),
    "report-dark": Shot(VIT, height=900, dark=True, section="roofline"),
    "report-layers": Shot(RESNET, height=640, section="layers"),
    "report-derivation": Shot(RESNET, height=760, section="layers", before=open_conv2),
    "report-memory": Shot(RESNET, height=620, section="memory"),
    "report-lanes": Shot(VIT, height=520, section="lanes"),
    "report-devices": Shot(RESNET, height=820, section="sweep"),
    "report-phone": Shot(RESNET, width=390, height=844),
    **{f"study-{path.name}": Shot(path, height=1000) for path in sorted(STUDIES.iterdir()) if path.is_dir()},
}


MNIST = "studies/recorded/h200/mnist-conv2"
VGGS = "vgg11,vgg13,vgg19 --batch 16"
RESNETS = "resnet18,resnet50 --batch 2 --step train"
CHARTS = {
    "conv2-flops": f"report {MNIST} --chart batch --of flops --layer conv2",
    "conv2-memory": f"report {MNIST} --chart batch --of footprint --layer conv2",
    "roofline-resnets-v100": f"report {RESNETS} --on v100-sxm2-16 --chart roofline",
    "roofline-resnets-a100": f"report {RESNETS} --on a100-sxm-40 --chart roofline",
    "roofline-vggs-v100": f"report {VGGS} --on v100-sxm2-16 --chart roofline",
    "roofline-vggs-a100": f"report {VGGS} --on a100-sxm-40 --chart roofline",
    "resnet50-waterfall": f"compare {RESNET} {RESNET}-compiled --chart waterfall",
}
"""The six charts that the documents drew by hand, and a comparison: what stands behind `rooflight` on a command line,
but for -o."""
CHART_WIDTH = 1000
"""Of their files, in pixels."""


def main() -> None:
    names = sys.argv[1:] or [*CHARTS, *SHOTS]
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        if name in CHARTS:
            draw(CHARTS[name], FOLDER / f"{name}.png")
    shoot([name for name in names if name not in CHARTS])


def draw(command: str, path: Path) -> None:
    """By the very command that the gallery shows."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / "drawn.png"
        line = [sys.executable, "-m", "rooflight", *command.split(), "-o", str(drawn)]
        subprocess.run(line, check=True, cwd=ROOT)
        picture = Image.open(drawn)
        height = round(picture.height * CHART_WIDTH / picture.width)
        content = io.BytesIO()
        picture.convert("RGB").resize((CHART_WIDTH, height), Image.Resampling.LANCZOS).save(content, "PNG")
    save(content.getvalue(), path)


def shoot(names: Sequence[str]) -> None:
    """Pages, as a browser shows them."""
    if not names:
        return
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    made: dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name in names:
            shot = SHOTS[name]
            key = str(shot.source)
            if key not in made:
                made[key] = Path(rooflight.report(shot.source, Path(folder) / f"{len(made)}.html"))
            context = browser.new_context(viewport={"width": shot.width, "height": shot.height}, device_scale_factor=1.5,
                                          color_scheme="dark" if shot.dark else "light")  # fmt: skip
            page = context.new_page()
            page.goto(made[key].as_uri())
            page.wait_for_selector("html[data-loaded=yes]")
            if shot.section:
                page.evaluate("name => document.getElementById(name).scrollIntoView()", shot.section)
            page.wait_for_timeout(1500)
            if shot.before is not None:
                shot.before(page)
                page.wait_for_timeout(300)
            save(page.screenshot(), FOLDER / f"{name}.png")
            context.close()
        browser.close()


def save(content: bytes, path: Path) -> None:
    Image.open(io.BytesIO(content)).convert("RGB").quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE).save(
        path, optimize=True
    )
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
