"""A callback for the Trainer of transformers: FLOPs, time and MFU of one training step, layer by layer.

    python examples/trainer_callback.py -o step3.json.gz
    rooflight report step3.json.gz

`MeasureOneStep` is all that you need in your own project. When the chosen step is over, it runs the same inputs again
through `rooflight.measure`, which puts weights, gradients and random state back: the training goes on as if nothing had
been. The optimizer's row is that of rooflight's own AdamW, for a second step of yours would change your training.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainingArguments

import rooflight
from rooflight.ledger import Ledger
from rooflight.models.optional_packages import declare_missing_operators
from rooflight.reporting.sections.measure_text import headlines
from rooflight.summary.measured import Measured
from rooflight.summary.measured_rows import rows
from rooflight.summary.measured_step import utilisation


class MeasureOneStep(TrainerCallback):
    """Measures training step number `at` (the first is 1); `ledger` is what came out."""

    def __init__(self, at: int = 3) -> None:
        self.at = at
        self.ledger: Ledger | None = None
        self._hook: Any = None
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.at and state.is_world_process_zero:
            self._hook = kwargs["model"].register_forward_pre_hook(self._keep, with_kwargs=True)

    def _keep(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inputs = args, kwargs

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._hook is None:
            return
        self._hook.remove()
        self._hook = None
        if self._inputs is not None:
            given, named = self._inputs
            self._inputs = None  # they are not kept until the training ends
            self.ledger = rooflight.measure(kwargs["model"], *given, kwargs=named, step="train", optimizer="adamw")


def tell(ledger: Ledger, depth: int = 3) -> None:
    """Layer by layer, forward and backward together; a module's row holds all that is inside it."""
    measured = Measured(ledger)
    print("\n".join(headlines(measured)))  # time, samples a second; MFU where the peak of the device is known
    if utilisation(measured) is None:
        print(f"no MFU: the peak of {ledger.header.device} is not known")
    print(f"{'layer':<26} {'FLOPs':>15} {'time of ops':>14}")
    for row in rows(measured):
        if row.estimate.depth <= depth and row.sums.time_s is not None:
            flops, time_s = row.estimate.totals.flops, row.sums.time_s
            print(f"{row.name or 'whole model':<26} {flops:>15,} {time_s * 1e3:>11.2f} ms")


class Tokens(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Random tokens, so that nothing is downloaded."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randint(1024, (64, 64), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[place], "labels": self.rows[place]}


def train(*callbacks: TrainerCallback) -> Any:
    """Five steps of a small GPT-2, with the dropout it has, in a folder that is gone afterwards."""
    declare_missing_operators()  # the Trainer imports torchvision, which fails where it was built for another torch
    from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_embd=128, n_head=4, n_positions=64, vocab_size=1024, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # the name of its class does not tell it to transformers
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=5, per_device_train_batch_size=8, logging_steps=1, save_strategy="no",
            report_to=[], disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=list(callbacks))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--at", type=int, default=3, help="the step to measure, 1 to 5")
    parser.add_argument("-o", "--out", type=Path, help="save the ledger, for rooflight report")
    arguments = parser.parse_args()

    measure = MeasureOneStep(arguments.at)
    trainer = train(measure)
    losses = [f"{row['loss']:.3f}" for row in trainer.state.log_history if "loss" in row]
    print(f"5 steps, step {arguments.at} measured")
    print(f"losses {', '.join(losses)}")
    if measure.ledger is not None:
        tell(measure.ledger)
        if arguments.out is not None:
            rooflight.save(measure.ledger, arguments.out)


if __name__ == "__main__":
    main()
