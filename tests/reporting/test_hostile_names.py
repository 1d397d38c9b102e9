"""Names are other people's: whatever a model, a module, a type, an op, a kernel or a file is called, no form of a result
obeys it, and no chart stumbles over it."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from rooflight.analysis.comparison.sides import Comparison
from rooflight.files import load, save
from rooflight.formatting import printable
from rooflight.ledger import Ledger
from rooflight.reporting.charts.pictures import picture
from rooflight.reporting.charts.text_roofline import text_roofline
from rooflight.reporting.document import Document
from rooflight.reporting.report.api import make
from rooflight.reporting.sections.compare_tables import compare_document
from rooflight.reporting.sections.ledger_documents import ledger_document
from rooflight.reporting.writers import Form, write
from rooflight.reporting.writers.notebook import document_notebook
from rooflight.reporting.writers.perfetto import to_perfetto
from rooflight.reporting.writers.terminal import print_document

NAME = "a\x1b[31mb\x1b]0;c\x07\x9b2J\x7f\u202ed\ne\r\nf\u2028g\u2029h | i \\ '\"j"
READ = printable(NAME)
OBEYED = {"\x1b", "\x07", "\x9b", "\x7f", "\x00", "\r", "\u2028", "\u2029", "\u202e"}


@pytest.fixture(scope="module")
def hostile() -> Ledger:
    """A recorded training step whose names steer a terminal, end lines and break out of tables."""
    ledger = load("recorded:h200/mnist-cnn-train-tf32")
    modules = tuple(replace(one, path=f"{NAME}.{one.path}", type=f"{NAME}{one.type}") for one in ledger.modules)
    ops = tuple(replace(one, name=f"{NAME}{one.name}", module=f"{NAME}.{one.module}") for one in ledger.ops)
    kernels = tuple(replace(one, name=f"{NAME}{one.name}") for one in ledger.kernels)
    header = replace(ledger.header, model=NAME, notes=(NAME,), command=NAME, conditions={NAME: NAME})
    return replace(ledger, header=header, modules=modules, ops=ops, kernels=kernels)


@pytest.fixture(scope="module")
def report(hostile: Ledger) -> Document:
    return make(hostile, on="h200")


def printed(document: Document) -> str:
    screen = io.StringIO()
    print_document(document, Console(width=300, file=screen, color_system=None))
    return screen.getvalue()


def test_text_in_a_terminal_steers_nothing(hostile: Ledger, report: Document) -> None:
    beside = compare_document(Comparison(hostile, hostile))
    shown = [printed(document) for document in (ledger_document(hostile, memory=True), report, beside)]
    shown.append("".join(map(printable, text_roofline(hostile))))
    assert not any(set(text) & OBEYED for text in shown)
    assert all(READ[:12] in text for text in shown)


@pytest.mark.parametrize("form", ["html", "md", "latex", "csv", "json"])
def test_a_file_steers_no_terminal_that_shows_it(report: Document, form: Form) -> None:
    content = write(report, form).decode()
    if form == "html":  # the libraries' own code
        content = re.sub(r"<script>.*?</script>", "", content, flags=re.DOTALL)
    assert not set(content) & OBEYED


def test_markdown_stays_in_its_tables(report: Document) -> None:
    lines = write(report, "md").decode().split("\n")
    rows = [line for line in lines if line.startswith("|")]
    beside = [line for number, line in enumerate(lines) if line.startswith("|") and not lines[number - 1]]
    assert len(rows) > 50 and beside
    for row in rows:
        assert row.endswith("|")
        assert not re.search(r"(?<!\\)\|(?! )[^|]*\bi \\", row)  # the name's own bar is escaped


def test_csv_has_as_many_lines_as_rows(hostile: Ledger) -> None:
    document = ledger_document(hostile)
    assert document.rows is not None
    content = write(document, "csv").decode()
    assert len(content.splitlines()) == len(list(csv.reader(io.StringIO(content)))) == len(document.rows().rows) + 1


def test_json_holds_the_name_itself(report: Document) -> None:
    assert json.loads(write(report, "json"))["header"]["model"] == NAME


@pytest.mark.parametrize("chart", ["roofline", "memory", "lanes", "shares", "sweep", "devices", "scaling"])
def test_charts_are_drawn_whatever_things_are_called(report: Document, chart: str) -> None:
    """Vega-Lite puts the names of a sorted axis into an expression, in which no line may end."""
    drawn = {one.name: one for one in report.charts}
    if chart not in drawn:  # a model that cannot be built by its name has no other batches
        assert chart in ("sweep", "scaling")
        return
    assert not set(json.dumps(drawn[chart].spec, ensure_ascii=False)) & OBEYED
    assert picture(drawn[chart], "svg").startswith(b"<svg")


def test_notebooks_and_traces(hostile: Ledger, report: Document) -> None:
    assert not set(document_notebook(report)) & OBEYED
    assert json.loads(to_perfetto(hostile))


def test_an_error_line_is_one_line(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a file's name, of what is in it, and of an option."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a\x1b[31m\u2028b.json").write_text("{}")
    save(load("recorded:h200/mnist-cnn-train-tf32"), tmp_path / "good.json")
    for arguments in (
        ["report", "a\x1b[31m\u2028b.json"],
        ["report", "no\x1b]0;x\x07\nsuch"],
        ["report", "good.json", "--to", "md", "--section", NAME],
        ["report", "good.json", "--on", NAME],
        ["estimate", NAME],
        [NAME],
    ):
        code, _, said = run(*arguments)
        assert code == 2 and said.startswith("rooflight: "), said
        assert said.count("\n") == 1 and not set(said) & OBEYED, said
