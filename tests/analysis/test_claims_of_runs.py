"""Claims about runs: times, rates and intensities, judged by measurements, by rows and by what nothing beats; several
models in one table; measured or estimated; the same mistakes inside a quotient."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rooflight
from rooflight.analysis.claims import CheckedTable, JudgedClaim, check, parse_claims
from rooflight.commands.main import cli
from rooflight.errors import BadFile
from rooflight.ledger import Ledger
from tests.fixtures.recordings import recording


@cache
def book(model: str, batch: int = 1, step: Any = "infer") -> Ledger:
    return rooflight.estimate(model, batch=batch, step=step)


@cache
def recorded(name: str) -> Ledger:
    return recording(f"h200/{name}")


def judged(ledger: Ledger | list[Ledger], text: str, *, strict: bool = False) -> CheckedTable:
    """A table as somebody would type it, without spaces at the ends of lines."""
    lines = "\n".join(line.strip() for line in text.strip().splitlines())
    return check(ledger, parse_claims(lines.encode(), "t.csv"), strict=strict)


def right_of(row: JudgedClaim) -> float:
    assert row.answer is not None
    return float(row.answer.number)


def codes(row: JudgedClaim) -> set[str]:
    return {code for finding in row.because for code in finding.codes}


TRIAL = """layer,quantity,value,unit,batch,step,device,model
total,{time},0.202907231,s,2,train,V100,resnet18
total,dram bytes,1086870000,B,2,train,V100,resnet18
total,measured flops,23851649316,,2,train,V100,resnet18
total,performance,117.5495284,GFLOP/s,2,train,V100,resnet18
total,bandwidth used,5.356487271,GB/s,2,train,V100,resnet18
total,peak,15.7,TFLOP/s,,,V100,
total,bandwidth,900,GB/s,,,V100,
"""


@pytest.mark.parametrize("time", ["time", "runtime", "step time", "inference time", "wall time", "measured time"])
def test_a_measured_time_is_no_flops_over_a_peak(time: str) -> None:
    """Document 002's first trial, its peaks beside it: 0.2 s where FLOPs over the peak are 1.39 ms."""
    found = judged(book("resnet18", 2, "train"), TRIAL.format(time=time))
    assert [row.verdict for row in found.rows] == ["unknown"] * 3 + ["right"] * 4
    assert "117.5495284 GFLOP/s (row 5)" in found.rows[0].reason  # it agrees with its rows
    assert "rooflight measure resnet18" in found.rows[0].needs


def test_macs_over_a_flop_peak_are_wrong_and_flops_over_it_right() -> None:
    """VGG-16 on V100: 15,470,264,320 / 15.7 T = 0.98537 ms; 2 x that is 1.97 ms."""
    text = """layer,quantity,value,unit,batch,precision,device
        total,peak,15.7,TFLOP/s,,single,V100
        total,flops,{flops},,1,single,V100
        total,inference time,{time},ms,1,single,V100
        total,throughput,{rate},images/s,1,single,V100"""
    macs = judged(book("vgg16"), text.format(flops=15470264320, time="0.98537", rate="1014.8"))
    assert [row.verdict for row in macs.rows] == ["right", "convention", "wrong", "wrong"]
    assert right_of(macs.rows[2]) == pytest.approx(30_940_528_640 / 15.7e12)
    assert right_of(macs.rows[3]) == pytest.approx(15.7e12 / 30_940_528_640)
    assert all("macs-against-a-peak" in codes(row) for row in macs.rows[2:])
    flops = judged(book("vgg16"), text.format(flops=30940528640, time="1.9707", rate="507.4"))
    assert [row.verdict for row in flops.rows] == ["right"] * 4
    # Whatever the row of FLOPs says, the ledger's count; and the K80's peak is that of one die.
    die = judged(
        book("vgg16"),
        """layer,quantity,value,batch,precision,device
        total,peak,8.73 TFLOP/s,,single,K80
        total,inference time,1.772 ms,1,single,K80
        total,throughput,141.2,1,single,K80""",
    )
    assert [row.verdict for row in die.rows] == ["wrong", "wrong", "right"]
    assert right_of(die.rows[1]) == pytest.approx(30_940_528_640 / 4.368e12)
    assert {"macs-against-a-peak", "peak-of-two"} <= codes(die.rows[1])


