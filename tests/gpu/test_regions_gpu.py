"""Regions on a real GPU whose counters can be read: exact counts, and a program that notices nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rooflight.measurement.regions import region, regions, regions_ledger, scheduler, settings
from rooflight.metrics import DRAM_BYTES, EXECUTED_FLOPS
from rooflight.models.architectures.mnist import MnistCnn
from tests.fixtures.paths import ROOT

pytestmark = pytest.mark.gpu

BATCH = 64
TENSOR_FLOPS = 2 * 9 * 32 * 64 * 576 * BATCH
"""conv2: 32 -> 64 channels, 3x3, 24x24 outputs: 1,358,954,496."""
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
ENOUGH = 16
"""Executions after which all is known on any chip: first, plain, scout and at most ten passes."""
EXAMPLE = ROOT / "examples" / "mnist_regions.py"


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in (settings.RUN, settings.COUNTERS, "RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(scheduler, "_process", scheduler.RegionProcess())
    torch.manual_seed(0)
    yield
    for r in regions():  # one that was left incomplete still holds the counters
        if r.pieces.plan is not None:
            r.pieces.plan.close()


@pytest.fixture
def model():
    return MnistCnn().cuda()


@pytest.fixture
def images():
    return torch.randn(BATCH, 32, 26, 26, device="cuda")


@pytest.fixture
def tf32(monkeypatch):
    """Convolutions on tensor cores, torch's default."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("no TF32 before Ampere")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)


def counted(r):
    """Everything was counted. All of it fits in the L2 cache, so that a run of it may read too little from DRAM to tell."""
    told = [line for line in r.missing if not line.endswith(": no more than a range with nothing in it shows")]
    in_cache = set(DRAM_BYTES) - r.quantities.keys()
    return r.complete and not told and bool(r.missing) == bool(in_cache)


def step(model, optimizer, batch=BATCH):
    with region("step"):
        optimizer.zero_grad()
        x = torch.randn(batch, 1, 28, 28, device="cuda")
        x = F.relu(model.conv1(x))
        with region("conv2"):
            x = model.conv2(x)
        x = model.fc1(torch.flatten(model.dropout1(F.max_pool2d(F.relu(x), 2)), 1))
        loss = model.fc2(F.relu(x)).square().mean()
        with region("backward"):
            loss.backward()
        optimizer.step()


def test_conv2_in_tf32_to_the_last_digit(model, images, tf32):
    lines = []
    other = torch.empty(256 * 1024 * 1024, dtype=torch.uint8, device="cuda")
    for _ in range(ENOUGH):
        other.zero_()  # drives the images out of the L2 cache
        with region("conv2") as r:
            model.conv2(images)
        lines.append(r.missing)
    assert r.complete and r.missing == (), r
    assert r.quantities["tensor_flops_tf32"].value == TENSOR_FLOPS
    assert r.flops >= TENSOR_FLOPS
    assert images.nbytes <= r.bytes_read < 2 * images.nbytes
    assert 0 < r.bytes_written < 1e9  # of the 9.4 MB any part may stay in L2, and zeros be driven out instead
    assert 0 < r.gpu_time_s <= r.time_s
    assert lines[0][0].startswith("a time without") and "more execution" in lines[1][0]
    assert regions_ledger().header.device == torch.cuda.get_device_name()


