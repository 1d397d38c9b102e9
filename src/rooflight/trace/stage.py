"""A step set up to be run: the model borrowed, inputs and optimizer made, torch's switches set.

A trace records it once. A measurement runs it again and again, watched or plain, and puts values and random state back
in between, so that every run is the same step.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import NoneType
from typing import Any, Protocol

import torch
from torch import nn

from rooflight.errors import BadInput, TraceFailed
from rooflight.ledger import LOSS, Category, MathModes, Module, Note, Op, Storage, Tensor
from rooflight.models.workload import Workload
from rooflight.trace.autocast import autocast_as_cuda, autocast_on_cpu
from rooflight.trace.checkpointing import Checkpoints
from rooflight.trace.code_as_written import code_as_written
from rooflight.trace.dispatch import dispatch_as
from rooflight.trace.failures import failures_explained
from rooflight.trace.inputs import fresh_caches, given_numbers, is_cache, prepare, tensor_leaves
from rooflight.trace.interception import Interception, as_a_mode, interception_for, nothing_handed_over
from rooflight.trace.meta_kernels import CPU_META_KERNELS, META_KERNELS
from rooflight.trace.modules import ModuleTracker, original_name
from rooflight.trace.optimizers import MUON_AND_ADAMW, chosen_optimizer, is_fused, make_state
from rooflight.trace.options import TraceOptions
from rooflight.trace.precision import math_modes, tf32_switched
from rooflight.trace.recorder import Observer, Recorder
from rooflight.trace.restoring import restore
from rooflight.trace.saved_state import borrowed, optimizer_tensors
from rooflight.trace.snapshot import Snapshot
from rooflight.trace.step import (
    StepFollower,
    StepLabels,
    TrainingChoices,
    computes_loss,
    modules_beside,
    run_inference,
    run_training,
)
from rooflight.trace.target import Target, parse_target
from rooflight.trace.tensor_values import RandomState, SavedValues


class WatchedAnotherWay(TraceFailed):
    """The run must be recorded again, with a new observer: this one has seen a part of it already."""


_State = list[tuple[Category, str, torch.Tensor]]


@dataclass(frozen=True)
class Recording:
    """What one watched run of a step wrote down."""

    ops: tuple[Op, ...]
    modules: tuple[Module, ...]
    storages: tuple[Storage, ...]
    inputs: tuple[tuple[str, Tensor], ...]
    outputs: tuple[Tensor, ...]
    own_loss: bool = False
    """The loss is the model's own, whatever was asked for."""
    notes: tuple[Note, ...] = ()
    """What was taken to be so, for want of data."""


class StagedStep(Protocol):
    """A step that can be run and recorded as often as wanted, from the same state each time where that can be."""

    options: TraceOptions
    writes_unseen: bool
    play: Callable[[Any], Any] | None

    def record(self, observer: Observer | None = None, arguments: tuple[Any, Any] | None = None) -> Recording: ...

    def run(self, arguments: tuple[Any, Any] | None = None) -> Any: ...

    def fresh_arguments(self) -> tuple[Any, Any]: ...

    def keep(self) -> None: ...

    def settle(self) -> None: ...

    @property
    def kept_bytes(self) -> int: ...

    def put_choices_back(self) -> None: ...

    def put_back(self) -> None: ...