def test_faster_than_anything_is_wrong() -> None:
    head = "layer,quantity,value,device\n"
    for row in ("total,time,1 us,V100", "total,wall time,1 us,V100", "total,throughput,2000000,V100"):
        found = judged(book("resnet18", 2, "train"), head + row).rows[0]
        assert found.verdict == "wrong" and codes(found) == {"faster-than-the-roof"}, row
    for row in ("total,performance,403 TFLOP/s,A100", "total,bandwidth used,3 TB/s,A100"):
        found = judged(book("vgg11", 16), head + row).rows[0]
        assert found.verdict == "wrong" and codes(found) == {"above-the-roof"}, row
    # Winograd needs a quarter of the multiply-adds: what it could do is no mistake.
    assert judged(book("vgg16"), head + "total,wall time,0.8 ms,V100").rows[0].verdict == "unknown"


def test_a_theoretical_time_is_judged_by_flops_over_the_peak() -> None:
    head = "layer,quantity,value,device\n"
    for name in ("theoretical time", "time by FLOPs / peak"):
        assert judged(book("vgg16"), f"{head}total,{name},1.971 ms,V100").rows[0].verdict == "right"
        assert judged(book("vgg16"), f"{head}total,{name},5 ms,V100").rows[0].verdict == "wrong"
    assert judged(book("vgg16"), f"{head}total,estimated time,5 ms,V100").rows[0].verdict == "unknown"
    assert judged(book("vgg16"), f"{head}total,time,5 ms,V100").rows[0].verdict == "unknown"


def test_the_digits_of_a_row_count_in_what_follows_from_it() -> None:
    """1 / 1.7758 ms is 563.126; 563.117 is what 1.77583 gives, which is 1.7758 too."""
    head = "layer,quantity,value,batch,device\n,wall time,1.7758 ms,1,V100\n,throughput,{},1,V100"
    assert judged(book("vgg16"), head.format("563.117")).rows[1].verdict == "right"
    off = judged(book("vgg16"), head.format("563.2")).rows[1]
    assert off.verdict == "wrong" and codes(off) == {"does-not-follow"}


def test_a_time_that_its_speeds_speak_against() -> None:
    """A slip of ten in the time of document 002's first trial: the rates are not blamed for it."""
    slip = TRIAL.format(time="time").replace("0.202907231", "0.0202907231")
    found = judged(book("resnet18", 2, "train"), slip)
    assert [row.verdict for row in found.rows] == ["wrong", "unknown", "unknown"] + ["right"] * 4
    assert right_of(found.rows[0]) == pytest.approx(0.202907231)
    # Speeds while the GPU is busy do not speak against a longer time by the wall.
    slower = judged(book("resnet18", 2, "train"), TRIAL.format(time="wall time").replace("0.202907231", "0.302907231"))
    assert slower.rows[0].verdict == "unknown"


# Measured or estimated.


def test_flops_beside_a_device_may_be_counted() -> None:
    text = """layer,quantity,value,batch,device,kind
        ,FLOP,221705941507,16,V100,{kind}"""
    asked = judged(book("vgg11", 16), text.format(kind="")).rows[0]
    assert asked.verdict == "unknown" and "measured or estimated?" in asked.reason and "kind" in asked.needs
    assert judged(book("vgg11", 16), text.format(kind="measured")).rows[0].verdict == "unknown"
    assert judged(book("vgg11", 16), text.format(kind="estimated")).rows[0].verdict == "wrong"
    both = text.replace("221705941507", "243490881536")
    assert judged(book("vgg11", 16), both.format(kind="")).rows[0].verdict == "right"
    # 4.8% of the work on tensor cores: whether counted or computed, it is wrong.
    a100 = text.replace("221705941507", "11771359163").replace("V100", "A100")
    row = judged(book("vgg11", 16), a100.format(kind="")).rows[0]
    assert row.verdict == "wrong" and codes(row) == {"tensor-work-not-counted"}
    assert "A100 SXM4 40 GB" in row.because[0].text  # which card was taken
    # A column of somebody's own is a remark; a slip is not.
    own = parse_claims(text.format(kind="conv").encode(), "t.csv")[0]
    assert own.kind is None and own.remarks["kind"] == "conv"
    slip = parse_claims(text.format(kind="mesured").encode(), "t.csv")[0]
    assert slip.unreadable and "did you mean measured?" in slip.trouble


