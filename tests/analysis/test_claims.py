"""The linter for claims: how tables are read, what rows are about, which mistakes are found, and what the command says."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import rooflight
from rooflight import metrics
from rooflight.analysis.claims import (
    WORDS,
    CheckedTable,
    JudgedClaim,
    check,
    estimated_answers,
    parse_claims,
    read_claims,
)
from rooflight.analysis.claims.claim import Amount, CannotTell
from rooflight.analysis.claims.ledger_query import ClaimScope, LedgerBook
from rooflight.analysis.claims.model_parts import leaves, part_of
from rooflight.analysis.claims.quantities import QUANTITIES
from rooflight.analysis.claims.quantity_names import UnknownQuantity, named
from rooflight.commands.main import cli
from rooflight.errors import BadFile
from rooflight.ledger import Ledger, total
from rooflight.profiles import read as read_log
from rooflight.reporting.sections import claims_tables
from tests.fixtures.paths import DATA
from tests.fixtures.recordings import recording

CLAIMS = DATA / "claims"


@cache
def book(model: str, batch: int = 1, step: Any = "infer", dtype: str | None = None) -> Ledger:
    return rooflight.estimate(model, batch=batch, step=step, dtype=dtype)


@cache
def recorded(name: str = "mnist-cnn-infer-tf32") -> Ledger:
    return recording(f"h200/{name}")


def table(*rows: Mapping[str, object]) -> bytes:
    buffer = io.StringIO()
    columns = [
        "layer",
        "quantity",
        "value",
        *dict.fromkeys(key for row in rows for key in row if key not in ("layer", "quantity", "value")),
    ]
    writer = csv.DictWriter(buffer, columns)
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()


def judged(ledger: Ledger, *rows: Mapping[str, object]) -> CheckedTable:
    return check(ledger, parse_claims(table(*rows), "t.csv"))


def one(ledger: Ledger, layer: str, quantity: str, value: object, **more: object) -> JudgedClaim:
    return judged(ledger, {"layer": layer, "quantity": quantity, "value": value, **more}).rows[0]


def codes(row: JudgedClaim) -> list[str]:
    return [found.code for found in row.because]


def refused(content: bytes | str) -> str:
    with pytest.raises(BadFile) as found:
        parse_claims(content.encode() if isinstance(content, str) else content, "t.csv")
    message = str(found.value)
    assert "\n" not in message
    return message


# Reading.


def stated(value: str, quantity: str = "bytes", unit: str = "") -> Amount:
    (row,) = parse_claims(table({"layer": "", "quantity": quantity, "value": value, "unit": unit}), "t.csv")
    assert isinstance(row.stated, Amount)
    return row.stated


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("9.5 MB", 9_450_000, 9_550_000),
        ("31392 KiB", 31391.5 * 1024, 31392.5 * 1024),
        ("1,358,954,496", 1_358_954_495.5, 1_358_954_496.5),
        ("14080000", 14_075_000, 14_085_000),
        ("8192000", 8_191_500, 8_192_500),
        ("1290", 1289.5, 1290.5),
        ("100", 99.5, 100.5),
        ("2000000000", 1.95e9, 2.05e9),
        ("1.36e9", 1.355e9, 1.365e9),
        ("-22708224", -22_708_224.5, -22_708_223.5),
        ("0.22 MB", 215_000, 225_000),
        ("~5 GB", 4.5e9, 5.5e9),
    ],
)
def test_digits_say_how_much_was_rounded(text: str, low: float, high: float) -> None:
    found = stated(text)
    assert float(found.low) == pytest.approx(low, rel=1e-11)
    assert float(found.high) == pytest.approx(high, rel=1e-11)


@pytest.mark.parametrize(
    ("text", "unit", "quantity", "value"),
    [
        ("2.05 GFLOP", "", "flops", 2.05e9),
        ("2.05", "GFLOPs", "flops", 2.05e9),
        ("2.05 GFLOPS", "", "performance", 2.05e9),
        ("19.5", "TFLOP/s", "peak", 19.5e12),
        ("1555", "GB/s", "bandwidth", 1555e9),
        ("12.54", "FLOP/byte", "ridge", 12.54),
        ("20.3 ms", "", "wall time", 0.0203),
        ("20.3", "µs", "wall time", 20.3e-6),
        ("563 images/s", "", "throughput", 563),
        ("99.2 %", "", "share", 0.992),
        ("99.2", "", "share", 0.992),
        ("0.992", "", "share", 0.992),
        ("11.7M", "", "params", 11.7e6),
        ("1.8B", "", "params", 1.8e9),
        ("290x", "", "gpu memory / param bytes", 290),
        ("40,608 KiB", "", "workspace", 40608 * 1024),
        ("1 358 954 496 FLOP", "", "flops", 1358954496),
    ],
)
def test_units(text: str, unit: str, quantity: str, value: float) -> None:
    assert float(stated(text, quantity, unit).value) == pytest.approx(value)


def test_a_unit_may_say_that_flops_are_multiply_adds() -> None:
    assert one(book("mnist-cnn", 64), "conv2", "flops", "679477248 MAC").verdict == "right"
    assert one(book("mnist-cnn", 64), "conv2", "macs", "1358954496 FLOP").verdict == "right"


@pytest.mark.parametrize(
    "text",
    ["64x24x24", "64 x 24 x 24", "[64, 24, 24]", "(64, 24, 24)", "[-1, 64, 24, 24]", "Nx64x24x24", "64x64x24x24"],
)
def test_shapes(text: str) -> None:
    assert one(book("mnist-cnn", 64), "conv2", "output shape", text).verdict == "right"
    assert one(book("mnist-cnn", 64), "conv1", "output shape", text).verdict == "wrong"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("layer,quantity,value\n", "no rows"),
        ("layer,quantity\na,b\n", "no column 'value'"),
        ("layer,quantity,values\na,flops,1\n", "is it 'values'?"),
        ("a,b\n1,2\n", "no column 'layer'"),
        ("layer,quantity,value,layer\nconv2,flops,1,x\n", "the column 'layer' twice"),
        ('layer,quantity,value\nconv2,flops,"5\n', "no CSV"),
        ("layer;quantity;value\nconv2;wall time;1.234\n", "row 2, column value: 1.234 could be a thousand or a fraction"),
        (b"layer,quantity,value\x00\n", "binary"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_by_row_and_column(content: str | bytes, says: str) -> None:
    message = refused(content)
    assert message.startswith("t.csv")
    assert says in message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("layer,quantity,value\nconv2,flops,nan\n", "column value: nan is no value"),
        ("layer,quantity,value\nconv2,flops,-inf\n", "column value: -inf is no value"),
        ("layer,quantity,value\nconv2,flops,many\n", "column value: 'many' is no number"),
        ("layer,quantity,value\nconv2,flops,\n", "column value: the cell is empty"),
        ("layer,quantity,value\nconv2,,5\n", "column quantity: the cell is empty"),
        ("layer,quantity,value\nconv2,flops,1,358,954,496\n", "it has 6 cells, more than there are columns: put numbers with commas in quotes"),
        ("layer,quantity,value,unit\nconv2,flops,5,MB\n", "column unit: flops has no unit 'MB'"),
        ("layer,quantity,value,unit\nconv2,flops,5 GFLOP,MFLOP\n", "the column unit says 'MFLOP'"),
        ("layer,quantity,value\nconv2,flops,5 apples\n", "column value: flops has no unit 'apples'"),
        ("layer,quantity,value,batch\nconv2,flops,5,-1\n", "column batch: '-1' is no batch"),
        ("layer,quantity,value,batch\nconv2,flops,5,2.5\n", "column batch"),
        ("layer,quantity,value,step\nconv2,flops,5,sideways\n", "column step: 'sideways' is no step"),
        ("layer,quantity,value,precision\nconv2,flops,5,fp99\n", "column precision"),
        ("layer,quantity,value\nconv2,output shape,big\n", "column value: 'big' is no shape"),
        ("layer,quantity,value\nconv2,flops,some 1.36e9\n", "'some 1.36e9' is no number: write ~ in front"),
        ("layer,quantity,value\ntotal,flop/s,47.1 G\n", "performance has no unit 'G': it is counted in GFLOP/s"),
        ('layer,quantity,value\nconv2,bytes,1.5 MB\nconv2,params,"1,5 M"\n', "'1,5' is no number as this file"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_read_says_why_and_the_rest_is_graded(content: str, says: str) -> None:
    *_, bad = parse_claims(content.encode(), "t.csv")
    assert bad.unreadable and says in bad.trouble
    # Beside a right row: that one is graded, and the table does not pass.
    fields = content.splitlines()[0].count(",") - 2
    more = parse_claims(f"{content}conv2,flops,1358954496{',' * fields}\n".encode(), "t.csv")
    found = check(book("mnist-cnn", 64), more)
    assert [row.verdict for row in found.rows[-2:]] == ["unreadable", "right"]
    assert not found.passes and found.grade.endswith("1 cannot be read")
    assert says in "\n".join(claims_tables.claims_document(found).notes)


def test_encodings() -> None:
    with pytest.raises(BadFile, match="UTF-16: save it as CSV in UTF-8"):
        read_claims(CLAIMS / "utf16.csv")
    with pytest.raises(BadFile, match="line 2 is not UTF-8"):
        read_claims(CLAIMS / "latin1.csv")
    with pytest.raises(BadFile, match="does not exist"):
        read_claims(CLAIMS / "none.csv")
    assert check(book("mnist-cnn", 64), read_claims(CLAIMS / "bom.csv")).passes
    # A spreadsheet of a country that writes decimals with a comma.
    assert check(book("mnist-cnn", 64), read_claims(CLAIMS / "semicolons.csv")).passes


def test_columns_in_any_order_and_more_of_them() -> None:
    text = "who,value,Phase,Quantity,MODULE\nAnna,1358954496,forward,FLOP,conv2\n"
    (row,) = parse_claims(text.encode(), "t.csv")
    assert (row.layer, row.step, row.remarks) == ("conv2", "forward", {"who": "Anna"})
    assert check(book("mnist-cnn", 64), [row]).passes


def test_every_spelling_is_of_one_quantity() -> None:
    seen: dict[str, str] = {}
    for name, quantity in QUANTITIES.items():
        for word in (name, *quantity.spelled) if name != "ratio" else ():
            assert seen.setdefault(word.lower(), name) == name
            assert named(word).quantity is quantity
    with pytest.raises(UnknownQuantity, match=r"did you mean .*flops"):
        named("flopss")
    with pytest.raises(UnknownQuantity, match="a ratio of what"):
        named("ratio")
    assert named("FLOPs per image").per_sample


@pytest.mark.parametrize(
    ("quantity", "value", "name", "amount"),
    [
        ("GFLOPs", "1.36", "flops", 1.36e9),
        ("MFLOPs", "1359", "flops", 1359e6),
        ("GFLOPs", "1.36 GFLOP", "flops", 1.36e9),
        ("FLOPs (G)", "1.36", "flops", 1.36e9),
        ("GMACs", "0.679", "macs", 0.679e9),
        ("#params", "18496", "params", 18496),
        ("params (K)", "18.5", "params", 18500),
        ("weights", "18496", "params", 18496),
        ("weights", "73984 bytes", "param_bytes", 73984),
        ("memory (MB)", "9.4", "memory", 9.4e6),
        ("FLOP/B", "987", "intensity", 987),
        ("GFLOP/s", "47.1", "performance", 47.1e9),
        ("TFLOP/s", "47.1", "performance", 47.1e12),
        ("GFLOP/s", "47.1 TFLOP/s", "performance", 47.1e12),
        ("% of roof", "0.1", "roof_share", 0.001),
        ("wall time (ms)", "1.5", "wall_time", 0.0015),
        ("output", "2359296", "output_elements", 2359296),
        ("output", "9.44 MB", "output_bytes", 9.44e6),
    ],
)
def test_names_with_their_units(quantity: str, value: str, name: str, amount: float) -> None:
    (row,) = parse_claims(table({"layer": "conv2", "quantity": quantity, "value": value}), "t.csv")
    assert row.named.quantity.name == name and float(row.stated.value) == pytest.approx(amount)  # type: ignore[union-attr]


def test_names_that_need_more() -> None:
    ledger = book("mnist-cnn", 64)
    assert one(ledger, "conv2", "output", "64x64x24x24").verdict == "right"
    phase = one(book("mnist-cnn", 8, "train"), "conv2", "backward flops", 5)
    assert phase.verdict == "unknown" and "write flops as quantity, and backward in the column phase" in phase.reason
    assert "training in the column phase" in one(ledger, "", "training flops", 5).reason
    memory = one(ledger, "conv2", "memory (MB)", "9.44")
    assert memory.verdict == "unknown" and "whose memory" in memory.reason and "that of output_bytes" in memory.reason
    for text in ("conv 2", "conv-2", "Conv_2"):
        assert one(ledger, text, "params", 18496).verdict == "right", text
    with pytest.raises(CannotTell, match="write a longer one"):
        part_of(book("resnet18"), "conv 2")


def test_a_wide_table_is_one_claim_a_cell() -> None:
    text = "Layer,GFLOPs,#params,Output,batch,who\nconv1,0.0249,320,64x32x26x26,64,A\nconv2,1.36,5,,64,B\nrelu,-,,,,C\n"
    rows = parse_claims(text.encode(), "t.csv")
    assert [(row.row, row.layer, row.named.quantity.name) for row in rows] == [
        (2, "conv1", "flops"), (3, "conv1", "params"), (4, "conv1", "output_shape"), (5, "conv2", "flops"),
        (6, "conv2", "params"),
    ]  # fmt: skip
    assert rows[3].remarks == {"who": "B", "row of the file": "3"} and rows[3].batch == 64
    found = check(book("mnist-cnn", 64), rows)
    assert [row.verdict for row in found.rows] == ["right", "right", "right", "right", "wrong"]
    assert "states nothing" in refused("layer,flops\nconv1,-\n")


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reader(content: bytes) -> None:
    """Rows, or one line that names the file; anything else that is raised fails."""
    refusal = ""
    try:
        rows = parse_claims(content, "t.csv")
    except BadFile as error:
        rows, refusal = [], str(error)
    assert bool(rows) != refusal.startswith("t.csv")
    assert "\n" not in refusal


_WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["conv2", "total", "Conv2d-1", "Conv2d", "relu", "V100", "K80", "mnist-cnn", "vgg11", "0", "<loss>"]
    ),
)
_QUANTITIES = st.one_of(
    st.sampled_from([word for q in QUANTITIES.values() for word in (q.name, *q.spelled)]),
    st.sampled_from(
        [
            "flops / bytes",
            "wall time / gpu busy",
            "flops of conv2 / flops",
            "dram__bytes_read.sum",
            "dram__bytes_reads.sum",
        ]
    ),
    st.text(max_size=8),
)
_VALUES = st.one_of(
    st.integers(-5, 10**13).map(str),
    st.floats(0, 1e12).map(repr),
    st.sampled_from(["3.5 MB", "64x24x24", "memory", "V100", "99 %", ">5", "0"]),
    st.text(max_size=6),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            _WORDS,
            _QUANTITIES,
            _VALUES,
            st.sampled_from(["", "1", "64"]),
            st.sampled_from(["", "forward", "training"]),
            st.sampled_from(["", "V100", "h200", "a100-sxm-40", "x"]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 3),
)
def test_no_table_breaks_the_linter(rows: list[tuple[str, ...]], which: int) -> None:
    """Whatever stands in a table, of an estimate, a training step, a measurement or a log: verdicts, or one line."""
    ledger = [book("mnist-cnn", 64), book("mnist-cnn", 8, "train"), recorded(), log()][which]
    names = ("layer", "quantity", "value", "batch", "step", "device")
    try:
        claims = parse_claims(table(*(dict(zip(names, row, strict=True)) for row in rows)), "t.csv")
    except BadFile:
        return
    found = check(ledger, claims)
    assert len(found.rows) == len(claims)
    for row in found.rows:
        assert row.verdict in WORDS
        assert row.verdict not in ("unknown", "unreadable") or row.reason
    claims_tables.claims_document(found).to_markdown()
    json.dumps(claims_tables.claims_data(found))


@cache
def log() -> Ledger:
    return read_log(DATA / "ncu" / "mnist_conv2_64_tf32.csv.gz")


# What a row is about.


def test_layers_by_path_suffix_number_type_and_op() -> None:
    ledger = book("resnet18")
    for text, path in (
        ("layer1.0.conv1", "layer1.0.conv1"),
        ("layer1_0_conv1", "layer1.0.conv1"),
        ("0.downsample.0", None),
        ("conv1", "conv1"),
        ("layer4.1.bn2", "layer4.1.bn2"),
    ):
        if path is None:
            with pytest.raises(CannotTell, match="write a longer one"):
                part_of(ledger, text)
        else:
            assert part_of(ledger, text).name == path
    assert part_of(ledger, "Conv2d-1").name == "conv1"
    assert part_of(ledger, "Conv2d").kind == "type" and len(part_of(ledger, "conv").modules) == 20
    assert part_of(ledger, "max_pool2d").name == "aten::max_pool2d_with_indices"
    assert part_of(ledger, "ResNet-18").kind == part_of(ledger, "total").kind == "total"
    with pytest.raises(CannotTell, match="is a BatchNorm2d"):
        part_of(ledger, "Conv2d-2")
    with pytest.raises(CannotTell, match="did you mean layer1"):
        part_of(ledger, "layer1.0.conv9")


@pytest.mark.parametrize("model", ["mnist-cnn", "googlenet", "vit-b-16", "transformer", "gpt2"])
def test_a_row_of_another_batch_is_answered_as_a_trace_of_it_would(model: str) -> None:
    of_four = LedgerBook(book(model, 4))
    for batch in (1, 16):
        other = LedgerBook(book(model, batch))
        for name in (
            "flops",
            "macs",
            "bytes",
            "bytes_read",
            "bytes_written",
            "other_flops",
            "intensity",
            "params",
            "forward_backward_bytes",
            "total_size",
        ):
            found, right = (
                estimated_answers.ANSWERS[name](ClaimScope(side, name, part_of(side.ledger, ""), None, batch)).value
                for side in (of_four, other)
            )
            assert found == right, name
    layer = next(module.path for module in leaves(of_four.ledger) if module.params and module.outputs)
    for name in ("output_bytes", "output_elements", "weight_output_bytes", "flops"):
        found, right = (
            estimated_answers.ANSWERS[name](ClaimScope(side, name, part_of(side.ledger, layer), None, 16)).value
            for side in (of_four, LedgerBook(book(model, 16)))
        )
        assert found == right, name


def test_a_model_that_cannot_be_built_again_is_not_guessed() -> None:
    changed = rooflight.estimate("mnist-cnn", batch=4, overrides={"channels": "20,40"})
    row = one(changed, "total", "bytes", 5, batch=1)
    assert row.verdict == "unknown" and "not proportional to the batch" in row.reason
    assert row.needs == "rooflight estimate mnist-cnn --set channels=20,40 -o run.json"
    assert one(changed, "conv2", "flops", 8294400, batch=1).verdict == "right"
    older = rooflight.estimate("mnist-cnn", batch=4, overrides={"channels": "20,40"}, target="cuda:80")
    assert one(older, "total", "bytes", 5, batch=1).needs.endswith("--set channels=20,40 --target cuda:80 -o run.json")


def test_a_live_module_needs_another_call() -> None:
    ledger = rooflight.estimate(nn.Linear(4, 4), torch.zeros(2, 4), target="cuda:80")
    needs = one(ledger, "total", "flops", 5, step="training").needs
    assert needs == 'rooflight.estimate(model, x, step="train", target="cuda:80")'
    assert one(ledger, "total", "wall time", 5).needs == "rooflight.measure(model, x)"


def test_rows_of_something_else_say_which_ledger_is_needed() -> None:
    ledger = book("vgg11", 16)
    cases: list[tuple[dict[str, object], str, str]] = [
        ({"model": "My net (2)", "quantity": "params"}, "the row of My net (2)", "a ledger of My net (2)"),
        ({"step": "training", "quantity": "flops"}, "the ledger is of an inference", "--step train"),
        ({"precision": "bf16", "quantity": "param bytes"}, "the ledger is in fp32", "--dtype bf16"),
        ({"quantity": "wall time"}, "nothing was measured", "rooflight measure vgg11"),
        (
            {"quantity": "dram bytes", "device": "V100"},
            "nothing was measured on V100",
            "on V100: rooflight measure vgg11",
        ),
        ({"quantity": "peak", "device": "V999"}, "there is no device", ""),
        ({"quantity": "peak", "device": "/etc/passwd"}, "no files", ""),
        ({"quantity": "peak"}, "The row names none", "the column device"),
        ({"layer": "conv9", "quantity": "flops"}, "no layer 'conv9'", ""),
        ({"quantity": "activations"}, "an inference keeps no", "--step train"),
        ({"quantity": "bound"}, "no device is known", "a row with a device"),
    ]
    for cells, reason, needs in cases:
        row = judged(ledger, {"layer": "", "value": "memory" if cells["quantity"] == "bound" else 5, **cells}).rows[0]
        assert row.verdict == "unknown", cells
        assert reason in row.reason and needs in row.needs, (row.reason, row.needs)
    other = one(recorded(), "total", "wall time", "1 ms", batch=32)
    assert "measured at batch 64" in other.reason
    assert "measured on NVIDIA H200" in one(recorded(), "total", "wall time", "1 ms", device="V100").reason


def test_a_log_has_counters_and_no_layers() -> None:
    table_ = judged(
        log(),
        {"layer": "", "quantity": "sm__ops_path_tensor_src_tf32_dst_fp32.sum", "value": 1358954496},
        {"layer": "conv2", "quantity": "flops", "value": 5},
        {"layer": "", "quantity": "flops", "value": 5},
    )
    assert [row.verdict for row in table_.rows] == ["right", "unknown", "unknown"]
    assert "log of kernels" in table_.rows[2].reason


# Right to the digits that were given, and wrong beyond them.

LAYERS = [module.path for module in leaves(rooflight.estimate("vgg11")) if module.params]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LAYERS),
    st.sampled_from(["flops", "macs", "params", "output_bytes", "bytes"]),
    st.integers(2, 12),
    st.sampled_from([1, 16, 64]),
)
def test_what_the_ledger_says_is_right_in_any_number_of_digits(
    layer: str, quantity: str, digits: int, batch: int
) -> None:
    ledger = book("vgg11", 16)
    value = estimated_answers.ANSWERS[quantity](
        ClaimScope(LedgerBook(ledger), quantity, part_of(ledger, layer), None, batch)
    ).value
    assert not isinstance(value, tuple)
    row = one(ledger, layer, quantity, f"{float(value):.{digits - 1}e}", batch=batch)
    assert row.verdict == "right", row
    off = one(ledger, layer, quantity, f"{float(value) * 1.7:.{digits - 1}e}", batch=batch)
    assert off.verdict != "right"


def test_no_known_mistake() -> None:
    row = one(book("mnist-cnn", 64), "conv2", "flops", 4348654387)
    assert (row.verdict, row.because) == ("wrong", ())
    assert row.off_by == pytest.approx(3.2)
    text = claims_tables.claims_document(
        judged(book("mnist-cnn", 64), {"layer": "conv2", "quantity": "flops", "value": 4348654387})
    ).notes[0]
    assert "No known mistake gives it; off by 3.2x" in text
    near = one(book("resnet18", 256, "train"), "", "parameter bytes", "89.55 MiB")
    assert "0.41% off: replicas counted" in near.reason


# Mistakes, each by the value it gives.

CONV2 = 2 * 3 * 3 * 32 * 64 * 24 * 24 * 32
"""MNIST's second convolution at batch 32: Cout is not the batch there."""


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (CONV2 // 64, "cout-missing"),
        (CONV2 // 9, "kernel-missing"),
        (CONV2 // 3, "kernel-not-squared"),
        (CONV2 // (24 * 24), "positions-missing"),
        (CONV2 * 32, "batch-twice"),
        (CONV2 // (24 * 24) * 26 * 26, "size-of-the-input"),
        (CONV2 // (24 * 24) * 12 * 12, "size-after-the-pool"),
        (CONV2 * 3, "training-for-forward"),
        (CONV2 * 10, "off-by-ten"),
        (CONV2 // 2 // 64, "cout-missing+macs-for-flops"),
        (CONV2 // 2 // 9, "kernel-missing+macs-for-flops"),
        (CONV2 * 4, "batch-mislabelled"),
        (CONV2 + 100_000, "digit-slip"),
        (2 * 32 * 32 * 26 * 26 * 9, "another-layer"),
    ],
)
def test_mistakes_of_a_convolution(value: int, code: str) -> None:
    row = one(book("mnist-cnn", 32), "conv2", "flops", value, batch=32)
    assert row.verdict == "wrong"
    assert code in codes(row)
    assert not row.ambiguous or len(codes(row)) > 1


def test_two_mistakes_that_give_one_value_are_both_named() -> None:
    """Cin = 32 = batch."""
    row = one(book("mnist-cnn", 32), "conv2", "flops", CONV2 // 32, batch=32)
    assert codes(row) == ["cin-missing", "batch-missing"]
    assert row.ambiguous
    unlike = one(book("mnist-cnn", 16), "conv2", "flops", CONV2 // 2 // 32, batch=16)
    assert codes(unlike) == ["cin-missing"] and not unlike.ambiguous


@pytest.mark.parametrize(
    ("model", "layer", "quantity", "value", "code"),
    [
        ("mnist-cnn", "conv2", "parameters", 18496 * 64, "parameters-times-batch"),
        ("mnist-cnn", "conv2", "parameter bytes", 18496 * 2, "element-size"),
        ("mnist-cnn", "conv2", "parameter bytes", 18496, "element-size"),
        ("mnist-cnn", "conv2", "output bytes", 9437184 * 8, "bits-for-bytes"),
        ("mnist-cnn", "conv2", "output bytes", 9437184 // 64, "batch-missing"),
        ("mnist-cnn", "conv2", "output + parameter bytes", 9437184, "output-only"),
        ("mnist-cnn", "conv2", "bytes", 9437184 + 73984, "input-left-out"),
        ("mnist-cnn", "fc1", "flops", 2 * 9216 * 64, "columns-missing"),
        ("mnist-cnn", "fc1", "flops", 2 * 128 * 64, "rows-missing"),
        ("mnist-cnn", "conv2", "output shape", "64x26x26", "size-of-the-input"),
        ("mnist-cnn", "conv1", "output shape", "1x28x28", "shape-of-the-input"),
        ("resnet18", "conv1", "params", 9472, "bias-added"),
        ("resnet18", "conv1", "output size", 224, "size-of-the-input"),
        ("resnet18", "conv1", "output size", 109, "padding-forgotten"),
        ("resnet18", "layer2.0.conv1", "output size", 28 * 2, "size-of-the-input"),
        ("resnet18", "total", "params", 11689512 * 4, "replicas-counted"),
        ("vgg11", "total", "params", 133047848, "another-model"),
    ],
)
def test_mistakes_of_other_quantities(model: str, layer: str, quantity: str, value: object, code: str) -> None:
    row = one(book(model, 64), layer, quantity, value)
    assert row.verdict == "wrong", row
    assert code in codes(row), codes(row)


@pytest.mark.parametrize(
    ("layer", "quantity", "value", "code"),
    [
        ("conv2", "flops", CONV2 // 2, "macs-for-flops"),
        ("conv2", "macs", CONV2, "flops-for-macs"),
        ("conv2", "flops", CONV2 // 2 + 32 * 64 * 24 * 24, "macs-and-bias"),
        ("conv2", "flops", CONV2 + 32 * 64 * 24 * 24, "bias-apart"),
        ("conv2", "params", 18432, "weights-only"),
        ("total", "params size", "4.577 MB", "binary-prefix"),
        ("total", "total size", "5.03 MiB", "hooked-parameters"),
    ],
)
def test_conventions(layer: str, quantity: str, value: object, code: str) -> None:
    row = one(book("mnist-cnn", 32), layer, quantity, value, batch=1 if quantity == "total size" else 32)
    assert row.verdict == "convention", row
    assert code in codes(row)
    assert judged(
        book("mnist-cnn", 32),
        {"layer": layer, "quantity": quantity, "value": value, "batch": 1 if quantity == "total size" else 32},
    ).passes


def test_training_and_its_phases() -> None:
    ledger = book("mnist-cnn", 32, "train")
    forward, backward = (
        sum(op.cost.flops for op in ledger.ops if op.phase == phase) for phase in ("forward", "backward")
    )
    assert one(ledger, "", "flops", forward, step="forward").verdict == "right"
    assert one(ledger, "", "flops", backward, step="backward").verdict == "right"
    assert one(ledger, "", "flops", forward + backward, step="training").verdict == "right"
    for value, step, code in (
        (forward, "training", "forward-for-training"),
        (3 * forward, "training", "three-forwards"),
        (forward, "backward", "forward-for-backward"),
        (forward + backward, "forward", "training-for-forward"),
        (forward // 2, "training", "forward-for-training+macs-for-flops"),
    ):
        row = one(ledger, "", "flops", value, step=step)
        assert row.verdict == "wrong" and code in codes(row), (step, codes(row))
    sizes = {
        "gradients": "gradient_bytes",
        "optimizer state": "optimizer_state_bytes",
        "activations": "kept_for_backward_bytes",
    }
    from rooflight import summary

    for name, field in sizes.items():
        assert one(ledger, "", name, getattr(summary.sizes(ledger), field)).verdict == "right"
    swapped = one(ledger, "", "activations", summary.sizes(ledger).gradient_bytes)
    assert "memory-kinds-confused" in codes(swapped)


def test_a_training_steps_forward_and_half_of_it() -> None:
    """conv1 has no gradient of its input: its multiply-adds are its forward FLOPs, and both are named."""
    ledger = recorded("resnet50-train-fp32")
    row = one(ledger, "conv1", "flops", "236 MFLOP", batch=1)
    assert row.ambiguous and codes(row) == ["macs-for-flops", "forward-for-training"]
    note = claims_tables.claims_document(
        judged(ledger, {"layer": "conv1", "quantity": "flops", "value": "236 MFLOP", "batch": 1})
    ).notes[0]
    assert "or wrong" in note and "the forward alone" in note
    forward = sum(op.cost.flops for op in ledger.ops if op.phase == "forward" and op.cost is not None)
    assert f"{2 * forward / 1e9:.0f}" == "262"
    twice = one(ledger, "total", "flops", "262 G")
    assert twice.verdict == "wrong" and codes(twice) == ["backward-as-forward"]
    # Half of what the other layers have is no forward.
    assert not one(ledger, "layer1.0.conv1", "flops", 77070336 // 2, batch=1).ambiguous


def test_alternatives_are_few_and_can_apply() -> None:
    ledger = recorded("resnet50-train-fp32")
    for value in (25690112, 25690112 // 2, 25690112 * 2, 25690112 * 16, 12345678):
        row = one(ledger, "layer1.0.conv1", "flops", value, batch=1)
        assert len(row.because) <= 3
        assert "causal" not in " ".join((row.reason, *(found.text for found in row.because)))
    # A model with attention still has that convention.
    gpt = book("gpt2", 1)
    causal = sum(op.cost.flops_causal or 0 for op in gpt.ops if op.cost is not None)
    assert codes(one(gpt, "total", "flops", causal)) == ["causal"]


def test_rows_that_make_another_are_of_its_batch() -> None:
    run = {"layer": "", "device": "V100"}
    rows = (
        {**run, "quantity": "measured flops", "value": 100_000_000_001, "batch": 1},
        {**run, "quantity": "wall time", "value": "10 ms", "batch": 16},
    )
    ledger = book("vgg11", 16)
    rate = {**run, "quantity": "flop/s", "value": "10.0 TFLOP/s"}
    for batch in ("", 1, 16):
        assert judged(ledger, *rows, {**rate, "batch": batch}).rows[2].verdict == "unknown"
    same = judged(ledger, {**rows[0], "batch": ""}, rows[1], rate)
    assert same.rows[2].verdict == "right" and same.rows[2].answer.rows == (2, 3)
    assert judged(ledger, rows[0], {**rows[1], "batch": 1}, {**rate, "batch": 1}).rows[2].verdict == "right"


def test_grouped_convolutions() -> None:
    import torch

    layer = torch.nn.Sequential(torch.nn.Conv2d(32, 64, 3, groups=8))
    ledger = rooflight.estimate(layer, torch.zeros(4, 32, 16, 16, device="meta"))
    right = 2 * 4 * 64 * 14 * 14 * 4 * 9
    assert one(ledger, "0", "flops", right).verdict == "right"
    assert "groups-ignored" in codes(one(ledger, "0", "flops", 8 * right))


def test_measured_runs() -> None:
    """From a recording: counters, clocks, memory, and one for another."""
    ledger = recorded()
    table_ = judged(
        ledger,
        {"layer": "", "quantity": "wall time", "value": "0.27 ms"},
        {"layer": "conv2", "quantity": "tensor flops", "value": 1358954496},
        {"layer": "conv2", "quantity": "workspace", "value": 5612032},
        {"layer": "", "quantity": "peak allocated", "value": 64016896},
        {"layer": "", "quantity": "peak allocated", "value": 77594624, "note": "reserved"},
        {"layer": "", "quantity": "gpu memory", "value": 77594624 + 717225984},
        {"layer": "", "quantity": "dram read", "value": "5.20 MB"},
        {"layer": "", "quantity": "dram bytes", "value": "5.20 MB"},
        {"layer": "", "quantity": "measured flops", "value": 2433664 + 5155840 + 101687296},
        {"layer": "", "quantity": "kernels", "value": 17},
        {"layer": "", "quantity": "throughput", "value": "241000 images/s"},
        {"layer": "conv2", "quantity": "wall time", "value": "1 ms"},
        {"layer": "", "quantity": "gpu busy / wall time", "value": "49 %"},
    )
    assert [row.verdict for row in table_.rows] == [
        "right",
        "right",
        "right",
        "right",
        "wrong",
        "right",
        "right",
        "wrong",
        "wrong",
        "right",
        "right",
        "unknown",
        "right",
    ]
    assert "the reserved peak, not the allocated peak" in table_.rows[4].because[0].text
    assert codes(table_.rows[7]) == ["read-or-written"]
    assert codes(table_.rows[8]) == ["fma-counted-once"]


def test_the_row_of_the_models_name_is_that_of_its_kernels() -> None:
    """compare shows both: the model's modules, and the step that waits for the host."""
    ledger = recorded("resnet50-train-fp32")
    assert one(ledger, "resnet50", "bound", "memory").verdict == "right"
    assert one(ledger, "resnet50", "bound", "host").verdict == "right"
    assert codes(one(ledger, "total", "bound", "memory")) == ["host-bound"]


def test_a_measured_ledger_is_judged_as_compare_shows_it() -> None:
    """The cells of compare's own table of verdicts, typed off, are all right."""
    from rooflight.analysis.verdicts import Judge

    ledger = recorded()
    judge = Judge(ledger)
    whole = judge.step().whole
    rows: list[dict[str, object]] = []
    for found in (*judge.verdicts(), whole):
        if found.reason:
            continue
        layer = {"layer": found.name or "mnist-cnn"}
        rows += [
            {**layer, "quantity": "intensity", "value": f"{found.intensity:.3g}"},
            {**layer, "quantity": "intensity", "value": f"{found.estimated_intensity:.3g}", "note": "by formula"},
            {**layer, "quantity": "percent of roof", "value": f"{found.percent_of_roof:.1f} %"},
            {**layer, "quantity": "side", "value": found.side_text},
            {**layer, "quantity": "bound", "value": judge.step().bound if found is whole else found.bound},
        ]
    table_ = judged(ledger, *rows)
    assert [(row.claim.where, row.claim.value) for row in table_.rows if row.verdict != "right"] == []
    assert "as counted" in table_.rows[0].reason and "by formula" in table_.rows[1].reason
    assert any(note.startswith("row") and "as counted" in note for note in claims_tables.claims_document(table_).notes)
    conv2 = one(ledger, "conv2", "bound", "compute")
    assert conv2.verdict == "right" and conv2.reason == "but at 8.4% of that roof: neither roof"
    # Latency is no bound any more: a table that says so is right of a part that is far from its roof.
    late = one(ledger, "conv2", "bound", "latency")
    assert late.verdict == "right" and late.reason == "far from its roof (neither roof), which is that of compute"
    assert one(ledger, "conv2", "bound", "magic").reason.endswith("is no bound: write compute, memory or host")
    share = one(ledger, "conv2", "percent of roof", "8.4 %")
    assert share.answer.origin == "the recorded step, as `rooflight compare` shows it"
    assert codes(one(ledger, "fc2", "bound", "compute")) == ["wrong-side"]
    share = one(ledger, "conv2", "percent of roof", "11.84 %")
    assert share.verdict == "wrong" and share.answer.value == pytest.approx(0.0843, abs=5e-5)
    # Another batch was not measured: there the formula alone answers.
    assert one(ledger, "conv2", "intensity", 987, batch=1).verdict != "right"


# Several rows.


def test_total_and_rounded_rows() -> None:
    rows = [
        {"layer": f"Conv2d-{n}", "quantity": "FLOP per image", "value": value}
        for n, value in (
            (1, "0.173e9"),
            (4, "1.85e9"),
            (7, "1.85e9"),
            (9, "3.70e9"),
            (12, "1.85e9"),
            (14, "3.70e9"),
            (17, "0.925e9"),
            (19, "0.925e9"),
        )
    ]
    rows += [
        {"layer": f"Linear-{n}", "quantity": "FLOP per image", "value": value}
        for n, value in ((23, "0.206e9"), (26, "0.0336e9"), (29, "0.00819e9"))
    ]
    good = judged(
        book("vgg11", 16), *rows, {"layer": "total", "quantity": "flops", "value": "243.5 GFLOP", "batch": 16}
    )
    assert good.passes and good.counts["right"] == 12
    bad = judged(book("vgg11", 16), *rows, {"layer": "total", "quantity": "flops", "value": "200 GFLOP", "batch": 16})
    assert bad.has("total-not-the-sum")
    # A total with half of its rows is no claim about their sum.
    some = judged(
        book("vgg11", 16), *rows[:5], {"layer": "total", "quantity": "flops", "value": "243.5 GFLOP", "batch": 16}
    )
    assert some.passes


def test_a_consistent_table_of_multiply_adds_passes() -> None:
    rows = [
        {"layer": f"conv{n}", "quantity": "FLOP", "value": value, "batch": 1}
        for n, value in ((1, 194688), (2, 10616832))
    ]
    found = judged(book("mnist-cnn", 64), *rows)
    assert found.passes and found.counts["convention"] == 2
    assert found.grade == "2 of 2 right (2 of them under another convention), 0 wrong"


def test_one_value_in_two_units_is_no_disagreement() -> None:
    """2 x 0.6795 GMAC are the 1,358,954,496 FLOPs; the same number without its unit is a mixture, and half is wrong."""
    flops = {"layer": "conv2", "quantity": "flops", "value": "1358954496"}
    found = judged(book("mnist-cnn", 64), flops, {**flops, "value": "0.6795 GMAC"})
    assert [row.verdict for row in found.rows] == ["right", "right"]
    assert not found.findings and found.passes
    mixed = judged(book("mnist-cnn", 64), flops, {**flops, "value": "679477248"})
    assert mixed.has("disagreeing") and mixed.has("macs-and-flops-mixed") and not mixed.passes
    wrong = judged(book("mnist-cnn", 64), flops, {**flops, "value": "0.6795 GMAC"}, {**flops, "value": "0.5 GMAC"})
    assert wrong.has("disagreeing") and not wrong.passes


def test_units_mixed() -> None:
    found = judged(
        book("mnist-cnn", 64),
        {"layer": "conv2", "quantity": "output bytes", "value": "9.0 MB"},
        {"layer": "fc1", "quantity": "param bytes", "value": "4.72 MB"},
    )
    assert [row.verdict for row in found.rows] == ["convention", "right"]
    assert found.has("units-mixed") and not found.passes


def test_a_row_that_does_not_follow_from_the_others() -> None:
    run = {"layer": "", "device": "V100"}
    found = judged(
        book("vgg11", 16),
        {**run, "quantity": "measured flops", "value": 221705941507},
        {**run, "quantity": "dram bytes", "value": 16568700000},
        {**run, "quantity": "intensity", "value": 13.381},
        {**run, "quantity": "intensity", "value": 31.1, "note": "other"},
    )
    assert [row.verdict for row in found.rows] == ["unknown", "unknown", "right", "wrong"]
    assert codes(found.rows[3]) == ["does-not-follow"]
    assert found.rows[2].answer.rows == (2, 3)


def test_devices() -> None:
    ledger = book("vgg11", 16)
    for device, quantity, value, precision, verdict in (
        ("A100", "bandwidth", "1555 GB/s", "", "right"),  # of the one with 40 GB
        ("a100-sxm-80", "bandwidth", "1555 GB/s", "", "wrong"),
        ("A100", "peak", "19.5 TFLOP/s", "fp32", "right"),
        ("A100", "peak", "156 TFLOP/s", "fp32", "wrong"),
        ("A100", "peak", "156 TFLOP/s", "tf32", "right"),
        ("H200", "ridge", "103 FLOP/byte", "tf32", "right"),
        ("V100", "bandwidth", "300 GB/s", "", "wrong"),
        ("V100", "nvlink bandwidth", "300 GB/s", "", "right"),
        ("MI250X", "peak", "2 PFLOP/s", "fp8", "unknown"),
    ):
        row = one(ledger, "", quantity, value, device=device, precision=precision)
        assert row.verdict == verdict, (device, quantity, row)
    assert codes(one(ledger, "", "bandwidth", "1555 GB/s", device="a100-sxm-80")) == ["another-device"]
    assert codes(one(ledger, "", "bandwidth", "300 GB/s", device="V100")) == ["link-for-memory"]
    assert "source" not in one(ledger, "", "peak", "15.7 TFLOP/s", device="V100").answer.origin  # the source itself


# The command.

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("claims") / "run.json"
    rooflight.save(book("mnist-cnn", 64), path)
    return path


def test_the_command_grades(run: Run, saved: Path, tmp_path: Path) -> None:
    code, out, _ = run("compare", saved, "--claims", CLAIMS / "mnist.csv")
    assert code == 1
    assert " ".join(out.split()).startswith(
        "10 of 14 right (3 of them under another convention), 3 wrong, 1 cannot be checked, 1 mistake over several rows"
    )
    assert "2 × 64 × 64 × 24 × 24 × 32 × 3 × 3" in " ".join(out.split())
    right = tmp_path / "right.csv"
    right.write_text("layer,quantity,value\nconv2,flops,1.36e9\n")
    assert run("compare", saved, "--claims", right)[0] == 0
    bad = tmp_path / "bad.csv"
    bad.write_text("layer,quantity\nconv2,flops\n")
    code, _, err = run("compare", saved, "--claims", bad)
    assert code == 2
    assert err.count("\n") == 1 and "no column 'value'" in err


def test_exit_codes(saved: Path, tmp_path: Path) -> None:
    """0 nothing wrong, 1 something wrong or nothing checked, 2 no table."""
    runner = CliRunner()

    def code(text: str, *more: str) -> int:
        path = tmp_path / "t.csv"
        path.write_text(text)
        return runner.invoke(cli, ["compare", str(saved), "--claims", str(path), *more]).exit_code

    right, once = "conv2,flops,1358954496\n", "conv2,flops,679477248\n"
    head = "layer,quantity,value\n"
    assert code(head + right) == 0
    assert code(head + right + "total,accuracy,97 %\n") == 0
    assert code(head + "total,accuracy,97 %\ntotal,wall time,1 ms\n") == 1
    assert code(head + "conv2,flops,5\n") == 1
    assert (code(head + once), code(head + once, "--strict"), code(head + right, "--strict")) == (0, 1, 0)
    assert code(head + "total,params size,4.58 MB\n", "--strict") == 1
    nothing = judged(book("mnist-cnn", 64), {"layer": "", "quantity": "accuracy", "value": 97})
    assert nothing.grade == "0 of 1 right, 0 wrong, 1 cannot be checked: nothing was checked" and not nothing.passes
    lone = runner.invoke(cli, ["compare", str(saved), str(saved), "--strict"])
    assert "--strict is of --claims" in lone.exception.on_command_line  # type: ignore[attr-defined]


def test_one_number_as_flops_and_as_macs_is_a_contradiction() -> None:
    flops = {"layer": "conv2", "quantity": "flops", "value": 679477248}
    macs = {**flops, "quantity": "macs"}
    found = judged(book("mnist-cnn", 64), flops, macs)
    assert found.counts["wrong"] == 0 and found.has("macs-equal-flops") and not found.passes
    assert judged(book("mnist-cnn", 64), {**flops, "value": 1358954496}, macs).passes
    # A unit that names multiply-adds makes both the same quantity.
    assert judged(book("mnist-cnn", 64), {**flops, "value": "679.477248 MMAC"}, macs).passes
    assert not judged(book("mnist-cnn", 64), flops, {**macs, "batch": 32}).has("macs-equal-flops")


def test_the_command_without_a_second_ledger_says_what_to_do(run: Run, saved: Path) -> None:
    code, _, err = run("compare", saved)
    assert code == 2
    assert (
        err
        == f"rooflight: compare {saved} with what? It is an estimate: give a second ledger, a device with --on, or a "
        "table of claims with --claims\n"
    )
    code, _, err = run("compare", saved, saved, saved)
    assert code == 2 and "two are put side by side, and these are 3" in err


def test_forms(saved: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    arguments = ["compare", str(saved), "--claims", str(CLAIMS / "mnist.csv")]
    found = runner.invoke(cli, [*arguments, "--json"])
    assert found.exit_code == 1
    document = json.loads(found.stdout)
    assert document["grade"] | {"text": ""} == {
        "text": "",
        "passes": False,
        "rows": 14,
        "right": 7,
        "convention": 3,
        "wrong": 3,
        "unknown": 1,
        "unreadable": 0,
    }
    row = document["rows"][1]
    assert (row["verdict"], row["right"], row["ambiguous"]) == ("wrong", 1358954496, True)
    assert [found["code"] for found in row["because"]] == ["cout-missing", "batch-missing"]
    assert [found["code"] for found in document["findings"]] == ["disagreeing"]
    lines = list(csv.DictReader(io.StringIO(runner.invoke(cli, [*arguments, "--csv"]).stdout)))
    assert len(lines) == 14 and lines[1]["verdict"] == "wrong" and lines[1]["right"] == "1358954496"
    assert lines[1]["note"] == "2 x 9 x 32 x 576 x 64"
    assert "| 3 | conv2 | FLOP |" in runner.invoke(cli, [*arguments, "--md"]).stdout
    for ending in ("json", "csv", "md"):
        path = tmp_path / f"graded.{ending}"
        assert runner.invoke(cli, [*arguments, "-o", str(path)]).exit_code == 1
        assert path.stat().st_size > 500
        again = runner.invoke(cli, [*arguments, "-o", str(path)])
        assert "exists already" in str(again.exception)


def test_help_needs_no_torch() -> None:
    script = "import sys; from rooflight.commands.main import cli; cli.main(['compare', '--help'], standalone_mode=False); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and "--claims FILE" in done.stdout


def test_a_wide_and_a_narrow_terminal_show_every_verdict(saved: Path) -> None:
    page = claims_tables.claims_document(check(book("mnist-cnn", 64), read_claims(CLAIMS / "mnist.csv")))
    assert page.title.startswith("10 of 14 right")
    said = "\n".join(page.notes)
    for number in (3, 6, 9, 12, 13, 14, 15):
        assert f"row {number}" in said or f", {number}" in said


def test_an_intensity_is_that_of_estimate_where_a_mask_halves_attention() -> None:
    """What must be computed by compulsory bytes; attention in full is another convention, and is named."""
    ledger = book("gpt2")
    sums = total(ledger.ops)
    assert sums.flops_causal < sums.flops and sums.intensity is not None
    assert one(ledger, "", "intensity", f"{sums.intensity:.6f}").verdict == "right"
    full = one(ledger, "", "intensity", f"{(sums.flops + sums.other_flops) / sums.bytes:.6f}")
    assert (full.verdict, codes(full)) == ("convention", ["full-attention"])


def test_every_mistake_and_quantity_is_documented() -> None:
    """What the code names, the page lists."""
    page = (DATA.parents[1] / "docs" / "claims.md").read_text()
    root = Path(claims_tables.__file__).parents[2] / "analysis" / "claims"
    source = "\n".join(path.read_text() for path in sorted(root.rglob("*.py")))
    named_ = set(re.findall(r'(?:Finding|_over)\(\s*f?"([a-z]+(?:-[a-z]+)+)"', source))
    named_ |= set(re.findall(r'"([a-z]+(?:-[a-z]+)+)", \("', source))  # missing factors
    named_ |= set(re.findall(r'_size\(shape\), "([a-z-]+)"|, "([a-z]+-[a-z]+)", f?"(?:of|with)', source)[0])
    assert len(named_) > 50
    assert sorted(code for code in named_ if code and f"`{code}`" not in page) == []
    assert [name for name in QUANTITIES if name != "ratio" and f"| `{name}` |" not in page] == []


def test_a_metric_is_claimed_by_its_entry_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made of sums, of a layer with work and of one without; nothing of it stands in the checker."""
    entry = metrics.Metric(
        "macs_per_byte", "times", "MAC/B", "multiply-adds per compulsory byte", "by formula",
        of=lambda totals: metrics.ratio(totals.macs or None, totals.bytes),
    )  # fmt: skip
    monkeypatch.setitem(metrics.ESTIMATED, "macs_per_byte", entry)
    answer = estimated_answers._sum("macs_per_byte")
    ledger = rooflight.estimate("mnist-cnn", batch=64)
    sums = total(op for op in ledger.ops if op.module == "conv2")
    conv, dropout = (
        ClaimScope(LedgerBook(ledger), "macs_per_byte", part_of(ledger, name), None, None)
        for name in ("conv2", "dropout1")
    )
    assert answer(conv).value == sums.macs / sums.bytes
    with pytest.raises(CannotTell, match="nothing to compute it from"):
        answer(dropout)