@dataclass
class Stage:
    """One step, ready to run as often as wanted while `staged` is open."""

    workload: Workload
    options: TraceOptions
    target: Target
    modes: MathModes
    choices: TrainingChoices
    arguments: tuple[Any, Any]
    optimizer: torch.optim.Optimizer | None
    notes: list[Note]
    call: Callable[..., Any]
    """What is called with the inputs: the model, or what torch.compile made of it."""
    checkpoints: Checkpoints
    roots: nn.Module
    """The model, and what modules the loss has besides."""
    fused: bool = False
    """Does the optimizer do its step in one op?"""
    play: Callable[[Any], Any] | None = None
    """Replays a captured step instead of running it."""
    writes_unseen: bool = False
    """Values may change without torch's knowing, as a replayed graph changes them."""
    inputs_with_gradient: tuple[torch.Tensor, ...] = ()
    labels: StepLabels = field(default_factory=StepLabels)
    lent: tuple[SavedValues, ...] = ()
    """The values of model and inputs as they came."""
    _attributes: Snapshot | None = None
    _values: tuple[SavedValues, ...] = ()
    _random: RandomState | None = None
    _way: Interception | None = None
    """How the ops are seen; known after the first recording."""

    @property
    def training(self) -> bool:
        return self.workload.step == "train"

    @property
    def model(self) -> nn.Module:
        return self.workload.model

    def record(self, observer: Observer | None = None, arguments: tuple[Any, Any] | None = None) -> Recording:
        """Run the step eagerly and write down every op; `observer` is told of each.

        `WatchedAnotherWay` can only be raised before any recording has come to its end.
        """
        arguments = arguments or self.fresh_arguments()
        model = self.model
        self._way = self._way or self._interception(arguments)
        plain_attributes = [(module, _plain_attributes(module)) for module in model.modules()]
        try:
            return self._record(observer, arguments, self._way)
        except TraceFailed as failure:
            # A tensor with a dispatch of its own that the model makes meanwhile: torch cannot hand it over.
            if self._way is as_a_mode or "python_dispatch.cpp" not in str(failure):
                raise
            for module, before in plain_attributes:
                for name in _plain_attributes(module).keys() - before.keys():
                    del module.__dict__[name]
                module.__dict__.update(before)
            self.put_back()
            self._way = as_a_mode
            if observer is not None:
                raise WatchedAnotherWay(failure.code, failure.text) from failure
            return self._record(None, self.fresh_arguments(), self._way)

    def _interception(self, arguments: tuple[Any, Any]) -> Interception:
        """Asked apart from the recording: what is held here would live on there, as the old tensors of a cache."""
        if self.options.on == "fake":
            return as_a_mode
        return interception_for([*self.model.parameters(), *self.model.buffers(), *_input_tensors(arguments)])

    def _record(self, observer: Observer | None, arguments: tuple[Any, Any], way: Interception) -> Recording:
        on, model = self.options.on, self.model
        device = {"fake": "cpu"}.get(on, on)
        tracker = ModuleTracker(model)
        meta_kernels = META_KERNELS if self.target.kind == "cuda" else CPU_META_KERNELS
        recorder = Recorder(
            tracker,
            device=device,
            modes=self.modes,
            rank=self.options.rank,
            meta_kernels=meta_kernels if on in ("meta", "fake") else None,
            observer=observer,
            interception=way,
        )
        inputs = _register(recorder, self._state(), self.optimizer, arguments)
        for tensor, numbers in given_numbers(arguments, (self.workload.args, self.workload.kwargs)):
            recorder.give(tensor, numbers)
        with (
            tracker.watch(),
            self.checkpoints.followed(tracker.again),
            code_as_written(on_data=self.options.runs, timed=observer is not None),
            failures_explained(model, on_data=self.options.runs, known=[str(note) for note in self.workload.notes]),
        ):
            output = self._step(model, arguments, recorder)
        _file_grown_caches(recorder, arguments)
        outputs = _file_results(recorder, self._state(), output, self.optimizer)
        # Closed while the model is still borrowed: what lives now outlives the step.
        computed = self.training and computes_loss(output, self.choices)
        storages = recorder.storages.close()
        return Recording(
            tuple(recorder.ops), tracker.modules(), storages, inputs, outputs, computed, notes=recorder.notes
        )

    def _state(self) -> _State:
        """Parameters and buffers, by the names that users know."""
        state: _State = []
        for place, root in enumerate(self.roots.children()):
            before = f"{LOSS}." if place else ""
            state += [("parameter", before + original_name(name), tensor) for name, tensor in root.named_parameters()]
            state += [("buffer", before + original_name(name), tensor) for name, tensor in root.named_buffers()]
        return state

    def run(self, arguments: tuple[Any, Any] | None = None) -> Any:
        """The plain step, as a user would run it; gives what the model gave."""
        arguments = arguments or self.fresh_arguments()
        if self.play is not None:
            return self.play(arguments)
        with failures_explained(self.model, on_data=True):
            return self._step(self.call, arguments, StepFollower())

    def fresh_arguments(self) -> tuple[Any, Any]:
        """The inputs with caches as they were before the step; made before a clock starts."""
        return fresh_caches(self.arguments)

    def _step(self, call: Callable[..., Any], arguments: tuple[Any, Any], follower: StepFollower) -> Any:
        args, kwargs = arguments
        autocast = partial(_autocast, self.options, self.target)

        def forward() -> Any:
            with autocast():
                return call(*args, **kwargs)

        if not self.training:
            return run_inference(forward, follower)
        for parameter in self.roots.parameters():  # also of those that the optimizer does not hold
            parameter.grad = None
        for tensor in self.inputs_with_gradient:
            tensor.grad = None
        return run_training(
            forward,
            follower,
            optimizer=self.optimizer,
            training=self.choices,
            labels=self.labels,
            autocast=autocast,
        )

    def keep(self) -> None:
        """Take the values from which `put_back` starts every run anew."""
        self._values = (*self.lent, SavedValues(optimizer_tensors(self.optimizer)))
        self.settle()
        self._random = RandomState(cuda=self.options.on == "cuda")

    def settle(self) -> None:
        """Take the modules' attributes as they are now: what a first run made (tables, caches) stays for the others."""
        self._attributes = Snapshot(("", self.model), modules_only=True, but_tensors=True)

    @property
    def kept_bytes(self) -> int:
        """What the copies to restore from take on the host."""
        return sum(values.nbytes for values in self._values or self.lent)

    def put_choices_back(self) -> None:
        """So that a model that counts its steps, or draws which layers to run, runs the same ones again. Values stay,
        so that a timed step does not begin right after many copies.
        """
        if self._attributes is not None and self._random is not None:
            restore([*self._attributes.restorers, ("a random state", self._random.restore)])

    def put_back(self) -> None:
        """Attributes, parameters, buffers, optimizer state and random state as they were kept, in place."""
        for values in self._values:
            values.restore(everything=self.writes_unseen)
        self.put_choices_back()


