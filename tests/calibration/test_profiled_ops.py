"""Traces of PyTorch's profiler, of a real GPU and made here: their calls are made again, and give the ledger's ops."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from rooflight.calibration.profiled_ops import ProfiledStep, profiled_step, read_trace
from rooflight.errors import RooflightError
from rooflight.ledger import Op
from rooflight.ops.kernel_task import Task
from rooflight.ops.op_tasks import tasks_of
from rooflight.prediction.recorded_calibration import calibration_from
from rooflight.profiles import operator_calls
from rooflight.profiles.called_ops import NO_OP
from rooflight.profiles.kineto import decode
from rooflight.profiles.operator_calls import LONG_LIST, NO_SHAPES
from tests.fixtures.paths import DATA

PROFILED = DATA / "profiled"


def trace_of(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress((PROFILED / f"h200-{name}.json.gz").read_bytes()))
    return document


def step_of(trace: dict[str, Any]) -> ProfiledStep:
    return profiled_step(decode(json.dumps(trace).encode(), name="trace.json"), name="trace.json")


def tasks(step: ProfiledStep) -> set[Task]:
    return {task for op in step.ledger.ops for task in tasks_of(op)}


@pytest.fixture(scope="module")
def small() -> ProfiledStep:
    return read_trace(PROFILED / "h200-small-fp32.json.gz")


def test_a_trace_of_an_h200_gives_its_ops(small):
    assert small.ledger.header.device == "NVIDIA H200" and not small.left_out.reasons
    names = {op.packet for op in small.ledger.ops}
    # At the level of a ledger: not conv2d nor cudnn_convolution, not linear, not batch_norm.
    assert {"aten::convolution", "aten::convolution_backward", "aten::addmm", "aten::cudnn_batch_norm"} <= names
    assert not names & {"aten::conv2d", "aten::cudnn_convolution", "aten::linear", "aten::batch_norm", "aten::to"}
    assert {op.phase for op in small.ledger.ops} == {"forward", "backward", "optimizer"}
    kernels = [event for event in trace_of("small-fp32")["traceEvents"] if event["cat"] in ("kernel", "gpu_memset")]
    total = sum(event["dur"] for event in kernels) * 1e-6
    assert sum(kernel.time_s for kernel in small.ledger.kernels) == pytest.approx(total)


def test_its_works_are_those_of_the_model(small):
    # Small of benchmarks/h200/profiler_traces.py, batch 32: 64 channels of 32 x 32; attention of 16 x 16 pixels.
    assert {
        Task("conv-forward", "tf32", (32, 64, 32, 32, 128, 3, 3, 1, 1, 1, 1, 0)),
        Task("conv-wgrad", "tf32", (32, 64, 32, 32, 128, 3, 3, 1, 1, 1, 1, 0)),
        Task("attention-efficient-forward", "fp32", (32, 4, 4, 256, 256, 32, 1, 0)),
        Task("attention-efficient-backward", "fp32", (32, 4, 4, 256, 256, 32, 1, 0)),
        Task("batch-norm-cudnn-train", "fp32", (32, 128, 1024, 0)),
        Task("layer-norm-forward", "fp32", (8192, 128)),
        Task("softmax-forward", "fp32", (32, 1000)),
        Task("gemm", "fp32", (1, 8192, 384, 128, 0, 1, 1)),
    } <= tasks(small)


def test_types_and_the_tf32_switches_are_told_by_what_ran(small):
    assert small.ledger.header.math.tf32_conv and not small.ledger.header.math.tf32_matmul
    mixed = read_trace(PROFILED / "h200-small-amp.json.gz")
    by_name = {op.packet: op for op in mixed.ledger.ops if op.phase == "forward"}
    assert by_name["aten::convolution"].precision == "fp16" and by_name["aten::addmm"].precision == "fp16"
    assert by_name["aten::native_layer_norm"].precision == "fp32"
    # Lists of tensors are noted without their type: the names of their kernels have it.
    assert {op.precision for op in mixed.ledger.ops if "_foreach" in op.name} == {"fp32"}


def test_a_trace_gives_the_points_of_a_measurement_of_the_same_step():
    """Profiled by a plain script, measured by rooflight: other runs, the same works, and times as runs differ."""
    points = []
    for file in (PROFILED / "h200-resnet50-fp32.json.gz", "recorded:h200/resnet50-train-fp32"):
        groups = calibration_from(file).calibration.points
        points.append({(g.family, g.precision, tuple(row[:-3])): row[-3:] for g in groups for row in g.rows})
    profiled, measured = points
    assert profiled.keys() <= measured.keys()
    assert {family for family, _, _ in measured.keys() - profiled.keys()} == {"foreach"}
    ratios = [profiled[task][0] / measured[task][0] for task in profiled]
    assert 0.98 < statistics.median(ratios) < 1.02 and sorted(ratios)[5] > 0.95 and sorted(ratios)[-6] < 1.06
    assert all(profiled[task][2] == measured[task][2] for task in profiled)


def test_long_lists_are_left_out_and_said():
    step = read_trace(PROFILED / "h200-resnet50-fp32.json.gz")
    assert list(step.left_out.reasons) == [LONG_LIST]
    assert step.left_out.reasons[LONG_LIST][0] == 3  # one multiplication and two additions of 161 tensors


def test_without_shapes_or_ops_nothing_is_guessed():
    trace = trace_of("small-fp32")
    for event in trace["traceEvents"]:
        for name in ("Input Dims", "Input type", "Input Strides", "Concrete Inputs"):
            event["args"].pop(name, None)
    step = step_of(trace)
    assert not step.ledger.ops and set(step.left_out.reasons) == {NO_SHAPES}
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event["cat"] != "cpu_op"]
    assert set(step_of(trace).left_out.reasons) == {NO_OP}


def test_the_older_timelines_have_no_shapes():
    with pytest.raises(RooflightError, match=r"no op can be used; .*record_shapes=True"):
        calibration_from(DATA / "timeline" / "resnet18_plain.json.gz")
    with pytest.raises(RooflightError, match=r"no op can be used; .*CUDA graph"):
        calibration_from(DATA / "timeline" / "resnet18_graph.json.gz")


def test_without_strides_tensors_are_taken_to_be_contiguous(small):
    """As versions before 2.2 write them."""
    trace = trace_of("small-fp32")
    for event in trace["traceEvents"]:
        event["args"].pop("Input Strides", None)
    found = tasks(step_of(trace))
    assert Task("conv-forward", "tf32", (32, 64, 32, 32, 128, 3, 3, 1, 1, 1, 1, 0)) in found
    assert Task("gemm", "fp32", (1, 8192, 384, 128, 0, 0, 1)) in found  # whose weight is transposed, were it told


def test_two_kinds_of_gpus_in_one_trace():
    trace = trace_of("small-fp32")
    trace["deviceProperties"].append({"id": 1, "name": "NVIDIA A100-SXM4-80GB"})
    assert step_of(trace).ledger.header.device == "NVIDIA H200"  # the other did nothing
    next(event for event in trace["traceEvents"] if event["cat"] == "kernel")["args"]["device"] = 1
    with pytest.raises(RooflightError, match="several devices"):
        step_of(trace)


def test_a_trace_made_here_is_read_call_by_call(tmp_path):
    """On a CPU there are no kernels: one is put under each op, to see that every call is made again as it was."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.GELU(), torch.nn.Flatten(),
        torch.nn.Linear(8 * 64, 16), torch.nn.LayerNorm(16),
    )  # fmt: skip
    x = torch.randn(2, 4, 8, 8)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        (model(x) * 2 + torch.cat([x, x], 1).sum((1, 2, 3)).unsqueeze(1)).softmax(-1).sum().backward()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    calls = [event for event in events if event.get("cat") == "cpu_op" and event["name"].startswith("aten::")]
    for number, call in enumerate(calls):
        where = {"pid": call["pid"], "tid": call["tid"], "ts": call["ts"] + call["dur"] / 2, "dur": 0.001, "ph": "X"}
        ids = {"correlation": number}
        events.append({**where, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": ids})
        events.append({**where, "cat": "kernel", "name": "kernel<float>", "dur": 1.0, "args": {**ids, "device": 0}})
    step = step_of(trace)
    by_name: dict[str, Op] = {}
    for op in step.ledger.ops:
        by_name.setdefault(op.packet, op)
    assert by_name["aten::convolution"].outputs[0].shape == (2, 8, 8, 8)
    assert by_name["aten::native_layer_norm"].args["normalized_shape"] == [16]
    assert by_name["aten::cat"].outputs[0].shape == (2, 8, 8, 8) and by_name["aten::cat"].args["dim"] == 1
    assert by_name["aten::mul"].args["other"] == 1.0  # a number of Python: which, the trace does not tell
    assert by_name["aten::mul"].precision == "fp32"
    assert by_name["aten::convolution_backward"].args["output_mask"] == [False, True, True]
    assert by_name["aten::addmm"].cost is not None and by_name["aten::addmm"].cost.macs == 2 * 512 * 16
    # A composition that had nothing to do, as a view that was none, launches nothing on a GPU.
    assert set(step.left_out.reasons) <= {NO_OP}, step.left_out.reasons


def test_types_are_numbered_as_torch_numbers_them(tmp_path):
    """Asked of torch itself: each conversion is noted with the number of the type."""
    wanted = [dtype for dtype in operator_calls._SCALAR_TYPES if dtype not in (None, torch.float32, torch.complex32)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        for dtype in wanted:
            torch.ones(2).to(dtype)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    noted = [int(event["args"]["Concrete Inputs"][1]) for event in events if event.get("name") == "aten::_to_copy"]
    assert [operator_calls._SCALAR_TYPES[number] for number in noted] == wanted


def test_a_trace_of_a_cpu_alone_is_refused(tmp_path: Path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}]}))
    with pytest.raises(RooflightError, match="without GPU kernels"):
        calibration_from(path)
