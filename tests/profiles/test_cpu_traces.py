"""Traces of PyTorch's profiler on a CPU: a training step of conv, batch norm, linear, cross entropy and momentum SGD."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from rooflight.errors import BadFile
from rooflight.ledger import Kernel, Ledger
from rooflight.profiles import read
from rooflight.profiles.operator_calls import NO_FORMULA
from rooflight.reporting.sections.kernel_groups import groups
from rooflight.reporting.sections.kernel_tables import log_data
from tests.fixtures.notes import note_texts
from tests.fixtures.paths import DATA

FOLDER = DATA / "cpu_traces"
NAMES = ("plain", "shapes", "stack", "steps")


@pytest.fixture(scope="module")
def ledgers() -> dict[str, Ledger]:
    return {name: read(FOLDER / f"{name}.json.gz") for name in NAMES}


def events(name: str) -> list[dict[str, Any]]:
    trace = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    return [event for event in trace["traceEvents"] if event.get("cat") == "cpu_op" and event["ph"] == "X"]


def outermost_us(rows: list[dict[str, Any]]) -> float:
    """The time of ops that no op is around, found by comparing all with all."""
    threads: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        threads[row["tid"]].append((row["ts"], row["ts"] + row["dur"]))
    total = 0.0
    for spans in threads.values():
        for start, end in spans:
            around = [span for span in spans if span != (start, end) and span[0] <= start and end <= span[1]]
            total += 0 if around else end - start
    return total


@pytest.mark.parametrize("name", NAMES)
def test_every_moment_counts_once(name: str, ledgers: dict[str, Ledger]) -> None:
    ledger = ledgers[name]
    assert all(kernel.kind == "op" and kernel.time_s is not None and kernel.time_s >= 0 for kernel in ledger.kernels)
    total = ledger.measurements[0].quantities["host_time_s"].value
    assert total == pytest.approx(outermost_us(events(name)) * 1e-6, rel=1e-4)
    assert ledger.header.target == "cpu"


def of(ledger: Ledger, name: str) -> Kernel:
    (kernel,) = (kernel for kernel in ledger.kernels if kernel.name == name)
    return kernel


def test_costs_come_from_the_shapes(ledgers: dict[str, Ledger]) -> None:
    ledger = ledgers["shapes"]
    costs = {name: ledger.ops[of(ledger, name).ops[0]].cost for name in ("aten::convolution", "aten::addmm")}
    # 4 images of 3x32x32 through 8 filters of 3x3; then 7,200 features to 10 classes.
    assert costs["aten::convolution"] is not None and costs["aten::addmm"] is not None
    assert costs["aten::convolution"].flops == 2 * 4 * 8 * 30 * 30 * 3 * 3 * 3
    assert costs["aten::addmm"].flops == 2 * 4 * 7200 * 10
    # The input needs no gradient: of the convolution only that of the weights, of the linear layer both.
    backward = [ledger.ops[of(ledger, "aten::convolution_backward").ops[0]]]
    backward += [ledger.ops[kernel.ops[0]] for kernel in ledger.kernels if kernel.name == "aten::mm"]
    assert [op.phase for op in backward] == ["backward"] * 3
    assert sum(op.cost.flops or 0 for op in backward if op.cost) == 2 * 4 * 8 * 30 * 30 * 27 + 2 * 2 * 4 * 7200 * 10


def test_estimates_stand_beside_times_for_programs(ledgers: dict[str, Ledger]) -> None:
    rows = {row["name"]: row for row in log_data(ledgers["shapes"])["kernels"]}
    # A product of 4x7200 by 7200x10 and its bias, which the product counts; fp32 read and written once.
    assert rows["aten::addmm"]["estimated_flops"] == 576_000
    assert rows["aten::addmm"]["estimated_bytes"] == 4 * (4 * 7200 + 7200 * 10 + 10 + 4 * 10)
    assert rows["aten::conv2d"]["estimated_flops"] is None
    assert "estimated_flops" not in log_data(ledgers["plain"])["kernels"][0]


def test_a_row_is_an_op_with_all_inside_it(ledgers: dict[str, Ledger]) -> None:
    ledger = ledgers["shapes"]
    (event,) = (event for event in events("shapes") if event["name"] == "aten::convolution")
    assert of(ledger, "aten::convolution").time_s == pytest.approx(event["dur"] * 1e-6)
    names = {kernel.name for kernel in ledger.kernels}
    assert "aten::mkldnn_convolution" not in names and "aten::_convolution" not in names
    (around,) = (event for event in events("shapes") if event["name"] == "aten::conv2d")
    assert of(ledger, "aten::conv2d").time_s == pytest.approx((around["dur"] - event["dur"]) * 1e-6, abs=2e-9)
    assert of(ledger, "aten::convolution").label == "aten::conv2d"
    assert of(ledger, "aten::conv2d").ops == ()


def test_without_shapes_there_is_no_estimate(ledgers: dict[str, Ledger]) -> None:
    plain, shapes = ledgers["plain"], ledgers["shapes"]
    assert not plain.ops
    assert any("the trace has no shapes" in note for note in note_texts(plain.header.notes))
    assert all(group.estimate is None for group in groups(plain))
    assert [kernel.name for kernel in plain.kernels] == [kernel.name for kernel in shapes.kernels]


def test_python_functions_are_no_rows_but_modules_are_told(ledgers: dict[str, Ledger]) -> None:
    stack = ledgers["stack"]
    assert not any("train.py" in kernel.name for kernel in stack.kernels)
    assert of(stack, "aten::convolution").label == "Net_0/Conv2d_0/aten::conv2d"


def test_steps(ledgers: dict[str, Ledger]) -> None:
    ledger = ledgers["steps"]
    assert len(ledger.kernels) == 3 * len(ledgers["shapes"].kernels)
    assert any("the trace holds 3 steps" in note for note in note_texts(ledger.header.notes))
    wall = ledger.measurements[0].quantities["wall_time_s"]
    assert wall.value > ledger.measurements[0].quantities["host_time_s"].value
    assert "GPU" not in wall.origin


def test_nothing_ran(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps({"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "x", "ts": 1, "dur": 2}]})
    )
    with pytest.raises(BadFile, match="without GPU kernels and without ops"):
        read(path)


def called(name: str, types: list[str], concrete: list[str], dims: list[Any] | None = None) -> dict[str, Any]:
    """A trace of one call, as a file of somebody else may note it."""
    args = {"Input type": types, "Concrete Inputs": concrete, "Input Dims": dims or [[] for _ in types]}
    where = {"ph": "X", "pid": 1, "tid": 1}
    op = {**where, "cat": "cpu_op", "name": name, "ts": 1, "dur": 10, "args": {**args, "External id": 1}}
    return {"traceEvents": [op]}


def launching(trace: dict[str, Any]) -> dict[str, Any]:
    """The same call on a GPU, where it launched a kernel."""
    kernel = {"ph": "X", "cat": "kernel", "name": "kernel<float>", "ts": 5, "dur": 1, "args": {"External id": 1}}
    return {"traceEvents": [*trace["traceEvents"], kernel]}


def imported(trace: dict[str, Any], folder: Path) -> Ledger:
    path = folder / "trace.json"
    path.write_text(json.dumps(trace))
    return read(path)


@pytest.mark.parametrize("made", [dict, launching])
@pytest.mark.parametrize(
    ("name", "concrete"),
    [
        ("aten::manual_seed", ["77"]),
        ("aten::set_grad_enabled", ["False"]),
        ("aten::_print", ["written by the trace"]),
        ("aten::ljust", ["a", "300000000", "x"]),
        ("aten::from_file", ["FILE", "True", "4", "6", "", "", ""]),
    ],
)
def test_a_trace_never_decides_what_is_executed(
    name: str, concrete: list[str], made: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Operators of TorchScript, and those that do more than compute: seeds, switches, output, memory, files."""
    there = tmp_path / "made_by_the_trace"
    concrete = [str(there) if text == "FILE" else text for text in concrete]
    state, seed = torch.get_rng_state(), torch.initial_seed()
    tracemalloc.start()
    try:
        ledger = imported(made(called(name, ["Scalar" if text else "" for text in concrete], concrete)), tmp_path)
        most = tracemalloc.get_traced_memory()[1]
        assert torch.is_grad_enabled() and torch.initial_seed() == seed and torch.equal(torch.get_rng_state(), state)
    finally:
        tracemalloc.stop()
        torch.set_grad_enabled(True)
    assert not ledger.ops and len(ledger.kernels) == 1
    assert capfd.readouterr().out == "" and not there.exists() and most < 100e6


