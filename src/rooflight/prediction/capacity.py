"""How large a step can be on a device, and what would make one that is too large fit: each answer is predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import NoneType
from typing import Any, Literal

from msgspec import structs

from rooflight import formatting
from rooflight.errors import BadInput, NotPutBack, RooflightError
from rooflight.hardware.device import Device
from rooflight.ledger import Note
from rooflight.memory.largest import MOST, LargestSize, largest
from rooflight.memory.predict import MemoryPredictor
from rooflight.memory.settings import AllocatorSettings, parse
from rooflight.parallel.layout import DataMode, Layout
from rooflight.prediction.cluster_run import Cluster, OneDevice, StepAt
from rooflight.prediction.device_run import TimeSource, predicted
from rooflight.prediction.resolve_devices import DOES_NOT_FIT
from rooflight.prediction.result import MemorySaving, Prediction, Predictions, SizeLimit
from rooflight.prediction.traces import StepRequest
from rooflight.step.costed_step import Step
from rooflight.trace import TraceOptions

_WORTH = 0.01
"""Savings below this part of what the step takes are not worth a line."""
_ONE_PERCENT = 100


@dataclass(frozen=True)
class _StepAtAnyBatch:
    """A step at whatever batch: by the closed form that one trace gives, and traced at that very batch."""

    scaled: StepAt
    traced: StepAt

    @classmethod
    def of(cls, asked: StepRequest, near: int | None) -> _StepAtAnyBatch:
        if not asked.by_name:
            raise BadInput(
                "needs-a-model-name",
                "--max-batch needs a model by name: a live module has the batch of its inputs, a ledger its own; give "
                '"file.py:NAME"',
            )
        return cls(asked.at(near or 1, scaled=True).at_batch or asked.at, asked.at)

    def largest(self, place: OneDevice, memories: MemoryPredictor, *, near: int | None) -> SizeLimit:
        first, *others = place.units
        limit = self._in_units(first, place, memories, near=near, most=MOST // first)
        for unit in others if not limit.value and not limit.why else ():
            limit = self._in_units(unit, place, memories, near=near, most=(first - 1) // unit)
            if limit.value == (first - 1) // unit * unit:  # it was not memory that ended this, but what failed before
                limit = structs.replace(limit, fails=first, why="")
        return limit

    def _in_units(
        self, unit: int, place: OneDevice, memories: MemoryPredictor, *, near: int | None, most: int
    ) -> SizeLimit:
        size = largest(
            lambda count: place.fits(self.scaled, count * unit, memories), start=max(2, (near or 1) // unit), most=most
        )
        value, fails = size.value, size.fails
        memory = None
        while value and memory is None:
            memory = place.memory(self.traced, value * unit, memories)
            if not memory.fits:
                memory, value, fails = None, value - max(1, value // _ONE_PERCENT), value
        if memory is None:
            return _limit(place, "batch", replace(size, value=0, fails=unit), unit=unit)
        steps = f" (multiples of {unit}, the micro-batches)" if unit > 1 else ""
        traced = place.traced_at(value * unit)
        how = f"closed form in the batch, {size.tried} sizes tried{steps}, and a trace at {traced}"
        size = replace(size, value=value * unit, fails=None if fails is None else fails * unit)
        return _limit(place, "batch", size, memory=memory, how=how, unit=unit)


def _limit(place: OneDevice, what: Literal["batch", "sequence"], size: LargestSize, **more: Any) -> SizeLimit:
    fails = None if size.why else size.fails
    return SizeLimit(device=place.device.name, what=what, value=size.value, fails=fails, why=size.why, **more)


def longest_sequence(asked: StepRequest, place: OneDevice, memories: MemoryPredictor, *, batch: int) -> SizeLimit:
    """Every length is traced: what a model does with more tokens has no closed form here."""
    if not asked.by_name:
        raise BadInput(
            "needs-a-model-name",
            "--max-seq needs a model by name: a live module has the length of its inputs, a ledger its own; give "
            '"file.py:FACTORY" with a parameter `seq`',
        )
    name = "past" if asked.which.get("step") == "decode" else "seq"

    def length_of(step: Step) -> int | None:
        header = step.ledger.header
        return header.past if name == "past" else header.sequence

    first = asked.at(batch)
    length = length_of(first)
    if length is None:
        raise BadInput(
            "no-sequence",
            f"--max-seq: {first.ledger.header.model} takes no sequence, --max-batch finds its largest batch",
        )
    if asked.which.get("input_shape") is not None:
        raise BadInput(
            "option-conflict",
            "--max-seq: the length is that of --input; leave --input out, or give a function with a parameter seq",
        )

    def at_length(size: int, samples: int) -> Step:
        changed: dict[str, Any] = {name: size}
        step = asked.at(samples, **changed)
        if length_of(step) != size:
            model = step.ledger.header.model
            raise BadInput(
                "option-not-applicable", f"--max-seq: {model} does not follow --{name}: it takes its own length"
            )
        return step

    start = max(2, asked.which.get("seq") or length)
    size = largest(lambda tokens: place.fits(partial(at_length, tokens), batch, memories), start=start)
    if not size.value and size.why:
        raise BadInput("no-sequence", size.why)
    if not size.value:
        return _limit(place, "sequence", size, batch=batch)
    memory = place.memory(partial(at_length, size.value), batch, memories)
    how = f"every length traced for itself, {size.tried} of them"
    return _limit(place, "sequence", size, memory=memory, how=how, batch=batch)


def _with_expandable_segments(memories: MemoryPredictor) -> MemoryPredictor | None:
    """The same with segments that grow, where that is something else."""
    if memories.settings.expandable_segments:
        return None
    return MemoryPredictor(replace(memories.settings, expandable_segments=True), memories.workspaces)


@dataclass(frozen=True)
class _MemoryChange:
    """Something to do, the step with it, and where and with which allocator it runs then."""

    words: str
    options: str
    step: Callable[[], Step]
    place: OneDevice
    memories: MemoryPredictor


def savings(asked: StepRequest, step: Step, source: TimeSource, memories: MemoryPredictor) -> tuple[MemorySaving, ...]:
    """Changes that take less memory: what fits first, then what saves most."""
    device = source.device
    now = memories.of(step, device)
    rows = []
    for change in _changes(asked, step, OneDevice(source), memories, fits=now.fits):
        try:
            other = change.step()
            memory = change.place.memory(lambda _, other=other: other, 1, change.memories)  # type: ignore[misc]
            # Of many GPUs that is another question.
            prediction = None if isinstance(change.place, Cluster) else predicted(other, source)
        except NotPutBack:
            raise
        except RooflightError:
            continue  # a change that cannot be made is none to advise
        saved = now.device_bytes - memory.device_bytes
        if saved < _WORTH * now.device_bytes:
            continue
        rows.append(
            MemorySaving(
                device=device.name,
                batch=step.batch,
                change=change.words,
                options=change.options,
                saved_bytes=saved,
                fits=memory.fits,
                fit=memory.fit,
                peak_allocated_bytes=memory.peak_allocated_bytes,
                peak_reserved_bytes=memory.peak_reserved_bytes,
                device_bytes=memory.device_bytes,
                time_s=None if prediction is None else prediction.time_s,
                throughput=None if prediction is None else prediction.throughput,
            )
        )
    return tuple(sorted(rows, key=lambda row: (not row.fits, -row.saved_bytes)))


_RANKS = 8
_SHARDED: dict[DataMode, str] = {"zero2": "ZeRO-2", "fsdp": "FSDP"}
_AGAIN = "blocks computed again in backward"


def _changes(
    asked: StepRequest, step: Step, place: OneDevice, memories: MemoryPredictor, *, fits: bool
) -> Iterator[_MemoryChange]:
    batch, options, training = step.batch or 1, asked.options, step.ledger.header.step == "train"
    on_gpu = place.device.is_cuda
    if on_gpu and (wide := _with_expandable_segments(memories)) is not None:
        words = "segments that grow, by PYTORCH_CUDA_ALLOC_CONF"
        yield _MemoryChange(words, f"--allocator {asked.expandable}", lambda: step, place, wide)
    if asked.by_name:
        for words, given, other in _other_steps(asked, step, batch, place.device):
            yield _MemoryChange(words, given, other, place, memories)
        largest_batch = 0 if fits else _StepAtAnyBatch.of(asked, batch).largest(place, memories, near=batch).value
        if largest_batch:
            other = partial(asked.at, largest_batch)
            yield _MemoryChange("the largest batch that fits", f"--batch {largest_batch}", other, place, memories)
    if on_gpu and training and options.accumulate == 1:
        for mode, name in _SHARDED.items():
            ranks = Cluster(place.source, Layout(data=_RANKS, mode=mode, gpus_per_node=_RANKS))
            words, given = f"{name} over {_RANKS} GPUs", f"--gpus {_RANKS} --parallel {mode}"
            yield _MemoryChange(words, given, lambda: step, ranks, memories)
            if not fits and asked.by_name and mode == "fsdp" and not options.checkpoint:
                other = partial(asked.at, batch, options=replace(options, checkpoint=("blocks",)))
                yield _MemoryChange(f"{words}, and {_AGAIN}", f"{given} --checkpoint blocks", other, ranks, memories)


def _other_steps(
    asked: StepRequest, step: Step, batch: int, device: Device
) -> Iterator[tuple[str, str, Callable[[], Step]]]:
    """In words, in options, and traced."""
    header, options = step.ledger.header, asked.options
    training, full = header.step == "train", header.dtype == "fp32" and not options.autocast
    half = next((name for name in ("bf16", "fp16") if device.peak(name) is not None), None) if full else None
    checkpoints = training and not options.checkpoint
    at, less = asked.at, batch // 2

    def changed(**changes: Any) -> TraceOptions:
        return replace(options, **changes)

    if checkpoints:
        again = changed(checkpoint=("blocks",))
        yield _AGAIN, "--checkpoint blocks", partial(at, batch, options=again)
    if half:
        yield f"{half} for the whole model", f"--dtype {half}", partial(at, batch, dtype=half)
    if half and training:
        yield f"{half} by autocast", f"--autocast {half}", partial(at, batch, options=changed(autocast=half))
    if half and checkpoints:
        both = partial(at, batch, dtype=half, options=again)
        yield f"{half}, and {_AGAIN}", f"--dtype {half} --checkpoint blocks", both
    if training and options.foreach is None and options.target.partition(":")[0] == "cuda":
        words = "an optimizer that takes one weight at a time"
        yield words, "--no-foreach", partial(at, batch, options=changed(foreach=False))
    if batch > 1:
        yield "half the batch", f"--batch {less}", partial(at, less)
    if training and options.accumulate == 1 and batch > 1 and batch % 2 == 0:
        twice = partial(at, less, options=changed(accumulate=2))
        yield f"two micro-batches of {less:,}", f"--batch {less} --accumulate 2", twice
    optimizer = (header.optimizer or "").lower()  # a caller's own goes by its class
    if training and optimizer in _TWO_STATES:
        yield (
            f"momentum instead of {'Adam' if optimizer in ('adam', 'adamw') else header.optimizer}",
            "--optimizer momentum",
            partial(at, batch, options=changed(optimizer="momentum")),
        )


_TWO_STATES = ("adam", "adamw", "adadelta", "adamax", "nadam", "radam", "rprop")
"""Optimizers that keep two numbers for every weight."""


def settings_given(text: str | None) -> AllocatorSettings:
    if not isinstance(text, (str, NoneType)):
        raise BadInput("bad-option-type", f"--allocator is a text, as in PYTORCH_CUDA_ALLOC_CONF, not {text!r}")
    return parse(text) if text else AllocatorSettings()


def memory_notes(rows: Sequence[Prediction]) -> tuple[Note, ...]:
    """What was assumed of memory, and for which devices."""
    devices: dict[Note, dict[str, None]] = {}
    for row in rows:
        for note in row.memory.notes if row.memory is not None else ():
            devices.setdefault(note, {})[row.device] = None
    return tuple(note.of(", ".join(names)) for note, names in devices.items())


def too_large(rows: Sequence[Prediction]) -> tuple[Note, ...]:
    """Of everything that would not run: what it needs, and what there is."""
    notes = []
    for row in rows:
        memory = row.memory
        if memory is None or memory.fits:
            continue
        where, has = f"{row.device}{_at(row)}", formatting.bytes_(memory.usable_bytes)
        needs, least = formatting.bytes_(memory.device_bytes), memory.peak_allocated_bytes + (memory.outside_bytes or 0)
        if least > memory.usable_bytes:
            notes.append(
                Note(DOES_NOT_FIT, f"does not fit: {where} would need {needs} of its {has}: this would not run")
            )
        else:
            notes.append(
                Note(
                    DOES_NOT_FIT,
                    f"does not fit: {where} has {formatting.bytes_(least)} in use at its peak, but in pieces that do "
                    f"not fit into the gaps of {has}: this would not run, even if all that is cached were given "
                    f"back (it would take {needs} where there is no end)",
                )
            )
    return tuple(notes)


def barely(rows: Sequence[Prediction]) -> tuple[Note, ...]:
    """Of several, those that run only because cached blocks are given back; one alone says so beside its numbers."""
    named = [f"{row.device}{_at(row)}" for row in rows if row.memory is not None and row.memory.retries]
    if len(rows) < 2 or not named:
        return ()
    return (
        Note("fits-barely", f"{', '.join(named)}: fits barely, cached blocks are given back, which waits for the GPU"),
    )


def _at(row: Prediction) -> str:
    return "" if row.batch is None else f" at batch {row.batch:,}"


def with_limits(
    predictions: Predictions,
    asked: StepRequest,
    places: Iterable[OneDevice],
    memories: MemoryPredictor,
    *,
    max_batch: bool,
    max_seq: bool,
) -> Predictions:
    """The largest batch, and the longest sequence at the first batch, that each place takes."""
    limits: list[SizeLimit] = []
    near = predictions[0].batch
    any_batch = _StepAtAnyBatch.of(asked, near) if max_batch else None
    wide = _with_expandable_segments(memories)
    for place in places:
        if any_batch is not None:
            limit = any_batch.largest(place, memories, near=near)
            if wide is not None and place.device.is_cuda and not limit.why:
                more = any_batch.largest(place, wide, near=limit.value or near).value
                limit = structs.replace(limit, with_expandable_segments=more, expandable_settings=asked.expandable)
            limits.append(limit)
        if max_seq:
            limits.append(longest_sequence(asked, place, memories, batch=near or 1))
    values = {(limit.device, limit.what, limit.batch): limit.value for limit in limits}
    rows = tuple(
        structs.replace(
            row,
            max_batch=values.get((row.device, "batch", None)),
            max_seq=values.get((row.device, "sequence", row.batch or 1)),
        )
        for row in predictions
    )
    return structs.replace(predictions, predictions=rows, limits=tuple(limits))
