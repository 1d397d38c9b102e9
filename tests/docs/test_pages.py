"""Every code block of README.md, studies/README.md and docs/ is run, and shows what is printed; the tables in them say
what the program knows.

How blocks are written and run is said in `doc_blocks`. A line `...` in an output stands for what was left out there: up
to the first one it must be how the output begins, and every later part must be in it. Of `measure`, `run` and `doctor`,
whose figures are those of a machine, the rows of the tables are compared; of `predict`, `study` and python, every word,
and every number to a few percent, for predictions interpolate. Every command that is mentioned anywhere must be
understood. `python -m tests.docs.test_pages [PAGE ...]` puts the outputs and the tables of today in; of an output, what
follows its first `...` is left as it is.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click
import pytest

from rooflight.analysis.claims.quantities import QUANTITIES as CLAIMED
from rooflight.commands.main import cli
from rooflight.hardware.counter_tables import tensor_counters
from rooflight.metrics import QUANTITIES
from tests.fixtures.doc_blocks import (
    LANGUAGES,
    PAGES,
    REASONS,
    RUNNABLE,
    Block,
    Command,
    PageRun,
    Result,
    blocks,
    commands,
)
from tests.fixtures.paths import ROOT

BLOCKS = {page: blocks(page) for page in PAGES}
WITH_CODE = [page for page in PAGES if any(block.language in ("console", "python") for block in BLOCKS[page])]
MENTIONING = [*PAGES, ROOT / "CONTRIBUTING.md"]
REPORT = ROOT / "benchmarks" / "h200_report.py"
MENTIONED = re.compile(r"(?:^ *\$ |`|-m )(rooflight [^`\n]*)", re.MULTILINE)
TABLE = re.compile(
    r"(?P<mark><!-- (?P<name>[\w ]+): written by python -m tests.docs.test_pages -->\n)(?P<body>(?:.*\n)*?)(?P<end><!-- end -->\n)"
)
NUMBER = re.compile(r"(?P<value>-?[\d,]*\d(?:\.\d+)?)(?P<end>[%x×;:,.)]?)")
OF_THIS_MACHINE = ("measure", "run", "doctor", "calibrate")
PREDICTING = ("predict", "study")
CHIPS = {
    "GV100": "V100",
    "TU102": "T4, RTX 20",
    "GA100": "A100",
    "GA102": "A10, A40, RTX 30",
    "AD102": "L4, L40S, RTX 40",
    "GH100": "H100, H200",
    "GB100": "B200",
    "GB202": "RTX 50",
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- what blocks may be ---


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCKS[page]], ids=name_of)
def test_blocks_are_of_a_known_kind(page: Path) -> None:
    for block in BLOCKS[page]:
        assert block.language in LANGUAGES, f"{block.place}: write {block.language} as one of {LANGUAGES}"
        assert block.not_run is None or block.not_run in REASONS, f"{block.place}: {block.not_run} is none of {REASONS}"
        if block.not_run is not None:
            assert block.language in ("console", "python"), f"{block.place}: only code needs a reason not to be run"
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "console":
            assert commands(block), f"{block.place}: a console block without a `$ command`; output alone is text"
            for command in commands(block):
                assert command.words[0] in RUNNABLE, f"{block.place}: mark it as <!-- not run: ... -->: {command.text}"
        if block.language == "python":
            compile(block.text, block.place, "exec")


def test_there_is_code_on_the_pages() -> None:
    run = [block for found in BLOCKS.values() for block in found if block.not_run is None]
    assert len([block for block in run if block.language == "console"]) >= 40
    assert len([block for block in run if block.language == "python"]) >= 8
    left_out = [block.not_run for found in BLOCKS.values() for block in found if block.not_run is not None]
    assert set(left_out) <= set(REASONS)


# --- running them ---


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_blocks_run_and_show_what_is_printed(page: Path, tmp_path: Path) -> None:
    wrong = [problem for _, _, problem in walked(page, tmp_path) if problem]
    assert wrong == [], "\n".join(
        ["", *wrong, f"to put in what is printed today: python -m tests.docs.test_pages {name_of(page)}"]
    )


def walked(page: Path, folder: Path) -> Iterator[tuple[Command | Block, Result, str]]:
    """Everything of a page that is run, in order: what it did, and what is wrong with it in one line, or ""."""
    running = PageRun(folder)
    found = BLOCKS[page]
    try:
        for number, block in enumerate(found):
            if block.file is not None:
                running.save(block)
            if block.not_run is not None:
                continue
            if block.language == "console":
                for command in commands(block):
                    result = running.run(command)
                    yield command, result, _problem(f"{block.place}: $ {command.text}", command, result)
            elif block.language == "python":
                result = running.run_python(block)
                after = found[number + 1] if number + 1 < len(found) else None
                shown = after.lines if after is not None and after.language == "text" else ()
                yield block, result, _problem(f"{block.place}: python", Command("python", tuple(shown), 0), result)
    finally:
        running.close()


def _problem(place: str, command: Command, result: Result) -> str:
    shows_an_error = any(line.startswith("rooflight: ") for line in command.shown)
    # A table with wrong claims in it, and a study with refuted ones, is a result; the exit code says so to scripts.
    may_fail = shows_an_error or "--claims" in command.text
    if result.code and not may_fail:
        return f"{place} ended with {result.code}: {' '.join(result.errors.split())[-600:]}"
    lines = [*result.printed, *result.errors.splitlines()] if shows_an_error else result.printed
    missing = _missing(command, comparable(lines))
    return f"{place} does not print: {missing}" if missing else ""


def _missing(command: Command, lines: list[str]) -> str:
    """The first thing shown that was not printed."""
    shown = comparable(list(command.shown))
    if not shown:
        return ""
    if command.verb in OF_THIS_MACHINE and "--ncu-command" not in command.text:
        rows = labels(lines)
        return next((row for row in labels(shown) if row not in rows), "")
    if command.verb in PREDICTING or command.text == "python" or _is_of_the_page(command):
        kept = [line for line in shown if line != "..." and set(line.strip()) != {"─"}]
        return next((line for line in kept if not any(is_alike(line, one) for one in lines)), "")
    text = "\n".join(lines)
    first, *parts = "\n".join(["", *shown]).split("\n...")
    if not text.startswith(first.strip("\n")):
        return next(
            (a for a, b in zip(first.strip("\n").split("\n"), [*lines, *[""] * len(shown)], strict=False) if a != b),
            first,
        )
    return next((part.strip("\n") for part in parts if part.strip("\n") not in text), "")


def _is_of_the_page(command: Command) -> bool:
    """Does it show what another command of the page has saved?"""
    given = [word for word in command.words[2:] if not word.startswith("-")]
    return command.verb in ("report", "compare") and any(
        not word.startswith("recorded:") and not (ROOT / word).exists() for word in given[:1]
    )


def comparable(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines if line.strip()]


def labels(lines: list[str]) -> list[str]:
    """The first words of the rows under the rule of each table."""
    found, inside = [], False
    for line in lines:
        if line.lstrip().startswith("──"):
            inside = True
        elif not line.startswith(" "):
            inside = False
        elif inside:
            found.append(re.split(r"\s{2,}", line.strip())[0])
    return found


def is_alike(shown: str, line: str) -> bool:
    """The same words, and numbers that are within a few percent."""
    ours, theirs = shown.split(), line.split()
    return len(ours) == len(theirs) and all(map(are_alike, ours, theirs))


def are_alike(shown: str, word: str) -> bool:
    numbers = [NUMBER.fullmatch(text.lstrip("(")) for text in (shown, word)]
    if numbers[0] is None or numbers[1] is None or numbers[0]["end"] != numbers[1]["end"]:
        return shown == word
    old, new = (float(number["value"].replace(",", "")) for number in numbers if number is not None)
    return abs(new - old) <= 0.05 * abs(old) + 0.1


@pytest.mark.parametrize(
    ("command", "shown", "printed", "missing"),
    [
        ("rooflight estimate x", "a 1\n...\nc 3", "a 1\nb 2\nc 3", ""),
        ("rooflight estimate x", "a 1\n...\nc 4", "a 1\nb 2\nc 3", "c 4"),
        ("rooflight estimate x", "b 2\n...", "a 1\nb 2", "b 2"),
        ("rooflight estimate x", "...\nb 2\nc 3", "a 1\nb 2\nb 3\nc 3", "b 2\nc 3"),
        ("rooflight predict x", "takes 100 ms", "takes 104 ms", ""),
        ("rooflight predict x", "takes 100 ms", "takes 110 ms", "takes 100 ms"),
        ("rooflight predict x", "takes 100 ms", "takes 100 s", "takes 100 ms"),
        ("rooflight measure x", " row  1\n ────\n conv  3 ms", " row  1\n ────\n conv  9 ms", ""),
        ("rooflight measure x", " row  1\n ────\n fc  3 ms", " row  1\n ────\n conv  9 ms", "fc"),
    ],
)
def test_what_is_not_printed_is_noticed(command: str, shown: str, printed: str, missing: str) -> None:
    assert _missing(Command(command, tuple(shown.split("\n")), 0), printed.split("\n")) == missing


def test_what_fails_is_noticed() -> None:
    failed = Result(2, [], "rooflight: no such model\n")
    assert "no such model" in _problem("here", Command("rooflight estimate x", (), 0), failed)
    assert _problem("here", Command("rooflight estimate x", ("rooflight: no such model",), 0), failed) == ""
    assert _problem("here", Command("rooflight estimate x", ("rooflight: another",), 0), failed) != ""


def test_blocks_are_read_as_they_are_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: needs a GPU -->\n```console\n$ one \\\n  --two\nshown\n$ three\n```\n- item\n"
        "  <!-- file: a.toml -->\n  ```toml\n  b = 1\n  ```\n```console\n$ python - <<'END'\nprint(1)\nEND\n1\n```\n"
    )
    first, second, third = blocks(page)
    assert (first.not_run, first.file, first.line) == ("needs a GPU", None, 2)
    assert [(one.text, one.shown) for one in commands(first)] == [("one \\\n  --two", ("shown",)), ("three", ())]
    assert (second.file, second.text) == ("a.toml", "b = 1\n")
    assert [(one.text, one.shown) for one in commands(third)] == [("python - <<'END'\nprint(1)\nEND", ("1",))]


# --- commands that are only mentioned ---


def mentioned(text: str) -> list[str]:
    """Every command that the text mentions, without comments and without what was left out."""
    # Inside quotes a sign is not the shell's: an even number of them follows one that is.
    ends = r"\s+#|\\$|\s(?:&&|\||;|>|2>)\s(?=[^']*(?:'[^']*'[^']*)*$)"
    lines = [re.split(ends, found)[0].strip() for found in MENTIONED.findall(text)]
    return [line for line in dict.fromkeys(lines) if len(line.split()) > 1]


@pytest.mark.parametrize("page", MENTIONING, ids=name_of)
def test_commands_are_understood(page: Path) -> None:
    """Verb, options and their values are known; nothing is run."""
    for line in mentioned(page.read_text()):
        _understand(line)


def _understand(line: str) -> None:
    words = [word for word in shlex.split(line)[1:] if word not in ("--quiet", "--debug")]
    verb, *rest = ["mnist-cnn" if word == "..." else word for word in words]
    if verb.startswith("-") or verb == "VERB":
        return
    context = click.Context(cli, info_name="rooflight")
    command = cli.get_command(context, verb)
    assert command is not None, line
    needed = sum(isinstance(parameter, click.Argument) and parameter.required for parameter in command.params)
    if len([word for word in rest if not word.startswith("-")]) >= needed:  # `rooflight compare` alone names the verb
        try:
            command.make_context(verb, list(rest), parent=context)
        except click.ClickException as error:
            raise AssertionError(f"{line}: {error.format_message()}") from None


def test_commands_are_mentioned() -> None:
    assert len({line for page in MENTIONING for line in mentioned(page.read_text())}) >= 100


# --- tables and pages that scripts write ---


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tables_are_those_of_the_program(page: Path) -> None:
    for match in TABLE.finditer(page.read_text()):
        assert match["body"] == TABLES[match["name"]](), f"{name_of(page)}: run python -m tests.docs.test_pages"


def test_every_quantity_is_documented() -> None:
    text = (ROOT / "docs" / "measuring.md").read_text()
    assert [name for name in QUANTITIES if f"| `{name}` |" not in text] == []


def test_the_page_of_the_h200_is_what_its_script_writes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    subprocess.run([sys.executable, REPORT, "-o", page], check=True)
    shown = (ROOT / "docs" / "h200-measurements.md").read_text()
    assert page.read_text() == shown, "run python benchmarks/h200_report.py"


# --- what the tables say ---


def quantity_table() -> str:
    units = {"flop": "FLOP", "byte": "byte", "second": "s", "count": "count"}
    rows = [
        f"| `{name}` | {units[found.unit]} | {found.about} | {'sum' if found.additive else '–'} |"
        for name, found in QUANTITIES.items()
    ]
    return "\n".join(["| name | unit | what it is | of several ops |", "|---|---|---|---|", *rows, ""])


def chip_table() -> str:
    rows = []
    for chip, products in CHIPS.items():
        names = [
            re.sub(r"sm__ops_path_tensor_src_(.*)\.sum", r"`\1`", counter.metric) for counter in tensor_counters(chip)
        ]
        rows.append(f"| {chip} ({products}) | {', '.join(names)} |")
    return "\n".join(["| chip | after `sm__ops_path_tensor_src_` |", "|---|---|", *rows, ""])


def claims_table() -> str:
    rows = [
        f"| `{name}` | {found.about} | {', '.join(found.spelled[:4])} |"
        for name, found in CLAIMED.items()
        if name != "ratio"
    ]
    return "\n".join(["| name | what it is | also written |", "|---|---|---|", *rows, ""])


TABLES = {"quantities": quantity_table, "tensor counters": chip_table, "claims": claims_table}


def paragraphs(lines: list[str], shown: list[str]) -> list[str]:
    """As many of them as are shown: a table of today may have more rows."""
    split = [list(group) for filled, group in groupby(lines, key=bool) if filled]
    count = sum(filled for filled, _ in groupby(shown, key=bool))
    return [line for paragraph in split[:count] for line in (*paragraph, "")][:-1]


def overwrite(page: Path) -> None:
    """Put the output of today into the console blocks of a page, and its tables."""
    text = page.read_text().splitlines()
    changes: list[tuple[int, int, list[str]]] = []
    with tempfile.TemporaryDirectory() as folder:
        walk = walked(page, Path(folder))
        for block in BLOCKS[page]:
            if block.not_run is not None or block.language not in ("console", "python"):
                continue
            for command in commands(block) if block.language == "console" else [None]:
                _, result, problem = next(walk)
                if command is None or not command.shown or not problem or result.code:
                    if problem:
                        sys.stderr.write(f"{problem}\n")
                    continue
                indent = " " * (len(text[block.line - 1]) - len(text[block.line - 1].lstrip()))
                start = block.line + command.start
                fresh = [f"{indent}{line}".rstrip() for line in _fresh(command, result)]
                changes.append((start, start + len(command.shown), fresh))
        next(walk, None)
    for start, end, lines in reversed(changes):
        text[start:end] = lines
    written = TABLE.sub(lambda m: f"{m['mark']}{TABLES[m['name']]()}{m['end']}", "\n".join(text) + "\n")
    page.write_text(written)


def _fresh(command: Command, result: Result) -> list[str]:
    if command.verb in OF_THIS_MACHINE:
        return list(command.shown)
    lines, shown = result.printed, list(command.shown)
    if "..." not in shown:
        return lines
    cut = shown.index("...")
    kept = paragraphs(lines, shown[:cut]) if command.verb in PREDICTING else lines[:cut]
    return [*kept, *shown[cut:]]


if __name__ == "__main__":
    for given in sys.argv[1:] or [name_of(page) for page in PAGES]:
        overwrite(ROOT / given)
