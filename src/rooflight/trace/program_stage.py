"""Anybody's step set up to be run: a callable that works on live modules and optimizers, found rather than declared.

Without data (`fake`) it runs on stand-ins and leaves everything as it was. For real it is repeated from the same state
again and again, as a step of rooflight's own is; unless something in it cannot be taken back (it draws from an
iterator, it talks to other processes): then every run is simply the program's next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from rooflight._version import __version__
from rooflight.errors import BadInput, TraceFailed
from rooflight.ledger import FORMAT_VERSION, Header, Ledger, MathModes, Note, tensors_in
from rooflight.models.resolve import batch_of, is_time_first, live_workload
from rooflight.spec import execution
from rooflight.trace.autocast import autocast_as_on
from rooflight.trace.code_as_written import code_as_written
from rooflight.trace.dispatch import dispatch_as
from rooflight.trace.failures import failures_explained
from rooflight.trace.inputs import tensor_leaves
from rooflight.trace.interception import as_a_mode, interception_for, nothing_handed_over
from rooflight.trace.leftovers import young_garbage_alone
from rooflight.trace.loader_workers import workers_left_alone
from rooflight.trace.meta_kernels import CPU_META_KERNELS, META_KERNELS
from rooflight.trace.options import TensorKind, TraceOptions
from rooflight.trace.precision import math_modes
from rooflight.trace.program import ProgramRecorder
from rooflight.trace.program_modules import WRAPPERS, ProgramTracker, learns, named_as_known
from rooflight.trace.recorder import Observer
from rooflight.trace.saved_state import SavedState, refuse_lazy
from rooflight.trace.snapshot import Snapshot
from rooflight.trace.stage import Recording, set_apart
from rooflight.trace.stand_ins import StandIns
from rooflight.trace.surroundings import saves_noted, surroundings_without_data
from rooflight.trace.target import Target, parse_target

Program = Callable[..., Any]
"""A step of somebody's own."""


@dataclass(frozen=True)
class ProgramRecording(Recording):
    """What one watched run wrote down, and what it showed of the program."""

    header: Mapping[str, Any] = field(default_factory=dict)
    """What only the run tells: kind of step, batch, models, optimizers."""


