"""`rooflight measure` on a real GPU: counts to the last digit, nothing changed, and bad days that end well."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import rooflight
from rooflight.errors import OutOfMemory
from rooflight.measurement.api import MeasurementStopped, measure
from rooflight.measurement.cupti import op_counters
from rooflight.measurement.cupti.ranges import RangeProfiler
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, TENSOR_FLOPS
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import self_check
from tests.fixtures.notes import note_texts

pytestmark = pytest.mark.gpu

MIB = 1024 * 1024
CONV2 = 2 * 9 * 32 * 64 * 576 * 64
"""mnist-cnn's second convolution, batch 64: 1,358,954,496 FLOP."""
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    torch.manual_seed(0)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def of_step(ledger):
    return next((row.quantities for row in ledger.measurements if row.scope == "step"), {})


def of_ops(ledger):
    return {row.ops[0]: row.quantities for row in ledger.measurements if row.scope == "op"}


def summed(ledger, name):
    return sum(row[name].value for row in of_ops(ledger).values() if name in row)


def has_note(ledger, *parts):
    return any(all(part in note for part in parts) for note in note_texts(ledger.header.notes))


def conv2(ledger):
    """The op of the second convolution, and its kernels in the order of launch."""
    index = next(op.index for op in ledger.ops if op.module == "conv2")
    kernels = [kernel for kernel in ledger.kernels if kernel.ops == (index,) and kernel.kind == "kernel"]
    return of_ops(ledger)[index], kernels


def counters_work():
    """The GPU computes and its counters count, after whatever went wrong before: a product of 64 x 64 matrices."""
    x = torch.ones(64, 64, device="cuda")
    assert (x @ x).sum().item() == 64**3
    with RangeProfiler([FFMA], max_ranges=1, device=torch.cuda.current_device()) as profiler:
        done = False
        while not done:
            profiler.start()
            profiler.push("product")
            torch.mm(x, x)
            profiler.pop()
            done = profiler.stop()
        (found,) = profiler.results()
    return found.values[FFMA] >= 64**3


# --- counts ---


def test_conv2_in_tf32_to_the_last_digit():
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("no TF32 before Ampere")
    op, kernels = conv2(measure("mnist-cnn", batch=64, per_kernel=True, repeat=3, device="cuda", tf32=True))
    assert op["tensor_flops_tf32"].value == CONV2
    assert sum(kernel.quantities["tensor_flops_tf32"].value for kernel in kernels) == CONV2
    assert sum(kernel.quantities["tensor_flops_tf32"].value > 0 for kernel in kernels) == 1
    assert sum(kernel.quantities[FFMA].value for kernel in kernels) == op[FFMA].value


