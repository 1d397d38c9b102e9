"""The five studies that ship: their plans, what they find where no GPU is, and what the recorded H200 says.

Verdicts are written by hand in documents_verdicts.py, each with its reason; numbers are held against
tests/data/documents.json and against what was counted on the H200 before.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import subprocess
import sys
from functools import cache

import pytest

import rooflight
from rooflight.reporting.report.study_report import study_report
from rooflight.reporting.sections.study_claims import gap_table, sides, telling
from rooflight.reporting.writers.page import to_page
from rooflight.study.cell import StudyRow
from rooflight.study.hypotheses import JudgedHypothesis, claims, parse, unknown_names
from rooflight.study.plan import StudyPlan, read_plan
from rooflight.study.store import read
from rooflight.study.values import measured
from rooflight.summary import sizes
from tests.fixtures.documents_verdicts import SHOWN, VERDICTS
from tests.fixtures.paths import DATA, ROOT

STUDIES = ROOT / "studies"
RECORDED = STUDIES / "recorded" / "h200"
DOCUMENTS = json.loads((DATA / "documents.json").read_text())
NAMES = tuple(VERDICTS)
each_study = pytest.mark.parametrize("name", NAMES)


@cache
def plan(name: str) -> StudyPlan:
    return read_plan(STUDIES / f"{name}.toml")[0]


@cache
def recorded(name: str) -> tuple[StudyRow, ...]:
    return tuple(read(RECORDED / name))


@cache
def by_h200(name: str) -> dict[str, JudgedHypothesis]:
    return {one.says: one for one in claims(plan(name).claim, recorded(name))}


def row(name: str, slug: str, **fields: object) -> StudyRow:
    (found,) = (one for one in recorded(name) if one.cell.slug == slug
                and all(getattr(one.cell, field) == value for field, value in fields.items()))  # fmt: skip
    return found


def verdicts(judged: list[JudgedHypothesis]) -> list[tuple[str, str]]:
    return [(one.says, one.verdict) for one in judged]


def study(*arguments: object) -> subprocess.CompletedProcess[str]:
    """As a user types it, on a machine without a GPU."""
    line = [sys.executable, "-m", "rooflight", "study", *map(str, arguments), "--quiet"]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=900, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    )


# ---------------------------------------------------------------- the plans


def test_the_five_are_there():
    assert {path.stem for path in STUDIES.glob("*.toml")} == set(NAMES)
    assert {path.name for path in RECORDED.iterdir()} == set(NAMES)


@each_study
def test_a_plan_is_valid_and_its_claims_name_what_the_grid_has(name):
    found = plan(name)
    rows = [StudyRow(cell=cell) for cell in found.cells]
    assert found.title and found.about and rows and found.claim
    for claim in found.claim:
        assert unknown_names(parse(claim.claim), rows) is None, claim.claim
        assert claim.says and claim.place and not claim.source
        # A document with the place in it, or whose claim it is.
        assert re.match(r"00[0-4], \w", claim.place) or claim.place in ("rooflight", "a common belief"), claim.place


@each_study
def test_every_claim_has_its_verdict_by_hand(name):
    assert [claim.says for claim in plan(name).claim] == [expected.says for expected in VERDICTS[name]]
    assert all(expected.why for expected in VERDICTS[name])


def test_the_mistakes_that_claims_can_show_are_all_shown():
    whys = [claim.why for name in NAMES for claim in plan(name).claim]
    told = [number for why in whys for found in re.findall(r"mistakes? ([\d, and]+)", why)
            for number in re.findall(r"\d+", found)]  # fmt: skip
    assert {int(number) for number in told} == SHOWN


@each_study
def test_devices_of_the_documents_are_predicted(name):
    """The cards that the documents state: an A100 of 40 GB (1,555 GB/s), a V100 SXM2 (of 32 GB where 28,000 MB were in
    use), and for PALEO's exercise one die of a K80 and the board."""
    devices = {cell.on for cell in plan(name).cells}
    assert {"h200", "a100-sxm-40"} <= devices and not {"a100", "v100"} & devices
    of_v100 = {"transformers": set(), "resnet-memory-roofline": {"v100-sxm2-32"}}.get(name, {"v100-sxm2-16"})
    assert {device for device in devices if device and device.startswith("v100")} == of_v100
    assert ({"k80", "k80-board"} <= devices) == (name == "paleo-k80")


# ---------------------------------------------------------------- without a GPU


