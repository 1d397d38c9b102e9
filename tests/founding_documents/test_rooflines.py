"""Every roofline, device and PALEO number of the founding documents: how they got it, what is right, what is wrong.

tests/data/documents.json holds what was stated and what is right. Each row is answered by the first rule whose pattern
fits its subject and quantity: the stated value is made again from the documents' own inputs and convention, the right
one by rooflight from its devices and its ledgers, and where the two differ, rooflight's own output names the mistake.
What other people measured and nobody can make again is listed with its reason; a row without either fails.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

import rooflight
from rooflight import summary
from rooflight.analysis.sanity import Judgement, StatedRun, judge, link_claim, roof_point
from rooflight.analysis.sanity.ratios import compare, explain, memory_ratio
from rooflight.errors import BadInput
from rooflight.hardware import devices
from rooflight.hardware.roofs import place, ridge, roofs_of
from rooflight.ledger import Ledger, total
from rooflight.measurement.cupti.op_counters import check_names
from rooflight.prediction import paleo
from rooflight.summary.measured_step import main_precision
from tests.fixtures.paths import DATA

DOCUMENTS = json.loads((DATA / "documents.json").read_text())
ROWS = [row for row in DOCUMENTS if row["kind"] != "estimate"]
MODEL_KINDS = ("roofline", "spec", "prediction", "claim")
V100, A100 = devices.find("v100-sxm2-16"), devices.find("a100-sxm-40")
K80, K80_BOARD = devices.find("k80"), devices.find("k80-board")
GPUS = {"V100": V100, "A100": A100}
SMSPS_AN_SM = 4
# 2 x 2,496 lanes x 2 x 875 MHz is 8.736 TFLOP/s; sources round it to 8.73, as the documents do, or to 8.74.
K80_ROUNDING = 2e-3
EXPERIMENTS = {
    "1": ("resnet18", "V100"),
    "2": ("resnet50", "V100"),
    "3": ("resnet18", "A100"),
    "4": ("resnet50", "A100"),
}


@dataclass(frozen=True)
class Answer:
    """What the documents' inputs give by their convention, what is right, and what rooflight says about it."""

    stated: float | None
    correct: float | None
    says: tuple[str, ...] = ()
    """Sentences of the tool's output; each names the mistake."""
    rel: float = 1e-8


def stated(subject: str, quantity: str) -> float:
    (row,) = (row for row in DOCUMENTS if (row["subject"], row["quantity"]) == (subject, quantity))
    return row["stated"]


@cache
def ledger(name: str, batch: int = 1, step: Any = "infer") -> Ledger:
    return rooflight.estimate(name.lower(), batch=batch, step=step)


def flops(name: str, batch: int = 1) -> int:
    return total(ledger(name, batch).ops).flops


def conv2(quantity: str) -> float:
    book = ledger("mnist-cnn", 64)
    module = next(row for row in book.modules if row.path == "conv2")
    if quantity == "flops":
        return total(op for op in book.ops if op.module == "conv2").flops
    channels = module.outputs[0][1]
    return module.params - channels if quantity == "weights" else 64 * channels * module.outputs[0][2] ** 2


def says(judgement: Judgement, *codes: str) -> tuple[str, ...]:
    """The sentences of these findings, which must be there."""
    texts = {finding.code: finding.text for finding in judgement.findings}
    assert set(codes) <= set(texts), f"not found: {set(codes) - set(texts)} in {texts}"
    return tuple(texts[code] for code in codes)


# Document 002: ResNet-18 and 50 on V100 and A100, training at batch 2.


@cache
def experiment(number: str, *, as_counted: bool = False) -> Judgement:
    """Judged with all that the document used; `as_counted` believes the counters, as the document did."""
    model, gpu = EXPERIMENTS[number]
    subject = f"Exp{number} {model} {gpu}"
    same_work_on_v100 = stated(f"Exp{'1' if model == 'resnet18' else '2'} {model} V100", "actual FLOP")
    return judge(
        StatedRun(
            device=GPUS[gpu],
            precision="fp32" if as_counted else main_precision(ledger(model, 2, "train")),
            flops=stated(subject, "actual FLOP"),
            counted="cuda-cores",
            # On the A100 the counters saw no tensor cores; those of the V100 saw all of the same work.
            useful_flops=None if as_counted else same_work_on_v100 if gpu == "A100" else 3 * flops(model, 2),
            bytes=stated(subject, "DRAM bytes"),
            time_s=stated(subject, "time"),
            time_scope="wall",
            peak_flops_per_s=GPUS[gpu].core_flops_per_s["fp32"].value,
            bandwidth_bytes_per_s=GPUS[gpu].bandwidth_bytes_per_s.value,
            bound="memory",
        )
    )