def test_conv2_in_fp32_and_its_bias_kernel_to_the_last_digit(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    op, kernels = conv2(measure("mnist-cnn", batch=64, per_kernel=True, repeat=3, device="cuda"))
    assert op["tensor_flops_tf32"].value == 0
    assert op[FFMA].value == 681_836_544
    counts = {kernel.name: kernel.quantities[FFMA].value for kernel in kernels}
    assert sorted(counts.values())[-2:] == [64 * 64 * 576, CONV2 // 2] and CONV2 // 2 == 679_477_248
    (bias,) = (name for name, count in counts.items() if count == 64 * 64 * 576)
    assert "elementwise" in bias


@pytest.fixture(scope="module")
def resnet18():
    return measure("resnet18", batch=16, step="train", repeat=5, device="cuda", spread=True)


def test_the_sum_of_a_training_steps_ops_is_the_whole(resnet18):
    step, ops = of_step(resnet18), of_ops(resnet18)
    assert any(step[name].value for name in TENSOR_FLOPS)
    for name in TENSOR_FLOPS:
        if name in step:
            assert summed(resnet18, name) == step[name].value, name
    for name in CUDA_FLOPS:
        if name in step:
            assert summed(resnet18, name) == pytest.approx(step[name].value, rel=1e-4)
    whole = sum(step[name].value for name in DRAM_BYTES)
    assert sum(summed(resnet18, name) for name in DRAM_BYTES) == pytest.approx(whole, rel=0.01)
    assert {"forward", "backward", "optimizer"} == {resnet18.ops[i].phase for i, row in ops.items() if "kernels" in row}
    launched = {index for kernel in resnet18.kernels for index in kernel.ops}
    assert all("kernel_time_s" in ops[index] and "cuda_flops_fp32" in ops[index] for index in launched)
    assert all(not check.difference for check in self_check(Measured(resnet18)) if check.name in TENSOR_FLOPS)
    assert has_note(resnet18, "counters took", "passes")


def test_three_counts_of_the_step_agree(resnet18):
    spread = {check.name: check.spread for check in self_check(Measured(resnet18))}
    assert set(DRAM_BYTES) < spread.keys() and None not in spread.values()
    assert all(spread[name] == 0 for name in TENSOR_FLOPS if name in spread)
    assert all(0 <= spread[name] < 0.02 for name in DRAM_BYTES)


def test_every_kernel_has_its_op_and_the_rows_their_time(resnet18):
    assert all(kernel.ops for kernel in resnet18.kernels)
    step = of_step(resnet18)
    assert summed(resnet18, "kernel_time_s") == pytest.approx(step["kernel_time_s"].value, rel=0.05)
    assert 0 < step["gpu_busy_s"].value <= step["kernel_time_s"].value * 1.01
    assert {"peak_allocated_bytes", "peak_reserved_bytes", "outside_bytes"} <= set(step)


def test_measured_rows_join_the_estimated_ones(resnet18):
    major, minor = torch.cuda.get_device_capability()
    estimated = rooflight.estimate("resnet18", batch=16, step="train", target=f"cuda:{major}{minor}")
    assert [op.key for op in resnet18.ops] == [op.key for op in estimated.ops]


def test_5000_ops_are_counted_in_windows(monkeypatch):
    class Chain(nn.Module):
        def forward(self, x):
            for _ in range(5000):
                x = x * 1.0001
            return x

    monkeypatch.setattr(op_counters, "WINDOW", 1024)
    seen = set()
    ledger = measure(
        Chain(), torch.ones(256, device="cuda"), device="cuda", repeat=1, levels=(),
        progress=lambda doing, done, total: seen.add(doing),
    )  # fmt: skip
    assert len(ledger.ops) == 5000 and len(of_ops(ledger)) == 5000
    assert sum(" of 5" in doing for doing in seen) == 5
    counts = [row["cuda_flops_fp32"].value for row in of_ops(ledger).values()]
    assert len(counts) == 5000 and len(set(counts)) == 1 and counts[0] >= 256
    assert sum(counts) == of_step(ledger)["cuda_flops_fp32"].value


@torch.library.custom_op("rooflight_gpu_test::borrows", mutates_args=())
def borrows(x: torch.Tensor) -> torch.Tensor:
    """Takes 3 MiB and 1 MiB at the same time, keeps 1 MiB."""
    workspace = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    result = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    workspace.zero_()
    del workspace
    return result


@borrows.register_fake
def _(x):
    return x.new_empty(MIB, dtype=torch.uint8)


def test_memory_of_known_allocations_is_right_to_the_byte():
    class Takes(nn.Module):
        def forward(self, x):
            return torch.empty(1000, dtype=torch.uint8, device="cuda"), borrows(x)

    ledger = measure(Takes(), torch.ones(1, device="cuda"), device="cuda", repeat=1, counters="none")
    ops = {ledger.ops[index].name: row for index, row in of_ops(ledger).items()}
    small, large = ops["aten::empty.memory_format"], ops["rooflight_gpu_test::borrows"]
    assert (small["growth_bytes"].value, small["allocations"].value, small["workspace_bytes"].value) == (1024, 1, 0)
    assert (large["growth_bytes"].value, large["allocations"].value, large["workspace_bytes"].value) == (
        MIB,
        2,
        3 * MIB,
    )
    step = of_step(ledger)
    assert step["peak_allocated_bytes"].value - step["allocated_before_bytes"].value == 1024 + 4 * MIB


# --- nothing is changed ---


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 10)

    def forward(self, x):
        x = torch.dropout(self.norm(self.conv(x)), 0.5, self.training)
        return self.linear(x.mean((2, 3)))


def train(measured):
    """Three steps of an own loop, with or without a measurement in the middle: losses, weights, random state."""
    torch.manual_seed(1)
    model = Noisy().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for number in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3, 16, 16, device="cuda")).square().mean()
        loss.backward()
        if measured and number == 1:
            given = torch.ones(4, 3, 16, 16, device="cuda")
            ledger = measure(model, given, step="train", optimizer="momentum", repeat=2, per_kernel=True)
            assert not has_note(ledger, "not measured"), note_texts(ledger.header.notes)
            assert model.training and all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return losses, state, torch.cuda.get_rng_state(), torch.get_rng_state()


