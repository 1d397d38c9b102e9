"""From a workload to a ledger without costs: sets the stage, runs the step, collects what was written."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from rooflight._version import __version__
from rooflight.errors import RooflightError, TraceFailed
from rooflight.ledger import FORMAT_VERSION, Header, Ledger, MathModes, Op
from rooflight.models.workload import Workload
from rooflight.trace.arguments import TensorKind, prepare, tensor_leaves
from rooflight.trace.autocast import autocast_as_cuda
from rooflight.trace.failures import failures_explained
from rooflight.trace.kernels import kernels_of
from rooflight.trace.live import borrowed
from rooflight.trace.modules import ModuleTracker, original_name
from rooflight.trace.precision import math_modes
from rooflight.trace.recorder import Recorder
from rooflight.trace.stand_ins import STAND_INS
from rooflight.trace.step import Training, make_optimizer, run_inference, run_training
from rooflight.trace.target import parse_target


@dataclass(frozen=True)
class TraceOptions:
    """How a step is traced. `on` says what the tensors are: without data (meta, fake), or real (cpu, cuda)."""

    target: str = "cuda"
    autocast: str | None = None
    loss: str | None = None
    optimizer: str | None = None
    foreach: bool | None = None
    """`None`: as torch chooses on the target (on for CUDA, off for the CPU)."""
    accumulate: int = 1
    on: TensorKind = "meta"
    command: str = ""


_DEFAULTS = TraceOptions()


def trace(workload: Workload, options: TraceOptions = _DEFAULTS) -> Ledger:
    """Run the workload's step once and write one row for every op."""
    if options.on != "meta":
        return _trace(workload, options)
    try:
        return _trace(workload, options)
    except TraceFailed as failure:
        # Some models look at values that fake tensors know (constants) and meta tensors do not.
        log = logging.getLogger("torch._subclasses.fake_tensor")
        try:
            log.disabled = True  # it prints every failure; ours to tell is the first
            return _trace(workload, _with(options, on="fake"))
        except RooflightError:
            raise failure from None
        finally:
            log.disabled = False


_lock = threading.RLock()
_FUSED_LAYERS = {"aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd"}


