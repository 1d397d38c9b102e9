"""What every tool is asked: models, steps, and the counts that are known to be right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Group = Literal["forward", "backward", "step", "growth"]

# Multiply-adds of one forward pass of one sample: convolutions, matrix products and attention (all of S x S).
RESNET50 = 4_089_184_256
RESNET50_CONV1 = 118_013_952  # 64 x 3 x 7 x 7 x 112 x 112
GPT2_S1024 = 145_824_153_600
LLAMA3_70B_S2048 = 147_837_069_295_616

# Allocated peak of one training step on an H200: fp32, mean square of the output as loss, AdamW.
GPT2_S1024_B8_PEAK_BYTES = 18_466_108_928


@dataclass(frozen=True)
class Case:
    """One piece of work. `macs` and `peak_bytes` are what a right answer says, `None` where nobody knows."""

    key: str
    title: str
    group: Group
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: str | None = None
    """`None`: forward only. A tool without an optimizer stops after backward."""
    macs: int | None = None
    peak_bytes: int | None = None

    @property
    def step(self) -> str:
        return "infer" if self.optimizer is None else "train"


_LLAMA = {"seq": 2048, "dtype": "bf16"}

FORWARD = (
    Case("resnet50-forward", "ResNet-50, 224 x 224, batch 1", "forward", "resnet50", macs=RESNET50),
    Case("gpt2-forward", "GPT-2, sequence 1024, batch 1", "forward", "gpt2", {"seq": 1024}, macs=GPT2_S1024),
    Case("llama-forward", "Llama 3 70B, bf16, sequence 2048, batch 1", "forward", "llama3-70b", _LLAMA,
         macs=LLAMA3_70B_S2048),
)  # fmt: skip

# Backward makes two products for every one of forward, except that nobody wants the gradient of the images.
BACKWARD = (
    Case("resnet50-backward", "ResNet-50, 224 x 224, batch 16", "backward", "resnet50", {"batch": 16}, optimizer="sgd",
         macs=16 * (3 * RESNET50 - RESNET50_CONV1)),
    Case("gpt2-backward", "GPT-2, sequence 1024, batch 4", "backward", "gpt2", {"seq": 1024, "batch": 4},
         optimizer="sgd", macs=4 * 3 * GPT2_S1024),
)  # fmt: skip

STEP = (
    Case("gpt2-step", "GPT-2, fp32, sequence 1024, batch 8, AdamW", "step", "gpt2", {"seq": 1024, "batch": 8},
         optimizer="adamw", peak_bytes=GPT2_S1024_B8_PEAK_BYTES),
    Case("llama-step", "Llama 3 70B, bf16, sequence 2048, batch 1, AdamW", "step", "llama3-70b", _LLAMA,
         optimizer="adamw"),
)  # fmt: skip

LAYERS = (8, 16, 32, 80)
GROWTH = tuple(
    Case(f"llama-{layers}-{step}", f"{layers} layers, {step}", "growth", "llama3-70b",
         {**_LLAMA, "overrides": {"num_hidden_layers": str(layers)}}, optimizer="adamw" if step == "train" else None)
    for step in ("infer", "train")
    for layers in LAYERS
)  # fmt: skip

CASES = {case.key: case for case in (*FORWARD, *BACKWARD, *STEP, *GROWTH)}

_TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet50": ("resnet18", {"input_shape": (3, 64, 64)}),
    "gpt2": ("gpt2", {"seq": 32, "overrides": {"n_layer": "1"}}),
    "llama3-70b": ("llama3-70b", {"seq": 32, "dtype": "bf16", "overrides": {"num_hidden_layers": "1"}}),
    "distilbert-mlm": ("distilbert-mlm", {"seq": 32, "overrides": {"n_layers": "1"}}),
    "transformer": ("transformer", {"seq": 32, "overrides": {"num_encoder_layers": "1", "num_decoder_layers": "1"}}),
}


def tiny(case: Case) -> tuple[str, dict[str, Any]]:
    """A model of the same kind that takes no time: to warm up imports and caches before the clock starts."""
    return _TINY.get(case.model, ("mnist-cnn", {}))
