"""What rooflight answers to the questions of `questions.py`: a rebuild that should change no number is compared with it.

    python benchmarks/answers.py record [FILE] [--source SRC]    keep the answers of this rooflight, or of the one in SRC
    python benchmarks/answers.py compare [BEFORE] [AFTER]        what differs; without AFTER, from this rooflight's answers

FILE and BEFORE are results/answers.json.xz unless given. Numbers, units and names are kept, wording is not: a text with
a space in it is wording, and of a line or a table's cell its numbers and units are kept. Answers may be built in another
way: a value that only moved to another place, under the same name, is no difference. No GPU and no network; about six
minutes on two cores. Both sides want the same torch and the same questions.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import lzma
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from html.parser import HTMLParser
from io import StringIO
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import questions

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks/results/answers.json.xz"
TOLERANCE = 1e-6
"""Of numbers that are not whole: the last digits of a sum differ between processors."""

UNSTEADY = {
    "*": ["*header.rooflight", "*seconds*"],
    "measure": ["*header.device", "*header.conditions*", "*time*_s*", "*share_of_*", "*rates*", "*resident_bytes*", "*part"],
    "run": ["*header.device", "*program.*", "*header.conditions*", "*time*_s*", "*resident_bytes*", "*peak_bytes", "*growth_bytes*"],
}  # fmt: skip
"""Values that differ between two runs of the same code: the version, and times and memory of this machine."""

AMOUNT = re.compile(
    r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?: ?(?:%|x|[kMGTP]?(?:FLOP|B|bytes)?(?:/[a-zA-Z]+)?|[mnµ]?s))?(?!\w)"
)

Answers = dict[str, Any]

CHILD = """
import json, sys, torch, rooflight
from net import make as net
def training(model, images):
    model(images).square().mean().backward()
def plain(value):
    if isinstance(value, str | int | float | None):
        return value
    return json.loads(json.dumps(value.to_pandas().to_dict("records"), default=str))
for question in sys.stdin.read().splitlines():
    print(json.dumps([question, plain(eval(question))]), flush=True)
"""


def answers(source: Path) -> Answers:
    """Ask every question of the rooflight in `source`."""
    found: Answers = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        work = Path(folder)
        prepare(work, source)
        ask = partial(answer, work, source)
        for command in lines(questions.FIRST):
            found |= ask(command)
        for answered in pool.map(
            ask, [questions.LEDGERS, questions.CALLS, *lines(questions.COMMANDS + questions.PAGES)]
        ):
            found |= answered
    return found


def lines(block: str) -> list[str]:
    return block.strip().replace("\n\n", "\n").splitlines()


def prepare(work: Path, source: Path) -> None:
    """Write the files that the questions read. A refactor may move those of the source."""
    for name, text in (("net.py", questions.NET), ("regions.py", questions.REGIONS), ("grid.toml", questions.GRID)):
        (work / name).write_text(text)
    shutil.copytree(ROOT / "tests/data", work / "data")
    shutil.copytree(ROOT / "studies/recorded/h200/mnist-conv2", work / "mnist-conv2")
    shutil.copy(next(source.rglob("calibrations/h200.json.gz")), work / "own-calibration.json.gz")
    (work / "own.toml").write_text(next(source.rglob("h100-sxm.toml")).read_text().replace('"h100-sxm"', '"own"'))
    ledger = json.loads(gzip.decompress(next(source.rglob("mnist-cnn-train-tf32.json.gz")).read_bytes()))
    for rank in range(2):
        ledger["header"] |= {"rank": rank, "world": 2}
        for row in ledger["ops"]:
            row["rank"] = rank
        (work / f"ranks.rank{rank}.json").write_text(json.dumps(ledger))


def answer(work: Path, source: Path, question: str) -> Answers:
    """Answer a command, or a block of questions for Python."""
    environment = os.environ | {
        "PYTHONPATH": str(source), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "XDG_DATA_HOME": str(work / "no-calibrations-of-this-machine"), "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1",
    }  # fmt: skip
    run = partial(subprocess.run, cwd=work, env=environment, capture_output=True, text=True)
    if question.startswith("\n"):
        asked = "\n".join(lines(question))
        printed = run([sys.executable, "-c", CHILD], input=asked, check=True).stdout
        return {name: reduced(value) for name, value in map(json.loads, printed.splitlines())}
    verb, page = question.split()[0], work / f"{abs(hash(question))}.html"
    is_page = question in lines(questions.PAGES)
    ran = run([sys.executable, "-m", "rooflight", *shlex.split(question), *(["-o", str(page)] if is_page else [])])
    if ran.returncode not in (0, 1) and "no-such" not in question:
        raise SystemExit(f"{question}: {ran.stderr}")
    document: Any
    if is_page:
        document = tables(page.read_text())
    elif "--json" in question:
        document = json.loads(ran.stdout or "null")
    elif "--csv" in question:
        document = [{name: number(text) for name, text in row.items()} for row in csv.DictReader(StringIO(ran.stdout))]
    else:
        document = [amounts(line) for line in ran.stdout.splitlines()]
    return {question: {"exit": ran.returncode, "answer": reduced(document, "", UNSTEADY["*"] + UNSTEADY.get(verb, []))}}


def amounts(text: str) -> list[str]:
    """Return the numbers of a text, with their units."""
    return [amount.replace(" ", "") for amount in AMOUNT.findall(text)]


def number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def reduced(value: Any, path: str = "", unsteady: Iterable[str] = ()) -> Any:
    """Leave out wording and what differs between two runs; keep nine digits."""
    if isinstance(value, dict):
        parts = {name: reduced(part, f"{path}.{name}", unsteady) for name, part in value.items()}
        return {name: part for name, part in parts.items() if part is not None}
    if isinstance(value, list):
        return [reduced(part, path, unsteady) for part in value]
    is_wording = isinstance(value, str) and " " in value
    if is_wording or any(fnmatchcase(path, pattern) for pattern in unsteady):
        return None
    return float(f"{value:.9g}") if isinstance(value, float) else value


def tables(page: str) -> list[dict[str, Any]]:
    """Return the rows of a page's tables, by column: names, and the numbers with units of other cells."""
    reader = TableReader()
    reader.feed(page)
    return [{name: amounts(cell) or cell for name, cell in row.items()} for row in reader.rows]