def test_operators_without_a_formula_are_left_out_and_said(tmp_path: Path) -> None:
    ledger = imported(called("aten::q_scale", ["float"], [""], [[4, 4]]), tmp_path)
    assert note_texts(ledger.header.notes)[-1] == f"1 rows have no estimate: {NO_FORMULA}"


@pytest.mark.parametrize("made", [dict, launching])
@pytest.mark.parametrize(
    ("name", "types", "concrete", "dims"),
    [
        ("aten::mm", ["float", "float"], ["", ""], [[2**40, 2**40], [2**40, 2**40]]),
        ("aten::mm", ["float", "float"], ["", ""], [[2**70, 1], [1, 2**70]]),
        ("aten::mm", ["float", "float"], ["", ""], [[2**40, 1], [1, 2**40]]),  # its result would be 2**82 bytes
        ("aten::relu", ["float"], [""], [[1] * 5000]),
        ("aten::relu", ["float"], [""], [[[[[[[4]]]]]]]),
        ("aten::relu", ["float"], [""], [["4"]]),
        ("aten::unbind", ["float", "Scalar"], ["", "0"], [[2**40]]),
        ("aten::split", ["float", "Scalar", "Scalar"], ["", "1", "0"], [[2**40], [], []]),
        (
            "aten::zeros",
            ["ScalarList", "Scalar", "", "", "Scalar"],
            ["[1152921504606846976]", "6", "", "", "False"],
            None,
        ),
        ("aten::pow", ["float", "Scalar"], ["", "9" * 4000], [[4], []]),
        ("aten::expand", ["float", "ScalarList", "Scalar"], ["", "[" * 900 + "]" * 900, "False"], [[1], [], []]),
    ],
)
def test_sizes_that_no_machine_has(
    name: str, types: list[str], concrete: list[str], dims: Any, made: Any, tmp_path: Path
) -> None:
    ledger = imported(made(called(name, types, concrete, dims)), tmp_path)
    assert not ledger.ops and len(ledger.kernels) == 1


