"""One document: every form of a result shows the same title, sentences and cells."""

import ast
import csv
import html
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console

import rooflight
from rooflight.analysis.claims import check, parse_claims
from rooflight.analysis.comparison.sides import Comparison
from rooflight.metrics import METRICS
from rooflight.profiles import read
from rooflight.reporting.columns import CATALOGUE, column
from rooflight.reporting.document import Document, Section
from rooflight.reporting.sections.claims_tables import claims_document
from rooflight.reporting.sections.compare_tables import compare_document
from rooflight.reporting.sections.ledger_documents import (
    estimate_document,
    ledger_document,
    log_document,
    measure_document,
)
from rooflight.reporting.sections.predict_document import predict_document
from rooflight.reporting.sections.study_document import study_document
from rooflight.reporting.table import Column, Table, figure
from rooflight.reporting.writers import Form, write
from rooflight.reporting.writers.notebook import document_notebook
from rooflight.reporting.writers.terminal import print_document
from rooflight.study.api import load as load_study
from tests.fixtures.narrow_tables import check_narrow, tables_of
from tests.fixtures.paths import ROOT

MNIST = "recorded:h200/mnist-cnn-train-tf32"
CLAIMS = b"layer,quantity,value\nconv2,flops,1358954496\nconv2,flops,679477248\n"


@pytest.fixture(scope="module")
def documents() -> dict[str, Document]:
    measured = rooflight.load(MNIST)
    estimate = rooflight.estimate("mnist-cnn", batch=64, step="train")
    study = load_study(ROOT / "studies" / "recorded" / "h200" / "mnist-conv2")
    checked = check(rooflight.estimate("mnist-cnn", batch=64), parse_claims(CLAIMS, "table.csv"), file="table.csv")
    return {
        "estimate": estimate_document(estimate, epochs=2, dataset_size=60_000),
        "measure": measure_document(measured, memory=True),
        "compare": compare_document(Comparison(estimate, measured)),
        "predict": predict_document(rooflight.predict("mnist-cnn", batch=[1, 64], on="h200,t4")),
        "claims": claims_document(checked),
        "log": log_document(read(ROOT / "tests" / "data" / "ncu" / "h200_mnist_raw.csv.gz")),
        "study": study_document(study.rows, study.plan, folder="folder"),
    }


def plain(text: str) -> str:
    """Words without their spaces: lines are broken differently in every form."""
    return re.sub(r"\s", "", text.replace("\xa0", " "))


