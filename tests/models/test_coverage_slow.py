"""A small form of `benchmarks/coverage.py`: models of every zoo and kind, inference and training, beside torch's FLOPs."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from tests.fixtures.paths import ROOT

pytestmark = pytest.mark.slow

MODELS = (
    "torchvision:alexnet", "torchvision:convnext_tiny", "torchvision:efficientnet_b0", "torchvision:swin_t",
    "torchvision:vit_h_14", "torchvision:fcn_resnet50", "torchvision:r3d_18", "torchvision:quantized_mobilenet_v2",
    "torchvision:raft_small", "timm:vit_tiny_patch16_224", "timm:mobilenetv3_small_100", "timm:mixer_s16_224",
    "timm:deit_tiny_patch16_224", "hf:gpt2", "hf:opt", "hf:bert", "hf:deberta", "hf:t5", "hf:vit", "hf:clip",
    "hf:convnext", "hf:videomae", "hf:whisper", "hf:audio-spectrogram-transformer", "hf:sam",
    "whisper-tiny", "gemma3-1b", "bert-base", "clip-vit-b-32",
)  # fmt: skip
COUNTED = ("torchvision:alexnet", "torchvision:convnext_tiny", "hf:bert", "clip-vit-b-32")
"""FlopCounterMode runs on these in every version of torch; convnext has grouped convolutions."""


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    """The script, under a name that is not the package's of the same name."""
    spec = importlib.util.spec_from_file_location("coverage_of_zoos", ROOT / "benchmarks" / "coverage.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("spec", MODELS)
def test_steps_are_traced_and_cost_what_torch_counts(coverage: ModuleType, spec: str) -> None:
    zoo = spec.partition(":")[0] if ":" in spec else "released"
    for step in coverage.STEPS:
        row = coverage.tried(zoo, spec, step)
        assert row.failure == ""
        assert row.torch_flops == row.flops if spec in COUNTED else row.torch_flops in (None, row.flops)
        assert row.uncounted == ()


def test_every_zoo_has_models(coverage: ModuleType) -> None:
    sizes = {zoo: len(specs(False)) for zoo, specs in coverage.ZOOS.items()}
    assert sizes["torchvision"] > 100 and sizes["timm"] > 80 and sizes["hf"] > 200 and sizes["released"] > 100
    assert len(coverage.hf_specs(True)) > sizes["hf"]


def test_a_step_that_takes_too_long_is_ended(coverage: ModuleType) -> None:
    (row,) = coverage.try_all([("released", "llama3.1-405b", "train")], jobs=1, timeout_s=0, memory_gib=6)
    assert row.failure == "took more than 0 s"