def experiment_row(number: str, name: str, scale: float = 1.0) -> Answer:
    found, believed = experiment(number), experiment(number, as_counted=True)
    codes = ["far-from-the-roof", "scopes-mixed"]
    if found.given.device is A100:
        codes += ["peak-of-another-precision", "tensor-work-not-counted"]
    else:
        codes += ["wrong-side", "counted-is-not-useful"]
    return Answer(getattr(believed, name) / scale, getattr(found, name) / scale, says(found, *codes))


def flop_ratio(number: str) -> Answer:
    model, gpu = EXPERIMENTS[number]
    actual = stated(f"Exp{number} {model} {gpu}", "actual FLOP")
    said = actual / stated(model, "theoretical FLOP")
    if gpu == "A100":
        sentences = says(experiment(number), "tensor-work-not-counted")
    else:
        explained = explain(said)
        assert set(explained.factors.values()) == {2, 3}
        sentences = (explained.text,)
    return Answer(said, actual / (3 * flops(model, 2)), sentences)


def memory(number: str) -> Answer:
    model, gpus = EXPERIMENTS[number][0], 2 if number in "34" else 1
    actual = stated(f"Exp{number}", "actual GPU memory")
    found = memory_ratio(actual, ledger(model, 256, "train"), replicas=gpus)
    said = actual / stated(model if gpus == 1 else f"{model} 2 GPU", "parameter bytes")
    # Activations are what the documents called overhead.
    assert 0.9 < found.per_kept < 5
    return Answer(said, found.per_parameters, (found.finding.text,))


def between(first: str, second: str, name: str, *, same_work: bool = True, sign: int = 1, **options) -> Answer:
    found = compare(experiment(first), experiment(second), same_work=same_work, **options)
    return Answer(None, sign * getattr(found, name), tuple(finding.text for finding in found.findings))


# Document 003: VGG-11, 13 and 19 on V100 and A100, batch 16.


@cache
def vgg(model: str, gpu: str, *, as_counted: bool = False) -> Judgement:
    subject = f"{model} {gpu} b16"
    return judge(
        StatedRun(
            device=GPUS[gpu],
            precision="fp32" if as_counted else main_precision(ledger(model, 16)),
            flops=stated(subject, "measured FLOP"),
            counted="cuda-cores",
            useful_flops=None if as_counted else flops(model, 16),
            bytes=stated(subject, "DRAM bytes"),
            time_s=stated(subject, "time"),
            batch=16,
            peak_flops_per_s=GPUS[gpu].core_flops_per_s["fp32"].value,
            bandwidth_bytes_per_s=GPUS[gpu].bandwidth_bytes_per_s.value,
            near_roof=True,
        )
    )


def vgg_row(model: str, gpu: str, name: str, scale: float = 1.0) -> Answer:
    found, believed = vgg(model, gpu), vgg(model, gpu, as_counted=True)
    codes = ["far-from-the-roof"]
    codes += ["peak-of-another-precision", "tensor-work-not-counted"] if gpu == "A100" else ["counted-is-not-useful"]
    return Answer(getattr(believed, name) / scale, getattr(found, name) / scale, says(found, *codes))


def vgg_flops(model: str, gpu: str) -> Answer:
    found = vgg(model, gpu)
    code = "tensor-work-not-counted" if gpu == "A100" else "counted-is-not-useful"
    return Answer(vgg(model, gpu, as_counted=True).flops, flops(model, 16), says(found, code))


def vgg_speed_up(model: str) -> Answer:
    found = compare(vgg(model, "V100"), vgg(model, "A100"), preferred=V100.name)
    assert [finding.code for finding in found.findings] == ["artefact", "faster", "preference"]
    return Answer(None, found.times_as_fast, tuple(finding.text for finding in found.findings))


# Document 004: PALEO on a K80, with the multiply-adds of Lu et al.


@cache
def k80(model: str, precision: str) -> Judgement:
    macs = stated(model, 'total "FLOPs" (Lu et al.)')
    return judge(
        StatedRun(
            device=K80_BOARD,
            precision={"single": "fp32", "double": "fp64"}[precision],
            flops=macs,
            useful_flops=2 * macs,
            batch=1,
            ppp=1.0,
            stated={"time_s": stated(f"{model} K80 {precision} precision", "inference time")},
        )
    )


