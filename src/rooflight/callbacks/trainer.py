"""transformers' `Trainer`: its steps are heard through a callback, its batches where it trains on them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rooflight.callbacks.meter import ModuleCall, TrainingMeter, never_raises, size_of


class TrainerLog:
    """What the callback does. Rank 0 counts and logs; the others do nothing."""

    def __init__(self, trainer: Any, meter: TrainingMeter) -> None:
        self.broken = False
        self._trainer = trainer
        self._meter = meter
        self._knows = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._meter.restart()
        if state.is_world_process_zero and "training_step" not in vars(self._trainer):
            self._listen()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        vars(self._trainer).pop("training_step", None)

    def _listen(self) -> None:
        """Callbacks are not told of batches. Hooks of the model would be compiled with it, where it is."""
        training_step = self._trainer.training_step

        def heard(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            given = dict(inputs) if isinstance(inputs, Mapping) else inputs  # losses take labels out of it
            loss = training_step(model, inputs, *args, **kwargs)
            self._hear(given)
            return loss

        self._trainer.training_step = heard

    @never_raises
    def _hear(self, inputs: Any) -> None:
        size = size_of(inputs)
        if not self._knows:
            self._knows = True
            self._meter.device = self._trainer.args.device
            mixed = getattr(self._trainer.accelerator, "mixed_precision", "no")
            autocast = mixed if mixed in ("bf16", "fp16") else None
            self._meter.know([ModuleCall(self._trainer.model, (), inputs, True, autocast)], size)
        self._meter.batch(size)

    @never_raises
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self._knows:
            return
        entry = self._meter.end_step(state.global_step)
        if entry is not None:
            wanted = control.should_log
            self._trainer.log(entry)
            control.should_log = wanted  # logging says that it has been done, and the trainer's own entry would be lost

    @never_raises
    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._meter.begin()

    @never_raises
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._meter.begin()


def add_to_trainer(trainer: Any, meter: TrainingMeter) -> None:
    base: type = import_module("transformers").TrainerCallback
    trainer.add_callback(type("TrainerLogCallback", (TrainerLog, base), {})(trainer, meter))