# Several rows, several models.


def test_a_total_of_another_batch_than_its_rows() -> None:
    """VGG-13's total is 16 times its rows, seven of which are of sizes behind a pool."""
    rows = {1: 86704128, 3: 462422016, 6: 231211008, 8: 462422016, 11: 231211008, 13: 462422016, 16: 231211008,
            18: 462422016, 21: 115605504, 23: 115605504}  # fmt: skip
    lines = [f"Conv2d-{layer},FLOP,{value}" for layer, value in rows.items()]
    lines += ["Linear-27,FLOP,102760448", "Linear-30,FLOP,16777216", "Linear-33,FLOP,4096000"]
    added = sum(rows.values()) + 102760448 + 16777216 + 4096000
    table = "layer,quantity,value\n" + "\n".join(lines) + f"\ntotal,FLOP,{16 * added}"
    found = judged(book("vgg13"), table)
    total = found.rows[-1]
    assert total.verdict == "wrong" and {"follows-from-its-rows", "total-of-another-batch"} <= codes(total)
    assert "of one sample and it is of batch 16" in total.because[0].text
    assert any("16 times them" in finding.text for finding in found.findings)


def test_a_share_with_one_layer_too_many() -> None:
    """98.9989%: pthflops' operations of VGG-16 with the average pool among the convolutions."""
    for value in ("99.00 %", "98.9989 %"):
        share = judged(book("vgg16"), f"layer,quantity,value\nConv2d,share of flops,{value}").rows[0]
        assert share.verdict == "wrong" and codes(share) == {"another-layer-included", "mixed-operations"}
        assert share.because[0].text.startswith("avgpool is in the sum")
    exact = 15361407488 / 15516752872
    assert f"{100 * exact:.4f}" == "98.9989"
    other = judged(book("vgg19"), "layer,quantity,value\nConv2d,share of flops,99.00 %").rows[0]
    assert "another-model" in codes(other) and "avgpool" in other.because[0].text


MODELS = """model,layer,quantity,value,batch
vgg11,total,parameters,132863336,16
VGG-13,total,parameters,133047848,16
vgg13,Conv2d-3,FLOP,59190018048,16
alexnet,total,parameters,61100840,
vgg13,total,parameters,132863336,16
"""


def test_a_table_of_several_models(tmp_path: Path) -> None:
    found = judged([book("vgg11", 16), book("vgg13", 16)], MODELS)
    assert [row.verdict for row in found.rows] == ["right"] * 4 + ["wrong"]
    assert [ledger.header.model for ledger in found.traced] == ["alexnet"]
    alone = judged(book("vgg11", 16), MODELS)
    assert [row.verdict for row in alone.rows] == [row.verdict for row in found.rows]
    assert [ledger.header.model for ledger in alone.traced] == ["vgg13", "alexnet"]
    table = tmp_path / "t.csv"
    table.write_text(MODELS)
    done = CliRunner().invoke(cli, ["compare", "vgg11,vgg13", "--batch", "16", "--claims", str(table), "--json"])
    document = json.loads(done.stdout)
    assert done.exit_code == 1 and [row["verdict"] for row in document["rows"]] == ["right"] * 4 + ["wrong"]
    assert [header["model"] for header in document["others"]] == ["vgg13", "alexnet"]


def test_the_ledger_of_the_rows_step_answers() -> None:
    infer, train = book("mnist-cnn", 8), book("mnist-cnn", 8, "train")
    flops = [sum(op.cost.flops or 0 for op in ledger.ops if op.cost is not None) for ledger in (infer, train)]
    text = f"layer,quantity,value,step\n,flops,{flops[0]},inference\n,flops,{flops[1]},training"
    assert judged([infer, train], text).passes


# What was measured elsewhere.


def test_a_run_does_not_judge_another_devices() -> None:
    found = judged(
        recorded("mnist-cnn-infer-tf32"),
        """layer,quantity,value,device,batch
        conv2,workspace,31392 KiB,V100,64
        conv2,allocation size,40608 KiB,V100,64
        conv2,workspace,12345678,V100,64
        total,dram bytes,10 MB,V100,64
        total,wall time,1 ms,V100,64
        total,measured flops,1500000001,V100,64
        conv2,memory used,9216 KiB,V100,64""",
    )
    assert [row.verdict for row in found.rows] == [
        "right",
        "right",
        "unknown",
        "unknown",
        "unknown",
        "unknown",
        "right",
    ]


