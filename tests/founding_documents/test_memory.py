"""What the founding documents say of memory, told apart: outputs, workspace, activations, states, context."""

from __future__ import annotations

import pytest

import rooflight
from rooflight.memory.cudnn_workspaces import ConvolutionWorkspaces
from rooflight.ops.kernel_task import Task
from rooflight.prediction.api import predict

KIB = 1024
CONV2 = (64, 32, 26, 26, 64, 3, 3, 1, 0, 1, 1, 0)


def test_conv2_keeps_its_output_and_its_parameters_once() -> None:
    """9,511,168 bytes at batch 64, and not 14.08 MB: parameters do not scale with the batch."""
    ledger = rooflight.estimate("mnist-cnn", batch=64)
    module = next(module for module in ledger.modules if module.path == "conv2")
    assert module.output_bytes == 9_437_184 == 9_216 * KIB
    assert module.output_bytes + module.param_bytes == 9_511_168
    alone = rooflight.estimate("mnist-cnn", batch=1)
    at_one = next(module for module in alone.modules if module.path == "conv2")
    assert (64 * at_one.output_bytes, at_one.param_bytes) == (module.output_bytes, module.param_bytes)


def test_the_workspace_of_the_documents_is_winograds() -> None:
    """31,392 KiB beside the output of 9,216 KiB: tiles of 4x4 outputs as 6x6 numbers, of input, output and weight.

    A layer for which cuDNN took that engine on an H200 says so, by the closed form alone.
    """
    recorded = [111, 64, 114, 114, 64, 3, 3, 1, 1, 1, 1, 0, -1, -1, 1_721_235_456]
    winograd = ConvolutionWorkspaces({"fp32": [recorded]})
    workspace = winograd.bytes_of(Task("conv-wgrad", "fp32", CONV2))
    assert workspace == 31_392 * KIB
    assert workspace + 9_216 * KIB == 40_608 * KIB == 41_582_592


def test_290_times_the_parameters() -> None:
    """A training step of ResNet-18 at batch 256 on a V100: activations, not overhead."""
    found = predict("resnet18", on="v100-sxm2-32", step="train", batch=256, advice=False)[0].memory
    assert found is not None and found.outside_bytes is not None and found.peak_reserved_bytes is not None
    split = found.peak.split
    parameters = 4 * 11_689_512
    assert split["parameter"] == split["optimizer-state"] == parameters
    assert split.get("gradient", 0) <= parameters
    # 5,269 MiB of activations kept for backward, input not counted.
    assert split["activation"] / 2**20 == pytest.approx(5_269, rel=0.1)
    assert split["activation"] > 100 * parameters
    assert split["activation"] > 0.8 * found.peak_allocated_bytes
    assert sum(split.values()) == found.peak_allocated_bytes
    assert found.device_bytes == found.peak_reserved_bytes + found.outside_bytes
    assert found.fits