def k80_row(model: str, precision: str, name: str) -> Answer:
    found = k80(model, precision)
    macs = found.given.flops
    time_s = paleo.flops_time_s(macs, 1e9 * stated(f"K80 {precision}", "peak"))
    as_stated = time_s if name == "time_s" else paleo.throughput(1, time_s)
    # The ledger's own FLOPs of that network tell multiply-adds from FLOPs, too, and give the spec tier's time.
    own = judge(
        StatedRun(device=K80_BOARD, precision=found.given.precision, flops=macs, useful_flops=flops(model), ppp=1.0)
    )
    assert own.has("macs-for-flops")
    plain = paleo.spec_time(ledger(model), K80_BOARD, ppp=1.0, form="flops")
    if precision == "single":
        assert plain.time_s == pytest.approx(own.time_s)
        assert plain.time_s == pytest.approx(found.time_s * flops(model) / (2 * macs))
    die = paleo.flops_time_s(2 * macs, roofs_of(K80).matrix(found.given.precision).flops_per_s)
    assert die == pytest.approx(2 * found.time_s, rel=5e-3)
    codes = ("macs-for-flops", "board-for-die", "ppp-too-good", "stated-time_s")
    return Answer(as_stated, getattr(found, name), says(found, *codes), rel=K80_ROUNDING)


def ppp_examples() -> Answer:
    own = [vgg(model, "V100", as_counted=True).given for model in ("vgg11", "vgg13", "vgg19")]
    found = [100 * paleo.ppp_of_flops(run.flops, run.time_s, run.peak_flops_per_s) for run in own]
    assert min(found) == pytest.approx(8.6, abs=0.1)
    assert max(found) == pytest.approx(17.2, abs=0.1)
    assert paleo.default_ppp(V100).value == 0.62
    return Answer(100.0, None, says(k80("VGG16", "single"), "ppp-too-good"))


# Devices.


def fp32_ridge(gpu: str) -> Answer:
    roofs = roofs_of(GPUS[gpu])
    found = ridge(roofs.other("fp32"), roofs.slope())
    if gpu == "V100":
        return Answer(found, found)
    used = judge(StatedRun(device=A100, precision="tf32", peak_flops_per_s=roofs.other("fp32").flops_per_s))
    (text,) = says(used, "peak-of-another-precision")
    assert "19.5 TFLOP/s is the fp32 peak of the CUDA cores" in text
    assert "156 TFLOP/s: ridge 100.3 FLOP/byte, not 12.54" in text
    return Answer(found, found, (text,))


def peak(gpu: str) -> Answer:
    value = GPUS[gpu].core_peak("fp32").value / 1e9
    return Answer(value, value)


def bandwidth(gpu: str) -> Answer:
    value = GPUS[gpu].bandwidth_bytes_per_s.value
    return Answer(value, value)


def k80_peak(precision: str) -> Answer:
    key = {"single": "fp32", "double": "fp64"}[precision]
    assert K80_BOARD.core_flops_per_s[key].value == pytest.approx(2 * K80.core_flops_per_s[key].value, rel=5e-3)
    value = K80_BOARD.core_flops_per_s[key].value / 1e9
    return Answer(2 * 2496 / {"single": 1, "double": 3}[precision] * 2 * 0.875, value, rel=K80_ROUNDING)


def roof_height() -> Answer:
    right = place(20, roofs_of(V100).matrix("fp32"), roofs_of(V100).slope()).attainable_flops_per_s / 1e9
    drawn = roof_point(V100, "fp32", intensity=20, flops_per_s=157e12)
    used = judge(StatedRun(device=V100, precision="fp32", peak_flops_per_s=157e12))
    return Answer(157e3, right, (drawn.text, *says(used, "peak-off-by-ten")))


def nvlink() -> Answer:
    both = 2 * V100.links_bytes_per_s["nvlink"].value
    as_memory = judge(StatedRun(device=V100, precision="fp32", bandwidth_bytes_per_s=both))
    (text,) = says(as_memory, "link-for-memory")
    assert "NVLink" in text
    assert "900 GB/s" in text
    claim = link_claim(V100, both, "gpu-cpu")
    assert claim.code == "link-between"
    assert link_claim(V100, both, "gpu-gpu") is None
    return Answer(both, both, (claim.text, text))


def metric_name(name: str) -> Answer:
    with pytest.raises(BadInput, match=r"did you mean .*op_fmul_pred_on") as found:
        check_names("GA100", [name])
    return Answer(None, None, (str(found.value),))


def origin() -> Answer:
    found = roof_point(V100, "fp32", intensity=0, flops_per_s=1e9)
    right = place(0, roofs_of(V100).matrix("fp32"), roofs_of(V100).slope()).attainable_flops_per_s
    return Answer(None, right, (found.text,))