@pytest.mark.slow
@each_study
def test_it_runs_where_no_gpu_is_and_judges_rightly(name, tmp_path):
    """The whole study, at full size: what is estimated and predicted needs no memory for it."""
    folder = tmp_path / name
    ran = study(STUDIES / f"{name}.toml", "-o", folder)
    assert ran.returncode == 0, ran.stderr
    found = read(folder)
    assert [one.cell for one in found] == plan(name).cells
    assert {one.state for one in found} == {"done"}
    assert not any(key.endswith(".measured") for one in found for key in one.values)
    judged = claims(plan(name).claim, found)
    assert verdicts(judged) == [(expected.says, expected.without) for expected in VERDICTS[name]]
    for one in judged:
        if one.verdict == "not measured":  # because of the counters alone: nothing failed, nothing is waiting
            assert ".measured" in one.claim
            assert not one.missing and not one.reason
    same_as_recorded(name, found)


def same_as_recorded(name: str, found: list[StudyRow]) -> None:
    """The recorded folder holds the estimates and predictions of today; studies/README.md says how to renew them.

    The last digits of a prediction depend on the processor: BLAS adds in another order.
    """
    before = {one.cell.id: one for one in recorded(name)}
    for one in found:
        old = {key: value for key, value in before[one.cell.id].values.items() if not key.endswith(".measured")}
        assert old.keys() == one.values.keys()
        for key, value in one.values.items():
            if key.endswith(".estimated"):
                assert old[key] == value, (one.cell.slug, key)
            else:
                assert math.isclose(old[key], value, rel_tol=1e-6), (one.cell.slug, key)


@pytest.mark.slow
def test_a_small_one_is_measured_on_the_processor(tmp_path):
    folder = tmp_path / "here"
    ran = study("mnist-cnn", "--batch", "1,2", "--on", "here", "--layers", "conv2", "--repeat", 3, "-o", folder)
    assert ran.returncode == 0, ran.stderr
    found = read(folder)
    assert [one.state for one in found] == ["done", "done"]
    for one in found:
        assert one.values["time.measured"] > 0
        assert one.values["throughput.measured"] == pytest.approx(one.cell.batch / one.values["time.measured"])
        # Parameters and the outputs of both convolutions were there.
        assert one.values["memory.measured"] > 4 * 1_199_882 + one.cell.batch * 4 * 64 * 24 * 24
        assert rooflight.load(folder / one.ledgers["measured"]).header.device
    judged = claims(
        [
            "time < 10 s",
            "flops.estimated(layer=conv2, batch=1) = 21233664",
            "params(batch=2) = 2 * params(batch=1)",
            "memory(batch=2) < 2 * memory(batch=1)",
            "memory(batch=2) > memory(batch=1)",
        ],
        found,
    )
    assert [one.verdict for one in judged] == ["held", "held", "refuted", "held", "held"]
    assert all(one.sides == {"measured": len(one.points)} for one in (judged[0], judged[3], judged[4]))


# ---------------------------------------------------------------- the recorded H200


@each_study
def test_a_recorded_folder_is_whole(name):
    folder = RECORDED / name
    assert (folder / "study.toml").read_text() == (STUDIES / f"{name}.toml").read_text()
    rows = recorded(name)
    assert [one.cell for one in rows] == plan(name).cells
    assert {one.state for one in rows} == {"done"}
    ledgers = {one.ledgers["measured"] for one in rows if "measured" in one.ledgers}
    assert ledgers == {f"ledgers/{path.name}" for path in (folder / "ledgers").iterdir()}
    # All that the machine had: every cell of one H200.
    assert {one.cell.id for one in rows if "measured" in one.ledgers} == {
        one.cell.id for one in rows if one.cell.on == "h200" and one.cell.gpus == 1}  # fmt: skip
    assert {one.facts["device"] for one in rows if "measured" in one.ledgers} == {"NVIDIA H200"}
    assert f"| `{name}.toml` | {len(rows)} | {len(ledgers)} |" in (STUDIES / "README.md").read_text()


@each_study
def test_recorded_values_are_what_todays_code_makes_of_the_ledgers(name):
    for one in recorded(name):
        if "measured" in one.ledgers:
            ledger = rooflight.load(RECORDED / name / one.ledgers["measured"])
            header = ledger.header
            assert (header.model, header.batch, header.step) == (one.cell.model, one.cell.batch, one.cell.step)
            values, facts = measured(ledger, plan(name).layers)
            kept = {
                key: value for key, value in one.values.items() if key.endswith(".measured") and "_per_s." not in key
            }
            # The last digits are the processor's way of adding, and Python's.
            assert values == pytest.approx(kept, rel=1e-12, abs=0), one.cell.slug
            assert facts == {key: text for key, text in one.facts.items() if key in facts}


