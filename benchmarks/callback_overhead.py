"""What `rooflight.log_training` costs a step: small trainings of transformers and Lightning on the CPU, with and without.

    python benchmarks/callback_overhead.py [ROUNDS]

Trainings with and without take turns; a step's time is the median over all steps of all rounds but the first few of
each. On a busy machine that difference drowns in noise, so the last column is what was spent inside rooflight's own
code: the CPU time of everything that the trainer calls there, over all steps after the first. `every` is 10.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import nn

import rooflight
from rooflight.callbacks.lightning import LightningLog
from rooflight.callbacks.trainer import TrainerLog
from rooflight.models.optional_packages import declare_missing_operators

STEPS, SETTLED = 40, 5
"""Of a training, and how many of its first steps are left out."""
SEQUENCE, BATCH = 64, 8
spent_s: list[float] = []
"""CPU time of each call of rooflight's code."""


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent_s.append(time.process_time() - began)

    return call


def hf_steps(*, logged: bool) -> list[float]:
    import transformers

    ends: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=1000, n_positions=SEQUENCE)
    data = [{"input_ids": row, "labels": row} for row in torch.randint(1000, (BATCH * STEPS, SEQUENCE))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=BATCH, logging_steps=1000, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=data)
        trainer.add_callback(Clock())
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        if logged:
            rooflight.log_training(trainer, every=10)
        trainer.train()
    return [after - before for before, after in pairwise(ends)]


def lightning_steps(*, logged: bool) -> list[float]:
    import lightning

    ends: list[float] = []

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
            )

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

        def on_train_batch_end(self, *_: Any) -> None:
            ends.append(time.perf_counter())

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64 * STEPS, 784), torch.randint(10, (64 * STEPS,)))
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    if logged:
        rooflight.log_training(trainer, every=10)
    trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=64))
    return [after - before for before, after in pairwise(ends)]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine make steps of any length
    declare_missing_operators()
    for name in ("transformers", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for owner, names in ((TrainerLog, ("_hear", "on_step_end")),
                         (LightningLog, ("on_train_batch_start", "on_train_batch_end"))):  # fmt: skip
        for name in names:
            setattr(owner, name, timed(getattr(owner, name)))
    print("| training | step without | step with | difference | spent in rooflight |\n|---|---:|---:|---:|---:|")
    for what, steps in (("transformers, GPT-2 of 2 layers", hf_steps), ("Lightning, 3 linear layers", lightning_steps)):
        times: dict[bool, list[float]] = {False: [], True: []}
        own = 0.0
        for _ in range(rounds):
            for logged in (False, True):
                spent_s.clear()
                times[logged] += steps(logged=logged)[SETTLED:]
                if logged:
                    own += sum(spent_s[2:]) / (STEPS - 1)
        without, with_ = (median(times[logged]) for logged in (False, True))
        print(
            f"| {what} | {without * 1e3:.1f} ms | {with_ * 1e3:.1f} ms | {with_ / without - 1:+.1%} "
            f"| {own / rounds * 1e6:.0f} µs, {own / rounds / without:.2%} |"
        )


if __name__ == "__main__":
    main()
