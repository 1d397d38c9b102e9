"""The twenty mistakes of the founding documents, each caught in a table of their own numbers; and all of their numbers
put through the linter, which must say of each what tests/data/documents.json says.

One test a mistake, named by its number. What a measured run is needed for comes from the recordings and the logs of
Nsight Compute that the repository holds.
"""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from functools import cache

import pytest

from rooflight.analysis.claims import CheckedTable, JudgedClaim, check, parse_claims
from rooflight.ledger import Ledger
from rooflight.profiles import read as read_log
from tests.fixtures.documents_tables import (
    DEVICES,
    DOCUMENTS,
    EXPERIMENTS,
    MNIST,
    MNIST5,
    VGG16,
    VGG19,
    Cells,
    Key,
    checked,
    ledger,
    tables,
    to_csv,
    training,
)
from tests.fixtures.paths import DATA
from tests.fixtures.recordings import recording

NCU = DATA / "ncu"


def stated(subject: str, quantity: str) -> object:
    """A number of the documents."""
    (row,) = (row for row in DOCUMENTS if (row["subject"], row["quantity"]) == (subject, quantity))
    value = row["stated"]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def judged(book: Ledger, *rows: Cells) -> CheckedTable:
    """A table of a few rows against a ledger."""
    return check(book, parse_claims(to_csv([{"layer": "", **row} for row in rows]), "table.csv"))


def number(key: Key, place: int) -> JudgedClaim:
    """The row of a document's table that holds its number at this place of documents.json."""
    return next(row for row in checked(key).rows if row.claim.remarks["number"] == str(place))


def place_of(subject: str, quantity: str) -> int:
    (found,) = (i for i, row in enumerate(DOCUMENTS) if (row["subject"], row["quantity"]) == (subject, quantity))
    return found


def named(row: JudgedClaim, *codes: str) -> None:
    """The row is wrong, and these mistakes are named with a sentence each."""
    assert row.verdict == "wrong", (row.claim, row.verdict, row.reason)
    for code in codes:
        assert row.says(code), (code, [found.code for found in row.because])
    assert all(found.text for found in row.because)


def test_1_output_channels_missing() -> None:
    """21,233,664 at batch 64. The batch missing gives the same: Cout = 64 = batch, and both are said."""
    row = number(MNIST, place_of("mnist32-64 conv2 b64", "conv2 FLOP (labelled batch 64)"))
    named(row, "cout-missing", "batch-missing")
    assert row.ambiguous
    assert "Cout = 64" in row.because[0].text
    # The same number is right where it is labelled for one picture.
    assert number(MNIST, place_of("mnist32-64 conv2 b1", "conv2 FLOP")).verdict == "right"


def test_2_parameters_scaled_with_the_batch() -> None:
    row = number(MNIST, place_of("mnist32-64 conv2 b64", "conv2 output + parameter bytes"))
    named(row, "parameters-times-batch")
    assert row.answer is not None and row.answer.value == 9_511_168
    assert "rounded to 2 digits before" in row.because[0].text


def test_3_macs_and_flops_mixed() -> None:
    """In one table (VGG-11: rows are FLOPs, the total is not), across tables, and against a peak."""
    vgg11 = checked(Key("vgg11", 16))
    (found,) = (one for one in vgg11.findings if one.code == "macs-and-flops-mixed")
    assert len(found.rows) == 12
    across = judged(
        ledger(Key("vgg13", 16)),
        {
            "layer": "Conv2d-1",
            "quantity": "FLOP per image",
            "value": stated("vgg11 Conv2d-1", "FLOP per image"),
            "note": "as in VGG-11's",
        },
        {"layer": "Conv2d-21", "quantity": "FLOP per image", "value": stated("vgg13 Conv2d-21", "FLOP per image")},
    )
    assert [row.verdict for row in across.rows] == ["right", "convention"]
    assert across.rows[1].says("macs-for-flops")
    assert across.has("macs-and-flops-mixed") and not across.passes
    k80 = number(VGG16, place_of("VGG16 K80 single precision", "inference time"))
    named(k80, "macs-against-a-peak", "board-for-die")
    # FLOPs by the peak of one die: 2 x 15,470,264,320 / 4.368 T.
    assert k80.answer is not None and float(k80.answer.number) == pytest.approx(7.0835e-3, rel=1e-4)
    double = number(VGG16, place_of("VGG16 K80 double precision", "inference time"))
    assert double.answer is not None and float(double.answer.number) == pytest.approx(21.25e-3, rel=1e-3)
    rate = number(VGG16, place_of("VGG16 K80 single precision", "throughput"))
    named(rate, "macs-against-a-peak")
    assert rate.answer is not None and float(rate.answer.number) == pytest.approx(141.17, rel=1e-4)


