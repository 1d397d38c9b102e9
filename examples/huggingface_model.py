"""A Hugging Face model, from its configuration alone: what a training step costs, where, on which GPU; then run here.

    python examples/huggingface_model.py

The model has the architecture of Llama, is small, and has random weights; nothing is downloaded. Put your own model in
the place of `small_llama()`: an object from `from_pretrained` is treated in the same way, and left exactly as it was.
"""

from __future__ import annotations

from typing import Any

import torch

import rooflight
from rooflight.ledger import Ledger, total
from rooflight.models.optional_packages import declare_missing_operators
from rooflight.reporting.sections.measure_text import headlines
from rooflight.summary.measured import Measured

BATCH = 4
PARTS = ("self_attn", "mlp", "lm_head")


def small_llama() -> Any:
    declare_missing_operators()  # transformers imports torchvision, which fails where it was built for another torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8192, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
            max_position_embeddings=4096,
        )
    )  # fmt: skip


def flops_in(ledger: Ledger, part: str) -> int:
    """Of the modules with this name, in all layers: forward and backward."""
    return total(op for op in ledger.ops if part in op.module.split(".")).flops


def seconds_in(ledger: Ledger, part: str) -> float:
    """The same, of what was measured."""
    rows = [row for row in ledger.measurements if row.scope == "op" and "host_time_s" in row.quantities]
    inside = [row for row in rows if part in ledger.ops[row.ops[0]].module.split(".")]
    return sum(row.quantities["host_time_s"].value for row in inside)


def by_formula(model: Any, sequence: int) -> Ledger:
    """No memory is taken and nothing is computed: 4,096 tokens are as fast to estimate as 16."""
    tokens = torch.zeros(BATCH, sequence, dtype=torch.long)
    return rooflight.estimate(model, tokens, step="train", autocast="bf16")


def main() -> None:
    model = small_llama()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{type(model).__name__}: {parameters:,} parameters")

    print(f"\na training step of batch {BATCH} under bf16 autocast, by formula")
    print(f"{'sequence':>8}  {'FLOPs':>17}  {'a token':>11}  " + "  ".join(f"{part:>9}" for part in PARTS))
    for sequence in (128, 512, 2048):
        ledger = by_formula(model, sequence)
        flops = total(ledger.ops).flops
        shares = "  ".join(f"{flops_in(ledger, part) / flops:>9.1%}" for part in PARTS)
        print(f"{sequence:>8}  {flops:>17,}  {flops // (BATCH * sequence):>11,}  {shares}")

    print("\nthe same step with sequence 2048 on GPUs that are not here, predicted")
    tokens = torch.zeros(BATCH, 2048, dtype=torch.long)
    for found in rooflight.predict(model, tokens, on=["h200", "a100", "l4"], step="train", autocast="bf16"):
        low, high = found.time_interval_s.low, found.time_interval_s.high
        memory = f"{found.memory.device_bytes / 1e9:.1f} GB {'fit' if found.memory.fits else 'do not fit'}"
        time = f"{found.time_s * 1e3:5.1f} ms ({low * 1e3:.1f} to {high * 1e3:.1f})"
        print(f"{found.device:<12} {time}, {found.bound}-bound, {memory}")

    print("\nthe same object, run here on the CPU: batch 1, sequence 64, fp32")
    measured = rooflight.measure(model, torch.randint(8192, (1, 64)), step="train", repeat=5)
    print(f"{total(measured.ops).flops:,} FLOPs")
    print("\n".join(headlines(Measured(measured))))
    print(", ".join(f"{seconds_in(measured, part) * 1e3:.1f} ms in {part}" for part in PARTS))


if __name__ == "__main__":
    main()
