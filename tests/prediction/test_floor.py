"""Nothing is predicted faster than physics, on any device, of any family, in any shape; and physics is what was measured:
no op of a recording is faster than its floor."""

from __future__ import annotations

import json
from dataclasses import replace as replace_step
from functools import lru_cache
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import rooflight
from rooflight import recordings
from rooflight.hardware.calibration import Calibration, TimedPoints, shipped
from rooflight.hardware.devices import find, known
from rooflight.ledger import Execution, Ledger, Op
from rooflight.ops.kernel_task import FAMILIES, Task, decode_rows
from rooflight.ops.op_tasks import tasks_of
from rooflight.prediction.calibrated.baseline import columns, matrix_flops
from rooflight.prediction.device_run import device_runs, spec_seconds
from rooflight.prediction.least_times import cache_bytes, floor_seconds
from rooflight.prediction.tiers import predictor
from rooflight.spec import StepKeywords
from rooflight.step.costed_step import PreparedTrace
from tests.fixtures.paths import ROOT
from tests.fixtures.recordings import recording

GPUS = [device for device in known() if device.is_cuda]
some_gpus = st.lists(st.sampled_from(GPUS), min_size=9, max_size=9, unique_by=lambda device: device.name)
"""A tenth of them for every example, others for the next."""
ROUNDING = 1 - 1e-9
H200 = find("h200")
EXECUTIONS: tuple[Execution, ...] = get_args(Execution)


# --- the same bound, worked out another way: op by op, from the ledger alone ---


def least_s(ledger: Ledger, device) -> list[float]:
    """FLOPs over the peak; and over the bandwidth what the step is given, where it is first read: if between its last
    use in one step and its first in the next more was touched than the caches hold together. In plain Python, from
    shapes."""
    cache = cache_bytes(device) + (device.memory_cache_bytes.value if device.memory_cache_bytes else 0)
    given = {one.id for one in ledger.storages if one.category in ("parameter", "buffer", "input", "optimizer-state")}
    ops = [op for op in ledger.ops if op.kind == "compute"]
    used = [{tensor.storage: tensor.nbytes for tensor in (*op.inputs, *op.outputs)} for op in ops]
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, storages in enumerate(used):
        for storage in storages:
            first.setdefault(storage, place)
            last[storage] = place
    touched = np.cumsum([0, *(sum(storages.values()) for storages in used)])
    found = dict.fromkeys(range(len(ledger.ops)), 0.0)
    for place, op in enumerate(ops):
        cold = 0
        for storage, nbytes in {tensor.storage: tensor.nbytes for tensor in op.inputs}.items():
            between = touched[-1] - touched[last[storage] + 1] + touched[place]
            if storage in given and first[storage] == place and between > cache and not reads_a_part(op):
                cold += nbytes
        found[op.index] = max(cold / device.bandwidth_bytes_per_s.value, compute_s(op, device))
    return [found[index] for index in range(len(ledger.ops))]


def reads_a_part(op: Op) -> bool:
    return op.cost is None or (op.cost.bytes_read or 0) < sum({t.storage: t.nbytes for t in op.inputs}.values())


def compute_s(op: Op, device) -> float:
    if op.cost is None or op.kind != "compute" or not op.cost.flops:
        return 0.0
    return (op.cost.flops_causal or op.cost.flops) / device.peak(op.precision).value


# --- steps that hold every family ---

sizes = st.sampled_from([1, 3, 8, 17, 64, 100])
widths = st.sampled_from([4, 16, 30, 64, 200, 512])


class Convolutions(nn.Module):
    def __init__(self, c: int, k: int) -> None:
        super().__init__()
        self.first, self.grouped = nn.Conv2d(c, k, 3, padding=1, stride=2), nn.Conv2d(k, k, 3, padding=1, groups=2)
        self.depthwise = nn.Conv2d(k, k, 3, padding=1, groups=k)
        self.norm, self.group = nn.BatchNorm2d(k), nn.GroupNorm(1, k)

    def forward(self, x):
        y = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        y = F.avg_pool2d(self.group(self.depthwise(self.grouped(y))), 2)
        return torch.cat([y, y.flip(-1)], 1).mean((2, 3))


class Text(nn.Module):
    def __init__(self, vocabulary: int, width: int, heads: int) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(vocabulary, width), heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = F.dropout(self.norm(self.words(tokens)), 0.1, self.training)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        scale = torch.rand(x.shape[1], 1, device=x.device, dtype=torch.float32)
        return F.softmax((F.gelu(self.out(x)) * scale).float(), -1)