def test_training_goes_on_as_if_nothing_had_been_measured(deterministic):
    plain, watched = train(measured=False), train(measured=True)
    assert plain[0] == watched[0]
    assert all(torch.equal(value, watched[1][name]) for name, value in plain[1].items())
    assert torch.equal(plain[2], watched[2]) and torch.equal(plain[3], watched[3])


def test_every_forward_of_a_measurement_computes_the_same_bits(deterministic):
    model = Noisy().cuda().eval()
    x = torch.randn(4, 3, 16, 16, device="cuda")
    with torch.no_grad():
        expected = model(x)
    outputs = []
    handle = model.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach().clone()))
    measure(model, x, repeat=2, per_kernel=True)
    handle.remove()
    assert len(outputs) > 10  # plain, profiled, and every pass of the counters
    assert all(torch.equal(output, expected) for output in outputs)


# --- bad days ---


class Trips(nn.Module):
    """Does something bad in the next forward after the measurement said that it is doing `when`."""

    def __init__(self, when, what) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.plan: Any = type("Plan", (), {"armed": False, "when": when, "what": staticmethod(what), "done": False})

    def progress(self, doing, done, total):
        if not self.plan.done and self.plan.when in doing:
            self.plan.armed = True

    def forward(self, x):
        x = self.linear(x)
        if self.plan.armed and not self.plan.done:
            self.plan.done = True
            self.plan.what()
        return self.linear(x)


def run_out():
    torch.empty(2**50, dtype=torch.uint8, device="cuda")


def fail():
    raise ValueError("boom")


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(("when", "what"), [
    ("time", run_out), ("kernels", fail), ("counters: whole step", run_out), (" ops", fail),
])  # fmt: skip
def test_a_step_that_fails_in_the_middle_costs_only_what_was_being_measured(when, what):
    model = Trips(when, what).cuda()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ledger = measure(model, torch.ones(8, 64, device="cuda"), step="train", repeat=2, progress=model.progress)
    assert model.plan.done
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert has_note(ledger, "not measured", "out of memory" if what is run_out else "ValueError: boom")
    assert "peak_allocated_bytes" in of_step(ledger)
    assert when == "time" or "wall_time_s" in of_step(ledger)
    assert counters_work()


def test_a_step_that_never_fits_is_one_line():
    class Huge(nn.Module):
        def forward(self, x):
            run_out()

    with pytest.raises(OutOfMemory, match="smaller batch") as caught:
        measure(Huge(), torch.ones(8, device="cuda"), device="cuda", repeat=2)
    assert "\n" not in str(caught.value)
    assert counters_work()


