"""Reports of ledgers, pairs, logs and studies: what is in them, in every form."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

import rooflight
from rooflight import formatting
from rooflight.analysis.comparison.sides import Comparison
from rooflight.errors import BadFile, BadInput
from rooflight.files import load, save
from rooflight.metrics import METRICS
from rooflight.reporting.charts import pictures
from rooflight.reporting.report.api import make
from rooflight.reporting.report.tree import Tree
from rooflight.reporting.sections.compare_tables import compare_document
from rooflight.reporting.sections.ledger_documents import ledger_document
from rooflight.reporting.writers import write
from rooflight.reporting.writers.page import safe_json
from tests.fixtures.paths import ROOT
from tests.fixtures.report_pages import HOSTILE, MARKUP, hostile_ledger

MNIST = "recorded:h200/mnist-cnn-train-tf32"
STUDY = ROOT / "studies" / "recorded" / "h200" / "mnist-conv2"
WHOLE = ["roofline", "layers", "why", "verdict", "memory", "lanes", "shares", "sweep", "devices", "scaling", "origins"]
CHARTS = ["roofline", "memory", "lanes", "shares", "sweep", "devices", "scaling"]
CONV2 = 1_358_954_496
"""2 x 64 x 64 x 24 x 24 x 32 x 3 x 3: the forward of conv2 of mnist-cnn at batch 64."""


@pytest.fixture(scope="module")
def mnist():
    return make(MNIST)


def column(tree: Tree, heading: str):
    return next(one for one in tree.columns if one.column.name == heading)


def row(tree: Tree, path: str) -> int:
    return tree.paths.index(path)


def test_a_measured_step_has_every_section(mnist):
    assert [section.name for section in mnist.sections] == WHOLE
    assert [chart.name for chart in mnist.charts] == CHARTS
    assert [section.name for section in mnist.sections if section.missing] == []


def test_the_headline_says_cost_time_bound_memory_and_what_to_do(mnist):
    labels = [fact.label for fact in mnist.facts]
    for word in ("useful FLOPs", "time of a step", "executed FLOPs", "bound by", "memory at the peak", "help most"):
        assert any(word in label for label in labels), word
    ledger = load(MNIST)
    # conv1 has no gradient of its input: 2 x (2 x 64 x 32 x 26 x 26 x 9); conv2 and the two linear layers have all three:
    # 3 x (CONV2 + 2 x 64 x 9216 x 128 + 2 x 64 x 128 x 10). Together 4,580,179,968.
    assert 49_840_128 + 3 * (CONV2 + 150_994_944 + 163_840) == 4_580_179_968
    assert mnist.facts[0].value == "4.58 G"
    assert mnist.subtitle.endswith(ledger.header.device)


def test_the_tree_has_estimate_measurement_ratio_and_cause(mnist):
    tree = next(mnist.trees)
    conv2 = row(tree, "conv2")
    assert column(tree, "FLOPs").values[conv2] == 3 * CONV2  # forward, and both gradients
    executed, ratio = column(tree, "executed").values[conv2], column(tree, "exec/useful").values[conv2]
    assert executed > 3 * CONV2
    assert 1 < ratio <= executed / (3 * CONV2)
    assert column(tree, "mainly because of").values[conv2]
    assert column(tree, "time").values[conv2] > 0
    assert column(tree, "bound").values[conv2] in ("compute", "memory", "cache", "latency")


def test_modules_hold_the_sum_of_their_ops(mnist):
    tree = next(mnist.trees)
    for key in ("FLOPs", "bytes", "time", "executed"):
        values = column(tree, key).values
        for number, kind in enumerate(tree.kinds):
            below = [values[i] or 0 for i, parent in enumerate(tree.parents) if parent == number]
            if kind == "module" and below:
                assert values[number] == pytest.approx(sum(below), rel=1e-9), (key, tree.paths[number])


def test_every_op_that_computes_is_a_row_once(mnist):
    tree = next(mnist.trees)
    ops = [index for own, kind in zip(tree.ops, tree.kinds, strict=True) if kind == "op" for index in own]
    computing = [op.index for op in load(MNIST).ops if op.kind == "compute"]
    assert sorted(ops) == sorted(set(ops))
    assert set(computing) <= set(ops)


def test_what_is_behind_a_row_is_its_derivation(mnist):
    tree, details = next(mnist.trees), mnist.details
    ops = tree.ops[row(tree, "conv2")]
    texts = [details.derivations[details.derivation_of[index]] for index in ops if index in details.derivation_of]
    assert any("MACs    = N × Cout × Ho × Wo × Cin × Kh × Kw" in text and "679,477,248" in text for text in texts)
    said = [[details.texts[cell] for cell in line] for line in details.lines]
    causes = [[said[line] for line in table] for index in ops for table in details.causes_of.get(index, ())]
    assert {table[0][0] for table in causes} == {"FLOPs", "DRAM bytes", "time"}
    for _, asked, *found, unexplained, measured in causes:
        assert [line[0] for line in (asked, unexplained, measured)] == ["asked for", "unexplained", "measured"]
        assert all(name and amount for name, amount, *_ in (asked, *found, unexplained, measured))
    # The forward of conv2: what it asks for is its FLOPs by hand, as every table writes them.
    assert ["asked for", formatting.count(CONV2)] in [table[1] for table in causes if table[0][0] == "FLOPs"]
    assert any(details.kernels_of.get(index) for index in ops)


def test_kernels_behind_a_row_are_numbered_from_the_longest(mnist):
    details, ledger = mnist.details, load(MNIST)
    times: dict[int, list[float]] = {}
    for kernel in ledger.kernels:
        times.setdefault(kernel.ops[0], []).append(kernel.time_s)
    for index, numbers in details.kernels_of.items():
        shown = [details.texts[details.lines[number][1]] for number in sorted(numbers)]
        assert shown == [formatting.seconds(time) for time in sorted(times[index], reverse=True)]


def test_cells_of_the_tree_come_as_the_text_that_every_table_has(mnist):
    data = json.loads(re.search(r'id="data">(.*?)</script>', write(mnist, "html").decode(), re.DOTALL)[1])
    tree, sent = next(mnist.trees), data["trees"]["layers"]["columns"]
    assert [one["title"] for one in sent] == [one.column.name for one in tree.columns]
    for one, column in zip(tree.columns, sent, strict=True):
        name = one.column.raw
        as_text = METRICS[name].text if name in METRICS else formatting.shape if one.column.name == "output" else str
        assert [value is None for value in one.values] == [at is None for at in column["rows"]]
        for value, at in zip(one.values, column["rows"], strict=True):
            if value is not None:
                assert column["texts"][at] == as_text(value)
                long = isinstance(value, int) and value >= 10_000
                assert not long or column["exact"][at] == f"{value:,}"
        known = sorted((at, value) for value, at in zip(one.values, column["rows"], strict=True) if value is not None)
        words = [value.casefold() if isinstance(value, str) else value for _, value in known]
        assert words == sorted(words), "rows are sorted by number, and that is by value"
    flops = sent[[one["title"] for one in sent].index("FLOPs")]
    conv2 = flops["rows"][row(tree, "conv2")]
    assert (flops["texts"][conv2], flops["exact"][conv2]) == ("4.08 G", "4,076,863,488")  # 3 x CONV2
    shares = next(one for one in sent if one["title"] == "share")
    assert all(
        abs(float(text.strip("<%")) - bar) <= 1 for text, bar in zip(shares["texts"], shares["bars"], strict=True)
    )


def test_the_page_writes_no_number_itself():
    script = (files("rooflight.reporting.writers") / "assets" / "page.js").read_text()
    assert not re.search(r"toFixed|toPrecision|toLocaleString|toExponential|Intl\b|NumberFormat|\be[369]\b", script)


@pytest.mark.parametrize("source", [
    "recorded:h200/mnist-cnn-train-tf32", "recorded:h200/gpt2-infer-bf16-compiled", "estimate", "pair",
    ROOT / "studies" / "recorded" / "h200" / "mnist-conv2", ROOT / "studies" / "recorded" / "h200" / "paleo-k80",
], ids=str)  # fmt: skip
def test_only_hints_of_the_page_speak_of_clicks(source):
    """They are not printed, and they are in no other form."""
    if source == "estimate":
        source = rooflight.estimate("resnet18", batch=4)
    if source == "pair":
        source = ["recorded:h200/mnist-cnn-infer-fp32", "recorded:h200/mnist-cnn-infer-tf32"]
    found, acts = make(source), re.compile(r"\b(click|hover|drag|unfold)", re.IGNORECASE)
    hints = [chart.hint for chart in found.charts if chart.hint]
    assert hints
    for form in ("md", "latex", "csv", "json"):
        text = " ".join(write(found, form).decode().split())
        assert not acts.search(text), form
        assert not any(hint in text for hint in hints), form
    unprinted = r'<(script|style).*?</\1>|<p class="small hint">.*?</p>|<div class="tools">.*?</div>'
    assert not acts.search(re.sub(unprinted, "", write(found, "html").decode(), flags=re.DOTALL))


def test_equal_layers_share_one_derivation():
    ledger = rooflight.estimate("gpt2", batch=1, seq=64)
    details = make(ledger, on="h200").details
    assert len(details.derivation_of) > 10 * len(details.derivations) / 2
    assert len(details.derivations) < 40


def test_an_estimate_is_judged_on_the_first_device_and_says_so():
    found = make(rooflight.estimate("resnet18", batch=4), on="a100,h200")
    labels = " ".join(fact.label for fact in found.facts)
    assert "predicted on a100-sxm-80" in labels
    assert [section.name for section in found.sections] == [
        name for name in WHOLE if name not in ("why", "lanes", "scaling")
    ]
    tree = next(found.trees)
    assert {one.side for one in tree.columns} == {"both", "estimate", "prediction"}


def test_a_step_on_the_cpu_is_measured_there_and_predicted_elsewhere(tmp_path):
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    ledger = rooflight.measure(model, torch.zeros(4, 64))
    found = make(ledger, on="h200")
    tree = next(found.trees)
    assert column(tree, "time").side == "measurement"
    missing = {section.name: section.missing for section in found.sections if section.missing}
    assert "not built again" in missing["sweep"]  # one's own module: its code is not run for a report
    assert "devices" not in missing
    for fact in found.facts:  # nothing that is predicted for a GPU reads as if it were of this run
        if fact.label.startswith(("bound by", "what would help")):
            assert fact.label.endswith("predicted on NVIDIA H200 SXM 141 GB")
    verdict = next(section for section in found.sections if section.name == "verdict")
    assert verdict.lines[0] == "It ran on a CPU: what follows is predicted on NVIDIA H200 SXM 141 GB."


def test_nobodys_code_is_run_for_a_report(tmp_path, monkeypatch):
    """A ledger that names a factory is data, and stays data."""
    (tmp_path / "evil_model.py").write_text("import pathlib; pathlib.Path('ran').touch()\ndef build(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("evil_model:build", "evil_model.py:build", "hf:../evil_model", "hf:/tmp/x"):
        ledger = rooflight.estimate("mnist-cnn", batch=2)
        named = msgspec.structs.replace(ledger, header=msgspec.structs.replace(ledger.header, model=name))
        found = make(named, on="h200")
        assert "not built again" in next(section.missing for section in found.sections if section.name == "sweep")
    assert not (tmp_path / "ran").exists()


def test_a_ledger_that_is_not_the_model_of_its_name_gets_no_sweep():
    ledger = rooflight.estimate("mnist-cnn", batch=2, overrides={"channels": "8,16"})
    assert not next(s.missing for s in make(ledger, on="h200").sections if s.name == "sweep")
    forgotten = msgspec.structs.replace(ledger.header, settings={})  # as in ledgers of older formats
    found = make(msgspec.structs.replace(ledger, header=forgotten), on="h200")
    assert "not what this ledger was made from" in next(s.missing for s in found.sections if s.name == "sweep")


def test_what_cannot_be_predicted_takes_nothing_else_with_it():
    found = make(rooflight.estimate("mnist-cnn", batch=2, step="train", accumulate=2), on="h200")
    missing = {section.name: section.missing for section in found.sections if section.missing}
    assert list(missing) == ["scaling"]
    assert "--accumulate" in missing["scaling"]


def test_a_step_on_the_cpu_is_predicted_as_gpus_run_it_by_default():
    """TF32 is a GPU's: a CPU's ledger says it is off, and means nothing by it."""
    ledger = rooflight.estimate("mnist-cnn", batch=4, step="train", target="cpu")
    assert ledger.header.math.tf32_conv is False
    found = make(ledger, on="h200")
    asked = rooflight.predict("mnist-cnn", on="h200", batch=4, step="train")
    devices = next(section for section in found.sections if section.name == "devices")
    columns = [column.name for column in devices.tables[0].columns]
    assert devices.tables[0].rows[0][columns.index("time/step")] == asked[0].time_s


def test_devices_that_lack_the_precision_are_named():
    found = make(rooflight.estimate("mnist-cnn", batch=2, dtype="bf16"), on="h200,v100")
    devices = next(section for section in found.sections if section.name == "devices")
    assert any("V100" in line and "bf16" in line for line in devices.lines)
    assert [line[0] for line in devices.tables[0].rows] == ["h200"]


def test_a_step_on_the_cpu_borrows_its_causes_from_a_recording_and_says_whose_they_are():
    ledger = load(MNIST)
    header = msgspec.structs.replace(ledger.header, target="cpu", device="a processor", batch=8)
    times = [row for row in ledger.measurements if row.scope == "step"]
    found = make(msgspec.structs.replace(ledger, header=header, kernels=(), measurements=tuple(times)), on="h200")
    why = next(section for section in found.sections if section.name == "why")
    assert all("of recorded:h200/mnist-cnn-train-tf32" in one.title for one in why.tables)
    for form in ("latex", "md"):
        content = write(found, form).decode().replace("\\allowbreak{}", "")
        assert "recorded:h200/mnist-cnn-train-tf32" in content
    assert "of recorded:h200/mnist-cnn-train-tf32" in write(found, "csv", sections=["why"]).decode()


def test_a_gpu_that_nobody_knows_is_not_held_against_anothers_roofs():
    ledger = load(MNIST)
    strange = msgspec.structs.replace(
        ledger, header=msgspec.structs.replace(ledger.header, device="NVIDIA Unheard 9000")
    )
    found = make(strange, on="h200")
    missing = {section.name: section.missing for section in found.sections if section.missing}
    assert {"roofline", "verdict"} <= set(missing)
    assert "NVIDIA Unheard 9000" in missing["verdict"]
    assert not any(fact.label.startswith(("bound by", "what would help")) for fact in found.facts)
    assert any(fact.label == "time of a step, recorded" for fact in found.facts)


@pytest.mark.parametrize(
    ("name", "faster"), [("resnet50-train-fp32-graph", True), ("resnet50-train-fp32-compiled", False)]
)
def test_a_graph_is_predicted_as_one_and_what_was_compiled_says_that_it_is_not(name, faster):
    eager = 0.0206  # seconds on the H200 at batch 16, as `rooflight predict resnet50 --batch 16 --step train` says
    found = make(f"recorded:h200/{name}", on="h200")
    devices = next(section for section in found.sections if section.name == "devices")
    columns = [column.name for column in devices.tables[0].columns]
    time_s = devices.tables[0].rows[0][columns.index("time/step")]
    assert (time_s < 0.7 * eager) == faster
    assert any("eager mode" in line for line in devices.lines) != faster


def test_ranks_are_joined_and_not_predicted_as_one_gpu(tmp_path):
    one = load(MNIST)
    ranks = []
    for rank in (0, 1):
        header = msgspec.structs.replace(one.header, rank=rank, world=2)
        ops = tuple(msgspec.structs.replace(op, rank=rank) for op in one.ops)
        ranks.append(msgspec.structs.replace(one, header=header, ops=ops))
        save(ranks[-1], tmp_path / f"run.rank{rank}.json.gz")
    for found in (make(ranks, on="h200"), make([tmp_path / f"run.rank{rank}.json.gz" for rank in (0, 1)], on="h200")):
        missing = {section.name: section.missing for section in found.sections if section.missing}
        assert {"roofline", "verdict", "sweep", "devices", "scaling"} <= set(missing)
        assert all("2 ranks" in missing[name] for name in ("roofline", "verdict", "sweep", "devices", "scaling"))
        assert found.facts[0].label == "useful FLOPs of a step, of 2 ranks together"
        assert not any("fits on" in fact.detail for fact in found.facts)
    commands = next(section.commands for section in found.sections if section.name == "origins")
    assert any("run.rank0.json.gz" in line and "run.rank1.json.gz" in line for line in commands)


def test_what_has_no_formula_is_not_nothing():
    ledger = load(MNIST)
    bare = msgspec.structs.replace(ledger, ops=tuple(msgspec.structs.replace(op, cost=None) for op in ledger.ops))
    assert make(bare, on="h200").facts[0].value == "–"
    some = (msgspec.structs.replace(ledger.ops[0], cost=None), *ledger.ops[1:])
    fact = make(msgspec.structs.replace(ledger, ops=some), on="h200").facts[0]
    assert fact.value.startswith("≥ ")
    assert "1 ops without a formula" in fact.detail


def test_the_first_device_that_can_run_it_is_everywhere_the_first():
    found = make(rooflight.estimate("mnist-cnn", batch=2, dtype="bf16"), on="v100,h200")
    assert [section.name for section in found.sections if section.missing] == []
    assert any(fact.label == "time of a step, predicted on h200" for fact in found.facts)
    roofline = next(chart for chart in found.charts if chart.name == "roofline")
    assert "H200" in roofline.title


@pytest.mark.parametrize("model", ["decode", "regions"])
def test_other_kinds_of_ledgers_have_reports(model):
    if model == "decode":
        ledger = rooflight.estimate("gpt2", batch=1, step="decode", past=32)
    else:
        with rooflight.region("a piece") as piece:
            sum(range(1000))
        ledger = rooflight.regions_ledger()
        assert piece.name == "a piece"
    found = make(ledger, on="h200")
    for form in ("html", "md", "latex", "csv", "json"):
        assert write(found, form)


def test_regions_of_two_programs_are_put_side_by_side_too():
    regions = Path(__file__).parents[1] / "data" / "formats_6dd1d43" / "regions.json.gz"
    (layers,) = [section.tree for section in make([regions, regions]).sections if section.tree is not None]
    assert layers.names == layers.parents == ()


def test_two_ledgers_are_put_side_by_side():
    found = make(["recorded:h200/resnet50-infer-fp32", "recorded:h200/resnet50-infer-bf16"])
    names = [section.name for section in found.sections]
    assert names[:3] == ["totals", "why", "layers"]
    assert [chart.name for chart in found.charts][:4] == ["waterfall", "roofline", "roofline-a", "roofline-b"]
    tree = next(found.trees)
    conv1 = row(tree, "conv1")
    a, b = (column(tree, f"time {side}").values[conv1] for side in "AB")
    assert column(tree, "B/A").values[conv1] == pytest.approx(b / a)


def test_somebodys_table_is_checked_in_the_report(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(f"layer,quantity,value\nconv2,FLOPs,{CONV2}\nconv2,FLOPs,{CONV2 // 2}\nconv2,parameters,18496\n")
    found = make("recorded:h200/mnist-cnn-infer-tf32", on="h200", claims=table)
    assert [section.name for section in found.sections][-2:] == ["claims", "origins"]
    claims = next(section for section in found.sections if section.name == "claims")
    columns = [column.name for column in claims.tables[0].columns]
    verdicts = [row[columns.index("verdict")] for row in claims.tables[0].written()]
    assert verdicts[0] == verdicts[2] == "right"
    assert verdicts[1] != "right"  # multiply-adds called FLOPs
    assert str(CONV2 // 2) in write(found, "md").decode().replace(",", "")
    with pytest.raises(BadInput, match="a study has its own claims"):
        make(STUDY, claims=table)
    with pytest.raises(BadInput, match="checked against one step"):
        make([MNIST, MNIST], claims=table)


def test_a_log_from_elsewhere_has_its_kernels():
    from rooflight.ledger import FORMAT_VERSION, Header, Kernel, Ledger, Value

    header = Header(
        rooflight="0", torch=None, model="log.csv", step=None, target="cuda", batch=None, dtype=None, math=None
    )
    kernel = Kernel(name="k", time_s=1e-5, quantities={"tensor_flops_tf32": Value(1000, "ncu")})
    found = make(Ledger(format_version=FORMAT_VERSION, header=header, kernels=(kernel,)))
    assert any(
        "k" in str(cell) for section in found.sections for one in section.tables for line in one.rows for cell in line
    )
    assert write(found, "html").startswith(b"<!DOCTYPE html>")


def test_a_study_has_its_claims_charts_and_commands():
    found = make(STUDY)
    names = [section.name for section in found.sections]
    assert names[0] == "claims"
    assert "charts" in names
    assert any(fact.label == "claims held" for fact in found.facts)
    assert any("rooflight study" in line for section in found.sections for line in section.commands)
    with pytest.raises(BadInput, match="reported alone"):
        make([STUDY, MNIST])


@pytest.mark.parametrize("form", ["html", "md", "latex", "json"])
def test_every_form_has_every_section(mnist, form):
    content = write(mnist, form).decode()
    if form == "json":
        assert list(json.loads(content)["report"]["sections"]) == WHOLE
    for section in mnist.sections:
        assert section.title in content, section.name
    assert "conv2" in content


def test_csv_is_the_main_table_or_all_of_the_sections_that_were_asked_for(mnist):
    rows = list(csv.DictReader(io.StringIO(write(mnist, "csv").decode())))
    assert next(row for row in rows if row["layer"] == "conv2")["flops"] == str(3 * CONV2)
    tables = write(mnist, "csv", sections=["why", "devices"]).decode().split("\n\n")
    titles = [table.splitlines()[0] for table in tables]
    assert titles[0] == "Why estimate and measurement differ: FLOPs"
    assert titles[-1].startswith("Other devices")
    for table in tables:
        lengths = {len(line) for line in list(csv.reader(io.StringIO(table)))[1:]} - {0}
        assert len(lengths) == 1


def test_latex_compiles_in_structure(mnist):
    """Every environment ends, and a row has as many cells as its table has columns."""
    content = write(mnist, "latex").decode()
    tables = re.findall(r"\\begin\{longtable\}\{@\{\}([^\n]*)@\{\}\}\n(.*?)\\end\{longtable\}", content, re.DOTALL)
    assert len(tables) == content.count("\\begin{longtable}") > 10
    for columns, body in tables:
        for line in body.splitlines():
            if line.startswith("{}"):
                assert len(re.findall(r"(?<!\\)&", line)) == columns.count("\\cellfont") - 1, line
    assert "\n".join(line for line in content.splitlines() if not line.startswith("%")).isascii()


def test_sections_can_be_chosen(mnist):
    chosen = mnist.only(["devices"])
    assert [section.name for section in chosen.sections] == ["devices"]
    with pytest.raises(BadInput, match=r"no section 'device'.*it has roofline"):
        mnist.only(["device"])


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG\r\n"), ("svg", b"<svg"), ("pdf", b"%PDF")])
def test_a_chart_is_a_picture_too(mnist, form, begins):
    assert write(mnist, form, chart="shares").startswith(begins)


def test_errors_say_what_there_is(mnist):
    with pytest.raises(BadInput, match=r"which picture\? Add chart: roofline, memory"):
        write(mnist, "png")
    with pytest.raises(BadInput, match="no chart 'roofs' in this report: it has roofline"):
        write(mnist, "png", chart="roofs")
    with pytest.raises(BadInput, match="chart goes with a picture"):
        write(mnist, "html", chart="roofline")
    with pytest.raises(BadInput, match="sections goes with"):
        write(mnist, "png", chart="roofline", sections=["layers"])
    with pytest.raises(BadInput, match="predicts on GPUs"):
        make(MNIST, on="epyc-9654")


def test_what_is_not_there_says_why():
    """A chart or a section of its own that has nothing in it: the reason, not an empty file."""
    import torch

    own = make(rooflight.estimate(torch.nn.Linear(8, 4), torch.zeros(2, 8)), on="h200")
    with pytest.raises(BadInput, match=r"no chart 'sweep' of this: .*not built again"):
        write(own, "png", chart="sweep")
    with pytest.raises(BadInput, match=r"nothing in the section 'sweep' of this: .*not built again"):
        write(own, "csv", sections=["sweep", "devices"])


def test_rooflight_report_writes_what_the_name_says(tmp_path):
    path = tmp_path / "r.html"
    assert rooflight.report(rooflight.estimate("mnist-cnn", batch=2), path, on="h200") == path
    assert path.read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(BadFile, match="add force=True"):
        rooflight.report("recorded:h200/mnist-cnn-infer-fp32", path)
    with pytest.raises(BadInput, match=r"must end in \.html"):
        rooflight.report("recorded:h200/mnist-cnn-infer-fp32", tmp_path / "r.xyz")


class _Parser(html.parser.HTMLParser):
    """Collects what a browser would load or run."""

    def __init__(self):
        super().__init__()
        self.tags, self.loaded, self.handlers = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "href", "action", "data", "poster") and not (value or "").startswith(
                ("#", "data:")
            ):
                self.loaded.append((tag, name, value))
            if name.startswith("on"):
                self.handlers.append((tag, name))


def parsed(content: str) -> _Parser:
    parser = _Parser()
    parser.feed(content)
    return parser


def test_names_are_only_text(tmp_path):
    content = write(make(hostile_ledger(), on="h200"), "html").decode()
    found = parsed(content)
    assert HOSTILE not in content
    assert MARKUP not in content
    assert found.tags.count("script") == 3  # data, charts, the page's own
    assert "img" not in found.tags
    assert found.handlers == []
    data = json.loads(re.search(r'id="data">(.*?)</script>', content, re.DOTALL)[1])
    assert HOSTILE in data["trees"]["layers"]["paths"]  # it is there, as itself


def test_names_are_only_text_in_other_forms():
    found = make(hostile_ledger(), on="h200")
    markdown = re.sub(r"^(`{3,})console\n.*?\n\1$", "", write(found, "md").decode(), flags=re.DOTALL | re.MULTILINE)
    assert "<script" not in markdown  # but in the block of commands, where all is text
    assert "<img" not in markdown
    svg = write(found, "svg", chart="roofline").decode()
    assert "<script" not in svg
    assert "<img" not in svg


def test_the_page_refers_to_nothing_outside(mnist):
    content = write(mnist, "html").decode()
    found = parsed(content)
    assert found.loaded == []
    assert "link" in found.tags  # the icon, which is empty: a browser would ask for one
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', content)[1]
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy  # nothing may be fetched
    assert "http" not in policy


def test_commands_stay_in_their_block():
    ledger = rooflight.estimate("mnist-cnn", batch=2)
    header = msgspec.structs.replace(ledger.header, model="# a\n```\n# loose <img src=x>\n````")
    lines = write(make(msgspec.structs.replace(ledger, header=header), on="h200"), "md").decode().splitlines()
    fence = next(line for line in lines if line.endswith("console"))
    assert fence == "`````console"
    inside = lines[lines.index(fence) + 1 : lines.index("`````")]
    assert inside[0].startswith("$ rooflight predict '# a ``` # loose <img src=x> ````' --batch 1,2,4")
    assert lines[0].startswith("# \\# a ")


def test_a_command_names_files_as_a_shell_takes_them(tmp_path):
    path = tmp_path / "a b.json.gz"
    save(rooflight.estimate("mnist-cnn", batch=2), path)
    for found in (make(path, on="h200"), make([path, path], on="h200")):
        lines = [line for section in found.sections for line in section.commands if line.startswith("rooflight report")]
        assert lines
        assert all(f"'{path}'" in line for line in lines)
    live = make(rooflight.estimate("mnist-cnn", batch=2), on="h200")  # was never a file
    assert not any(line.startswith("rooflight report") for section in live.sections for line in section.commands)


@pytest.mark.parametrize("text", ["</script>", "<!--", "&amp;", "\u2028\u2029", "\\u003c", '"', "\x00", "é×"])
def test_json_in_a_page_is_what_it_was(text):
    made = safe_json({text: [text]})
    assert not set("<>&\u2028\u2029") & set(made)
    assert json.loads(made) == {text: [text]}


def test_the_command_line_end_to_end(run, monkeypatch, tmp_path):
    save(rooflight.estimate("mnist-cnn", batch=64), tmp_path / "a.json.gz")
    monkeypatch.chdir(tmp_path)
    assert run("report", "a.json.gz", "-o", "r.html", "--on", "h200") == (0, "", "wrote r.html\n")
    assert (tmp_path / "r.html").stat().st_size < 3e6
    # In a process of its own, as people start it.
    line = [sys.executable, "-m", "rooflight", "report", "a.json.gz", "-o", "r.html"]
    again = subprocess.run(line, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "--force" in again.stderr
    code, _, err = run("report", "a.json.gz", "-o", "roofline.svg", "--chart", "roofline")
    assert code == 0, err
    assert (tmp_path / "roofline.svg").read_text().startswith("<svg")


def test_the_terminal_shows_the_table_and_the_roofline(run):
    code, out, err = run("report", MNIST, "--depth", "1")
    assert code == 0, err
    assert "conv2" in out
    assert "FLOP/B" in out
    assert "tf32" in out


@pytest.mark.parametrize("option", [("--section", "layers"), ("--chart", "roofline"), ("--dark",)])
def test_the_terminal_refuses_what_is_of_a_file(run, option):
    code, _, err = run("report", MNIST, *option)
    assert code == 2
    assert "are of a file: name one" in err


def test_a_study_refuses_what_is_of_a_ledger(run):
    code, _, err = run("report", str(STUDY), "--depth", "2")
    assert code == 2
    assert "--by, --depth and --explain are of a ledger" in err


def test_a_page_needs_no_folder_for_what_it_keeps(monkeypatch, tmp_path):
    """Only the next one is slower: what cannot be kept is made, and nothing else is passed over."""
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "vegaEmbed" in pictures.vega_bundle.__wrapped__()


def without_ops(ledger):
    return msgspec.structs.replace(
        ledger,
        ops=(),
        kernels=(),
        measurements=tuple(msgspec.structs.replace(row, ops=()) for row in ledger.measurements if row.scope == "step"),
    )


@pytest.mark.parametrize("of", ["an estimate", "a run"])
def test_storages_without_ops_are_no_bug(of):
    """As of a file that somebody has cut: what cannot be told is left out."""
    whole = load("recorded:h200/mnist-cnn-train-tf32") if of == "a run" else rooflight.estimate("mnist-cnn", batch=2)
    bare = without_ops(whole)
    assert bare.storages and not bare.ops
    for form in ("md", "csv", "json", "latex", "html"):
        assert write(make(bare, on="h200"), form)
        assert write(make([bare, whole], on="h200"), form)
        assert write(make([bare, bare], on="h200"), form)
    assert ledger_document(bare).title and compare_document(Comparison(bare, bare)).title
    assert write(ledger_document(bare), "csv").decode().splitlines()[-1].startswith("total")