class Next(nn.Module):
    """One token against a cache that it is given."""

    def forward(self, q, k, v, new):
        k = torch.cat([k, new], 2).clone()
        return F.scaled_dot_product_attention(q, k, torch.cat([v, new], 2), enable_gqa=q.shape[1] != k.shape[1])


class Volumes(nn.Module):
    def __init__(self, c: int, k: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv3d(c, k, 3, padding=1), nn.Conv3d(k, k, 1, bias=False)

    def forward(self, x):
        return F.avg_pool3d(self.second(F.max_pool3d(F.relu(self.first(x)), 2)), 2)


class Sequence(nn.Module):
    """States that wait for one another, running sums, norms, the best of some, a likelihood."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.states = nn.GRU(width, 2 * width, num_layers=2)

    def forward(self, x):
        y = self.states(x)[0]
        y = (y / torch.linalg.vector_norm(y, dim=-1, keepdim=True)).cumsum(0)
        target = torch.zeros(x.shape[1], dtype=torch.long, device=x.device)
        return F.nll_loss(y[-1].float(), target) + y.max(0)[0].sum()


class Graph(nn.Module):
    """Messages along edges: rows and single elements by their places, and additions to them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)

    def forward(self, x, edges):
        source, target = edges
        said = torch.zeros_like(x).index_add_(0, target, self.own(x)[source])
        wide = target[:, None].expand(-1, x.shape[1])
        return said.scatter_add(0, wide, x[source]).gather(0, wide)


@lru_cache
def absurd() -> Calibration:
    """The H200's, with all times a nanosecond, and few points."""
    real = shipped("h200")
    assert real is not None
    points = [
        msgspec.structs.replace(some, rows=[[*row[:-3], 1, 1, row[-1]] for row in some.rows[:40]])
        for some in real.points
    ]
    return msgspec.structs.replace(real, points=tuple(points))


@st.composite
def models(draw) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """On meta, of any size."""
    kind, dtype = (
        draw(st.sampled_from(["image", "text", "next", "linear", "volume", "sequence", "graph"])),
        draw(st.sampled_from([torch.float32, torch.float16])),
    )
    batch = draw(sizes)
    with torch.device("meta"):
        if kind == "image":
            side, c = draw(st.sampled_from([16, 33, 64, 224])), draw(st.sampled_from([3, 16, 64]))
            return Convolutions(c, draw(widths)).to(dtype), (torch.empty(batch, c, side, side, dtype=dtype),)
        if kind == "text":
            heads = draw(st.sampled_from([1, 4, 12]))
            text = Text(draw(st.sampled_from([100, 5000, 50257])), heads * draw(st.sampled_from([16, 64])), heads)
            return text.to(dtype), (torch.empty(batch, draw(st.sampled_from([5, 128, 1000])), dtype=torch.long),)
        if kind == "linear":
            linear = nn.Linear(8 * draw(widths), 8 * draw(widths), bias=draw(st.booleans()))
            return linear.to(dtype), (torch.empty(batch, linear.in_features, dtype=dtype),)
        if kind == "volume":
            side, c = draw(st.sampled_from([8, 17, 48])), draw(st.sampled_from([3, 16]))
            return Volumes(c, draw(widths)).to(dtype), (torch.empty(batch, c, side, side, side, dtype=dtype),)
        if kind == "graph":
            width, edges = draw(widths), torch.empty(2, draw(st.sampled_from([3, 5000])), dtype=torch.long)
            return Graph(width).to(dtype), (torch.empty(batch, width, dtype=dtype), edges)
        if kind == "sequence":
            width = draw(widths)
            shape = (draw(st.sampled_from([5, 60])), batch, width)
            return Sequence(width).to(dtype), (torch.empty(shape, dtype=dtype),)
        heads_kv, shared, size = draw(st.sampled_from([1, 4, 8])), draw(st.sampled_from([1, 4])), 64
        keys = (batch, heads_kv, draw(st.sampled_from([16, 1000, 8192])), size)
        shapes = ((batch, heads_kv * shared, 1, size), keys, keys, (batch, heads_kv, 1, size))
        return Next(), tuple(torch.empty(shape, dtype=dtype) for shape in shapes)


@st.composite
def steps(draw) -> Ledger:
    model, inputs = draw(models())
    training = {"step": "train", "loss": "sum", "optimizer": draw(st.sampled_from(["momentum", "adamw"])),
                "foreach": draw(st.booleans())}  # fmt: skip
    return rooflight.estimate(model, *inputs, **(training if draw(st.booleans()) else {}))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(steps(), st.sampled_from(["best", "transferred", "absurd"]), some_gpus)