@dataclass
class ProgramStage:
    """A callable, ready to run as often as wanted while `staged_program` is open."""

    step: Program
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    options: TraceOptions
    target: Target
    modes: MathModes
    reach: Snapshot
    notes: list[Note]
    name: str
    device: str
    """Where it works; what its tensors say they are on, where it does not run."""
    repeatable: bool = True
    writes_unseen: bool = False
    play: Callable[[Any], Any] | None = None
    executions: int = 0
    announced: Any = None
    """What the process that measures says of its runs, where this is another."""
    choose: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None
    """Sets how an optimizer works through its tensors where that is left to torch."""
    _lent: SavedState | None = None
    _kept: SavedState | None = None
    _late: list[SavedState] = field(default_factory=list)
    """Of what was found when it was called."""
    _stand_ins: StandIns | None = None
    """The same in every recording: the second is of the program's second step."""

    @property
    def model(self) -> nn.Module:
        return next(iter(self.reach.modules.values()), nn.Module())

    def record(self, observer: Observer | None = None, arguments: Any = None) -> ProgramRecording:
        """Run the step and write down every op; `observer` is told of each."""
        runs = self.options.on in ("cpu", "cuda")
        tracker = ProgramTracker(self.reach.modules, met=self._met_model)
        if not runs and self._stand_ins is None:
            self._stand_ins = StandIns(META_KERNELS if self.target.kind == "cuda" else CPU_META_KERNELS)
        states = [tensor for model in self.reach.modules.values() for tensor in (*model.parameters(), *model.buffers())]
        recorder = ProgramRecorder(
            tracker,
            stand_ins=self._stand_ins,
            optimizer_met=self._met,
            device=self.device,
            modes=self.modes,
            rank=self.options.rank,
            observer=observer,
            interception=interception_for(states) if runs else as_a_mode,
        )
        recorder.register(self.reach.modules, self.reach.optimizers, self.reach.tensors)
        as_written = code_as_written(on_data=runs, timed=observer is not None)
        with as_written, failures_explained(on_data=runs), recorder.watching():
            output = self._run(arguments or self.arguments)
        if recorder.passes_back and not recorder.optimizers and self.reach.optimizers:
            idle = ", ".join(dict.fromkeys(type(one).__name__ for one in self.reach.optimizers))
            self._say(
                "optimizer-did-not-step", f"{idle} did not step in this call: no optimizer's work and state are in it"
            )
        if not recorder.ops:
            self._say("nothing-ran", "nothing ran: the step called no operator of torch")
        if any(hasattr(one, "_orig_mod") or getattr(one, "_compiled_call_impl", None) for one in self._modules()):
            self._say("compiled-model", "a model is compiled; these are the ops of its eager form, before fusion")
        return program_recording(recorder, tracker, tensor_leaves(output), self.name, given=self.arguments)

    def _modules(self) -> Iterator[nn.Module]:
        return (module for model in self.reach.modules.values() for module in model.modules())

    def _say(self, code: str, text: str) -> None:
        if (note := Note(code, text)) not in self.notes:
            self.notes.append(note)

    def _met(self, optimizer: torch.optim.Optimizer) -> None:
        if not any(optimizer is one for one in self.reach.optimizers):
            self._keep_late(optimizer)
            self.reach.optimizers.append(optimizer)
            self.choose(optimizer)

    def _met_model(self, name: str, model: nn.Module) -> None:
        self._keep_late(model)
        self.reach.modules[name] = model

    def _keep_late(self, found: nn.Module | torch.optim.Optimizer) -> None:
        """The step reaches more than was seen: that is as it was until now, and goes back to it, too."""
        if self.repeatable:
            with nothing_handed_over():
                self._late.append(SavedState(Snapshot(("", found), on_data=self.options.runs), on=self.options.on))

    def put_late_back(self) -> None:
        for kept in reversed(self._late):
            kept.restore(everything=True)

    def run(self, arguments: Any = None) -> Any:
        """The step as the program runs it."""
        with failures_explained(on_data=True):
            return self._run(arguments or self.arguments)

    def _run(self, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        self.executions += 1
        args, kwargs = arguments
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # as it is afterwards, whatever the step does
            result = self.step(*args, **kwargs)
        _refuse_what_runs_later(result)
        return result

    def fresh_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.arguments

    def keep(self) -> None:
        """Take the state from which `put_back` starts every run anew."""
        if self.repeatable:
            self._kept = self._lent

    def settle(self) -> None:
        """Take what there is now as the beginning: the first run has made the optimizer's state."""
        if self.repeatable:
            known = *self.reach.modules.items(), *(("", optimizer) for optimizer in self.reach.optimizers)
            now = Snapshot.of_call(self.step, *self.arguments, *known)
            now.modules, now.optimizers = self.reach.modules, self.reach.optimizers
            self.reach = now
            self._kept = SavedState(now, on=self.options.on, again=True)

    @property
    def kept_bytes(self) -> int:
        both = {id(kept): kept for kept in (self._lent, self._kept, *self._late) if kept is not None}
        return sum(kept.values.nbytes for kept in both.values())

    def put_choices_back(self) -> None:
        if self._kept is not None:
            self._kept.restore_choices()

    def put_back(self) -> None:
        if self._kept is not None:
            self._kept.restore(everything=self.writes_unseen)

    def leftovers(self) -> Note | None:
        """When everything is put back: what of this trace the program still holds."""
        self._late.clear()  # what was found in the middle of the step had gradients without data
        return None if self._stand_ins is None else self._stand_ins.leftovers()

    def header(self, recording: Recording) -> Header:
        notes = [*self.notes, *recording.notes, *self.steps_taken]
        return program_header(recording, self.options, self.target, self.modes, notes)

    @property
    def steps_taken(self) -> list[Note]:
        """A note on what cannot be taken back."""
        taken = f"{self.executions:,} step{'s were' if self.executions > 1 else ' was'} taken"
        kept = ", and what they trained stays trained" if self.options.on in ("cpu", "cuda") else ""
        if self.reach.once:
            names = ", ".join(sorted(set(self.reach.once)))
            return [
                Note(
                    "steps-taken",
                    f"the step draws from an iterator ({names}), which cannot be taken back: {taken}{kept}",
                )
            ]
        return [] if self.repeatable else [Note("steps-taken", f"every run was the program's next step: {taken}{kept}")]


def _refuse_what_runs_later(result: Any) -> None:
    """A function with `yield`, or of `async`, gives something that has run nothing yet."""
    if isinstance(result, GeneratorType):
        raise BadInput(
            "lazy-step",
            "the step gives a generator, which does nothing until it is asked: give a function that goes through it, "
            "as lambda: list(step())",
        )
    if isinstance(result, (CoroutineType, AsyncGeneratorType)):
        if isinstance(result, CoroutineType):
            result.close()  # else Python says that nobody has waited for it
        raise BadInput(
            "lazy-step",
            "the step is async, and does nothing until it is awaited: give a function that does, as "
            "lambda: asyncio.run(step())",
        )


def program_recording(
    recorder: ProgramRecorder, tracker: ProgramTracker, results: Sequence[torch.Tensor], name: str, *, given: Any = ()
) -> ProgramRecording:
    """What was written down, when the step is over. `name`: what the program calls its step, and `given`: what it calls
    it with."""
    recorder.file_results(results)
    outputs = tuple(part for leaf in results for part in recorder.storages.parts(recorder.shown(leaf)))
    inputs = _inputs_of(recorder, tracker)
    trained = {id(p) for one in recorder.optimizers.values() for group in one.param_groups for p in group["params"]}
    in_use = trained | _read_parameters(recorder, tracker) if trained else None
    rows = named_as_known((tuple(recorder.ops), tracker.modules(in_use), recorder.storages.close()), tracker)
    notes = (*recorder.notes, *_left_out(tracker))
    return ProgramRecording(*rows, inputs, outputs, notes=notes, header=_facts(name, recorder, tracker, given))


_NAMED = 3


def _left_out(tracker: ProgramTracker) -> list[Note]:
    """What has parameters that are no part of the step, which its table would count."""
    names, more = tracker.left_out[:_NAMED], len(tracker.left_out) - _NAMED
    if not names:
        return []
    others = f" and {more} more" if more > 0 else ""
    return [
        Note(
            "parameters-left-out",
            f"neither read nor trained in this step, and not among its parameters: {', '.join(names)}{others}",
        )
    ]


def _read_parameters(recorder: ProgramRecorder, tracker: ProgramTracker) -> set[int]:
    """Ids of those that forward or backward reads, whoever's call it is in."""
    ops = (op for op in recorder.ops if op.phase in ("forward", "backward"))
    read = {tensor.storage for op in ops for tensor in tensors_in(op.args.values())}
    parameters = (parameter for model in tracker.models.values() for parameter in model.parameters())
    return {id(one) for one in parameters if recorder.storages.number_of(recorder.shown(one)) in read}


def program_header(
    recording: Recording, options: TraceOptions, target: Target, modes: MathModes, notes: Sequence[Note]
) -> Header:
    said = recording.header if isinstance(recording, ProgramRecording) else {}
    return Header(
        rooflight=__version__,
        torch=str(torch.__version__),
        target=target.name,
        math=modes,
        tf32=options.tf32,
        execution=execution(compile=options.compile, graphs=options.graphs),
        live=True,
        program=True,
        traced_on=options.on,
        rank=options.rank,
        inputs=recording.inputs,
        outputs=recording.outputs,
        command=options.command,
        notes=tuple(notes),
        **{"model": "step", "step": None, "batch": None, "dtype": None, **said},
    )


def _inputs_of(recorder: ProgramRecorder, tracker: ProgramTracker) -> Any:
    """What the first model that was called got."""
    described = []
    if tracker.first_call is not None:
        _, args, kwargs = tracker.first_call
        named = [*((f"input {place}", value) for place, value in enumerate(args)), *kwargs.items()]
        for name, value in named:
            leaves = map(recorder.shown, tensor_leaves(value))
            described += [(name, part) for leaf in leaves for part in recorder.storages.parts(leaf)]
    return tuple(described)


def _facts(name: str, recorder: ProgramRecorder, tracker: ProgramTracker, given: Any) -> dict[str, Any]:
    """For the header."""
    trains = bool(recorder.passes_back or recorder.optimizers)
    called = [tracker.models[root] for root in tracker.called()]
    models = " + ".join(dict.fromkeys(map(_class_of, [one for one in called if learns(one)] or called)))
    facts: dict[str, Any] = {
        "model": f"{name} ({models})" if name and models else models or name or "step",
        "step": "train" if trains else "infer",
        "optimizer": " + ".join(dict.fromkeys(type(one).__name__ for one in recorder.optimizers.values())) or None,
    }
    # Several passes with new data before the optimizer steps once: batches that are accumulated.
    if recorder.optimizer_steps == 1 and tracker.batches == recorder.passes_back > 1:
        facts["accumulate"] = tracker.batches
    if tracker.first_call is not None:
        model, args, kwargs = tracker.first_call
        described = live_workload(model, args, kwargs, step=facts["step"])
        # A model may be called with a part of a batch, or with many points of each sample; or for something else first.
        # What it never saw as much of is no batch, but what batches are drawn from.
        whole = batch_of(tensor_leaves(given)) if "accumulate" not in facts and not is_time_first(model) else None
        whole = whole if whole is not None and whole <= tracker.samples else None
        facts |= {"batch": whole or described.batch, "sequence": described.sequence, "dtype": described.dtype}
        facts["autocast"] = tracker.autocast
    return facts


def _class_of(model: nn.Module) -> str:
    """Of what is inside, where another only wraps it."""
    while type(model).__name__ in WRAPPERS or hasattr(model, "_orig_mod"):
        model = getattr(model, "_orig_mod", None) or model.module  # type: ignore[assignment]
    return type(model).__name__


@contextmanager
def staged_program(
    step: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str, options: TraceOptions
) -> Iterator[ProgramStage]:
    """Set the stage for a step of somebody's own, which he calls `name`; what it reaches is as it was afterwards, if
    that can be."""
    target = parse_target(options.target)
    runs = options.on in ("cpu", "cuda")
    reach = Snapshot.of_call(step, args, kwargs, on_data=runs)
    refuse_lazy(reach.modules.values())
    device = options.on if runs else reach.device.type
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if not runs and (sharded := _sharded(reach)):
        raise TraceFailed(
            "sharded-model",
            f"{sharded} is sharded over processes (FSDP), which keeps books that cannot be put back: measure the step, "
            "or estimate one with the model as it was before",
        )
    with ExitStack() as stage:
        otherwise = stage.enter_context(set_apart(options))
        stage.enter_context(workers_left_alone(end=not runs))
        repeatable = not runs or not (reach.once or several)
        lent = SavedState(reach, on=options.on) if repeatable else None
        if lent is not None:
            stage.callback(lent.restore, everything=True)
            if runs:
                lent.lend()
        notes: list[Note] = []
        choose: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None  # noqa: E731
        if not runs:
            notes = stage.enter_context(dispatch_as(target, device=device))
            stage.enter_context(autocast_as_on(target.kind, tensors_on=device))
            choose = stage.enter_context(surroundings_without_data(target, notes))
            for optimizer in reach.optimizers:
                choose(optimizer)
            if several:
                notes.append(
                    Note(
                        "other-processes",
                        "the work of other processes and what they exchange are no part of this estimate",
                    )
                )
        else:
            stage.enter_context(saves_noted(notes))
        notes += reach.notes + otherwise
        arguments = (args, dict(kwargs))
        program = ProgramStage(
            step,
            arguments,
            options,
            target,
            math_modes(target),
            reach,
            notes,
            name,
            device,
            repeatable=repeatable,
            choose=choose,
            _lent=lent,
        )
        stage.callback(program.put_late_back)
        yield program


def _sharded(reach: Snapshot) -> str | None:
    """The name of a model that FSDP has taken over."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    kinds = (FSDPModule, FullyShardedDataParallel)
    found = (name for name, model in reach.modules.items() if any(isinstance(one, kinds) for one in model.modules()))
    return next(found, None)


def trace_program(
    step: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str, options: TraceOptions
) -> Ledger:
    """Run the callable and write one row for every op; the step that is written down has its optimizers' state."""
    on: TensorKind = "fake" if options.on == "meta" else options.on
    if on == "cpu" and Snapshot.of_call(step, args, kwargs, saves=False).device.type == "cuda":
        on = "cuda"  # a step runs where its tensors are
    said = f"rooflight.estimate({', '.join([name or 'step', *(f'x{place}' for place in range(len(args)))])})"
    options = replace(options, on=on, command=options.command or said)
    with young_garbage_alone():
        with staged_program(step, args, kwargs, name, options) as stage:
            before = _states(stage.reach)
            recording = stage.record()
            if _states(stage.reach) > before:
                recording = stage.record()
            ledger = ledger_of(stage, recording)
        del recording
        if stage.leftovers() is None:
            return ledger
    left = stage.leftovers()  # old objects that are garbage since then may hold something, too
    if left is None:
        return ledger
    return msgspec.structs.replace(
        ledger, header=msgspec.structs.replace(ledger.header, notes=(left, *ledger.header.notes))
    )


def ledger_of(stage: ProgramStage, recording: Recording) -> Ledger:
    """Without costs."""
    return Ledger(
        format_version=FORMAT_VERSION,
        header=stage.header(recording),
        modules=recording.modules,
        storages=recording.storages,
        ops=recording.ops,
    )


def _states(reach: Snapshot) -> int:
    """How many parameters have something that an optimizer keeps of them, and how much else lies in dicts, where an
    optimizer by hand keeps it."""
    own = sum(dict.__len__(held) for held in reach.containers if isinstance(held, dict))
    return own + sum(len(optimizer.state) for optimizer in reach.optimizers)