@each_study
def test_the_verdicts_by_the_h200(name):
    judged = list(by_h200(name).values())
    assert verdicts(judged) == [(expected.says, expected.measured) for expected in VERDICTS[name]]


def test_what_no_cause_explains_is_under_a_hundredth_but_for_one_image_of_mnist():
    over = {(name, one.cell.model, one.cell.batch, one.cell.step): one.values["unexplained.measured"]
            for name in NAMES for one in recorded(name) if one.values.get("unexplained.measured", 0) >= 0.01}  # fmt: skip
    assert over.keys() <= {("mnist-conv2", "mnist-cnn", 1, "infer"), ("mnist-conv2", "mnist-cnn", 1, "train")}
    assert max(over.values(), default=0) < 0.04
    assert sum("unexplained.measured" in one.values for name in NAMES for one in recorded(name)) == 71


# Where a claim has a number of the documents: the study, what it says, which comparison; the number's subject and
# quantity; how near the right number is what was found (None: the document has no right number for it).
NUMBERS = [
    ("mnist-conv2", "the second convolution takes 21,233,664 FLOP at batch 64", 0,
     "mnist32-64 conv2 b64", "conv2 FLOP (labelled batch 64)", 0),
    ("mnist-conv2", "the second convolution takes 21,233,664 FLOP for one image", 0, "mnist32-64 conv2 b1", "conv2 FLOP", 0),
    ("mnist-conv2", "output and parameters of conv2 take 14.08 MB at batch 64", 0,
     "mnist32-64 conv2 b64", "conv2 output + parameter bytes", 0),
    ("mnist-conv2", "they take 9,511,168 bytes, and 221,440 for one image", 1,
     "mnist32-64 conv2 b1", "conv2 output + parameter bytes", 0),
    ("mnist-conv2", "1,199,882 parameters, 18,496 of them conv2's, at every batch", 0, "mnist32-64 total", "parameters", 0),
    ("mnist-conv2", "1,199,882 parameters, 18,496 of them conv2's, at every batch", 1, "mnist32-64 conv2", "parameters", 0),
    ("mnist-conv2", "the lecture's network: 21,840 parameters, 480,500 multiply-adds an image", 1,
     "mnist10-20 total", "parameters", 0),
    ("resnet-memory-roofline", "on two GPUs ResNet-18 has 23,379,024 parameters, ResNet-50 51,114,064", 0,
     "resnet18 2 GPU", "parameters", 0),
    ("resnet-memory-roofline", "on two GPUs ResNet-18 has 23,379,024 parameters, ResNet-50 51,114,064", 1,
     "resnet50 2 GPU", "parameters", 0),
    ("resnet-memory-roofline", "training takes more than 290 times the memory that theory says", 0,
     "memory ratio", '"more than 290 times"', None),
    ("resnet-memory-roofline", "the steps that were measured take 3.65 and 8.29 GFLOP in theory", 0,
     "resnet18", "theoretical FLOP", None),
    ("resnet-memory-roofline", "the steps that were measured take 3.65 and 8.29 GFLOP in theory", 1,
     "resnet50", "theoretical FLOP", None),
    ("resnet-memory-roofline", "on the V100 they lie left of the ridge, 17.44 FLOP/B", 0, "V100 fp32", "ridge point", None),
    ("resnet-memory-roofline", "ResNet-50 has double the parameters of ResNet-18", 0,
     "", "resnet50/resnet18 parameters", 1e-12),
    ("vgg-roofline", "VGG-11 takes 121,745,440,768 FLOP at batch 16", 0, "vgg11", "total FLOP batch 16", 0),
    ("vgg-roofline", "VGG-13 takes 58,856,046,592 FLOP at batch 16", 0, "vgg13", "total FLOP batch 16", 0),
    ("vgg-roofline", "VGG-19 takes 314,112,999,424 FLOP at batch 16", 0, "vgg19", "total FLOP batch 16", 0),
    ("vgg-roofline", "parameters: 132,863,336, 133,047,848 and 143,667,246", 0, "vgg11", "total parameters", 0),
    ("vgg-roofline", "parameters: 132,863,336, 133,047,848 and 143,667,246", 1, "vgg13", "total parameters", 0),
    ("vgg-roofline", "parameters: 132,863,336, 133,047,848 and 143,667,246", 2, "vgg19", "total parameters", 0),
    ("paleo-k80", "VGG-16 takes 15,503 M multiply-adds an image", 0, "VGG16", 'total "FLOPs" (Lu et al.)', 0),
    ("paleo-k80", "GoogLeNet takes 1,606 M, ResNet-50 3,922 M", 0, "GoogLeNet", 'total "FLOPs" (Lu et al.)', 0),
    ("paleo-k80", "GoogLeNet takes 1,606 M, ResNet-50 3,922 M", 1, "ResNet50", 'total "FLOPs" (Lu et al.)', 0),
    ("paleo-k80", "VGG-16 takes 1.776 ms on the K80 in single precision", 0,
     "VGG16 K80 single precision", "inference time", 0.003),
    ("paleo-k80", "VGG-16: 563 images a second", 0, "VGG16 K80 single precision", "throughput", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "says", "which", "subject", "quantity", "near"), NUMBERS,
                         ids=[f"{one[3]}: {one[4]}" for one in NUMBERS])  # fmt: skip