class TableReader(HTMLParser):
    """Collects the rows of all tables, with the titles of their columns."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.titles, self.cells, self.inside = list[dict[str, str]](), list[str](), list[str](), False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "table":
            self.titles = []
        elif tag == "tr":
            self.cells = []
        elif tag in ("th", "td"):
            self.inside = True
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            self.inside = False
        elif tag == "thead":
            self.titles = self.cells
        elif tag == "tr" and self.titles:
            self.rows.append(dict(zip(self.titles, self.cells, strict=False)))

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.cells[-1] += data


class Leaf(NamedTuple):
    """A value of an answer, and where it is."""

    path: str
    value: Any

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


def leaves(value: Any, path: str = "") -> Iterator[Leaf]:
    """Yield every value. A row of a table is called by the names in it."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            names = item.values() if isinstance(item, dict) else ()
            yield from leaves(item, f"{path}[{' '.join(name for name in names if isinstance(name, str))}]")
    elif value is not None:
        yield Leaf(path, value)


def same(old: Any, new: Any) -> bool:
    """Compare two values. Whole numbers are counts, and exact."""
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=TOLERANCE) or (math.isnan(old) and math.isnan(new))
    return bool(old == new)


def differences(before: Any, after: Any) -> Iterator[str]:
    """Say what differs by number, unit or name. A value that only moved has its name in another place."""
    old, new = list(leaves(before)), list(leaves(after))
    shared = {leaf.path for leaf in old} & {leaf.path for leaf in new}
    others = defaultdict[str, list[Leaf]](list)
    for leaf in new:
        others[leaf.path if leaf.path in shared else leaf.name].append(leaf)
    found = defaultdict[str, tuple[list[Any], list[Any]]](lambda: ([], []))
    for leaf in old:
        candidates = others[leaf.path if leaf.path in shared else leaf.name]
        equal = next((place for place, other in enumerate(candidates) if same(leaf.value, other.value)), None)
        if equal is None:
            found[leaf.path][0].append(leaf.value)
        else:
            del candidates[equal]
    for leaf in chain.from_iterable(others.values()):
        found[leaf.path][1].append(leaf.value)
    for path, (gone, come) in found.items():
        both = [(a, b) for a, b in zip(gone, come, strict=False) if a and is_number(a) and is_number(b)]
        relative = f" ({both[0][1] / both[0][0] - 1:+.2%})" if both else ""
        yield f"  {path}: {' -> '.join(', '.join(map(str, side[:4])) or 'nothing' for side in (gone, come))}{relative}"


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def compare(before: Answers, after: Answers) -> bool:
    """Print what differs, question by question; return whether nothing does."""
    count = 0
    for question in dict.fromkeys([*before, *after]):
        if found := list(differences(before.get(question), after.get(question))):
            print(f"{question}: {len(found)} values differ", *found[:20], sep="\n")
            count += len(found)
    print(f"{len(after)} answers, {count:,} values differ")
    return not count


def kept(file: Path) -> Answers:
    found: Answers = json.loads(lzma.decompress(file.read_bytes()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("record", "compare"))
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the folder that has rooflight in it")
    asked = parser.parse_args()
    start, files = monotonic(), [*asked.files, KEPT][: max(1, len(asked.files))]
    now = kept(files[1]) if len(files) > 1 else answers(asked.source.resolve())
    print(f"{len(now)} answers in {monotonic() - start:.0f} s")
    if asked.verb == "record":
        files[0].write_bytes(lzma.compress(json.dumps(now, ensure_ascii=False, separators=(",", ":")).encode()))
    elif not compare(kept(files[0]), now):
        sys.exit(1)


if __name__ == "__main__":
    main()
