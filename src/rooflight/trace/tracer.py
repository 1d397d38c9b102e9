"""From a workload to a ledger without costs: sets the stage, runs the step, collects what was written."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from rooflight._version import __version__
from rooflight.errors import NotPutBack, TraceFailed
from rooflight.ledger import FORMAT_VERSION, OWN_LOSS, Header, Ledger, Note
from rooflight.models.workload import Workload
from rooflight.spec import execution
from rooflight.spec.fields import own_name
from rooflight.trace.modules import original_name
from rooflight.trace.optimizers import READS_VALUES
from rooflight.trace.options import TraceOptions
from rooflight.trace.stage import Recording, Stage, staged
from rooflight.trace.surroundings import no_failures_logged
from rooflight.trace.unused_parameters import unused_note

_DEFAULTS = TraceOptions()


def trace(workload: Workload, options: TraceOptions = _DEFAULTS) -> Ledger:
    """Run the workload's step once and write one row for every op."""
    if options.on != "meta":
        return _trace(workload, options)
    try:
        return _trace(workload, options)
    except TraceFailed as failure:
        # Some models look at values that fake tensors know (constants) and meta tensors do not.
        try:
            with no_failures_logged():
                return _trace(workload, replace(options, on="fake"))
        except NotPutBack:
            raise
        except Exception:  # the first failure explains more
            raise failure from None


_FUSED_LAYERS = {"aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd"}


def _trace(workload: Workload, options: TraceOptions) -> Ledger:
    with staged(workload, options) as stage:
        recording = stage.record()
        return Ledger(
            format_version=FORMAT_VERSION,
            header=header_of(stage, recording),
            modules=recording.modules,
            storages=recording.storages,
            ops=recording.ops,
        )


def _notes(stage: Stage, recording: Recording) -> tuple[Note, ...]:
    """What a reader of the ledger should know."""
    workload, options, ops = stage.workload, stage.options, recording.ops
    notes = [*workload.notes, *stage.notes, *recording.notes]
    if any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in workload.model.modules()
    ):
        notes.append(
            Note("compiled-model", "the model is compiled; these are the ops of its eager form, before fusion")
        )
    if options.on in ("cpu", "cuda"):
        notes.append(Note("real-run", f"the step was really run on {options.on}"))
        if options.on == "cpu" and stage.target.kind != "cpu":
            notes.append(
                Note(
                    "ops-of-a-cpu",
                    "its ops are those that a CPU takes: attention, dropout, batch norms and recurrent layers are "
                    f"others on {stage.target.name}, of the same useful FLOPs",
                )
            )
            if not workload.live:
                notes.append(
                    Note(
                        "random-inputs", "its inputs are random: what data decides may come out otherwise on other data"
                    )
                )
    training, packets = workload.step == "train", {op.packet for op in ops}
    if training and ops and not any(op.phase == "backward" for op in ops):
        notes.append(
            Note(
                "nothing-trained",
                "nothing is trained: the loss depends on no parameter that wants a gradient; there is no backward",
            )
        )
    if training and "aten::_cudnn_rnn" in packets:
        notes.append(
            Note(
                "cudnn-reserve",
                "what cuDNN keeps of recurrent layers for backward (its reserve) is in no tensor of the trace: "
                "`rooflight predict` counts it",
            )
        )
    if packets & _FUSED_LAYERS:
        notes.append(
            Note(
                "fused-layers",
                "nn.MultiheadAttention and nn.TransformerEncoderLayer take their fast path: a whole layer is one op, "
                "and the modules inside it run nothing of their own",
            )
        )
    if options.loss and recording.own_loss:
        notes.append(Note("loss-without-effect", f"loss {options.loss} has no effect: the model computes its own"))
    state = {storage.id for storage in recording.storages if storage.category == "optimizer-state"}
    reading = (op for op in ops if op.phase == "optimizer" and op.packet == "aten::_local_scalar_dense")
    if not options.runs and not state.issuperset(tensor.storage for op in reading for tensor in op.inputs):
        notes.append(READS_VALUES)
    # Such as a layer whose weights alone are used.
    calls = {module.path: module.calls for module in recording.modules}
    sizes = {original_name(name): parameter.numel() for name, parameter in workload.model.named_parameters()}
    if ops and (unused := unused_note(sizes, recording.storages, ops)):
        notes.append(unused)
    if idle := [path for path in stage.checkpoints.paths if not calls.get(path, 1)]:
        notes.append(Note("not-checkpointed", f"not called in this step, so not checkpointed: {', '.join(idle)}"))
    return tuple(notes)


def header_of(stage: Stage, recording: Recording) -> Header:
    workload, options, choices = stage.workload, stage.options, stage.choices
    training = stage.training
    # What was asked for, under the same names; then what came of it.
    said: dict[str, Any] = {name: getattr(workload, name) for name in _OF_WORKLOAD}
    said |= {name: getattr(options, name) for name in _OF_OPTIONS}
    said |= {
        "model": workload.name,
        "target": stage.target.name,
        "loss": (OWN_LOSS if recording.own_loss else own_name(choices.loss)) if training else None,
        "optimizer": _optimizer_name(stage) if training else None,
        "fused": stage.fused,
        "accumulate": choices.accumulate if training else 1,
        "settings": dict(workload.settings),
        "notes": _notes(stage, recording),
    }
    return Header(
        rooflight=__version__,
        torch=str(torch.__version__),
        math=stage.modes,
        execution=execution(compile=options.compile, graphs=options.graphs),
        traced_on=options.on,
        inputs=recording.inputs,
        outputs=recording.outputs,
        **said,
    )


def _optimizer_name(stage: Stage) -> str:
    """By its name, or the class of what the caller's own is or makes."""
    choice = stage.choices.optimizer
    return own_name(choice) if isinstance(choice, str) or stage.optimizer is None else type(stage.optimizer).__name__


def _in_header(cls: type[Workload | TraceOptions]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls) if field.name in Header.__struct_fields__)


_OF_WORKLOAD, _OF_OPTIONS = _in_header(Workload), _in_header(TraceOptions)
