"""A study's page: claims first, every number written, nothing hidden; and the same as HTML and as a document."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import settings

from rooflight.ledger import Note
from rooflight.reporting.charts.lines import study_charts
from rooflight.reporting.document import Document
from rooflight.reporting.report.study_report import study_report
from rooflight.reporting.sections.study_claims import amount
from rooflight.reporting.sections.study_document import study_data, study_document
from rooflight.reporting.sections.study_tables import csv_table
from rooflight.reporting.sections.study_trends import form, words
from rooflight.reporting.table import Table
from rooflight.reporting.writers.csv import table_csv
from rooflight.reporting.writers.page import to_page
from rooflight.reporting.writers.terminal import drawn
from rooflight.study.cell import Side, StudyCell, StudyRow
from rooflight.study.fitting import CurveFit
from rooflight.study.hypotheses import StudyClaim
from rooflight.study.plan import StudyGrid, StudyPlan
from rooflight.study.trends import Trend

many = settings(max_examples=200, deadline=None, derandomize=True)
BATCHES = (1, 4, 16, 64)


def rows() -> list[StudyRow]:
    """Two models on two devices: the first is here, where one cell runs out of memory."""
    found = []
    for model, scale in (("resnet18", 1), ("resnet50", 3)):
        for on in ("here", "v100"):
            for batch in BATCHES:
                values: dict[str, float] = {
                    "flops.estimated": 3_640_000_000 * scale * batch, "params.estimated": 11_689_512 * scale,
                    "time.predicted": (0.002 + 0.0001 * batch) * scale * (2 if on == "v100" else 1),
                    "memory.predicted": 45_000_000 * scale + 3_000_000 * batch,
                }  # fmt: skip
                values["throughput.predicted"] = batch / values["time.predicted"]
                failures: dict[Side, str] = {}
                facts = {"bound.predicted": "host", "tier": "calibrated", "fits": "yes"}
                if on == "here" and (model, batch) == ("resnet50", 64):
                    failures["measured"] = "out of memory: 9.1 GB more were asked for"
                elif on == "here":
                    values["time.measured"] = values["time.predicted"] * 1.1
                    values["flops.measured"] = values["flops.estimated"] * 1.02
                    values["memory.measured"] = values["memory.predicted"]
                    values["throughput.measured"] = batch / values["time.measured"]
                    facts |= {"device": "NVIDIA H200", "bound.measured": "host"}
                found.append(StudyRow(cell=StudyCell(model=model, batch=batch, on=on), state="failed" if failures else "done", values=values,
                                 facts=facts, failures=failures, notes=(Note("clocks", "clocks were not locked"),) if on == "here" else ()))  # fmt: skip
    return found


PLAN = StudyPlan(
    title="Two nets", about="What was supposed before anything ran.",
    grid=(StudyGrid(model=["resnet18", "resnet50"], batch=list(BATCHES), on=["here", "v100"]),),  # type: ignore[call-arg]
    claim=(
        StudyClaim(claim="time(resnet50) > 2 * time(resnet18)", says="deeper is slower", source="document 002"),
        StudyClaim(claim="time(on=here) < 0.5 * time(on=v100)", says="twice as fast"),
        StudyClaim(claim="flops.measured / flops.estimated ~ 1 within 5%"),
        StudyClaim(claim="bound = host"),
        StudyClaim(claim="time(vgg19) < 1 s"),
    ),
)  # fmt: skip


def table(page: Document, title: str) -> Table:
    return next(one for one in page.tables if one.title.startswith(title))


def texts(one: Table) -> list[dict[str, str]]:
    return [dict(zip([column.name for column in one.columns], line, strict=True)) for line in one.written()]


def test_the_verdicts_come_first_with_their_numbers() -> None:
    page = study_document(rows(), PLAN)
    assert page.title == "Two nets: 16 cells, 15 done, 1 failed"
    assert page.lines == ("What was supposed before anything ran.", "5 claims: 2 held, 1 refuted, 2 not measured")
    assert page.tables[0].title == "claims"
    first, second, third, fourth, fifth = texts(page.tables[0])
    # 3 times as long everywhere; here by the measurement where both have one, else as predicted.
    assert (first["verdict"], first["held in"], first["by"]) == ("held", "8 of 8", "measured 3×, predicted 5×")
    assert first["numbers"].endswith("(1.50×)")
    assert (first["claim"], first["said by"]) == ("deeper is slower", "document 002")
    assert third["claim"] == "flops.measured / flops.estimated ~ 1 within 5%"
    # Predicted on both: exactly half, which is not under half.
    assert (second["verdict"], second["held in"], second["by"]) == ("refuted", "0 of 8", "predicted")
    assert second["numbers"] == "2.10 ms is not < 2.10 ms (1.00×)"
    assert (third["verdict"], third["held in"]) == ("not measured", "7 of 7, 1 missing")
    assert third["numbers"] == "measurement failed: out of memory: 9.1 …"
    assert (fourth["verdict"], fourth["numbers"]) == ("held", "host = host")
    assert (fifth["verdict"], fifth["numbers"]) == (
        "not measured",
        "no cell has 'vgg19': models are resnet1…",
    )


def test_every_counter_example_is_shown_the_worst_first() -> None:
    shown = texts(table(study_document(rows(), replace_claims("time(on=v100) < 9 ms")), "counter-examples"))
    assert [line["refuted at"] for line in shown] == [
        f"model={model}, batch={batch}" for model, batch in
        [("resnet50", 64), ("resnet50", 16), ("resnet18", 64), ("resnet50", 4), ("resnet50", 1)]]  # fmt: skip
    assert [line["left"] for line in shown] == ["50.4 ms", "21.6 ms", "16.8 ms", "14.4 ms", "12.6 ms"]
    assert shown[0]["left / right"] == "5.60"
    many_places = [replace_batch(row, i) for i, row in enumerate(rows() * 4, start=1)]
    found = texts(table(study_document(many_places, replace_claims("flops > 1e20")), "counter-examples"))
    assert found[-1]["refuted at"] == f"and {len(many_places) - 8} more"


def replace_claims(*claims: str) -> StudyPlan:
    return msgspec.structs.replace(PLAN, claim=tuple(StudyClaim(claim=one) for one in claims))


def replace_batch(row: StudyRow, batch: int) -> StudyRow:
    return msgspec.structs.replace(row, cell=msgspec.structs.replace(row.cell, batch=batch))


def test_places_that_were_not_judged_are_told_apart() -> None:
    shown = texts(table(study_document(rows(), PLAN), "not judged"))
    assert (shown[0]["#"], shown[0]["places"], shown[0]["not judged at"]) == (
        "3",
        "1",
        "model=resnet50, batch=64, on=here",
    )
    assert shown[1]["places"] == "8"
    assert shown[1]["why"] == "no measurement on v100 (not planned)"


def test_cells_have_estimate_prediction_and_measurement_and_their_ratios() -> None:
    cells = table(study_document(rows(), PLAN), "cells")
    names = [column.name for column in cells.columns]
    assert names[:3] == ["model", "batch", "on"]
    first = dict(zip([column.raw or column.name for column in cells.columns], cells.rows[0], strict=True))
    assert first["flops.measured / flops.estimated"] == pytest.approx(1.02)
    assert first["time.measured / time.predicted"] == pytest.approx(1.1)
    assert first["memory.measured / memory.predicted"] == 1
    assert len(cells.rows) == 16
    failed = [line for line in cells.written() if line[-1] == "failed"]
    assert len(failed) == 1


def test_trends_devices_and_failures_are_there() -> None:
    page = study_document(rows(), PLAN, folder="nets")
    trends = texts(table(page, "trends"))
    assert trends[0] == {
        "against the batch": "time", "of": "resnet18, here", "by": "predicted", "form": "2.00 ms + 100 µs × batch", "error": "<0.1%",
        "worst": "<0.1%", "batches": "4", "knee": "batch 20 (20 to 20)"}  # fmt: skip
    assert any(line["form"] == "exactly 3,640,000,000 × batch" for line in trends)
    assert any(line["form"] == "exactly 45,000,000 + 3,000,000 × batch" for line in trends)
    devices = texts(table(page, "devices side by side"))
    assert all(line["by"] == "predicted" and line["v100 / here"] == "2.00" for line in devices)
    failed = texts(table(page, "what failed"))
    assert failed == [{"not": "measured", "cells": "1", "which": "resnet50-b64-infer-fp32-here",
                       "why": "out of memory: 9.1 GB more were asked for"}]  # fmt: skip
    assert page.notes == (
        "claim 1: deeper is slower: time(resnet50) > 2 * time(resnet18) (document 002)",
        "claim 2: twice as fast: time(on=here) < 0.5 * time(on=v100)",
        "measured on NVIDIA H200",
        "note: resnet18-b1-infer-fp32-here and 7 more: clocks were not locked",
    )
    assert "rooflight study nets/study.toml" in page.small_print[0]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (CurveFit(form="constant", a=0.002, b=0, error=0.01, worst=0.02, points=4), "2.00 ms, whatever the batch"),
        (CurveFit(form="proportional", a=0, b=0.002, error=0.01, worst=0.02, points=4), "2.00 ms × batch"),
        (CurveFit(form="linear", a=-0.001, b=0.002, error=0.01, worst=0.02, points=4), "2.00 ms × batch − 1.00 ms"),
        (CurveFit(form="linear", a=0.001, b=-1e-6, error=0.01, worst=0.02, points=4), "1.00 ms − 1.00 µs × batch"),
        (
            CurveFit(form="flat, then proportional", a=0.001, b=1e-4, error=0.01, worst=0.02, points=4),
            "1.00 ms, then 100 µs × batch",
        ),
        (
            CurveFit(form="power", a=0, b=0.001, power=1.5, error=0.01, worst=0.02, points=4),
            "1.00 ms × batch^1.50 (superlinear)",
        ),
        (CurveFit(form="linear", a=0.001, b=0.002, error=0.2, worst=0.3, points=4), "no form fits well enough"),
    ],
)
def test_forms_in_words(found: CurveFit, text: str) -> None:
    assert form(Trend(at={}, quantity="time", side="measured", points=(), fit=found)) == text


def test_places_in_words() -> None:
    assert (
        words({"model": "resnet50", "dtype": "bf16", "on": "a100", "gpus": 1, "batch": 8})
        == "resnet50, bf16, a100, batch 8"
    )
    assert words({"gpus": 4, "tf32": True, "seq": 128}) == "4 GPUs, tf32=true, seq=128"
    assert words({}) == "all cells"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.0021, "s", "2.10 ms"), (2**30, "B", "1.07 GB"), (4_100_000_000, "FLOP", "4.10 GFLOP"), (12.5e12, "FLOP/s", "12.5 TFLOP/s"),
     (0.9923, "", "0.9923"), (25_557_032, "", "25.6 M"), (489.2, "1/s", "489/s"), (12, "FLOP", "12 FLOP"), ("host", "", "host")],
)  # fmt: skip
def test_amounts(value: float | str, unit: str, text: str) -> None:
    assert amount(value, unit) == text


@pytest.mark.parametrize("width", [60, 80, 100, 150, 220])
def test_a_terminal_of_any_width_shows_the_verdicts_whole(width: int) -> None:
    from rich.console import Console

    page = study_document(rows(), PLAN)
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    for one in page.tables:
        console.print(drawn(one, width))
    shown = stream.getvalue()
    assert shown.count("not measured") >= 2
    assert "deeper is slower" in shown
    if width >= 220:
        assert "flops.measured / flops.estimated ~ 1 within 5%" in shown
        assert "2.10 ms is not < 2.10 ms (1.00×)" in shown


def test_markdown_and_csv() -> None:
    page = study_document(rows(), PLAN)
    markdown = page.to_markdown()
    assert markdown.startswith("# Two nets: 16 cells")
    assert "| 2 | refuted |" in markdown
    content = table_csv(csv_table(rows()))
    assert len(content.splitlines()) == 17
    assert "time.measured" in content.splitlines()[0]


@pytest.mark.parametrize(
    ("found", "plan"),
    [
        ([], PLAN),
        (rows(), msgspec.structs.replace(PLAN, claim=(), title="", about="")),
        ([StudyRow(cell=row.cell) for row in rows()], PLAN),
        ([StudyRow(cell=row.cell, state="failed", failures={"estimated": "no such model"}) for row in rows()], PLAN),
        (rows()[:1], PLAN),
    ],
    ids=["nothing", "no claims", "waiting", "failed", "one cell"],
)
def test_a_study_that_has_little_still_has_a_page(found: list[StudyRow], plan: StudyPlan) -> None:
    page = study_document(found, plan)
    page.to_markdown()
    well_formed(study_html(found, plan))
    json.loads(msgspec.json.encode(study_data(found, plan)))
    if found and found[0].state == "waiting":
        assert page.lines[-1] == "5 claims: 5 not measured"


# ---------------------------------------------------------------- HTML


SCRIPT = re.compile(r"<script[^>]*>.*?</script>", re.DOTALL)


def study_html(found: list[StudyRow], plan: StudyPlan, folder: str = "a-folder") -> str:
    return to_page(study_report(found, plan, folder=folder))


class Checker(HTMLParser):
    """Every tag is closed in its turn, and nothing is there that loads; the page's own scripts were taken out."""

    VOID = frozenset({"meta", "br", "link", "path", "circle", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert tag not in ("script", "img", "iframe", "object", "embed", "base")
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "style", "xlink:href")
            assert name != "href" or (value or "").startswith(("#", "data:"))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.VOID:
            return
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def well_formed(content: str) -> Checker:
    """The page without its three scripts: data, charts, and what moves it."""
    assert content.count("<script") == len(SCRIPT.findall(content)) == 3
    plain = SCRIPT.sub("", content)
    checker = Checker()
    checker.feed(plain)
    checker.close()
    assert checker.open == []
    assert "http:" not in plain and "https:" not in plain and "url(" not in plain and "@import" not in plain
    return checker


def test_the_html_is_one_file_that_loads_nothing() -> None:
    content = study_html(rows(), PLAN)
    checker = well_formed(content)
    assert "Content-Security-Policy" in content
    assert "@media print" in content
    assert content.index('<section id="claims"') < content.index('data-chart="') < content.index("<h2>Cells</h2>")
    assert content.count('<span class="v held">') == 2
    assert content.count('<span class="v refuted">') == 1
    assert content.count('<span class="v open">') == 2
    assert content.count('data-chart="') == 8  # two models: time, throughput, memory, FLOPs
    assert "time(resnet50) > 2 * time(resnet18)" in "".join(checker.text)


HOSTILE = "<script>alert(1)</script>\"'&]]><img src=x onerror=alert(1)>"


def test_names_from_anywhere_stay_text() -> None:
    found = [msgspec.structs.replace(row, cell=msgspec.structs.replace(row.cell, model=HOSTILE + row.cell.model, settings={HOSTILE: HOSTILE}),
                                     facts=row.facts | {"device": HOSTILE}, failures={"measured": HOSTILE}, state="failed",
                                     notes=(Note("hostile", HOSTILE),)) for row in rows()]  # fmt: skip
    plan = msgspec.structs.replace(PLAN, title=HOSTILE, about=HOSTILE, claim=(
        StudyClaim(claim="time < 1 ms", says=HOSTILE, source=HOSTILE), StudyClaim(claim="time('<b>') < 1 s")))  # fmt: skip
    checker = well_formed(study_html(found, plan, folder=HOSTILE))
    assert checker.tags.isdisjoint({"script", "img", "b"})
    assert "".join(checker.text).count("<script>alert(1)</script>") > 20


def test_a_large_study_stays_small() -> None:
    found = [msgspec.structs.replace(row, cell=msgspec.structs.replace(row.cell, model=f"{row.cell.model}-{i}"))
             for i in range(64) for row in rows()]  # fmt: skip
    content = study_html(found, PLAN)
    assert len(found) == 1024
    assert len(content.encode()) < 1_500_000  # 0.9 MB of it draw the charts
    assert "Cells (the first 200 of 1,024)" in content


def test_charts_have_a_line_for_every_side_with_more_than_one_batch() -> None:
    found = list(study_charts(rows()))
    first = found[0]
    assert first.title == "Time of a step: resnet18"
    lines = {tuple(str(cell) for cell in line[:2]) for line in first.table.rows}
    assert len(first.table.rows) == 12  # three lines of four batches
    assert any("measured" in " ".join(line) for line in lines)
    assert [chart.name for chart in study_charts([row for row in rows() if row.cell.batch == 1])] == ["cells"]


# ---------------------------------------------------------------- as a document


def test_the_document_has_every_number_and_reads_back() -> None:
    made = json.loads(msgspec.json.encode(study_data(rows(), PLAN)))
    assert [one["verdict"] for one in made["claims"]] == ["held", "refuted", "not measured", "held", "not measured"]
    second = made["claims"][1]
    assert (second["held_at"], second["judged_at"], second["sides"]) == (0, 8, {"predicted": 8})
    compared = second["points"][0]["compared"][0]
    assert (compared["left"], compared["right"], compared["unit"]) == (
        pytest.approx(0.0021),
        pytest.approx(0.0021),
        "s",
    )
    assert made["rows"][0]["values"]["flops.estimated"] == 3_640_000_000
    assert made["rows"][0]["id"] == rows()[0].cell.id
    knees = [one["knee"]["batch"] for one in made["trends"]["against_batch"] if one["knee"]]
    assert knees and all(knee == pytest.approx(20, rel=0.01) for knee in knees)
    assert made["units"]["time"] == "second"
    assert msgspec.convert(made["plan"], StudyPlan) == PLAN
