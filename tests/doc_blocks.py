"""The code blocks of README.md and docs/, and how they are run: as a reader would, in a folder of the page's own.

    ```console      every `$ command` is run by bash, in order; what follows it is compared with what it prints
    ```python       the blocks of a page are run in order, in one process; a ```text block after one is what it prints
    ```toml, json   must be well-formed

A comment on the line before a block changes that: `<!-- not run: REASON -->`, with a reason of `REASONS`, or
`<!-- file: NAME -->`, which saves the block under that name in the page's folder, for the commands that follow.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "studies" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REASONS = ("needs a GPU", "needs a cluster", "needs a network", "installs packages", "takes minutes", "not a program")
LANGUAGES = ("console", "python", "toml", "json", "text", "csv", "latex", "")
RUNNABLE = ("rooflight", "python", "cat", "head", "ls", "zcat")
"""What a console block may call. All else changes the reader's machine, or is not everywhere: it is marked as not run."""
OWN_PROCESS = ("measure", "run", "doctor", "calibrate")
"""Verbs that look at the process they are in, or at what it starts."""
LINKED = ("docs", "examples", "studies", "tests", "benchmarks", "src")
"""Folders of the repository that a page may name; its own folder has links to them."""
WIDTH = "112"
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w{}-]*)\s*$")
_MARK = re.compile(r"^ *<!-- (?P<kind>not run|file): (?P<what>.+?) -->\s*$")
_SHELL = re.compile(r"[|<>;&$`*?~\\]")
_HEREDOC = re.compile(r"<<\s*'?(\w+)'?")


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is that of its first fence."""

    page: Path
    line: int
    language: str
    lines: tuple[str, ...]
    not_run: str | None = None
    file: str | None = None

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A line after `$ `, with the lines that continue it, and the lines that are shown as its output."""

    text: str
    shown: tuple[str, ...]
    start: int
    """Where its output begins among the lines of the block."""

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)

    @property
    def verb(self) -> str:
        """Of rooflight; "" for other programs."""
        words = [word for word in self.words if word not in ("--quiet", "--debug")]
        return words[1] if words[0] == "rooflight" and len(words) > 1 else ""


def blocks(page: Path) -> list[Block]:
    """All of a page, in order."""
    found: list[Block] = []
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            at += 1
            continue
        indent = len(fence["indent"])
        end = next((n for n in range(at + 1, len(lines)) if lines[n].strip() == "```"), None)
        if end is None:
            raise AssertionError(f"{page}:{at + 1}: a block without an end")
        inside = tuple(line[indent:].rstrip() for line in lines[at + 1 : end])
        found.append(Block(page, at + 1, fence["language"], inside, **_marks(lines, at)))
        at = end + 1
    return found


