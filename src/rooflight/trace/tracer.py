"""From a workload to a ledger without costs: sets the stage, runs the step, collects what was written."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map_only

from rooflight._version import __version__
from rooflight.errors import RooflightError, TraceFailed
from rooflight.ledger import FORMAT_VERSION, Header, Ledger
from rooflight.models.shapes import explain_shape_errors
from rooflight.models.workload import Workload
from rooflight.trace.autocast import autocast_as_cuda
from rooflight.trace.kernels import kernels_of
from rooflight.trace.live import borrowed
from rooflight.trace.modules import ModuleTracker, original_name
from rooflight.trace.precision import math_modes
from rooflight.trace.recorder import Recorder
from rooflight.trace.stand_ins import STAND_INS
from rooflight.trace.step import Training, make_optimizer, run_inference, run_training
from rooflight.trace.target import parse_target

TensorKind = Literal["meta", "fake", "cpu", "cuda"]


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


def _with(options: TraceOptions, *, on: TensorKind) -> TraceOptions:
    return TraceOptions(**{**options.__dict__, "on": on})


def _trace(workload: Workload, options: TraceOptions) -> Ledger:
    target = parse_target(options.target)
    modes = math_modes()
    model = workload.model
    training = workload.step == "train"
    choices = Training(
        loss=options.loss or workload.loss,
        optimizer=options.optimizer or workload.optimizer,
        foreach=target.kind == "cuda" if options.foreach is None else options.foreach,
        accumulate=options.accumulate,
    )
    with ExitStack() as stage:
        # A caller's inference mode would hide composite operators and forbid backward.
        stage.enter_context(torch.inference_mode(False))
        stage.enter_context(borrowed(model, training=training, on=options.on))
        args, kwargs = _prepare(stage, workload, model, options.on)
        if options.on in ("meta", "fake"):
            stage.enter_context(kernels_of(target, device="meta" if options.on == "meta" else "cpu"))
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
        with _failures_explained(model):
            if training:
                output = run_training(
                    forward, recorder, tracker, optimizer=optimizer, training=choices, autocast=autocast
                )
            else:
                output = run_inference(forward, recorder)
        outputs = _file_results(recorder, model, output)
        modules = tracker.modules()
        header = _header(workload, options, choices, inputs, outputs, modes)
        # Closed while the model is still borrowed: what lives now outlives the step.
        storages = recorder.storages.close()
        del output, optimizer
    return Ledger(
        format_version=FORMAT_VERSION, header=header, modules=modules, storages=storages, ops=tuple(recorder.ops)
    )


def _prepare(stage: ExitStack, workload: Workload, model: nn.Module, on: TensorKind) -> tuple[Any, Any]:
    """The step's inputs as the asked kind of tensors; for fake tensors the model's parameters too."""
    arguments: tuple[Any, Any] = _copied_caches((workload.args, workload.kwargs))
    if on == "meta":
        # Lengths of packed sequences stay on the host, whatever the device of the data.
        packs = any(isinstance(module, nn.RNNBase) for module in model.modules())
        return _each_once(lambda tensor: tensor if packs and _is_lengths(tensor) else _meta(tensor), arguments)
    if on == "fake":
        from torch._subclasses.fake_tensor import FakeTensorMode

        mode = stage.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        with mode:
            _swap_to_fake(model)
            return _each_once(_fake, arguments)
    return _each_once(lambda tensor: tensor.detach().clone(), arguments)


def _each_once(convert: Callable[[torch.Tensor], torch.Tensor], arguments: tuple[Any, Any]) -> tuple[Any, Any]:
    """Every tensor converted; one that is passed twice stays one tensor, and one that wants a gradient still does."""
    known: dict[int, Any] = {}

    def converted(value: Any) -> Any:
        if id(value) not in known:
            if isinstance(value, PackedSequence):  # sizes and order are looked at on the host
                known[id(value)] = value._replace(data=converted(value.data))
            else:
                known[id(value)] = convert(value).requires_grad_(value.requires_grad)
        return known[id(value)]

    kinds = (torch.Tensor, PackedSequence)
    args, kwargs = tree_map_only(kinds, converted, arguments, is_leaf=lambda value: isinstance(value, PackedSequence))
    return args, kwargs


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("meta")


def _is_lengths(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 1 and tensor.dtype is torch.int64 and tensor.device.type == "cpu"


def _copied_caches(arguments: tuple[Any, Any]) -> tuple[Any, Any]:
    """A KV cache object grows while the step runs; each trace gets its own."""
    import copy

    args, kwargs = arguments
    return (args, {name: copy.deepcopy(value) if "cache" in type(value).__name__.lower() else value
                   for name, value in kwargs.items()})  # fmt: skip


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape, made under fake mode: on the CPU, without memory."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def _swap_to_fake(model: nn.Module) -> None:
    replaced: dict[int, Any] = {}
    for module in model.modules():
        for container in (module._parameters, module._buffers):
            for name, tensor in container.items():
                if tensor is None:
                    continue
                if id(tensor) not in replaced:
                    empty = _fake(tensor)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    replaced[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
                container[name] = replaced[id(tensor)]


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
        for leaf in _tensor_leaves(value):
            storages.id_of(leaf, "input", name)
            described.append((name, storages.describe(leaf)))
    return tuple(described)


def _tensor_leaves(value: Any) -> list[torch.Tensor]:
    """Tensors anywhere in a value; objects such as caches are opened one level at a time."""
    found = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    if not found and hasattr(value, "layers"):
        for layer in value.layers:
            found.extend(v for v in vars(layer).values() if isinstance(v, torch.Tensor))
    return found


def _file_results(recorder: Recorder, model: nn.Module, output: Any) -> Any:
    """Gradients and outputs are known only when the step is over."""
    storages = recorder.storages
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            storages.mark(parameter.grad, "gradient", original_name(name))
    leaves = _tensor_leaves(dict(output) if isinstance(output, dict) else output)
    for leaf in leaves:
        storages.mark(leaf, "output")
    return tuple(storages.describe(leaf) for leaf in leaves)


def _header(
    workload: Workload, options: TraceOptions, choices: Training, inputs: Any, outputs: Any, modes: Any
) -> Header:
    training = workload.step == "train"
    notes = list(workload.notes)
    compiled = any(type(m).__name__ == "OptimizedModule" or getattr(m, "_compiled_call_impl", None) is not None
                   for m in workload.model.modules())  # fmt: skip
    if compiled:
        notes.append("the model is compiled; these are the ops of its eager form, before fusion")
    if options.on in ("cpu", "cuda"):
        notes.append(f"the step was really run on {options.on}")
    return Header(
        rooflight=__version__, torch=str(torch.__version__), model=workload.name, step=workload.step,
        target=parse_target(options.target).name, batch=workload.batch, dtype=workload.dtype, math=modes,
        sequence=workload.sequence, past=workload.past, autocast=options.autocast,
        loss=choices.loss if training else None, optimizer=choices.optimizer if training else None,
        accumulate=choices.accumulate if training else 1, traced_on=options.on, inputs=inputs, outputs=outputs,
        command=options.command, notes=tuple(notes),
    )  # fmt: skip


@contextmanager
def _failures_explained(model: nn.Module) -> Iterator[None]:
    """What a step can run into, each as one line that says where."""
    try:
        with explain_shape_errors(model):
            yield
    except (RooflightError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise _explained(error) from error


_DATA_DEPENDENT = (
    "item()", "Cannot copy out of meta tensor", "data-dependent", "data dependent", "nonzero", "meta tensors",
    "to numpy", "DataDependent", "_local_scalar_dense", "truth value", "Boolean value",
)  # fmt: skip


def _explained(error: Exception) -> TraceFailed:
    where = _where(error)
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "no fake impl or Meta kernel" in text:
        operator = text.partition(": ")[0]
        return TraceFailed(
            f"{where}: {operator} cannot run on tensors without data; pass real tensors and trace on='cpu', or, if it "
            "is your own operator, give it torch.library.register_fake"
        )
    signs = [sign for sign in _DATA_DEPENDENT if sign in str(error) or sign in type(error).__name__]
    if signs and isinstance(error, (RuntimeError, TypeError)):  # as torch raises them
        return TraceFailed(
            f"{where}: the model looks at values of its data here, which a trace without data does not have ({text}); "
            "pass real tensors and trace on='cpu', or take this branch out of the model"
        )
    return TraceFailed(f"{where}: {type(error).__name__}: {text}")


def _where(error: Exception) -> str:
    """The innermost line outside torch and rooflight: the user's own, if there is one."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if not _foreign(f.filename)]
    if not own:
        return "the model's forward"
    frame = own[-1]
    return f"{frame.filename}:{frame.lineno} ({(frame.line or '').strip()})"


_TORCH = Path(torch.__file__).parent
_OURS = Path(__file__).parents[1]


def _foreign(filename: str) -> bool:
    path = Path(filename)
    ours = path.is_relative_to(_OURS) and not path.is_relative_to(_OURS / "models" / "architectures")
    return ours or path.is_relative_to(_TORCH) or filename.startswith("<")