def plotted() -> Answer:
    point = experiment("4", as_counted=True)
    given = StatedRun(
        device=A100, precision="fp32", flops=point.flops, time_s=point.time_s, stated={"flops_per_s": 17.5e9}
    )
    found = judge(given)
    return Answer(17.5, found.flops_per_s / 1e9, says(found, "stated-flops_per_s"))


def conv2_counted() -> Answer:
    found = judge(
        StatedRun(device=A100, precision="tf32", flops=2949120, counted="cuda-cores", useful_flops=conv2("flops"))
    )
    return Answer(found.given.flops, found.flops, says(found, "tensor-work-not-counted"))


def one_output() -> Answer:
    """Nine products and eight sums are one channel's; an output takes all of them."""
    right = conv2("flops") / conv2("outputs")
    explained = explain(2 * 9 / right, {"input channels": 32})
    assert explained.factors == {"input channels": 1 / 32}
    return Answer(9 + 8 + 1, right, (explained.text,))


EXP = r"Exp(\d) resnet\d+ [VA]100"
VGG = r"(vgg\d+) ([VA]100) b16"
PALEO = r"(VGG16|GoogLeNet|ResNet50) K80 (single|double) precision"
RULES = [
    # (subject, quantity, answer from the match of the subject)
    (EXP, "throughput", lambda m: experiment_row(m[1], "bytes_per_s")),
    (EXP, "arithmetic intensity", lambda m: experiment_row(m[1], "intensity")),
    (EXP, "performance", lambda m: experiment_row(m[1], "flops_per_s", 1e9)),
    (EXP, "percent of attainable", lambda m: experiment_row(m[1], "percent_of_roof")),
    (EXP, "actual FLOP", lambda m: experiment_row(m[1], "flops")),
    (EXP, "actual/theoretical FLOP", lambda m: flop_ratio(m[1])),
    (r"Exp(\d)", "actual/theoretical memory", lambda m: memory(m[1])),
    (r"(V100|A100) fp32", "ridge point", lambda m: fp32_ridge(m[1])),
    (r"(V100|A100)", "peak AI", lambda m: fp32_ridge(m[1])),
    (r"(V100|A100)( fp32)?", "peak( fp32)?", lambda m: peak(m[1])),
    (r"(V100|A100)( HBM2| 40GB)?", "bandwidth", lambda m: bandwidth(m[1])),
    (r"K80 (single|double)", "peak", lambda m: k80_peak(m[1])),
    (r"V100 fp32 point 2 and 3", "roof height", lambda m: roof_height()),
    (r"V100 SXM2", 'NVLink bandwidth "GPU-CPU"', lambda m: nvlink()),
    (r"(smsp__.*)", "metric name", lambda m: metric_name(m[1])),
    (r"\(0, random reasonable number\)", "roofline first point", lambda m: origin()),
    (r"Exp4", "trial 4 plotted y", lambda m: plotted()),
    (r"resnet18", "FLOP decrease V100->A100", lambda m: between("1", "3", "flops_change_percent", sign=-1)),
    (r"resnet50", "FLOP decrease V100->A100", lambda m: between("2", "4", "flops_change_percent", sign=-1)),
    (r"resnet18", "byte decrease", lambda m: between("1", "3", "bytes_change_percent", sign=-1)),
    (r"resnet50", "byte decrease", lambda m: between("2", "4", "bytes_change_percent", sign=-1)),
    (r"", "resnet50/resnet18 parameters",
     lambda m: Answer(None, summary.params(ledger("resnet50")) / summary.params(ledger("resnet18")))),
    (r"memory ratio", '"more than 290 times"',
     lambda m: Answer(None, max(memory(number).stated for number in EXPERIMENTS), memory("1").says)),
    (r"V100", 'resnet50 runtime "much larger"', lambda m: between("2", "1", "times_as_fast", same_work=False)),
    (r"resnet18/50", r"A100 outperforms V100 \(hypothesis 5\)",
     lambda m: between("3", "1", "times_as_fast", preferred=A100.name)),
    (VGG, "arithmetic intensity", lambda m: vgg_row(m[1], m[2], "intensity")),
    (VGG, "performance", lambda m: vgg_row(m[1], m[2], "flops_per_s", 1e9)),
    (VGG, "percent of attainable", lambda m: vgg_row(m[1], m[2], "percent_of_roof")),
    (VGG, "measured FLOP", lambda m: vgg_flops(m[1], m[2])),
    (r"(vgg\d+)", "A100 speed-up over V100", lambda m: vgg_speed_up(m[1])),
    (PALEO, "inference time", lambda m: k80_row(m[1], m[2], "time_s")),
    (PALEO, "throughput", lambda m: k80_row(m[1], m[2], "throughput")),
    (r"cuDNN ~100%, others <=50%", "PPP examples", lambda m: ppp_examples()),
    (r"mnist32-64 conv2 A100", r"ncu fadd\+fmul\+2\*ffma as total FLOP of conv2", lambda m: conv2_counted()),
    (r"mnist32-64 conv2 A100", "ncu avg in weight nchwToNhwc kernel",
     lambda m: Answer(42.67, conv2("weights") / (SMSPS_AN_SM * A100.sms.value))),
    (r"conv2", r'kernel ops "9 mul \+ 8 add ~ 2\*9"', lambda m: one_output()),
]  # fmt: skip
NOBODY_CAN_COMPUTE = [
    # (subject, quantity, why no rule)
    (EXP, "time|DRAM bytes", "measured by the authors; inputs of the rules"),
    (VGG, "time|DRAM bytes", "measured by the authors; inputs of the rules"),
    (r"Exp\d", "actual GPU memory", "measured by the authors; inputs of the memory rule"),
    (r"mnist32-64 conv2 b64", ".*", "memory as a profiler saw it; no model or roofline"),
    (r"mnist32-64 conv2", "profile caption batch", "a caption; the estimates of conv2 tell the batch"),
    (r"wide_resnet50_2 on .*|gpumem.py|memreport.py", ".*", "memory and code of a script; no model or roofline"),
    (r"\d+/\d+", "accuracy %|train progress %", "training results"),
    (r"mnist|10 folders|", "MNIST images|ImageNet train size|training files copied", "data sets"),
]