@pytest.mark.parametrize("when", ["kernels", " ops"])
def test_ctrl_c_keeps_what_was_measured_and_the_gpu_usable(when):
    model = Trips(when, interrupt).cuda()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(KeyboardInterrupt) as caught:
        measure(model, torch.ones(8, 64, device="cuda"), step="train", repeat=2, progress=model.progress)
    assert isinstance(caught.value, MeasurementStopped)
    ledger = caught.value.ledger
    assert has_note(ledger, "interrupted") and "wall_time_s" in of_step(ledger)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    if when == " ops":
        assert any(name in of_step(ledger) for name in CUDA_FLOPS)
    assert counters_work()
    again = measure(model, torch.ones(8, 64, device="cuda"), repeat=1)
    assert not has_note(again, "not measured") and any("cuda_flops_fp32" in row for row in of_ops(again).values())


# --- graphs and compiled steps ---


def test_a_captured_step_executes_what_the_eager_one_does():
    eager, graph = (measure("resnet18", batch=8, repeat=3, device="cuda", graphs=graphs) for graphs in (False, True))
    assert (eager.header.execution, graph.header.execution) == ("eager", "graph")
    for name in TENSOR_FLOPS:
        if name in of_step(eager):
            assert of_step(graph)[name].value == of_step(eager)[name].value, name
    assert "wall_time_s" in of_step(graph) and graph.kernels
    known = sum(kernel.time_s for kernel in graph.kernels if kernel.ops)
    assert known > 0.8 * sum(kernel.time_s for kernel in graph.kernels)


def test_a_compiled_steps_kernels_find_their_ops():
    ledger = measure("resnet18", batch=8, repeat=3, device="cuda", compile=True)
    assert ledger.header.execution == "compile"
    total = sum(kernel.time_s for kernel in ledger.kernels)
    assert sum(kernel.time_s for kernel in ledger.kernels if kernel.ops) > 0.8 * total
    assert any(len(kernel.ops) > 1 for kernel in ledger.kernels)  # fused
    assert any(value.value for name, value in of_step(ledger).items() if name in TENSOR_FLOPS)


# --- the command line ---


def rooflight_line(*arguments):
    return [sys.executable, "-m", "rooflight", *map(str, arguments)]


def measured(*arguments, folder, name):
    path = folder / name
    line = rooflight_line("measure", "mnist-cnn", "--batch", 64, "--repeat", 3, "--on", "cuda", *arguments, "-o", path)
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return rooflight.load(path)


def test_ncu_counts_the_same(tmp_path):
    if shutil.which("ncu") is None:
        pytest.skip("ncu is not on PATH")
    ours = measured("--counters", "cupti", folder=tmp_path, name="cupti.json")
    theirs = measured("--counters", "ncu", folder=tmp_path, name="ncu.json")
    assert [op.key for op in ours.ops] == [op.key for op in theirs.ops]
    compared = 0
    for index, row in of_ops(theirs).items():
        for name in ("tensor_flops_tf32", FFMA):
            if name in row:
                assert row[name].value == of_ops(ours)[index][name].value, (ours.ops[index].name, name)
                compared += 1
    assert compared >= 2 * 9  # every op that launches a kernel
    assert conv2(theirs)[0]["tensor_flops_tf32"].value == CONV2
    assert conv2(theirs)[0]["tensor_flops_tf32"].origin.startswith("ncu")


def test_two_processes_at_once(tmp_path):
    """Each counts right, or says why it does not: nobody's counts are another's."""
    paths = [tmp_path / f"{number}.json" for number in range(2)]
    lines = [rooflight_line("measure", "mnist-cnn", "--batch", 64, "--on", "cuda", "-o", path) for path in paths]
    running = [
        subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        for line in lines
    ]
    ended = [(process.communicate(timeout=600)[1], process.returncode) for process in running]
    assert [code for _, code in ended] == [0, 0], ended
    ledgers = [rooflight.load(path) for path in paths]
    counts = [conv2(ledger)[0].get("tensor_flops_tf32") for ledger in ledgers]
    assert any(count is not None for count in counts)
    for ledger, count in zip(ledgers, counts, strict=True):
        assert count.value == CONV2 if count is not None else has_note(ledger, "counters not measured")


def test_the_doctor_agrees():
    done = subprocess.run(
        rooflight_line("doctor", "--require", "counters"), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