def test_no_op_on_any_device_is_faster_than_its_peak_and_its_memory(ledger: Ledger, tier: str, gpus) -> None:
    """Not even by a calibration in which everything took a nanosecond."""
    step = PreparedTrace(ledger, None).at(None)
    for device in gpus:
        if any(device.peak(op.precision) is None for op in ledger.ops if op.cost is not None and op.cost.macs):
            continue
        one = (
            predictor(device, calibration=absurd())
            if tier == "absurd"
            else (predictor(device, None if tier == "best" else "transferred"))
        )
        times = one.op_times(step)
        least = np.array(least_s(ledger, device))
        slow = times.seconds < least * ROUNDING
        assert not slow.any(), [(device.name, ledger.ops[i].name, times.seconds[i], least[i])
                                for i in np.flatnonzero(slow)[:3]]  # fmt: skip
        assert (times.seconds >= times.floor_s).all()
        _, by_spec, _ = spec_seconds(step, device, None)
        assert (by_spec >= times.floor_s * ROUNDING).all()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(steps(), st.sampled_from(["best", "transferred", "absurd"]), st.sampled_from(EXECUTIONS), some_gpus)
def test_no_step_is_faster_than_its_floor_however_it_is_run(
    ledger: Ledger, tier: str, execution: Execution, gpus
) -> None:
    """Compiled, as a graph, or eager: an op may be spared bytes, never FLOPs; and no step is faster than its ops."""
    step = replace_step(PreparedTrace(ledger, None).at(None), execution=execution)
    for device in gpus:
        if any(device.peak(op.precision) is None for op in ledger.ops if op.cost is not None and op.cost.macs):
            continue
        given = absurd() if tier == "absurd" else None
        one = predictor(device, "transferred" if tier == "transferred" else None, given)
        run = device_runs(step, [one])[0]
        computed = np.array([compute_s(op, device) for op in ledger.ops])
        slow = run.times.seconds < computed * ROUNDING
        assert not slow.any(), [(device.name, ledger.ops[i].name) for i in np.flatnonzero(slow)[:3]]
        assert (run.times.seconds >= run.times.floor_s * ROUNDING).all()
        assert run.wall_s >= float(run.times.floor_s.sum()) * ROUNDING