@contextmanager
def _room_for_deep_models() -> Iterator[None]:
    """Following a call takes frames of its own; a model that runs without a trace must run with one."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(3 * limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _with(options: TraceOptions, *, on: TensorKind) -> TraceOptions:
    return TraceOptions(**{**options.__dict__, "on": on})


def _trace(workload: Workload, options: TraceOptions) -> Ledger:
    target = parse_target(options.target)
    modes = math_modes(target)
    model = workload.model
    training = workload.step == "train"
    choices = Training(
        loss=options.loss or workload.loss,
        optimizer=options.optimizer or workload.optimizer,
        foreach=target.kind == "cuda" if options.foreach is None else options.foreach,
        accumulate=options.accumulate,
    )
    with ExitStack() as stage:
        # A trace patches torch and borrows the model: one at a time in a process.
        stage.enter_context(_lock)
        # A caller's modes (another trace around this one, fake tensors) have no part in it, and an inference mode would
        # hide composite operators and forbid backward.
        stage.enter_context(_disable_current_modes())
        stage.enter_context(torch.inference_mode(False))
        stage.enter_context(torch.autocast("cpu", enabled=False))
        stage.enter_context(_room_for_deep_models())
        stage.enter_context(borrowed(model, training=training, on=options.on))
        args, kwargs = prepare(stage, workload, options.on)
        notes: list[str] = []
        if options.on in ("meta", "fake"):
            notes = stage.enter_context(kernels_of(target, device="meta" if options.on == "meta" else "cpu"))
        optimizer = make_optimizer(model, choices) if training else None
        device = {"fake": "cpu"}.get(options.on, options.on)
        tracker = ModuleTracker(model)
        stand_ins = STAND_INS if target.kind == "cuda" and options.on in ("meta", "fake") else None
        recorder = Recorder(tracker, device=device, modes=modes, stand_ins=stand_ins)
        inputs = _register(recorder, model, optimizer, (args, kwargs))

        autocast = partial(autocast_as_cuda, options.autocast, on=options.on)

        def forward() -> Any:
            with autocast():
                return model(*args, **kwargs)

        stage.enter_context(tracker.watch())
        stage.enter_context(torch.compiler.set_stance("force_eager"))
        with failures_explained(model):
            if training:
                output = run_training(
                    forward, recorder, tracker, optimizer=optimizer, training=choices, autocast=autocast
                )
            else:
                output = run_inference(forward, recorder)
        outputs = _file_results(recorder, model, output, optimizer)
        modules = tracker.modules()
        header = _header(
            workload, options, choices, inputs=inputs, outputs=outputs, modes=modes,
            notes=_notes(workload, options, notes, recorder.ops),
        )  # fmt: skip
        # Closed while the model is still borrowed: what lives now outlives the step.
        storages = recorder.storages.close()
        del output, optimizer
    return Ledger(
        format_version=FORMAT_VERSION, header=header, modules=modules, storages=storages, ops=tuple(recorder.ops)
    )


def _register(recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer | None, inputs: Any) -> Any:
    """Name the storages that are there before the step, and describe the inputs."""
    storages = recorder.storages
    for name, parameter in model.named_parameters():
        storages.id_of(parameter, "parameter", original_name(name))
    for name, buffer in model.named_buffers():
        storages.id_of(buffer, "buffer", original_name(name))
    if optimizer is not None:
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    storages.id_of(value, "optimizer-state", name)
    described = []
    args, kwargs = inputs
    for name, value in [*((f"input {i}", arg) for i, arg in enumerate(args)), *kwargs.items()]:
        for leaf in tensor_leaves(value):
            storages.id_of(leaf, "input", name)
            described.append((name, storages.describe(leaf)))
    return tuple(described)


def _file_results(recorder: Recorder, model: nn.Module, output: Any, optimizer: torch.optim.Optimizer | None) -> Any:
    """Gradients and outputs are known only when the step is over."""
    storages = recorder.storages
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            storages.mark(parameter.grad, "gradient", original_name(name))
        elif optimizer is not None:
            # Nothing in the loss depends on it, so a real optimizer never makes state for it.
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, torch.Tensor):
                    storages.forget(value)
    leaves = tensor_leaves(dict(output) if isinstance(output, dict) else output)
    for leaf in leaves:
        storages.mark(leaf, "output")
    return tuple(storages.describe(leaf) for leaf in leaves)


def _notes(workload: Workload, options: TraceOptions, found: list[str], ops: list[Op]) -> tuple[str, ...]:
    """What a reader of the ledger should know."""
    notes = [*workload.notes, *found]
    if any(type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
           for module in workload.model.modules()):  # fmt: skip
        notes.append("the model is compiled; these are the ops of its eager form, before fusion")
    if options.on in ("cpu", "cuda"):
        notes.append(f"the step was really run on {options.on}")
    training, packets = workload.step == "train", {op.packet for op in ops}
    if training and not any(op.phase == "backward" for op in ops):
        notes.append("nothing is trained: the loss depends on no parameter that wants a gradient; there is no backward")
    if training and "aten::_cudnn_rnn" in packets:
        notes.append("what cuDNN keeps of recurrent layers for backward (its reserve) is not in the memory figures")
    if packets & _FUSED_LAYERS:
        notes.append(
            "nn.MultiheadAttention and nn.TransformerEncoderLayer take their fast path: a whole layer is one op, and "
            "the modules inside it run nothing of their own"
        )
    return tuple(notes)


def _header(workload: Workload, options: TraceOptions, choices: Training, *, inputs: Any, outputs: Any,
            modes: MathModes, notes: tuple[str, ...]) -> Header:  # fmt: skip
    training = workload.step == "train"
    return Header(
        rooflight=__version__, torch=str(torch.__version__), model=workload.name, step=workload.step,
        target=parse_target(options.target).name, batch=workload.batch, dtype=workload.dtype, math=modes,
        sequence=workload.sequence, past=workload.past, autocast=options.autocast,
        loss=choices.loss if training else None, optimizer=choices.optimizer if training else None,
        accumulate=choices.accumulate if training else 1, traced_on=options.on, inputs=inputs, outputs=outputs,
        command=options.command, notes=notes,
    )  # fmt: skip
