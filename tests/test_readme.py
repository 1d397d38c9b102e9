"""README.md, docs/measuring.md, docs/predicting.md, docs/memory.md and docs/claims.md show what the commands really
print, and their tables what the program knows.

A console block with one `$ rooflight ...` and its output is run and compared; a line `...` stands for what was left out
there. Of `measure` and `run`, whose figures are those of a machine, the rows of the tables are compared; of `predict`
every word, and every number to a few percent, for it interpolates. Every command
that is mentioned anywhere must be understood. `python tests/test_readme.py` puts the output and the tables of today in;
of a block, what follows its first `...` is left as it is.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import click
import pytest

from rooflight.claims.names import QUANTITIES as CLAIMED
from rooflight.commands.main import cli
from rooflight.counting.metrics import tensor_counters
from rooflight.quantities import QUANTITIES

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("measuring.md", "predicting.md", "memory.md", "claims.md", "why.md")),
]
REPORT = ROOT / "benchmarks" / "h200_report.py"
BLOCK = re.compile(r"```console\n\$ rooflight (?P<arguments>[^\n]*)\n(?P<shown>(?:(?!\$ |```).*\n)+)```\n")
COMMAND = re.compile(r"(?:^\$ |`|-m )(rooflight [^`\n]*)", re.MULTILINE)
TABLE = re.compile(
    r"(?P<mark><!-- (?P<name>[\w ]+): written by .*test_readme.py -->\n)(?P<body>(?:.*\n)*?)(?P<end><!-- end -->\n)"
)
NUMBER = re.compile(r"(?P<value>-?[\d,]*\d(?:\.\d+)?)(?P<end>[%x;:,.]?)")
WIDTH = "112"
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


def printed(arguments: str) -> list[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "rooflight.commands.main", *shlex.split(arguments)],
        capture_output=True, text=True, check="--claims" not in arguments, cwd=ROOT, env={**os.environ, "COLUMNS": WIDTH, "PATH": path},
    )  # fmt: skip
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return [line for line in lines if not line.startswith("one trace of")]  # names versions


def comparable(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines if line.strip()]


def is_of_this_machine(arguments: str) -> bool:
    return arguments.startswith(("measure ", "run ")) and "--ncu-command" not in arguments


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


def commands(text: str) -> list[str]:
    """Every command that the text mentions, without comments and without what was left out."""
    lines = [re.split(r"\s+#|\\$", found)[0].strip() for found in COMMAND.findall(text)]
    return [line for line in dict.fromkeys(lines) if len(line.split()) > 1]


BLOCKS = [
    (match["arguments"], match["shown"].splitlines()) for page in PAGES for match in BLOCK.finditer(page.read_text())
]
PREDICTED = [block for block in BLOCKS if block[0].startswith("predict ")]
FIXED = [block for block in BLOCKS if not is_of_this_machine(block[0]) and block not in PREDICTED]
MACHINES = [block for block in BLOCKS if is_of_this_machine(block[0])]
COMMANDS = sorted({command for page in PAGES for command in commands(page.read_text())})


@pytest.mark.parametrize(("arguments", "shown"), FIXED, ids=[arguments for arguments, _ in FIXED])
def test_the_pages_show_what_is_printed(arguments, shown):
    lines = comparable(printed(arguments))
    parts = "\n".join(comparable(shown)).split("\n...")
    text = "\n".join(lines)
    assert text.startswith(parts[0])
    for part in parts[1:]:
        assert part.strip("\n") in text


@pytest.mark.parametrize(("arguments", "shown"), MACHINES, ids=[arguments for arguments, _ in MACHINES])
def test_the_pages_show_the_rows_of_a_measurement(arguments, shown):
    rows = labels(printed(arguments))
    assert labels(shown)
    assert [row for row in labels(shown) if row not in rows] == []


def is_alike(shown: str, line: str) -> bool:
    """The same words, and numbers that are within a few percent."""
    ours, theirs = shown.split(), line.split()
    return len(ours) == len(theirs) and all(map(are_alike, ours, theirs))


def are_alike(shown: str, word: str) -> bool:
    numbers = [NUMBER.fullmatch(text) for text in (shown, word)]
    if None in numbers or numbers[0]["end"] != numbers[1]["end"]:
        return shown == word
    old, new = (float(number["value"].replace(",", "")) for number in numbers)
    return abs(new - old) <= 0.05 * abs(old) + 0.1


@pytest.mark.parametrize(("arguments", "shown"), PREDICTED, ids=[arguments for arguments, _ in PREDICTED])
def test_the_pages_show_what_is_predicted(arguments, shown):
    lines = comparable(printed(arguments))
    for line in comparable(shown):
        if line != "..." and set(line.strip()) != {"─"}:
            assert any(is_alike(line, one) for one in lines), f"{line}: run python tests/test_readme.py"


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_understood(line):
    """Verb, options and their values are known; nothing is run."""
    verb, *rest = shlex.split(line)[1:]
    if verb.startswith("-"):
        return
    rest = [word for word in rest if word != "..."]
    context = click.Context(cli, info_name="rooflight")
    command = cli.get_command(context, verb)
    assert command is not None, verb
    needed = sum(isinstance(parameter, click.Argument) and parameter.required for parameter in command.params)
    if len([word for word in rest if not word.startswith("-")]) >= needed:  # `rooflight compare` alone names the verb
        command.make_context(verb, list(rest), parent=context)


def test_there_are_blocks_to_compare():
    assert len(FIXED) >= 6 and len(MACHINES) >= 2 and len(PREDICTED) >= 4 and len(COMMANDS) >= 30


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_tables_are_those_of_the_program(page):
    for match in TABLE.finditer(page.read_text()):
        assert match["body"] == TABLES[match["name"]](), f"{page.name}: run python tests/test_readme.py"


def test_every_quantity_is_documented():
    text = PAGES[1].read_text()
    assert [name for name in QUANTITIES if f"| `{name}` |" not in text] == []


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"], ids=str)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        file, _, heading = target.partition("#")
        found = page.parent / file if file else page
        assert found.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], target


def test_the_page_of_the_h200_is_what_its_script_writes(tmp_path):
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
    def fresh(match: re.Match[str]) -> str:
        shown = match["shown"].splitlines()
        if is_of_this_machine(match["arguments"]):
            return match[0]
        lines = printed(match["arguments"])
        if "..." in shown:
            cut = shown.index("...")
            kept = lines[:cut] if not match["arguments"].startswith("predict ") else paragraphs(lines, shown[:cut])
            lines = [*kept, *shown[cut:]]
        return "\n".join([f"```console\n$ rooflight {match['arguments']}", *lines, "```\n"])

    def table(match: re.Match[str]) -> str:
        return f"{match['mark']}{TABLES[match['name']]()}{match['end']}"

    page.write_text(TABLE.sub(table, BLOCK.sub(fresh, page.read_text())))


if __name__ == "__main__":
    for found in PAGES:
        overwrite(found)