def _marks(lines: list[str], at: int) -> dict[str, str]:
    found: dict[str, str] = {}
    while at > 0 and (mark := _MARK.match(lines[at - 1])):
        found["not_run" if mark["kind"] == "not run" else "file"] = mark["what"]
        at -= 1
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a console block."""
    found: list[Command] = []
    lines, at = block.lines, 0
    while at < len(lines):
        if not lines[at].startswith("$ "):
            at += 1
            continue
        text = [lines[at][2:]]
        at += 1
        while text[-1].endswith("\\") and at < len(lines):
            text.append(lines[at])
            at += 1
        if here := _HEREDOC.search(text[-1]):
            while at < len(lines) and text[-1] != here[1]:
                text.append(lines[at])
                at += 1
        end = next((n for n in range(at, len(lines)) if lines[n].startswith("$ ")), len(lines))
        found.append(Command("\n".join(text), lines[at:end], at))
        at = end
    return found


@dataclass
class Result:
    """What a command or a python block did."""

    code: int
    printed: list[str]
    errors: str


@dataclass
class PageRun:
    """The folder of one page and what runs in it; to be closed."""

    folder: Path
    _python: subprocess.Popen[str] | None = None
    _names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in LINKED:
            (self.folder / name).symlink_to(ROOT / name, target_is_directory=True)
        self._names = set(LINKED)

    def save(self, block: Block) -> None:
        assert block.file is not None
        (self.folder / block.file).write_text(block.text)

    def run(self, command: Command) -> Result:
        """By bash, or, where nothing of the page's folder is in it, from what the same command printed before."""
        if self._is_of_the_page(command):
            return _run(command.text, self.folder)
        return _run_once(command.text)

    def _is_of_the_page(self, command: Command) -> bool:
        writes = any(word in ("-o", "--output", ">") for word in command.words)
        own = {path.name for path in self.folder.iterdir()} - self._names
        return writes or command.words[0] != "rooflight" or any(word.split("/")[0] in own for word in command.words)

    def run_python(self, block: Block) -> Result:
        """In the process that ran the page's earlier ones."""
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self.folder,
                env=_environment(),
            )  # fmt: skip
        source, sink = _pipes(self._python)
        sink.write(json.dumps({"place": f"line_{block.line}.py", "text": block.text}) + "\n")
        sink.flush()
        line = source.readline()
        if not line:
            return Result(self._python.wait(), [], "the process ended")
        answer: dict[str, Any] = json.loads(line)
        return Result(answer["code"], _lines(answer["printed"]), answer["errors"])

    def close(self) -> None:
        if self._python is not None:
            source, sink = _pipes(self._python)
            sink.close()
            source.close()
            self._python.wait()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdout is not None and process.stdin is not None
    return process.stdout, process.stdin


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "COLUMNS": WIDTH, "PATH": path, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}


@cache
def _run_once(command: str) -> Result:
    return _run(command, ROOT)


def _run(command: str, folder: Path) -> Result:
    """By bash; a plain `rooflight` command that needs no process of its own, by the server, which is quicker."""
    words = shlex.split(command, comments=True)
    if words[0] == "rooflight" and not _SHELL.search(command) and not set(words) & set(OWN_PROCESS):
        return _served(words[1:], folder)
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
    )
    return Result(done.returncode, _lines(done.stdout), done.stderr)


def _served(arguments: list[str], folder: Path) -> Result:
    source, sink = _pipes(_server())
    with tempfile.TemporaryDirectory() as outputs:
        printed, errors = Path(outputs, "printed"), Path(outputs, "errors")
        asked = {"arguments": arguments, "folder": str(folder), "printed": str(printed), "errors": str(errors)}
        sink.write(json.dumps(asked) + "\n")
        sink.flush()
        code = int(source.readline())
        return Result(code, _lines(printed.read_text()), errors.read_text())


@cache
def _server() -> subprocess.Popen[str]:
    """One for all pages; it ends with its input."""
    server = Path(__file__).with_name("doc_server.py")
    return subprocess.Popen(
        [sys.executable, server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
    )


def _lines(text: str) -> list[str]:
    """Without the lines that name versions, which change with every commit."""
    found = iter([line.rstrip() for line in text.splitlines()])
    return list(_without_versions(found))


def _without_versions(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("one trace of"):
            yield line
            continue
        after = next(lines, None)
        if after is not None and not re.fullmatch(r"[\d.]+(dev|rc|a|b|post)?[\w.+]*", after):
            yield after


# --- the process that runs the python blocks of a page ---


def serve() -> None:
    """Blocks come in as lines of JSON; each is answered with what it printed."""
    import contextlib
    import io
    import traceback

    space: dict[str, Any] = {"__name__": "__main__"}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a block's own processes print is not part of the answer
    sys.path.insert(0, "")
    for line in sys.stdin:
        asked = json.loads(line)
        printed, code, errors = io.StringIO(), 0, ""
        # A file, so that what looks for the source of a function finds it.
        Path(asked["place"]).write_text(asked["text"])
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(asked["text"], asked["place"], "exec"), space)
            except BaseException:
                code, errors = 1, traceback.format_exc()
        answers.write(json.dumps({"printed": printed.getvalue(), "code": code, "errors": errors}) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
