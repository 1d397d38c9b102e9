"""The picture and the table of `docs/architecture.md`, from the source itself: what each room says of itself, and
what it imports.

    python docs/_ext/rooflight_docs/architecture.py     writes both anew; a test holds them to the source
"""

from __future__ import annotations

import ast
import html
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "rooflight"
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
BEGIN, END = "<!-- rooms: written by docs/_ext/rooflight_docs/architecture.py -->", "<!-- end of rooms -->"

ROWS: tuple[tuple[str, dict[str, tuple[int, str]]], ...] = (
    ("the vocabulary", {"ledger": (0, "one row an op"), "metrics": (1, "each quantity once"),
                                "spec": (2, "one step described"), "formatting": (3, "numbers for people"),
                                "units": (4, "numbers of people")}),
    ("a step becomes rows", {"models": (0, "name to model"), "trace": (1, "step to ops"),
                             "ops": (2, "families: formulas"), "hardware": (3, "devices, calibrations")}),
    ("two sides of the ledger", {"profiles": (0, "logs of profilers"), "measurement": (1, "what the silicon did"),
                                 "estimation": (2, "what mathematics says"), "machine": (4, "what this machine is")}),
    ("a step to compute with", {"summary": (1, "sums by row"), "step": (2, "distinct ops, batches"),
                                "parallel": (3, "ranks and layouts"), "calibration": (4, "micro-benchmarks")}),
    ("what it will take", {"prediction": (2, "time, capacity"), "memory": (3, "the allocator, played")}),
    ("why, and over many", {"analysis": (1, "causes, verdicts, claims"), "study": (2, "grids, hypotheses")}),
    ("what people see", {"reporting": (1, "documents, charts"), "commands": (2, "one module a verb")}),
)  # fmt: skip
"""Rooms with their columns in the picture."""
FLOW: tuple[tuple[str, str], ...] = (
    ("models", "trace"), ("ledger", "trace"), ("trace", "estimation"), ("ops", "estimation"), ("trace", "measurement"),
    ("profiles", "measurement"), ("estimation", "step"), ("hardware", "parallel"), ("machine", "calibration"),
    ("parallel", "memory"), ("step", "memory"), ("step", "prediction"), ("memory", "prediction"),
    ("summary", "analysis"), ("prediction", "analysis"), ("prediction", "study"), ("analysis", "study"),
    ("study", "reporting"), ("analysis", "reporting"), ("reporting", "commands"),
)  # fmt: skip
"""Arrows of the picture: the second reads what the first makes. Each is an import in the source, or the test fails."""
WIDTH, HEIGHT, GAP_X, GAP_Y, LEFT, TOP = 158, 48, 26, 36, 180, 16


@cache
def layers() -> list[str]:
    """The rooms in the order of the flow, as import-linter holds them: earliest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return list(reversed(next(contract["layers"] for contract in contracts if contract["type"] == "layers")))


def files_of(room: str) -> list[Path]:
    package = SOURCE / room
    return sorted(package.rglob("*.py")) if package.is_dir() else [SOURCE / f"{room}.py"]


def about(room: str) -> str:
    """The first sentence of its docstring, on one line."""
    first = SOURCE / room / "__init__.py"
    text = ast.get_docstring(ast.parse((first if first.exists() else SOURCE / f"{room}.py").read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


@cache
def imports() -> dict[str, set[str]]:
    """Which rooms each room imports, also inside functions; what is there for types alone does not count."""
    found: dict[str, set[str]] = defaultdict(set)
    for room in layers():
        for path in files_of(room):
            for name in _imported(ast.parse(path.read_text())):
                other = name.split(".")[1] if "." in name else ""
                if other in layers() and other != room:
                    found[room].add(other)
    return found


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("rooflight."))
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rooflight":
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from _imported(child)


def table() -> str:
    lines = ["| room | what it holds |", "|---|---|"]
    for room in layers():
        name = f"{room}/" if (SOURCE / room).is_dir() else f"{room}.py"
        lines.append(f"| `{name}` | {about(room)} |")
    return "\n".join(lines)


def picture() -> str:
    places = {
        room: (LEFT + column * (WIDTH + GAP_X), TOP + row * (HEIGHT + GAP_Y), text)
        for row, (_, rooms) in enumerate(ROWS)
        for room, (column, text) in rooms.items()
    }
    width = max(x for x, _, _ in places.values()) + WIDTH + 8
    height = TOP + len(ROWS) * (HEIGHT + GAP_Y) - GAP_Y + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="13" role="img">',
        "<title>The flow of rooflight: each stage reads only those above it</title>",
        "<style>.box{fill:#eef3f8;stroke:#5b7a99}.name{fill:#17212b}.row{fill:#5c6b7a}.arrow{stroke:#8a99a8;fill:none}"
        "@media(prefers-color-scheme:dark){.box{fill:#1d2a36;stroke:#6f8fae}.name{fill:#e6edf3}.row{fill:#9fb0c0}}"
        "</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#8a99a8"/></marker></defs>',
    ]
    for row, (title, _) in enumerate(ROWS):
        y = TOP + row * (HEIGHT + GAP_Y) + HEIGHT / 2 + 4
        parts.append(f'<text class="row" x="8" y="{y}" font-size="12">{html.escape(title)}</text>')
    parts += [_arrow(*places[start][:2], *places[end][:2]) for start, end in FLOW]
    for room, (x, y, text) in places.items():
        parts.append(f'<rect class="box" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>')
        middle = f'x="{x + WIDTH / 2}" text-anchor="middle"'
        parts.append(f'<text class="name" {middle} y="{y + 21}">{room}</text>')
        parts.append(f'<text class="row" {middle} y="{y + 37}" font-size="11">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    if y1 == y2:  # neighbours of a row; over others, in an arc below them
        start, end = (x1 + WIDTH, x2) if x2 > x1 else (x1, x2 + WIDTH)
        y = y1 + HEIGHT / 2
        if abs(x2 - x1) <= WIDTH + GAP_X:
            return f'<path class="arrow" marker-end="url(#tip)" d="M{start},{y} L{end},{y}"/>'
        below, middle = y1 + HEIGHT, (x1 + x2 + WIDTH) / 2
        return (
            f'<path class="arrow" marker-end="url(#tip)" d="M{x1 + WIDTH / 2},{below} '
            f'Q{middle},{below + GAP_Y * 0.7} {x2 + WIDTH / 2},{below}"/>'
        )
    x1, y1, x2 = x1 + WIDTH / 2, y1 + HEIGHT, x2 + WIDTH / 2
    bend = (y2 - y1) / 2
    return f'<path class="arrow" marker-end="url(#tip)" d="M{x1},{y1} C{x1},{y1 + bend} {x2},{y2 - bend} {x2},{y2}"/>'


def page(text: str) -> str:
    """The page with its table of today."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    PICTURE.write_text(picture())