def test_conv2_without_tf32_runs_on_the_cuda_cores(model, images, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    for _ in range(ENOUGH):
        with region("conv2") as r:
            model.conv2(images)
    assert r.quantities["tensor_flops_tf32"].value == 0
    # Half the FLOPs as multiply-adds where cuDNN takes no Winograd kernel, and one for every output of the bias kernel.
    assert r.quantities[FFMA].value == TENSOR_FLOPS // 2 + 64 * BATCH * 576
    assert r.flops >= TENSOR_FLOPS
    # No 16-bit tensor is there: what the counters call fp16 are constants loaded by HFMA2.
    assert r.flops == r.quantities["cuda_flops_fp32"].value + r.quantities["cuda_flops_fp64"].value
    assert "upper bound" in r.quantities["cuda_flops_fp16"].origin


def test_under_autocast_half_precision_of_the_cuda_cores_is_part_of_the_flops():
    x = torch.randn(1024, 1024, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        for _ in range(ENOUGH):
            with region("matmul") as r:
                torch.relu(x @ x)
    assert r.complete, r
    assert r.quantities["tensor_flops_fp16"].value == 2 * 1024**3
    assert r.flops == sum(r.quantities[name].value for name in EXECUTED_FLOPS if name in r.quantities)


def test_memory_is_exact():
    torch.cuda.empty_cache()  # so that no block of another size is used again
    kept = []
    for _ in range(4):
        with region("keeps 8 MiB, needs 24") as r:
            kept.append(torch.empty(8 * 1024 * 1024, dtype=torch.uint8, device="cuda"))
            torch.empty(16 * 1024 * 1024, dtype=torch.uint8, device="cuda")
    assert r.growth_bytes == 8 * 1024 * 1024
    # The peak is that of the second execution: 8 MiB of the first + 24; and 4 x 8 are there now.
    assert r.peak_bytes == torch.cuda.memory_allocated()


def test_nested_regions_all_complete_and_the_parts_fit_the_whole(model, tf32):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(60):
        step(model, optimizer)
    found = {r.name: r for r in regions()}
    assert all(counted(r) for r in found.values()), found
    assert {r.executions for r in found.values()} == {60}
    tensor = {name: r.quantities["tensor_flops_tf32"].value for name, r in found.items()}
    assert tensor["conv2"] == TENSOR_FLOPS
    assert tensor["backward"] > 0  # autograd's own thread
    assert tensor["step"] >= tensor["conv2"] + tensor["backward"]
    shares = found["step"].shares
    assert set(shares) == {"conv2", "backward"}
    assert 0 < sum(shares.values()) < 1


def test_a_region_around_an_epoch_is_the_sum_of_its_steps(model, tf32):
    x = torch.randn(BATCH, 32, 26, 26, device="cuda")
    for _ in range(ENOUGH):
        with region("epoch") as epoch:
            for _ in range(5):
                model.conv2(x)
    assert epoch.quantities["tensor_flops_tf32"].value == 5 * TENSOR_FLOPS


def test_when_chooses_the_executions(model, images, tf32):
    for epoch in range(6):
        for _ in range(ENOUGH):
            with region("conv2", when=lambda epoch=epoch: epoch == 4) as r:  # type: ignore[misc]
                model.conv2(images)
    assert r.executions == ENOUGH
    assert r.quantities["tensor_flops_tf32"].value == TENSOR_FLOPS


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_exception_in_any_execution_leaves_the_gpu_usable(model, images, tf32, kind):
    fails = failed = 0
    while fails < 2 * ENOUGH:
        fails += 1
        try:
            with region("conv2") as r:
                model.conv2(images)
                if fails % 2:
                    raise kind("mine")
        except kind as error:
            failed += str(error) == "mine"
    assert (fails, failed) == (2 * ENOUGH, ENOUGH)
    assert (r.executions, r.failures) == (ENOUGH, ENOUGH)
    assert counted(r), r
    assert r.quantities["tensor_flops_tf32"].value == TENSOR_FLOPS
    ones = torch.ones(128, 128, device="cuda")
    assert torch.equal(ones @ ones, torch.full((128, 128), 128.0, device="cuda"))


def trained(*, measured):
    torch.manual_seed(1)
    # Without pooling, whose backward adds up in any order.
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.Dropout(), nn.Flatten(), nn.Linear(9216, 10)]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(20):
        with region("step", when=measured):
            optimizer.zero_grad()
            with region("forward", when=measured):
                loss = model(torch.randn(BATCH, 1, 28, 28, device="cuda"))[:, 0].mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.clone() for name, value in model.state_dict().items()}


def test_outputs_and_weights_are_those_without_regions(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    torch.use_deterministic_algorithms(True)
    try:
        plain_losses, plain = trained(measured=False)
        losses, weights = trained(measured=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert losses == plain_losses
    assert all(torch.equal(plain[name], weights[name]) for name in plain)
    assert len(regions()) == 2


def test_a_captured_graph_is_not_disturbed_and_its_replay_is_measured(model, images, tf32):
    with torch.no_grad():
        for _ in range(3):
            model.conv2(images)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), region("captured"):
            out = model.conv2(images)
        wanted = model.conv2(images)
        for _ in range(ENOUGH):
            with region("replay") as replay:
                graph.replay()
    captured = next(r for r in regions() if r.name == "captured")
    assert captured.executions == 1 and captured.time_s is None
    assert replay.quantities["tensor_flops_tf32"].value == TENSOR_FLOPS
    assert torch.equal(out, wanted)


def test_counters_switched_off_leave_time_and_memory(model, images, monkeypatch):
    monkeypatch.setenv(settings.COUNTERS, "none")
    for _ in range(3):
        with region("conv2") as r:
            model.conv2(images)
    assert r.complete and r.time_s > 0 and r.gpu_time_s > 0
    assert (r.flops, r.bytes_read) == (None, None)
    assert r.missing == ("FLOPs and DRAM bytes: counters are switched off (--counters none)",)


def test_run_measures_the_example_with_nothing_changed():
    command = [sys.executable, "-m", "rooflight.commands.main", "run", "--json", "--counters", "cupti", "--level", "l2"]
    command += ["--", sys.executable, str(EXAMPLE), "--epochs", "2", "--batch", "64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["regions"]}
    assert set(rows) == {"step", "conv2"}
    assert all(row["executions"] == 40 and row["flops"] and row["bytes_read"] for row in rows.values())
    assert all(row["quantities"]["l2_bytes"]["value"] > 0 for row in rows.values())
    if torch.cuda.get_device_capability() >= (8, 0):
        assert rows["conv2"]["quantities"]["tensor_flops_tf32"]["value"] == TENSOR_FLOPS
