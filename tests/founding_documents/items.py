"""What the founding documents do, item by item, done with rooflight: runs every command, and writes the tables of
docs/studies-of-the-documents.md.

    python -m tests.founding_documents.items              prints what each item shows
    python -m tests.founding_documents.items --write      writes the page

The items are in tests/data/documents_items.toml. Commands run in one process, but for those that look at the process
they are in or start others; what two items share is run once.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from click.testing import CliRunner

from rooflight.commands.main import cli
from rooflight.commands.terminal import ProgramOptions
from rooflight.errors import RooflightError
from tests.fixtures.doc_blocks import LINKED, OWN_PROCESS, WIDTH
from tests.fixtures.paths import DATA, ROOT
from tests.founding_documents import right_tables, wrong_tables

PAGE = ROOT / "docs" / "studies-of-the-documents.md"
MARKED = re.compile(
    r"(<!-- (?P<name>[\w -]+): written by python -m tests.founding_documents.items -->\n).*?(<!-- end -->)", re.DOTALL
)
DOCUMENTS = {
    "000": "000: the second convolution of the MNIST example",
    "001": "001: the lecture",
    "002": "002: ResNet-18 and ResNet-50 on V100 and A100",
    "003": "003: VGG-11, VGG-13 and VGG-19 on V100 and A100",
    "004": "004: PALEO",
}
FILES = {
    "nvprof.log": """\
==20858== NVPROF is profiling process 20858, command: python main.py
==20858== Metric result:
"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"
"Tesla V100-SXM2-16GB (0)","saxpy(float*, int)",3,"flop_count_sp","Floating Point Operations(Single Precision)",673384360,673384360,673384360
""",
    "two-partitions.toml": """\
title = "one net, two GPUs"

[[grid]]
model = ["resnet18"]
batch = [2]
step = ["train"]
on = ["v100", "a100"]

[slurm]
gres = "gpu:1"

[slurm.device.v100]
partition = "volta"