def test_claims_have_the_documents_numbers(name, says, which, subject, quantity, near):
    """To the right what the document states, to the left what it should have been."""
    (document,) = (one for one in DOCUMENTS if (one["subject"], one["quantity"]) == (subject, quantity))
    compared = by_h200(name)[says].points[0].compared[which]
    assert compared.right == pytest.approx(document["stated"], rel=5e-4)
    if isinstance(document["stated"], int) and compared.sign == "=":
        assert compared.right == document["stated"]
    if near == 0:
        assert compared.left == document["correct"]
    elif near is not None:
        assert compared.left == pytest.approx(document["correct"], rel=near)


def test_shares_of_convolutions_are_those_of_the_documents():
    correct = {one["subject"]: one["correct"] for one in DOCUMENTS if one["seed"] == "004" and one["unit"] == "percent"}
    share = {one.cell.model: one.values["share.Conv2d.estimated"] for one in recorded("paleo-k80")}
    assert 100 * share["vgg19"] == pytest.approx(correct["VGG19 asked, VGG16 computed"], abs=1e-9)
    assert 100 * share["vgg16"] == pytest.approx(correct["VGG16"], abs=1e-9)


COUNTED = [  # by a script of a page, before there was a rooflight
    ("mnist-conv2", "mnist-cnn-b64-infer-fp32-h200", None, "conv2", "tensor_flops_tf32", 1_358_954_496),
    ("mnist-conv2", "mnist-cnn-b64-infer-fp32-h200", False, "conv2", "tensor_flops_tf32", 0),
    ("vgg-roofline", "vgg11-b16-infer-fp32-h200", None, "", "tensor_flops_tf32", 238_572_011_520),
    ("vgg-roofline", "vgg11-b16-infer-fp32-h200", True, "", "tensor_flops_tf32", 254_887_854_080),
    ("vgg-roofline", "vgg11-b16-infer-fp32-h200", False, "", "tensor_flops_tf32", 0),
    ("vgg-roofline", "vgg11-b16-train-fp32-h200", None, "", "tensor_flops_tf32", 717_192_429_568),
    ("resnet-memory-roofline", "resnet18-b16-train-fp32-h200", None, "", "tensor_flops_tf32", 186_062_471_168),
    ("resnet-memory-roofline", "resnet50-b16-infer-fp32-h200", None, "conv1", "tensor_flops_tf32", 4_110_417_920),
]


@pytest.mark.parametrize(("name", "slug", "tf32", "module", "counter", "count"), COUNTED)
def test_counters_are_what_they_always_were(name, slug, tf32, module, counter, count):
    found = row(name, slug, tf32=tf32, settings={})
    ledger = rooflight.load(RECORDED / name / found.ledgers["measured"])
    values = [one.quantities[counter].value for one in ledger.measurements
              if one.scope == "op" and counter in one.quantities
              and (not module or ledger.ops[one.ops[0]].module == module)]  # fmt: skip
    assert sum(values) == count


def test_vgg11_in_plain_fp32_executes_less_than_it_needs():
    found = row("vgg-roofline", "vgg11-b16-infer-fp32-h200", tf32=False).values
    assert found["flops.estimated"] == 243_490_881_536
    assert found["flops.measured"] == pytest.approx(213.6e9, rel=1e-3)