def test_a_sum_is_no_worse_than_a_wrong_neighbour() -> None:
    """40,608 = 9,216 + 31,392 KiB, also beside a row that is wrong."""
    found = judged(
        book("mnist-cnn", 64),
        """layer,quantity,value,batch
        conv2,output tensor,8000 KiB,64
        conv2,workspace,31392 KiB,64
        conv2,allocation size,40608 KiB,64""",
    )
    assert [row.verdict for row in found.rows] == ["wrong", "right", "right"]


# Mistakes inside a quotient.


def test_mistakes_inside_measured_rates() -> None:
    ledger = recorded("resnet50-train-fp32")
    whole = judged(ledger, "layer,quantity,value\n,wall time,1 s\n,performance,1 GFLOP/s\n,throughput,1")
    wall, performance, throughput = map(right_of, whole.rows)
    forward = sum(op.cost.flops or 0 for op in ledger.ops if op.phase == "forward" and op.cost is not None)
    for quantity, value, code in (
        ("performance", performance / 2 / 1e9, "macs-for-flops"),
        ("performance", forward / wall / 1e9, "forward-for-training"),
        ("throughput", throughput / (ledger.header.batch or 1), "batch-missing"),
        ("throughput", 2 * throughput, "batch-mislabelled"),
    ):
        unit = " GFLOP/s" if quantity == "performance" else ""
        row = judged(ledger, f"layer,quantity,value\n,{quantity},{value:.5f}{unit}").rows[0]
        assert row.verdict == "wrong" and code in codes(row), (quantity, code, row)


# Strictly.


def test_strict_gives_the_right_value_of_the_one_convention(tmp_path: Path) -> None:
    """A row that is right in another convention is wrong, and what is right is not what it says."""
    text = "layer,quantity,value,device,batch\nconv2,FLOP,679477248,,64\ntotal,params size,4.58 MB,,\n"
    loose, strict = (judged(book("mnist-cnn", 64), text, strict=strict) for strict in (False, True))
    assert loose.passes and not strict.passes and strict.strict
    assert [row.verdict for row in strict.rows] == ["wrong", "wrong"]
    assert right_of(strict.rows[0]) == 1_358_954_496 and strict.rows[0].off_by == 0.5
    assert strict.grade.startswith("0 of 2 right, 2 wrong")
    table, saved = tmp_path / "t.csv", tmp_path / "run.json"
    table.write_text(text)
    rooflight.save(book("mnist-cnn", 64), saved)
    for more, exit_code, verdict in (((), 0, "convention"), (("--strict",), 1, "wrong")):
        done = CliRunner().invoke(cli, ["compare", str(saved), "--claims", str(table), "--json", *more])
        rows = json.loads(done.stdout)["rows"]
        assert done.exit_code == exit_code and [row["verdict"] for row in rows] == [verdict, verdict]
    pages = [
        rooflight.report(saved, tmp_path / f"{strict}.md", claims=table, strict=strict, sections=("claims",))
        for strict in (False, True)
    ]
    kept = [Path(str(page)).read_text() for page in pages]
    assert "0 of 2 right, 2 wrong" in kept[1] and "2 of 2 right" in kept[0]


# Numbers of two countries.


def test_the_odd_number_is_named_by_its_cell() -> None:
    with pytest.raises(BadFile) as found:
        parse_claims(b"layer;time (s);AI\nconv1;0,0094;12.5\nconv2;0.51;3.5\n", "t.csv")
    assert str(found.value).startswith("t.csv: row 2, column time (s): 0,0094 has a decimal comma, and 12.5 (row 2")
    with pytest.raises(BadFile, match=r"row 3, column value: 0\.51 has a decimal point"):
        parse_claims(b"layer;quantity;value\na;time;0,0094\nb;time;0.51\nc;time;1,25\n", "t.csv")
    quoted = parse_claims(b'layer,time (ms),AI\nconv1,"0,0094",3.2\nconv2,0.51,2.2\n', "t.csv")
    assert [row.unreadable for row in quoted] == [True, False, False, False]
    assert quoted[0].trouble.startswith("row 2 of the file, column time (ms): '0,0094' is no number")
    assert "write 0.0094" in quoted[0].trouble