[slurm.device.a100]
partition = "ampere"
""",
}
"""Files that commands name and the repository does not have: a log of a tool of the day, a plan."""
_NOT_THERE = "**not yet**: "


@dataclass(frozen=True)
class DocumentItem:
    """One thing that a document does or asks, and the commands that do it."""

    place: str
    does: str
    run: tuple[str, ...]
    shows: tuple[str, ...]
    """Regular expressions over what the last command printed (of several that show something, all)."""
    says: str
    """Of the document: right, wrong with the mistake, another convention, background, or a task that states nothing."""
    writes: tuple[str, ...] = ()
    fails: bool = False
    missing: str = ""
    """What cannot be done yet; empty where all can."""

    @property
    def document(self) -> str:
        return self.place[:3]


def items() -> list[DocumentItem]:
    read = tomllib.loads((DATA / "documents_items.toml").read_text())["item"]
    return msgspec.convert(read, list[DocumentItem])


class ItemFailed(AssertionError):
    """A command did not do what the item says; the message has its output."""


@dataclass
class ItemRun:
    """A folder in which commands are run, each once."""

    folder: Path
    _done: dict[str, tuple[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in LINKED:
            (self.folder / name).symlink_to(ROOT / name, target_is_directory=True)
        for name, text in FILES.items():
            (self.folder / name).write_text(text)

    def run(self, command: str) -> tuple[int, str]:
        """Exit code, and the words that were printed, on one line."""
        if command not in self._done:
            words = shlex.split(command)
            apart = words[0] in (*OWN_PROCESS, "study") and "--dry-run" not in words
            code, text = self._apart(command) if apart else self._here(words)
            self._done[command] = code, " ".join(text.split())
        return self._done[command]

    def _apart(self, command: str) -> tuple[int, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {**os.environ, "COLUMNS": WIDTH, "PATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "rooflight", *shlex.split(command)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        return done.returncode, f"{done.stdout}\n{done.stderr}"

    def _here(self, words: list[str]) -> tuple[int, str]:
        with _inside(self.folder):
            found = CliRunner(env={"COLUMNS": WIDTH}).invoke(cli, words, standalone_mode=False, obj=ProgramOptions())
        if isinstance(found.exception, RooflightError):
            return 2, f"{found.output}\nrooflight: {found.exception.on_command_line}"
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            return 2, f"{found.output}\n{found.exception}"
        return found.exit_code, found.output

    def result(self, item: DocumentItem) -> str:
        """What the item shows, out of what its commands print; raises `ItemFailed`."""
        printed = []
        for command in item.run:
            code, text = self.run(command)
            allowed = {2} if item.fails else {0, 1} if "--claims" in command else {0}
            if code not in allowed:
                raise ItemFailed(f"{item.place}: `rooflight {command}` ended with {code}: {text[-600:]}")
            printed.append(text)
        for name in item.writes:
            path = self.folder / name
            least = 5_000 if name.endswith(".png") else 1
            if not path.is_file() or path.stat().st_size < least:
                raise ItemFailed(f"{item.place}: {name} was not written")
        return "; ".join(_shown(item, pattern, printed) for pattern in item.shows)


def _shown(item: DocumentItem, pattern: str, printed: list[str]) -> str:
    """Of the last command that shows it: the first group that matched, or all of the match; with the label that stands
    before `:: `."""
    label, _, pattern = pattern.rpartition(":: ")
    for text in reversed(printed):
        if match := re.search(pattern, text):
            found = next((group for group in match.groups() if group), match[0]).strip(" ,;")
            return f"{label}: {found}" if label else found
    raise ItemFailed(f"{item.place}: no {pattern!r} in what was printed: {printed[-1][:3000]}")


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


# The page.


def row(item: DocumentItem, result: str) -> str:
    commands = "<br>".join(f"`rooflight {command}`" for command in item.run) or "–"
    shown = f"{_NOT_THERE}{item.missing}" if item.missing else result or "–"
    cells = (item.place, item.does, commands, shown, _said(item.says))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _said(text: str) -> str:
    """The verdict in bold, the reason behind it."""
    return re.sub(r"^(\w+)", r"**\1**", text)


def counted(all_items: list[DocumentItem]) -> str:
    by: dict[str, int] = {}
    for item in all_items:
        word = re.split(r"\W", item.says)[0]
        by[word] = by.get(word, 0) + 1
    done = sum(not item.missing for item in all_items)
    verdicts = ", ".join(f"{by[word]} {word}" for word in ("right", "wrong", "convention", "task", "background"))
    return f"{len(all_items)} items; {done} of them can be done. Of the documents: {verdicts}."


def items_part(run: ItemRun) -> str:
    all_items = items()
    lines = [counted(all_items)]
    for document, title in DOCUMENTS.items():
        lines += [
            "",
            f"### {title}",
            "",
            "| place | what it does | command | result | of the document |",
            "|---|---|---|---|---|",
        ]
        lines += [
            row(item, "" if item.missing else run.result(item)) for item in all_items if item.document == document
        ]
    return "\n".join(lines)


def tables_part() -> str:
    """How many tables hold the checker of claims."""
    counts = wrong_tables.counts()
    lines = [
        f"{len(right_tables.RIGHT)} right tables, of which no row may be called wrong, and {len(wrong_tables.WRONG)} with one "
        "planted mistake each, which must be found, with no row beside it blamed.",
        "",
        "| | mistake | in itself | in a time | in a rate | in a ratio |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for number, places in counts.items():
        cells = (str(places[name] or "") for name in ("itself", "time", "rate", "ratio"))
        lines.append(f"| {number} | {wrong_tables.MISTAKES[number]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(text: str, run: ItemRun) -> str:
    """The page with all that is between markers made anew."""
    parts = {"items": lambda: items_part(run), "tables of claims": tables_part}
    return MARKED.sub(lambda found: f"{found[1]}{parts[found['name']]()}\n{found[3]}", text)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = ItemRun(Path(folder))
        if "--write" in sys.argv[1:]:
            PAGE.write_text(page(PAGE.read_text(), run))
            return
        asked = [word for word in sys.argv[1:] if not word.startswith("-")]
        for item in items():
            if not asked or item.place in asked:
                try:
                    sys.stdout.write(f"{item.place} | {run.result(item)}\n")
                except ItemFailed as failed:
                    sys.stdout.write(f"FAILED {failed}\n")


if __name__ == "__main__":
    main()