def test_the_recorded_report_can_be_made():
    ran = subprocess.run([sys.executable, "-m", "rooflight", "report", RECORDED / "vgg-roofline", "--to", "md"],
                         capture_output=True, text=True, timeout=600, check=True)  # fmt: skip
    assert "19 claims: 8 held, 9 refuted, 2 undecided" in ran.stdout


def test_the_page_has_todays_verdicts():
    made = importlib.import_module("studies_page")
    text = made.PAGE.read_text()
    assert {found["name"] for found in made.MARKED.finditer(text)} == made.PARTS.keys()
    assert made.page(text) == text, "run: python benchmarks/studies_page.py --write"


def test_a_page_reads_well():
    """Words before the claim, prediction and measurement of a series in one colour, what nobody asked for once."""
    report = study_report(recorded("resnet-memory-roofline"), plan("resnet-memory-roofline"), folder="a-folder")
    content = to_page(report)
    words, formal = "the A100 outperforms the V100", "time.predicted(on=a100-sxm-40, step=train, gpus=1)"
    assert content.index(words) < content.index(formal)
    assert (
        content.index('<section id="claims"')
        < content.index("<h3>Counter-examples</h3>")
        < content.index('data-chart="')
    )
    charts = [chart.title for chart in report.charts]
    whats = ("Time of a step", "Samples per second", "Memory at the peak", "FLOPs of a step")
    of_models = [f"{what}: {model}" for model in ("resnet18", "resnet50") for what in whats]
    assert charts[:-1] == [*of_models, "Weak scaling: the same batch on each GPU"]
    assert charts[-1].startswith("Roofline of resnet18, resnet50 on 3 devices")
    judged = list(by_h200("resnet-memory-roofline").values())
    unasked = [line for line in gap_table(judged).rows if str(line[3]).endswith("(not planned)")]
    assert [line[3] for line in unasked] == [
        f"no measurement on {device} (not planned)" for device in ("v100-sxm2-32", "a100-sxm-40", "h200")
    ]
    assert unasked[0][0] == "11, 12, 13, 24"
    shown = {one.says: telling(one)[0].full for one in judged}
    assert shown["ResNet-50 has double the parameters of ResNet-18"] == "2.186 >= 2 (1.09×)"
    assert re.fullmatch(r"0\.\d+% < 1% \(0\.\d\d×\)", shown["causes explain all but a hundredth of the executed FLOPs"])
    assert sides(by_h200("paleo-k80")["no network reaches the peak: a step takes longer than FLOPs by peak"]) == (
        "time predicted, flops estimated")  # fmt: skip
    assert sides(judged[11]) == "measured, estimated"
    assert sides(judged[3]) == "memory measured, params estimated 2×; memory predicted, params estimated 4×"


def test_what_no_table_of_numbers_holds_is_said_as_the_documents_say_it():
    """One kernel's count, and no total; 117 million parameters; a PPP; memory beside parameters."""
    (kernels,) = (one for one in DOCUMENTS if one["quantity"] == "ncu fadd+fmul+2*ffma as total FLOP of conv2")
    found = by_h200("mnist-conv2")[
        "each of its four kernels executes at most 2,949,120 FLOP, which the one that adds the bias does"
    ]
    assert found.points[0].telling.right == 4 * kernels["stated"]
    assert found.points[0].telling.left == pytest.approx(kernels["correct"], rel=0.01)
    named = by_h200("transformers")["GPT-2 has 117 million parameters"].points[0].telling
    assert (named.left, named.right) == (124_439_808, 117_000_000)
    memory = by_h200("resnet-memory-roofline")["the actual memory is proportional to the theoretical"]
    ratio = next(one["correct"] for one in DOCUMENTS if one["quantity"] == "resnet50/resnet18 parameters")
    assert [point.telling.right for point in memory.points] == pytest.approx([ratio] * 3)
    assert min(point.telling.left for point in memory.points) == pytest.approx(3.43, abs=0.01)


def test_activations_kept_for_backward_are_those_of_the_estimate():
    """5,269 and 20,828 MiB: the input is no activation that was kept."""
    note = next(one["note"] for one in DOCUMENTS if one["subject"] == "Exp1")
    for model, mib in (("resnet18", 5269), ("resnet50", 20828)):
        assert f"{mib:,} MiB" in note
        kept = sizes(rooflight.estimate(model, batch=256, step="train")).kept_for_backward_bytes
        assert round(kept / 2**20) == mib