def test_one_absurd_call_spoils_no_other(tmp_path: Path) -> None:
    """What is refused takes nothing away."""
    types = ["float", "Scalar", "Scalar"]
    asked = [("-1", 2**40), ("1", 2**40), ("4", 8)]
    traces = [called("aten::split", types, ["", size, "0"], [[length], [], []]) for size, length in asked]
    events = [{**trace["traceEvents"][0], "ts": 100 * place} for place, trace in enumerate(traces)]
    (op,) = imported({"traceEvents": events}, tmp_path).ops
    assert [output.shape for output in op.outputs] == [(4,), (4,)]


def test_infinity_is_a_number(tmp_path: Path) -> None:
    ledger = imported(
        called("aten::clamp", ["float", "Scalar", "Scalar"], ["", "0.", "inf"], [[4, 8], [], []]), tmp_path
    )
    assert [op.outputs[0].shape for op in ledger.ops] == [(4, 8)]


@pytest.mark.parametrize("made", [dict, launching])
def test_a_path_is_as_deep_as_models_are(made: Any, tmp_path: Path) -> None:
    """Ranges inside each other make no path of each to the outermost."""
    trace = called("aten::mm", ["float", "float"], ["", ""], [[4, 4], [4, 4]])
    (inner,) = trace["traceEvents"]
    inner["ts"], inner["dur"] = 3000, 1
    outer = [
        {**inner, "name": f"r{depth}", "ts": depth, "dur": 20_000 - 2 * depth, "args": {"External id": 100 + depth}}
        for depth in range(2000)
    ]
    trace["traceEvents"] = [*outer, inner]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(made(trace)))
    tracemalloc.start()
    try:
        ledger = read(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 60e6
    row = next(kernel for kernel in ledger.kernels if kernel.ops)
    assert row.label == "/".join(f"r{depth}" for depth in range(100))
    assert [op.name for op in ledger.ops] == ["aten::mm"]