def test_4_total_is_not_the_sum() -> None:
    total = number(Key("vgg11", 16), place_of("vgg11", "total FLOP batch 16"))
    named(total, "total-not-the-sum", "macs-for-flops")
    assert checked(Key("vgg11", 16)).has("total-not-the-sum")
    # VGG-13's is the sum of its rows, seven of which are wrong; VGG-19's is right in its own convention.
    named(
        number(Key("vgg13", 16), place_of("vgg13", "total FLOP batch 16")),
        "follows-from-its-rows",
        "size-after-the-pool",
    )
    assert not checked(Key("vgg13", 16)).has("total-not-the-sum")
    assert number(Key("vgg19", 16), place_of("vgg19", "total FLOP batch 16")).verdict == "convention"


def test_5_output_sizes_typed_by_hand() -> None:
    table = checked(Key("vgg13", 16))
    sizes = [row for row in table.rows if row.claim.quantity == "output image size"]
    assert len(sizes) == 7
    for row in sizes:
        named(row, "size-after-the-pool")
    work = [row for row in table.rows if row.claim.quantity == "FLOP per image" and row.verdict == "wrong"]
    assert [row.claim.layer for row in work] == [row.claim.layer for row in sizes]
    for row in work:
        named(row, "size-after-the-pool", "macs-for-flops")
    total = number(Key("vgg13", 16), place_of("vgg13", "total FLOP batch 16"))
    assert total.off_by == pytest.approx(1 / 6.15, rel=1e-3)


def test_6_batch_unrecorded_or_mislabelled() -> None:
    size = stated("mnist32-64 conv2 b64", "conv2 output tensor (Size Increase)")
    caption = judged(
        ledger(MNIST),
        {
            "layer": "conv2",
            "quantity": "output tensor",
            "value": size,
            "batch": stated("mnist32-64 conv2", "profile caption batch"),
        },
        {
            "layer": "conv2",
            "quantity": "FLOP",
            "value": 1358954496,
            "batch": stated("mnist32-64 conv2", "profile caption batch"),
        },
    )
    for row in caption.rows:
        named(row, "batch-mislabelled")
        assert "right at batch 64: the row says 1" in row.because[0].text
    assert caption.has("batch-mislabelled")
    named(number(MNIST, place_of("mnist32-64 conv2", "profile caption batch")))
    # Document 002 never says the batch of its estimate: it is 2.
    unrecorded = judged(
        ledger(Key("resnet18")), {"quantity": "theoretical FLOP", "value": stated("resnet18", "theoretical FLOP")}
    )
    named(unrecorded.rows[0], "batch-mislabelled", "mixed-operations")
    assert "right at batch 2" in unrecorded.rows[0].because[0].text
    assert "the row says none" in unrecorded.rows[0].because[0].text