_NUMBERS = (int, float, str, NoneType)


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    """What a model counts with; quickly, since this is done before every recording."""
    return {name: value for name, value in module.__dict__.items() if issubclass(type(value), _NUMBERS)}


def _input_tensors(arguments: tuple[Any, Any]) -> list[torch.Tensor]:
    args, kwargs = arguments
    return [leaf for value in (*args, *kwargs.values()) for leaf in tensor_leaves(value)]


def _autocast(options: TraceOptions, target: Target) -> AbstractContextManager[Any]:
    if options.on == "cpu" and target.kind == "cpu":
        if options.autocast is None:
            return nullcontext()
        return autocast_on_cpu(options.autocast)
    return autocast_as_cuda(options.autocast, on=options.on)


_staging_lock = threading.RLock()
"""One trace at a time in a process: it patches torch and borrows the model."""


@contextmanager
def staged(workload: Workload, options: TraceOptions) -> Iterator[Stage]:
    """Set the stage for a step; model, modes and random state are as they were afterwards."""
    target = parse_target(options.target)
    choices = _training_choices(workload, options, target)
    _refuse_what_does_not_belong(workload, options, choices)
    training = workload.step == "train"
    # A generator's state cannot be read while a CUDA graph is captured.
    keep_randomness = options.on in ("cpu", "cuda") and not options.capturable
    checkpoints = Checkpoints(workload.model, options.checkpoint, keep_randomness=keep_randomness)
    with ExitStack() as stage:
        otherwise = stage.enter_context(set_apart(options))
        # An inference mode would hide composite operators and forbid backward.
        stage.enter_context(torch.inference_mode(False))
        stage.enter_context(torch.autocast("cpu", enabled=False))
        beside = modules_beside(choices.loss, workload.model) if training else []
        roots = nn.ModuleList([workload.model, *beside])
        callers = list(roots.parameters())
        state = stage.enter_context(borrowed(*roots, optimizer=choices.optimizer, training=training, on=options.on))
        arguments, labels = prepare(stage, workload, options.on, roots)
        lent = (state.values, SavedValues((), _input_tensors(arguments))) if options.runs else ()
        for values in lent[1:]:
            stage.callback(values.restore, everything=True)
        notes: list[Note] = []
        if options.on in ("meta", "fake"):
            notes = stage.enter_context(dispatch_as(target, device="meta" if options.on == "meta" else "cpu"))
        notes += state.notes + otherwise
        twins = dict(zip(map(id, callers), roots.parameters(), strict=True))
        with failures_explained(workload.model, on_data=options.runs):
            optimizer = chosen_optimizer(roots, choices, twins) if training else None
            fused = options.fused or is_fused(optimizer)
            if optimizer is not None:
                make_state(optimizer, roots, choices)
        if optimizer is not None:
            notes += [MUON_AND_ADAMW] if choices.optimizer == "muon" else []
        for values in lent:
            values.restore()  # weight decay moves them when the optimizer makes its state
        stage.enter_context(checkpoints.placed())
        yield Stage(
            workload=workload,
            options=options,
            target=target,
            modes=math_modes(target),
            choices=choices,
            arguments=arguments,
            optimizer=optimizer,
            notes=notes,
            call=workload.model,
            roots=roots,
            fused=fused,
            labels=StepLabels(labels),
            lent=lent,
            checkpoints=checkpoints,
            inputs_with_gradient=tuple(tensor for tensor in _input_tensors(arguments) if tensor.requires_grad),
        )