@st.composite
def tasks(draw) -> Task:
    """Of any family that computes products, in any precision, of any size."""
    precision = draw(st.sampled_from(["fp32", "tf32", "bf16", "fp16"]))
    family = draw(st.sampled_from([name for name in FAMILIES if name.startswith(("gemm", "conv-", "attention-"))]))
    size = st.integers(1, 4096)
    if family.startswith("conv-"):
        n, c, h, k, groups = (draw(st.integers(1, most)) for most in (256, 600, 224, 600, 40))
        side, kind = draw(st.sampled_from([1, 3, 5, 7])), draw(st.sampled_from(["dense", "grouped", "depthwise"]))
        if kind == "grouped":
            c, k = groups * max(1, c // groups), groups * max(1, k // groups)
        else:
            groups, k = (1, k) if kind == "dense" else (c, c)
        numbers = (n, c, max(h, side), max(h, side), k, side, side,
                   draw(st.sampled_from([1, 2])), side // 2, 1, groups, draw(st.integers(0, 1)))  # fmt: skip
        return Task(family, precision, numbers)
    flags = {"a_transposed", "b_transposed", "bias", "causal"}
    values = {name: draw(st.integers(0, 1) if name in flags else size) for name in FAMILIES[family]}
    if "heads" in values:
        values["heads"] = values["heads_kv"] = draw(st.integers(1, 64))
        values["head_dim"] = draw(st.sampled_from([32, 64, 128]))
    return Task(family, precision, tuple(values.values()))


@settings(max_examples=60, deadline=None)
@given(st.lists(tasks(), min_size=1, max_size=6), st.sampled_from(["best", "transferred", "absurd"]), some_gpus)
def test_no_task_on_any_device_is_faster_than_the_peak_of_its_unit(some: list[Task], tier: str, gpus) -> None:
    for device in gpus:
        runnable = [task for task in some if device.peak(task.precision) is not None]
        if not runnable:
            continue
        given = absurd() if tier == "absurd" else None
        times = predictor(device, "transferred" if tier == "transferred" else None, given).task_times(runnable)
        for task, warm_s, cold_s in zip(runnable, times.warm_s, times.cold_s, strict=True):
            peak = device.peak(task.precision)
            numbers = np.array([task.numbers], dtype=np.float64)
            flops = matrix_flops(task.family, columns(task.family, numbers))
            assert peak is not None and flops is not None
            assert min(warm_s, cold_s) >= flops[0] / peak.value * ROUNDING, (device.name, task)
            assert np.isfinite(cold_s) and cold_s > 0


def test_one_query_is_a_work_of_its_own_and_old_points_of_it_are_found() -> None:
    """A calibration of before has them among the points of forward, with eight numbers each."""
    (task,) = tasks_of(next(op for op in rooflight.estimate(
        Next(), *(torch.empty(2, 4, n, 64, dtype=torch.float16, device="meta") for n in (1, 999, 999, 1))).ops
        if "attention" in op.name))  # fmt: skip
    assert task.family == "attention-cudnn-decode" and task.numbers == (2, 4, 4, 1000, 64, 0)
    rows = [[2, 4, 4, 1, 1000, 64, 0, 0, 9000, 9500, 1], [2, 4, 4, 128, 1000, 64, 0, 0, 77000, 78000, 1]]
    assert decode_rows("attention-cudnn-forward", rows) == ([rows[1]], [[2, 4, 4, 1000, 64, 0, 9000, 9500, 1]])
    assert decode_rows("gemm", [[1, 1]]) == ([[1, 1]], [])
    real = shipped("h200")
    assert real is not None
    old = msgspec.structs.replace(real, points=(TimedPoints("attention-cudnn-forward", "fp16", rows * 3),))
    found = predictor(H200, calibration=old).task_times([task])
    assert found.cold_s[0] == pytest.approx(9.5e-6, rel=0.02) and found.distance[0] == pytest.approx(0, abs=1e-6)


def test_what_a_step_takes_by_an_absurd_calibration_is_the_floor() -> None:
    """Worked out by hand: 16 layers of 4096 x 4096 in bf16 read 16 x 32 MiB of weights, and next to nothing else."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(16))).to(torch.bfloat16)
        x = torch.empty(1, 4096, dtype=torch.bfloat16)
    ledger = rooflight.estimate(model, x)
    times = predictor(find("h200"), calibration=absurd()).op_times(PreparedTrace(ledger, None).at(None))
    assert times.seconds.sum() == pytest.approx(16 * 2**25 / 4.8e12, rel=0.001)


def test_the_steps_above_hold_every_family() -> None:
    """What is tested is all there is: a family that is added needs a step here."""
    with torch.device("meta"):
        image, tokens = torch.empty(2, 3, 64, 64), torch.empty(2, 16, dtype=torch.long)
        cache = [torch.empty(2, 2, n, 64, dtype=torch.float16) for n in (1, 9, 9, 1)]
        volume, sequence = torch.empty(2, 3, 8, 8, 8), torch.empty(5, 2, 16)
        links = torch.empty(2, 7, dtype=torch.long)
        others = [(Volumes(3, 8), [volume]), (Sequence(16), [sequence]), (Graph(8), [torch.empty(5, 8), links])]
        models = [(Convolutions(3, 8).to(dtype), Text(100, 128, 2).to(dtype), image.to(dtype))
                  for dtype in (torch.float32, torch.float16)]  # fmt: skip
    ledgers = [
        rooflight.estimate(Next(), *(one.to(dtype) for one in cache)) for dtype in (torch.float16, torch.float32)
    ]
    ledgers += [rooflight.estimate(other, *given, step="train", loss="sum") for other, given in others]
    for images, text, x in models:
        ledgers.append(rooflight.estimate(images, x))
        for foreach in (True, False):
            train: StepKeywords = {"step": "train", "loss": "sum", "foreach": foreach}
            ledgers += [rooflight.estimate(images, x, **train), rooflight.estimate(text, tokens, **train)]
    seen = {task.family for ledger in ledgers for op in ledger.ops for task in tasks_of(op)}
    flash = {family for family in FAMILIES if "flash" in family}  # what other generations make of cuDNN's
    native = {family for family in FAMILIES if family.startswith("batch-norm-native")}
    fused = {"fused-sgd", "fused-adam"}  # no step asks for them yet
    assert FAMILIES.keys() - seen <= flash | native | fused
    assert len(seen) > 25


# --- what the decode step says, and what people see ---


@pytest.mark.parametrize("device", ["h200", "h100-sxm", "a100-sxm-80", "rtx-4090", "l4", "mi300x", "b200"])
@pytest.mark.parametrize(("batch", "past"), [(64, 8192), (8, 8192), (1, 32768)])
def test_a_cache_of_keys_is_read_at_the_memorys_speed(device: str, batch: int, past: int) -> None:
    found = rooflight.predict("llama3-8b", step="decode", past=past, batch=batch, dtype="bf16", on=device, graphs=True,
                              overrides={"max_position_embeddings": "32769"}, advice=False, find_savings=False).predictions[0]  # fmt: skip
    bandwidth = find(device).bandwidth_bytes_per_s.value
    keys = 2 * 2 * batch * 8 * 128 * past * 32  # keys and values of 32 layers, 8 heads of 128, 2 bytes
    weights = 2 * 7.5e9  # layers and head
    attention = next(op for op in found.ops if "attention" in op.name)
    if find(device).memory_cache_bytes is None:  # 256 MB keep what a layer has just written
        assert attention.time_s >= keys / bandwidth
        assert attention.percent_of_roof <= 100
    assert found.gpu_time_s >= (keys + weights) / bandwidth
    assert found.gpu_time_s >= found.gpu_time_interval_s.low >= (keys + weights) / bandwidth
    assert found.time_interval_s.low >= (keys + weights) / bandwidth


def test_percents_are_not_cut_off_at_100() -> None:
    """What lies in a cache is faster than memory, and says so; the mean over a step is that of its parts."""
    found = rooflight.predict("gpt2", step="decode", past=512, batch=32, dtype="bf16", on="rtx-5090").predictions[0]
    assert max(op.percent_of_roof for op in found.ops) > 105
    whole = sum(op.percent_of_roof * op.time_s for op in found.ops) / sum(op.time_s for op in found.ops)
    assert whole == pytest.approx(found.percent_of_roof, rel=0.1)  # the ten costliest are nearly all


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("resnet50", {"batch": 64}),
        ("gpt2", {"step": "train", "batch": 8, "seq": 1024}),
        ("gpt2", {"batch": 8, "seq": 1024}),
    ],
)
def test_no_compiled_step_is_over_its_roof(model: str, asked: Any) -> None:
    """The roof counts the bytes that fused kernels move, as their time does: it was 125 to 140% of all bytes' roof."""
    given = {"dtype": "bf16", "advice": False, "find_savings": False, **asked}
    eager, compiled = (rooflight.predict(model, on=["h200", "rtx-4090"], compile=how, **given) for how in (False, True))
    for one, fused in zip(eager.predictions, compiled.predictions, strict=True):
        assert fused.gpu_time_s < one.gpu_time_s
        assert fused.percent_of_roof <= 100
        assert fused.intensity > one.intensity  # as many FLOPs, fewer bytes


def test_ranks_of_tensor_parallelism_together_are_no_faster_than_one() -> None:
    for past in (1024, 8191):
        found = rooflight.predict("llama3-8b", step="decode", past=past, batch=8, dtype="bf16", on="h100-sxm",
                                  gpus=8, parallel="tp", graphs=True).predictions[0]  # fmt: skip
        keys, weights = 2 * 2 * 8 * 8 * 128 * past * 32, 2 * 7.5e9
        assert found.gpu_time_s >= (keys + weights) / 8 / 3.35e12


# --- physics by measurement ---

EAGER = [name for name in recordings.names() if "/" in name and not name.endswith(("-compiled", "-graph"))]


@pytest.mark.parametrize("name", EAGER)
def test_no_measured_op_is_faster_than_its_floor(name: str) -> None:
    """Of 20 recorded steps: a floor that a real kernel beats is none."""
    ledger = recording(name)
    measured = {
        row.ops[0]: row.quantities["kernel_time_s"].value
        for row in ledger.measurements
        if row.scope == "op" and len(row.ops) == 1 and "kernel_time_s" in row.quantities
    }
    if ledger.header.device != "NVIDIA H200" or ledger.header.execution != "eager" or not measured:
        pytest.skip("not an eager step on an H200")
    floor = floor_seconds(PreparedTrace(ledger, None).at(None), H200)
    beaten = {ledger.ops[i].name: (seconds, floor[i]) for i, seconds in measured.items() if seconds < floor[i]}
    assert not beaten
    assert sum(floor[i] > 0 for i in measured) >= 9


def measured_decoding() -> dict:
    path = ROOT / "benchmarks" / "h200" / "results" / "decode.json"
    return json.loads(path.read_text())


def test_measured_attention_to_a_cache_is_within_its_floor() -> None:
    """benchmarks/h200/decode.py: layers that calibration has not seen."""
    for row in measured_decoding()["layers"]:
        batch, _, heads_kv, _, keys, size, precision = row["case"]
        itemsize = {"bf16": 2, "fp32": 4}[precision]
        assert row["gpu_time_s"] >= 2 * batch * heads_kv * keys * size * itemsize / 4.8e12