@pytest.mark.parametrize(
    ("key", "subject", "quantity"),
    [
        (MNIST, "mnist32-64 conv2 A100", "ncu fadd+fmul+2*ffma as total FLOP of conv2"),
        (training("resnet18"), "Exp3 resnet18 A100", "actual FLOP"),
        (training("resnet50"), "Exp4 resnet50 A100", "actual FLOP"),
        *((Key(f"vgg{n}", 16), f"vgg{n} A100 b16", "measured FLOP") for n in (11, 13, 19)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_7_tensor_core_work_missing(key: Key, subject: str, quantity: str) -> None:
    """On an A100 the counters of the CUDA cores miss it; on a V100, which has no TF32, nothing can be said."""
    named(number(key, place_of(subject, quantity)), "tensor-work-not-counted")
    if "b16" in subject:
        v100 = number(key, place_of(subject.replace("A100", "V100"), quantity))
        assert v100.verdict == "unknown"
        # What was made of such a count is as wrong as it is, whatever the roof: "prefer V100 to A100".
        named(number(key, place_of(subject, "arithmetic intensity")), "tensor-work-not-counted")


def test_7_tensor_core_work_missing_from_a_measured_run() -> None:
    """The value itself, where the run was measured: fadd + fmul + 2 x ffma of the step and of one layer."""
    book = recording("h200/mnist-cnn-infer-tf32")
    table = judged(
        book,
        {"quantity": "measured FLOP", "value": 2433664 + 5155840 + 2 * 101687296},
        {"layer": "conv2", "quantity": "measured FLOP", "value": 2359296 + 3762176 + 2 * 2359296},
        {"layer": "conv2", "quantity": "measured FLOP", "value": 1358954496 + 10840064},
    )
    for row in table.rows[:2]:
        named(row, "tensor-work-not-counted")
    assert "1,358,954,496 more" in table.rows[0].because[0].text
    assert table.rows[2].verdict == "right"


def test_8_forward_estimate_against_a_training_measurement() -> None:
    """6.53 and 8.67 are no overhead: a training step was counted, and a forward in multiply-adds estimated."""
    for experiment in ("1", "2"):
        model, gpu = EXPERIMENTS[experiment]
        row = number(training(model), place_of(f"Exp{experiment} {model} {gpu}", "actual/theoretical FLOP"))
        named(row, "forward-for-training", "mixed-operations")
        assert "a training step is about 3 forwards" in row.reason and "a multiply-add is 2 FLOP" in row.reason
    alone = judged(
        ledger(training("resnet18")),
        {"quantity": "flops", "value": 2 * 3628146688, "step": "training", "batch": 2},
    )
    named(alone.rows[0], "forward-for-training")


def test_9_parameters_against_all_memory() -> None:
    for experiment, (model, _) in EXPERIMENTS.items():
        row = number(Key(model, 256, "train"), place_of(f"Exp{experiment}", "actual/theoretical memory"))
        named(row, "parameters-for-memory")
        assert "activations kept for backward" in row.because[0].text
    named(
        number(Key("resnet18", 256, "train"), place_of("memory ratio", '"more than 290 times"')),
        "parameters-for-memory",
    )
    # On two GPUs the denominator was counted twice as well.
    named(
        number(Key("resnet18", 256, "train"), place_of("Exp3", "actual/theoretical memory")),
        "parameters-for-memory",
        "follows-from-its-rows",
    )


def test_10_workspace_output_and_growth_confused() -> None:
    """40.6 MB "used at batch 64": output and workspace, most of which is given back."""
    conv2 = {"layer": "conv2", "batch": 64}
    table = judged(
        ledger(MNIST),
        {**conv2, "quantity": "workspace", "value": stated("mnist32-64 conv2 b64", "aten::empty workspace")},
        {**conv2, "quantity": "memory used", "value": stated("mnist32-64 conv2 b64", "allocation size of the op")},
        {**conv2, "quantity": "memory used", "value": "40.6 MB", "note": "text"},
        {
            **conv2,
            "quantity": "memory used",
            "value": stated("mnist32-64 conv2 b64", "aten::empty workspace"),
            "note": "again",
        },
    )
    assert table.rows[0].verdict == "right" and "Winograd" in table.rows[0].answer.how
    for row in table.rows[1:]:
        named(row, "memory-kinds-confused")
        assert row.answer.value == 9_437_184
    assert "output and workspace together" in table.rows[1].because[0].text
    assert "its workspace, which is given back" in table.rows[3].because[0].text
    # The three that the profiler printed agree with each other.
    for quantity in ("aten::empty workspace", "allocation size of the op", "Self Size Increase of cudnn_convolution"):
        assert number(MNIST, place_of("mnist32-64 conv2 b64", quantity)).verdict == "right"
    # The same on a run that was measured.
    measured = judged(
        recording("h200/mnist-cnn-infer-tf32"),
        {"layer": "conv2", "quantity": "memory used", "value": 9437184 + 5612032},
        {"layer": "conv2", "quantity": "memory used", "value": 9437184},
    )
    named(measured.rows[0], "memory-kinds-confused")
    assert measured.rows[1].verdict == "right"


@cache
def console() -> tuple[Ledger, list[tuple[float, str]]]:
    """A log of ncu whose bytes have units that differ from kernel to kernel, and what it prints for the bytes read."""
    path = NCU / "h200_mnist_console.log.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    words = [line.split() for line in lines if line.strip().startswith("dram__bytes_read.sum ")]
    return read_log(path), [(float(number.replace(",", "")), unit) for _, unit, number in words]


def test_11_units_parsed_wrong() -> None:
    """KiB written as MB on the way; and numbers of a log added up whatever the unit behind them."""
    row = number(MNIST, place_of("mnist32-64 conv2 b64", '"40.6 MB" used at batch 64'))
    assert row.verdict == "convention" and row.says("binary-prefix")
    assert "KiB" in row.because[0].text
    book, printed = console()
    assert len({unit for _, unit in printed}) > 1
    right = judged(book, {"quantity": "dram__bytes_read.sum", "value": 1})
    total = right.rows[0].answer.value
    kilo = sum(number for number, unit in printed if unit == "Kbyte")
    table = judged(
        book,
        {"quantity": "DRAM read", "value": total},
        {"quantity": "DRAM read", "value": f"{sum(number for number, _ in printed):.2f}"},
        {"quantity": "DRAM read", "value": f"{kilo:.2f} KB"},
        {"quantity": "dram__bytes_read.sum", "value": f"{sum(number for number, _ in printed):.2f}"},
    )
    assert table.rows[0].verdict == "right"
    for row in table.rows[1:]:
        named(row, "units-of-the-log")
    assert "Kbyte" in table.rows[2].because[0].text


def test_12_replicas_counted_twice() -> None:
    for model in ("resnet18", "resnet50"):
        row = number(Key(model, 256, "train"), place_of(f"{model} 2 GPU", "parameters"))
        named(row, "replicas-counted")
        assert row.off_by == 2
        assert number(Key(model, 256, "train"), place_of(f"{model} 1 GPU", "parameters")).verdict == "right"


def test_13_functional_ops_unseen_and_an_identity_pool_charged() -> None:
    pool = number(VGG16, place_of("vgg16 avgpool", "ops"))
    named(pool, "identity-pool-charged")
    assert pool.answer.value == 0
    named(number(VGG16, place_of("vgg16 (labelled VGG19)", "conv ops")), "another-layer-included")
    for key, subject, quantity in (
        (MNIST, "mnist32-64", "forward/backward size, step 1"),
        (MNIST5, "mnist10-20", "forward/backward size"),
    ):
        row = number(key, place_of(subject, quantity))
        assert row.verdict == "convention" and row.says("hooked-modules")
        assert "functional ops are unseen (" in row.because[0].text
        assert "relu" in row.because[0].text and "max_pool2d" in row.because[0].text


def test_14_one_models_numbers_under_anothers_name() -> None:
    """The notebook asks for VGG-19, and computes VGG-16."""
    table = judged(
        ledger(VGG19),
        {"quantity": "total ops", "value": stated("vgg16 (labelled VGG19)", "total ops")},
        {"quantity": "MACs", "value": stated("VGG16", 'total "FLOPs" (Lu et al.)')},
    )
    for row in table.rows:
        named(row, "another-model")
        assert "value of vgg16, not of vgg19" in row.because[0].text
    assert table.has("another-model")
    share = number(VGG19, place_of("VGG19 asked, VGG16 computed", "conv fraction %"))
    assert share.verdict == "wrong"


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_15_memory_bound_without_side_and_distance(experiment: str) -> None:
    """Every one of their runs waited for neither units nor memory."""
    model, gpu = EXPERIMENTS[experiment]
    subject = f"Exp{experiment} {model} {gpu}"
    run = {"device": DEVICES[gpu], "model": model}
    table = judged(
        ledger(training(model)),
        {**run, "quantity": "actual FLOP", "value": stated(subject, "actual FLOP")},
        {**run, "quantity": "DRAM bytes", "value": stated(subject, "DRAM bytes")},
        {**run, "quantity": "wall time", "value": stated(subject, "time")},
        {**run, "quantity": "bound", "value": "memory-bound"},
        {**run, "quantity": "bound", "value": "overhead", "note": "right"},
    )
    row = table.rows[3]
    named(row, "far-from-the-roof")
    assert row.says("wrong-side") == (gpu == "V100")
    assert "% of the attainable" in row.answer.how and "ridge at" in row.answer.how
    assert table.rows[4].verdict == "right"


def test_15_bound_of_a_measured_run() -> None:
    table = judged(
        recording("h200/mnist-cnn-infer-tf32"),
        {"quantity": "bound", "value": "memory"},
        {"quantity": "bound", "value": "host"},
    )
    named(table.rows[0], "host-bound")
    assert "the GPU is busy for 49% of the wall time" in table.rows[0].answer.how
    assert table.rows[1].verdict == "right"


def test_16_time_scopes_mixed() -> None:
    """GPU counters by a wall time; and one scope's time under another's name."""
    table = checked(training("resnet18"))
    found = [one for one in table.findings if one.code == "scopes-mixed"]
    assert found and all("is by the wall" in one.text for one in found)
    performance = place_of("Exp1 resnet18 V100", "performance")
    assert any(number(training("resnet18"), performance).claim.row in one.rows for one in found)
    recorded = judged(
        recording("h200/mnist-cnn-infer-tf32"),
        {"quantity": "wall time", "value": "131.04 us"},
        {"quantity": "gpu busy", "value": "265.28 us"},
        {"quantity": "time", "value": "265.28 us"},
        {"quantity": "wall time", "value": "265 us"},
    )
    named(recorded.rows[0], "time-scopes-mixed")
    assert "GPU-busy time, not the wall time" in recorded.rows[0].because[0].text
    named(recorded.rows[1], "time-scopes-mixed")
    assert recorded.rows[2].verdict == "unknown" and "whose time it is must be said" in recorded.rows[2].reason
    assert "the value is that of the wall time" in recorded.rows[2].reason
    assert recorded.rows[3].verdict == "right"


def test_17_peaks_off_by_ten_of_another_precision_and_of_two_dies() -> None:
    ten = number(Key("vgg11", 16), place_of("V100 fp32 point 2 and 3", "roof height"))
    named(ten, "peak-off-by-ten")
    single, double = (stated(f"K80 {name}", "peak") for name in ("single", "double"))
    table = judged(
        ledger(VGG16),
        {"quantity": "peak", "value": f"{single} GFLOP/s", "device": "K80", "precision": "single"},
        {"quantity": "peak", "value": f"{single} GFLOP/s", "device": "single-GPU K80", "precision": "single"},
        {"quantity": "peak", "value": f"{double} GFLOP/s", "device": "double-GPU K80", "precision": "single"},
        {"quantity": "peak", "value": f"{single} GFLOP/s", "device": "k80-board", "precision": "single"},
        {"quantity": "peak", "value": f"{double} GFLOP/s", "device": "k80-board", "precision": "double"},
    )
    for row in table.rows[:2]:
        named(row, "peak-of-two")
    named(table.rows[2], "peak-of-another-precision", "board-for-die")
    assert "single and double are precisions, not numbers of GPUs" in " ".join(
        found.text for found in table.rows[2].because
    )
    assert [row.verdict for row in table.rows[3:]] == ["right", "right"]
    # A time by the board's peak is that of one process on half of it.
    assert checked(VGG16).has("board-for-die")
    named(number(Key("vgg11", 16), place_of("V100 SXM2", 'NVLink bandwidth "GPU-CPU"')), "link-between")


def test_18_hardware_preferred_by_balance() -> None:
    """V100 was preferred for its place on the plot; the A100 was faster in all three."""
    for model in ("vgg11", "vgg13", "vgg19"):
        times = [
            {"quantity": "kernel time", "value": stated(f"{model} {gpu} b16", "time"), "device": DEVICES[gpu]}
            for gpu in ("V100", "A100")
        ]
        table = judged(
            ledger(Key(model, 16)),
            *times,
            {"quantity": "preferred device", "value": "v100-sxm2-16"},
            {"quantity": "faster device", "value": "a100-sxm-40"},
        )
        named(table.rows[2], "preferred-by-balance")
        assert "time decides" in table.rows[2].because[0].text
        assert table.rows[3].verdict == "right"


def test_19_misspelt_metric_names() -> None:
    (name,) = (row["subject"] for row in DOCUMENTS if row["quantity"] == "metric name")
    for book in (ledger(MNIST), recording("h200/mnist-cnn-infer-tf32")):
        table = judged(book, {"quantity": name, "value": "n/a"}, {"quantity": name, "value": 0})
        for row in table.rows:
            named(row, "metric-misspelt")
            assert "op_fmul_pred_on.sum" in row.because[0].text
    # With the right name the recording answers.
    right = judged(
        recording("h200/mnist-cnn-infer-tf32"),
        {"quantity": name.replace("fmuls", "fmul"), "value": 5155840},
    )
    assert right.rows[0].verdict == "right"


def test_20_disagreeing_tools_left_unexplained() -> None:
    """0.45 MiB by one summary tool, 0.52 by another: both are named, and what the step holds."""
    found = [one for one in checked(MNIST).findings if one.code == "disagreeing" and "0.45 MiB" in one.text]
    (one,) = found
    assert "0.52 MiB" in one.text
    assert "outputs of all leaf modules" in one.text and "modules with parameters alone" in one.text


# All of their numbers.

EXPECTED = {"right": "right", "wrong": "wrong", "typo": "wrong", "convention": "convention", "unverifiable": "unknown"}
OTHERWISE = {
    # Places of documents.json that are judged otherwise, on purpose, and why.
    24: ("right", "0.00 MiB is what 3,136 B round to"),
    66: ("right", "0.00 MiB is what 3,136 B round to"),
    65: ("convention", "a sum with hooked outputs in it is right in that convention, as its part is"),
    95: ("wrong", "its denominator is"),
    97: ("wrong", "its denominator is"),
    105: ("wrong", "mistake 8"),
    113: ("wrong", "mistake 8"),
    147: ("wrong", "an artefact: the count it is made of misses the tensor cores"),
    **dict.fromkeys((*range(344, 348),), ("wrong", "mistake 3: multiply-adds by a peak")),
    **dict.fromkeys((*range(348, 356), 357, 358), ("wrong", "of another network than torchvision's, and so is what follows")),
    **dict.fromkeys((34, 36, *range(38, 58), 71, 73, 154), ("unknown", "accuracy, progress, data sets, scripts: nothing of a step's cost")),
}  # fmt: skip


@cache
def everything() -> dict[int, JudgedClaim]:
    """Every stated number and its verdict; of one that stands in several tables, the first that can tell."""
    found: dict[int, JudgedClaim] = {}
    for key in tables():
        for row in checked(key).rows:
            place = int(row.claim.remarks["number"])
            if place not in found or found[place].verdict == "unknown":
                found[place] = row
    return found


STATED = [place for place, row in enumerate(DOCUMENTS) if row["stated"] is not None]


@pytest.mark.parametrize(
    "place", STATED, ids=[f"{n}-{DOCUMENTS[n]['subject']}-{DOCUMENTS[n]['quantity']}" for n in STATED]
)
def test_every_stated_number(place: int) -> None:
    row, document = everything()[place], DOCUMENTS[place]
    expected = OTHERWISE[place][0] if place in OTHERWISE else EXPECTED[document["verdict"]]
    assert row.verdict == expected, (document, row)
    if row.verdict == "unknown":
        assert row.reason
    if row.verdict == "convention":
        assert row.because
    # Where the linter has the number from the ledger, it is the one of the documents' judges.
    if (
        document["correct"] is not None
        and place not in OTHERWISE
        and row.answer is not None
        and document["verdict"] in ("right", "wrong")
    ):
        if isinstance(row.answer.value, (str, tuple)) or place in ELSEWHERE:
            return
        scale = {"percent": 0.01, "GFLOP/s": 1e9}.get(document["unit"], 1)
        assert float(row.answer.value) == pytest.approx(scale * document["correct"], rel=5e-3)


ELSEWHERE = {
    92: "of one model; the documents' judges count both copies", 93: "of one model",
    99: "by one model's parameters", 101: "by one model's parameters",
    120: "by formula; the judges take the V100's count", 128: "by formula",
    121: "by formula", 129: "by formula", 125: "by formula", 126: "by formula", 133: "by formula", 134: "by formula",
    143: "the host's link, where the judges give NVLink's own figure",
    146: "a ratio, where the judges give a decrease", 148: "a ratio", 149: "a ratio", 151: "with the right parameters",
}  # fmt: skip


def test_how_many_are_judged_as_the_documents_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Counted from the data: of 363 numbers 309 are stated, and one is a name."""
    found = everything()
    agree = sum(found[place].verdict == EXPECTED[DOCUMENTS[place]["verdict"]] for place in found)
    checkable = sum(row.verdict != "unknown" for row in found.values())
    by = Counter(row.verdict for row in found.values())
    with capsys.disabled():
        counted = f"{len(found)} are claims, {checkable} can be checked, {agree} are judged as in documents.json"
        sys.stdout.write(f"\nof {len(DOCUMENTS)} numbers {counted}: {dict(by)}\n")
    assert len(DOCUMENTS) == 363
    assert len(found) == 310
    assert checkable >= 254
    assert agree >= 263
    estimates = [place for place in found if DOCUMENTS[place]["kind"] == "estimate"]
    assert sum(found[place].verdict != "unknown" for place in estimates) == len(estimates) >= 160
    # Nothing that the documents have right is called wrong, but for the one that rests on a count that is.
    assert [place for place in found if DOCUMENTS[place]["verdict"] == "right" and found[place].verdict == "wrong"] == [
        147
    ]
    assert [
        place for place in found if DOCUMENTS[place]["verdict"] in ("wrong", "typo") and found[place].verdict != "wrong"
    ] == []