def _training_choices(workload: Workload, options: TraceOptions, target: Target) -> TrainingChoices:
    return TrainingChoices(
        loss=workload.loss if options.loss is None else options.loss,
        optimizer=workload.optimizer if options.optimizer is None else options.optimizer,
        foreach=options.foreach,
        takes_lists=target.kind == "cuda",
        fused=options.fused,
        accumulate=options.accumulate,
        capturable=options.capturable,
        on=options.on,
    )


def _refuse_what_does_not_belong(workload: Workload, options: TraceOptions, choices: TrainingChoices) -> None:
    training = workload.step == "train"
    if workload.labels is not None and (not training or isinstance(choices.loss, str)):
        raise BadInput(
            "option-needs-another",
            "--labels are for a loss of your own: give it as --loss, with --step=train, or leave them out",
        )
    if options.checkpoint and not training:
        raise BadInput("option-needs-another", "--checkpoint goes with --step=train")
    images = [tensor for tensor in _input_tensors((workload.args, workload.kwargs)) if tensor.dim() == 4]
    if options.channels_last and (not images or workload.step == "decode"):  # caches have four dimensions, too
        raise BadInput(
            "option-not-applicable", f"--channels-last is for images: no input of {workload.name} has four dimensions"
        )


@contextmanager
def set_apart(options: TraceOptions) -> Iterator[list[Note]]:
    """A caller's modes (another trace around this one, fake tensors) have no part in the step. Gives notes on what of
    the caller's is otherwise in it."""
    with _staging_lock, nothing_handed_over():
        # Anomaly detection looks for NaNs in every gradient, which are no ops of the step, nor known without data.
        anomalies_looked_for = torch.is_anomaly_enabled()
        with torch.autograd.set_detect_anomaly(False), _room_for_deep_models(), tf32_switched(options.tf32):
            off = Note(
                "anomaly-detection-off",
                "autograd's anomaly detection was off for this step: its checks are no part of it",
            )
            yield [off] if anomalies_looked_for else []


@contextmanager
def _room_for_deep_models() -> Iterator[None]:
    """Following a call takes frames of its own; a model that runs without a trace must run with one."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(3 * limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _register(recorder: Recorder, state: _State, optimizer: torch.optim.Optimizer | None, inputs: Any) -> Any:
    """Name the storages that are there before the step, and describe the inputs."""
    storages = recorder.storages
    for category, name, tensor in state:
        storages.id_of(tensor, category, name)
    if optimizer is not None:
        for of_parameter in optimizer.state.values():
            for name, value in of_parameter.items():
                for leaf in tensor_leaves(value):
                    storages.id_of(leaf, "optimizer-state", name)
    described = []
    for name, value in _named(inputs):
        for leaf in tensor_leaves(value):
            storages.id_of(leaf, "input", name)
            described += [(name, part) for part in storages.parts(leaf)]
    return tuple(described)


def _named(arguments: tuple[Any, Any]) -> list[tuple[str, Any]]:
    args, kwargs = arguments
    return [*((f"input {place}", value) for place, value in enumerate(args)), *kwargs.items()]


def _file_grown_caches(recorder: Recorder, arguments: tuple[Any, Any]) -> None:
    """What a KV cache holds after the step is for the next one."""
    for name, value in _named(arguments):
        if is_cache(value):
            for leaf in tensor_leaves(value):
                recorder.storages.mark(leaf, "output", name)


def _file_results(recorder: Recorder, state: _State, output: Any, optimizer: torch.optim.Optimizer | None) -> Any:
    """Gradients and outputs are known only when the step is over."""
    storages = recorder.storages
    for category, name, parameter in state:
        if category != "parameter":
            continue
        if parameter.grad is not None:
            storages.mark(parameter.grad, "gradient", name)
        elif optimizer is not None:
            # Nothing in the loss depends on it, so a real optimizer never makes state for it.
            for leaf in tensor_leaves(optimizer.state.get(parameter, {})):
                storages.forget(leaf)
    leaves = tensor_leaves(dict(output) if isinstance(output, dict) else output)
    for leaf in leaves:
        storages.mark(leaf, "output")
    return tuple(part for leaf in leaves for part in storages.parts(leaf))