def written_to(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(document: Document, form: Form | Literal["terminal", "notebook"]) -> str:
    """What a reader reads."""
    if form == "terminal":
        console = Console(width=2000, file=io.StringIO())
        print_document(document, console)
        return plain(written_to(console))
    content = document_notebook(document) if form == "notebook" else write(document, form).decode()
    if form == "md":
        return plain(html.unescape(re.sub(r"\\([-+>.)\\`*_\[\]|#$~])", r"\1", content)))
    if form == "html":
        content = re.sub(r"(?s)<script.*?</script>|<style.*?</style>", "", content)
    return plain(html.unescape(re.sub(r"</?[a-z][^>]*>", "", content)))


@pytest.mark.parametrize("form", ["terminal", "notebook", "html", "md"])
@pytest.mark.parametrize("name", ["estimate", "measure", "compare", "predict", "claims", "log", "study"])
def test_every_form_shows_the_same(documents, name, form):
    document = documents[name]
    content = shown(document, form)
    lines = [document.title, *document.lines, *document.notes, *document.small_print]
    assert [line for line in lines if plain(line) not in content] == []
    assert document.tables
    folded = form in ("html", "notebook") and name == "study"  # claims stand in several lines there
    for table in document.tables[folded:]:
        cells = [text for row in table.written() for text in row]
        # A title that is the heading of its section begins with a capital there.
        texts = [table.title[1:], *(one.name for one in table.columns), *cells]
        assert [text for text in texts if plain(text) not in content] == [], table.title


@pytest.mark.parametrize("name", ["estimate", "measure", "compare", "predict", "claims", "log", "study"])
def test_programs_get_raw_values(documents, name):
    document = documents[name]
    assert document.rows is not None and document.data is not None
    table = document.rows()
    rows = list(csv.reader(io.StringIO(write(document, "csv").decode())))
    assert rows[0] == [one.raw or one.name for one in table.columns]
    assert len(rows) == len(table.rows) + 1
    for cells, row in zip(rows[1:], table.rows, strict=True):
        for text, cell in zip(cells, row, strict=True):
            assert cell is not None or text == ""
            assert not isinstance(cell, float) or float(text) == cell
    data = json.loads(write(document, "json", report=False))
    assert data and "report" not in data
    both = json.loads(write(document, "json"))
    assert {key: both[key] for key in data} == data
    sections = both["report"]["sections"]
    assert list(sections) == [section.name for section in document.sections]
    assert len(sections) == len(document.sections), "a section's name is its own"


def test_a_section_is_chosen_by_name(documents):
    log = documents["log"]
    assert [section.name for section in log.sections] == ["kernel", "totals"]
    (chosen,) = log.only(["totals"]).sections
    assert chosen.heading == "Totals" and chosen.tables == log.sections[1].tables
    assert write(log.only(["totals"]), "csv").decode().startswith("Totals\ntotals,value,exactly\n")
    with pytest.raises(rooflight.RooflightError, match="no section 'kernels' in this report: it has kernel, totals"):
        log.only(["kernels"])


@pytest.mark.parametrize("name", sorted(METRICS))
def test_a_metric_has_its_column(name):
    metric, shown = METRICS[name], column(name)
    assert (shown.name, shown.raw, shown.about) == (metric.title, name, metric.about)
    assert shown.write(None) == metric.text(None)
    assert shown.right == (metric.unit != "word")
    short = column(name, heading="x", optional=3)
    assert (short.name, short.raw, short.optional, short.write) == ("x", name, 3, shown.write)


def test_no_table_makes_a_metrics_column_by_itself():
    """Or two tables would write, or name, the same quantity differently."""
    wrong = []
    for path in (Path(rooflight.__file__).parent / "reporting").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Column":
                raw = [
                    one.value.value for one in node.keywords if one.arg == "raw" and isinstance(one.value, ast.Constant)
                ]
                names = [one.value for one in node.args[:1] if isinstance(one, ast.Constant)]
                wrong += [(path.name, name) for name in raw or names if name in CATALOGUE and path.name != "columns.py"]
    assert wrong == []


def test_a_ledger_chooses_its_document():
    ledger = rooflight.load(MNIST)
    assert ledger_document(ledger).title == measure_document(ledger).title
    estimate = rooflight.estimate("mnist-cnn")
    assert ledger_document(estimate).lines == estimate_document(estimate).lines


STEERING = "a\x1b[31mb\x1b]0;c\x07\x9b2J\x00\u202ed\ne\rf [bold] [/b] $x$ &lt; **g**"


def table_of(*cells, **more) -> Table:
    columns = tuple(Column(f"c{i}", str, right=False) for i in range(len(cells)))
    return Table("a table", columns, (cells,), **more)


@pytest.mark.parametrize("form", ["terminal", "notebook", "html", "md", "latex", "csv", "json"])
def test_a_name_steers_no_form(form):
    """Neither a terminal that shows the file, nor the table in which the name stands."""
    table = replace(table_of(STEERING, "beside"), title=STEERING)
    document = Document(STEERING, lines=(STEERING,), sections=(Section("s", STEERING, tables=(table,)),),
                        notes=(STEERING,))  # fmt: skip
    if form == "terminal":
        console = Console(width=400, file=io.StringIO(), color_system=None)
        print_document(document, console)
        content = written_to(console)
        (row,) = [line for line in content.splitlines() if "beside" in line]
        assert "a[31mb]0;c2Jd e f [bold] [/b] $x$ &lt; **g**" in row
    elif form == "notebook":
        content = document_notebook(document)
    else:
        content = write(document, form, report=True).decode()
    if form == "json":  # programs get the value as it is, escaped where a terminal would be steered
        (found,) = json.loads(content)["report"]["sections"]["s"]["tables"]
        assert found["rows"][0]["c0"] == STEERING and not set(content) & {"\x1b", "\x07", "\x00", "\r"}
        return
    if form == "html":
        content = re.sub(r"(?s)<script.*?</script>|<style.*?</style>", "", content)
    assert not set(content) & {"\x1b", "\x07", "\x9b", "\x00", "\r", "\u202e"}
    if form == "md":
        (row,) = [line for line in content.splitlines() if "beside" in line]
        assert row == r"| a\[31mb\]0;c2Jd e f \[bold\] \[/b\] \$x\$ &amp;lt; \*\*g\*\* | beside |"
    if form == "csv":
        assert len(content.splitlines()) == 3


def test_figures_of_mixed_units_are_numbers_for_programs():
    table = table_of(figure(-0.5, str), figure(None, str), figure(3, str))
    document = Document("d", sections=(Section("s", tables=(table,)),))
    assert write(document, "csv").decode().splitlines()[-1] == "-0.5,,3"
    (found,) = json.loads(write(document, "json"))["report"]["sections"]["s"]["tables"]
    assert found["rows"] == [{"c0": -0.5, "c1": None, "c2": 3}]


@pytest.mark.parametrize("form", ["terminal", "notebook", "html", "md", "latex", "json"])
def test_a_note_is_in_every_form(form):
    document = Document("d", sections=(Section("s", tables=(table_of("x", note="A note below it."),)),))
    content = shown(document, form)
    assert "Anotebelowit." in content
    if form == "latex":
        assert "%Anote" not in content


def test_long_tables_tell_the_first_rows_where_people_read():
    table = Table("t", (Column("n"),), tuple((n,) for n in range(1000)), note="A note.", telling=20)
    document = Document("d", sections=(Section("s", tables=(table,)),))
    said = "980 more rows: all are in this report with --to csv --section s"
    for form in ("md", "latex"):
        content = write(document, form).decode()
        assert (
            said.replace("--", "-{}-") in content.replace("\\mbox{-{}-}", "-{}-")
            if form == "latex"
            else said in content
        )
        rows = re.findall(r"(?m)^\| (\d+) \|$" if form == "md" else r"(?m)^\{\}(\d+) \\\\", content)
        assert rows == [str(n) for n in range(20)] and "A note." in content
    assert "600 more rows: all are in this report with --to csv --section s" in write(document, "html").decode()
    assert len(write(document, "csv").decode().splitlines()) == 1002


def test_a_heading_is_not_said_twice():
    document = Document("d", sections=(Section("s", "Shares", tables=(replace(table_of("x"), title="shares"),)),))
    assert write(document, "md").decode().count("Shares") == 1


def test_of_a_path_that_is_too_long_the_end_stays():
    table = Table("", (Column("first in", right=False), Column("time")), (("transformer.h.0.mlp.c_proj", "1" * 27),))
    console = Console(width=50, file=io.StringIO(), color_system=None)
    print_document(Document("d", sections=(Section("s", tables=(table,)),)), console)
    assert ".0.mlp.c_proj " in written_to(console) and "transformer" not in written_to(console)


def test_a_long_name_may_be_broken_in_a_page():
    content = write(Document("d", sections=(Section("s", tables=(table_of("a" * 200, "x"),)),)), "html").decode()
    assert f"<td class=w>{'a' * 200}</td><td class=n>x</td>" in content


def test_on_80_columns_every_column_is_shown_or_named(documents: dict[str, Document]) -> None:
    for document in documents.values():
        for table in tables_of(document):
            check_narrow(table)