def rule_for(row):
    for subject, quantity, answer in RULES:
        found = re.fullmatch(subject, row["subject"])
        if found and re.fullmatch(quantity, row["quantity"]):
            return f"{subject} / {quantity}", answer, found
    return None


def reason_for(row):
    for subject, quantity, why in NOBODY_CAN_COMPUTE:
        if re.fullmatch(subject, row["subject"]) and re.fullmatch(quantity, row["quantity"]):
            return f"{subject} / {quantity}", why
    return None


def half_a_digit(value: float) -> float:
    """Of the last one printed: 0.005 for 17.44."""
    _, _, decimals = repr(value).partition(".")
    return 0.0 if decimals in ("", "0") else 0.5 * 10.0 ** -len(decimals)


ANSWERED = [row for row in ROWS if rule_for(row) is not None]


@pytest.mark.parametrize("row", ANSWERED, ids=[f"{row['subject']}-{row['quantity']}" for row in ANSWERED])
def test_documents_number(row):
    _, answer, match = rule_for(row)
    found = answer(match)
    if row["correct"] is not None:
        assert found.correct == pytest.approx(row["correct"], rel=found.rel)
    if row["stated"] is not None and found.stated is not None:
        close = max(1e-6, found.rel if row["kind"] == "spec" else 0)
        assert found.stated == pytest.approx(row["stated"], rel=close, abs=half_a_digit(row["stated"]))
    if row["verdict"] in ("wrong", "typo", "convention"):
        assert found.says
    assert all(re.search(r"[.\d]", text) and "\n" not in text for text in found.says)


def test_every_row_is_answered_or_says_why_not():
    for row in ROWS:
        if rule_for(row) is None:
            assert reason_for(row) is not None, f"{row['subject']} / {row['quantity']}: no rule and no reason"
            assert row["kind"] not in MODEL_KINDS
    assert {rule_for(row)[0] for row in ANSWERED} == {f"{subject} / {quantity}" for subject, quantity, _ in RULES}
    left = [row for row in ROWS if rule_for(row) is None]
    assert {reason_for(row)[0] for row in left} == {
        f"{subject} / {quantity}" for subject, quantity, _ in NOBODY_CAN_COMPUTE
    }
    assert (len(ROWS), len(ANSWERED), len(left)) == (154, 98, 56)


def test_stated_values_are_made_again():
    """Of the rows that state a number, only these compare something with a claim in words."""
    in_words = {
        row["quantity"]
        for row in ANSWERED
        if row["stated"] is not None and rule_for(row)[1](rule_for(row)[2]).stated is None
    }
    assert in_words == {
        "FLOP decrease V100->A100",
        "byte decrease",
        "resnet50/resnet18 parameters",
        '"more than 290 times"',
    }
