"""Lightning's `Trainer`: a callback hears batches and steps; what a step calls is seen at the first one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn

from rooflight.callbacks.meter import ModuleCall, TrainingMeter, never_raises, size_of


class FirstStep:
    """The outermost modules that a training step calls: a step of Lightning is code, not a call of one model."""

    def __init__(self, root: nn.Module) -> None:
        self.calls: list[ModuleCall] = []
        self._inside = 0
        self._handles: list[Any] = []
        self._watch(root)

    def _watch(self, module: nn.Module) -> None:
        enter, leave = self._enter, self._leave
        self._handles.append(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
        self._handles.append(module.register_forward_hook(leave, always_call=True))
        if hasattr(module, "_orig_mod"):
            return  # compiled: what is inside is one piece
        for part in module.children():
            self._watch(part)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Checkpointed blocks are called again in backward.
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
            return
        if self._inside == 0:
            plain = getattr(module, "_orig_mod", module)
            self.calls.append(ModuleCall(plain, args, kwargs, torch.is_grad_enabled(), _autocast(module)))
        self._inside += 1

    def _leave(self, *_: Any) -> None:
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
            return
        self._inside -= 1

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


def _autocast(module: nn.Module) -> str | None:
    kind = next((p.device.type for p in module.parameters()), "cpu")
    if not torch.is_autocast_enabled(kind):
        return None
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(torch.get_autocast_dtype(kind))


class LightningLog:
    """What the callback does. Rank 0 counts and logs; the others do nothing."""

    def __init__(self, meter: TrainingMeter) -> None:
        self.broken = False
        self._meter = meter
        self._first: FirstStep | None = None
        self._knows = False
        self._step = 0

    @never_raises
    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._meter.restart()
        self._step = trainer.global_step

    @never_raises
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.is_global_zero and not self._knows and self._first is None:
            self._first, self._step = FirstStep(module), trainer.global_step

    @never_raises
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not trainer.is_global_zero:
            return
        size = size_of(batch)
        if self._first is not None:
            first, self._first, self._knows = self._first, None, True
            first.close()
            self._meter.device = module.device
            self._meter.know(first.calls, size)
        self._meter.batch(size)
        if trainer.global_step == self._step:
            return  # gradients are still being gathered
        self._step = trainer.global_step
        entry = self._meter.end_step(self._step)
        if entry is not None:
            for logger in trainer.loggers:
                logger.log_metrics(entry, step=self._step - 1)  # Lightning counts from 0

    @never_raises
    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self._meter.begin()

    @never_raises
    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        if self._first is not None:
            self._first.close()


def add_to_lightning(trainer: Any, meter: TrainingMeter, *, library: str) -> None:
    """`library`: the trainer's own, by either of the names that Lightning is installed under."""
    path = "lightning.pytorch.callbacks" if library == "lightning" else f"{library}.callbacks"
    base: type = import_module(path).Callback
    trainer.callbacks.append(type("LightningLogCallback", (LightningLog, base), {})(meter))
