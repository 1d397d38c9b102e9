"""How large a step can be on a device, and what would make one that is too large fit: each answer is predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import NoneType
from typing import Any, Protocol

from msgspec import structs

from rooflight import formatting
from rooflight.errors import BadInput, NotPutBack, RooflightError
from rooflight.hardware.device import Device
from rooflight.memory.largest import MOST, LargestSize, SizeFit, largest
from rooflight.memory.predict import MemoryPredictor
from rooflight.memory.result import Memory
from rooflight.memory.settings import AllocatorSettings, parse
from rooflight.memory.sharding.ranks import FullestRank
from rooflight.parallel.layout import DataMode, Layout, ParallelOptions
from rooflight.prediction.cluster_run import StepAt
from rooflight.prediction.resolve_devices import DOES_NOT_FIT
from rooflight.prediction.result import MemorySaving, Prediction, Predictions, SizeLimit
from rooflight.prediction.traces import StepRequest
from rooflight.step.costed_step import Step

Timed = Callable[[Step], tuple[float, float | None]]
"""Seconds of a step on the device, and samples per second."""
_WORTH = 0.01
"""Savings below this part of what the step takes are not worth a line."""
_ONE_PERCENT = 100


class Deployment(Protocol):
    """Where a step runs: what it takes there, of the fullest GPU where there are many."""

    @property
    def device(self) -> Device: ...
    @property
    def units(self) -> tuple[int, ...]:
        """What batches are multiples of; the next is for those below the first, where none of these fits."""
        ...

    def traced_at(self, batch: int) -> str:
        """What of a batch is traced, in words."""
        ...

    def fits(self, step_at: StepAt, batch: int, memories: MemoryPredictor) -> SizeFit: ...
    def memory(self, step_at: StepAt, batch: int, memories: MemoryPredictor) -> Memory: ...


@dataclass(frozen=True)
class OneDevice:
    device: Device
    units: tuple[int, ...] = (1,)

    def traced_at(self, batch: int) -> str:
        return f"batch {batch:,}"

    def fits(self, step_at: StepAt, batch: int, memories: MemoryPredictor) -> SizeFit:
        return memories.fits(step_at(batch), self.device)

    def memory(self, step_at: StepAt, batch: int, memories: MemoryPredictor) -> Memory:
        return memories.of(step_at(batch), self.device)


@dataclass(frozen=True)
class _StepAtAnyBatch:
    """A step at whatever batch: by the closed form that one trace gives, and traced at that very batch."""

    scaled: StepAt
    traced: StepAt

    @classmethod
    def of(cls, asked: StepRequest, near: int | None) -> _StepAtAnyBatch:
        if not asked.by_name:
            raise BadInput(
                '--max-batch needs a model by name: a live module has the batch of its inputs; give "file.py:NAME"'
            )
        return cls(asked.at(near or 1, scaled=True).at_batch or asked.at, asked.at)

    def largest(self, place: Deployment, memories: MemoryPredictor, *, near: int | None) -> SizeLimit:
        first, *others = place.units
        found = self._in_units(first, place, memories, near=near, most=MOST // first)
        for unit in others if not found.value and not found.why else ():
            found = self._in_units(unit, place, memories, near=near, most=(first - 1) // unit)
            if found.value == (first - 1) // unit * unit:  # it was not memory that ended this, but what failed before
                found = structs.replace(found, fails=first, why="")
        return found

    def _in_units(
        self, unit: int, place: Deployment, memories: MemoryPredictor, *, near: int | None, most: int
    ) -> SizeLimit:
        found = largest(
            lambda size: place.fits(self.scaled, size * unit, memories), start=max(2, (near or 1) // unit), most=most
        )
        value, fails = found.value, found.fails
        memory = None
        while value and memory is None:
            memory = place.memory(self.traced, value * unit, memories)
            if not memory.fits:
                memory, value, fails = None, value - max(1, value // _ONE_PERCENT), value
        if memory is None:
            return _limit(place, "batch", replace(found, value=0, fails=unit), None, "", unit=unit)
        steps = f" (multiples of {unit}, the micro-batches)" if unit > 1 else ""
        traced = place.traced_at(value * unit)
        how = f"closed form in the batch, {found.tried} sizes tried{steps}, and a trace at {traced}"
        found = replace(found, value=value * unit, fails=None if fails is None else fails * unit)
        return _limit(place, "batch", found, memory, how, unit=unit)


def with_expandable_segments(memories: MemoryPredictor) -> MemoryPredictor | None:
    """The same with segments that grow, where that is something else."""
    if memories.settings.expandable_segments:
        return None
    return MemoryPredictor(replace(memories.settings, expandable_segments=True), memories.workspaces)


def longest_sequence(asked: StepRequest, place: Deployment, memories: MemoryPredictor, *, batch: int) -> SizeLimit:
    """Every length is traced: what a model does with more tokens has no closed form here."""
    start = asked.which.get("seq")
    if not asked.by_name:
        raise BadInput(
            "--max-seq needs a model by name: a live module has the length of its inputs; give "
            '"file.py:FACTORY" with a parameter `seq`'
        )
    name = "past" if asked.which.get("step") == "decode" else "seq"
    first = asked.at(batch)
    length = first.ledger.header.past if name == "past" else first.ledger.header.sequence
    if length is None:
        raise BadInput(f"--max-seq: {first.ledger.header.model} takes no sequence, --max-batch finds its largest batch")

    if asked.which.get("input_shape") is not None:
        raise BadInput(
            "--max-seq: the length is that of --input; leave --input out, or give a function with a parameter seq"
        )

    def at_length(size: int) -> StepAt:
        def step_at(samples: int) -> Step:
            changed: dict[str, Any] = {name: size}
            step = asked.at(samples, **changed)
            header = step.ledger.header
            if (header.past if name == "past" else header.sequence) != size:
                raise BadInput(f"--max-seq: {header.model} does not follow --{name}: it takes its own length")
            return step

        return step_at

    found = largest(lambda size: place.fits(at_length(size), batch, memories), start=max(2, start or length))
    if not found.value and found.why:
        raise BadInput(found.why)
    if not found.value:
        return _limit(place, "sequence", found, None, "", batch=batch)
    memory = place.memory(at_length(found.value), batch, memories)
    how = f"every length traced for itself, {found.tried} of them"
    return _limit(place, "sequence", found, memory, how, batch=batch)


def _limit(
    place: Deployment,
    what: Any,
    found: LargestSize,
    memory: Memory | None,
    how: str,
    *,
    unit: int = 1,
    batch: int | None = None,
) -> SizeLimit:
    fails = None if found.why else found.fails
    return SizeLimit(
        device=place.device.name,
        what=what,
        batch=batch,
        value=found.value,
        fails=fails,
        why=found.why,
        how=how,
        memory=memory,
        unit=unit,
    )


@dataclass(frozen=True)
class _MemoryChange:
    """Something to do, and the memory of the step with it."""

    words: str
    options: str
    memory: Callable[[Step], Memory]
    step: Callable[[], Step]
    timed: bool = True
    """Is the time of that step the time of the change?"""


def savings(
    asked: StepRequest, step: Step, device: Device, memories: MemoryPredictor, timed: Timed | None
) -> tuple[MemorySaving, ...]:
    """Changes that take less memory: what fits first, then what saves most."""
    now = memories.of(step, device)
    found = []
    for change in _changes(asked, step, device, memories, fits=now.fits):
        try:
            other = change.step()
            memory = change.memory(other)
            time_s, throughput = timed(other) if timed is not None and change.timed else (None, None)
        except NotPutBack:
            raise
        except RooflightError:
            continue  # a change that cannot be made is none to advise
        saved = now.device_bytes - memory.device_bytes
        if saved < _WORTH * now.device_bytes:
            continue
        found.append(
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
                time_s=time_s,
                throughput=throughput,
            )
        )
    return tuple(sorted(found, key=lambda one: (not one.fits, -one.saved_bytes)))


def _changes(
    asked: StepRequest, step: Step, device: Device, memories: MemoryPredictor, *, fits: bool
) -> Iterator[_MemoryChange]:
    def of(other: Step) -> Memory:
        return memories.of(other, device)

    batch = step.batch or 1
    on_gpu, training = device.kind == "gpu", step.ledger.header.step == "train"
    if on_gpu and (wide := with_expandable_segments(memories)) is not None:
        yield _MemoryChange(
            "segments that grow, by PYTORCH_CUDA_ALLOC_CONF",
            f"--allocator {asked.expandable}",
            lambda other: wide.of(other, device),
            lambda: step,
        )
    if asked.by_name:
        for words, options, made in _other_steps(asked, step, batch, _half_precision(device)):
            yield _MemoryChange(words, options, of, made)
        if (
            not fits
            and (found := _StepAtAnyBatch.of(asked, batch).largest(OneDevice(device), memories, near=batch)).value
        ):
            largest_step = partial(asked.at, found.value)
            yield _MemoryChange("the largest batch that fits", f"--batch {found.value}", of, largest_step)
    if on_gpu and training and asked.options.accumulate == 1:
        for mode, words in _SHARDED.items():
            layout = Layout(data=_RANKS, mode=mode, gpus_per_node=_RANKS)
            how = f"--gpus {_RANKS} --parallel {mode}"
            of_rank = partial(_of_rank, layout, device, memories)
            yield _MemoryChange(f"{words} over {_RANKS} GPUs", how, of_rank, lambda: step, timed=False)
            if not fits and asked.by_name and mode == "fsdp" and not asked.options.checkpoint:
                again = replace(asked.options, checkpoint=("blocks",))
                both = f"{words} over {_RANKS} GPUs, and blocks computed again in backward"
                yield _MemoryChange(
                    both, f"{how} --checkpoint blocks", of_rank, partial(asked.at, batch, options=again), timed=False
                )


_RANKS = 8
_SHARDED: dict[DataMode, str] = {"zero2": "ZeRO-2", "fsdp": "FSDP"}


def _of_rank(layout: Layout, device: Device, memories: MemoryPredictor, step: Step) -> Memory:
    return memories.of(step, device, change=FullestRank(step.ledger, layout, ParallelOptions(), 1, ()))


def _half_precision(device: Device) -> str | None:
    """The one that the device has units for."""
    return next((one for one in ("bf16", "fp16") if device.peak(one) is not None), None)


_OtherStep = tuple[str, str, Callable[[], Step]]
"""In words, in options, and traced."""


def _other_steps(asked: StepRequest, step: Step, batch: int, half: str | None) -> Iterator[_OtherStep]:
    header, options = step.ledger.header, asked.options
    target = options.target.partition(":")[0]
    training, whole = header.step == "train", header.dtype == "fp32" and not options.autocast
    again = replace(options, checkpoint=("blocks",))
    checkpoints = training and not options.checkpoint
    if checkpoints:
        yield "blocks computed again in backward", "--checkpoint blocks", lambda: asked.at(batch, options=again)
    if whole and half:
        yield f"{half} for the whole model", f"--dtype {half}", lambda: asked.at(batch, dtype=half)
    if whole and half and training:
        mixed = replace(options, autocast=half)
        yield f"{half} by autocast", f"--autocast {half}", lambda: asked.at(batch, options=mixed)
    if whole and half and checkpoints:
        both = f"--dtype {half} --checkpoint blocks"
        yield f"{half}, and blocks computed again in backward", both, lambda: asked.at(batch, dtype=half, options=again)
    if training and options.foreach is None and target == "cuda":
        one_by_one = replace(options, foreach=False)
        words = "an optimizer that takes one weight at a time"
        yield words, "--no-foreach", lambda: asked.at(batch, options=one_by_one)
    if batch > 1:
        less = batch // 2
        yield "half the batch", f"--batch {less}", lambda: asked.at(less)
        if training and options.accumulate == 1 and batch % 2 == 0:
            twice = replace(options, accumulate=2)
            words = f"two micro-batches of {less:,}"
            yield words, f"--batch {less} --accumulate 2", lambda: asked.at(less, options=twice)
    if training and header.optimizer in ("adam", "adamw"):
        plain = replace(options, optimizer="momentum")
        yield "momentum instead of Adam", "--optimizer momentum", lambda: asked.at(batch, options=plain)


def settings_given(text: str | None) -> AllocatorSettings:
    if not isinstance(text, (str, NoneType)):
        raise BadInput(f"--allocator is a text, as in PYTORCH_CUDA_ALLOC_CONF, not {text!r}")
    return parse(text) if text else AllocatorSettings()


def memory_notes(rows: Sequence[Prediction]) -> tuple[str, ...]:
    """What was assumed of memory, and for which devices."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for note in row.memory.notes if row.memory is not None else ():
            devices = found.setdefault(note, [])
            if row.device not in devices:
                devices.append(row.device)
    return tuple(f"{', '.join(devices)}: {note}" for note, devices in found.items())


def too_large(rows: Sequence[Prediction]) -> tuple[str, ...]:
    """Of everything that would not run: what it needs, and what there is."""
    found = []
    for row in rows:
        memory = row.memory
        if memory is None or memory.fits:
            continue
        where, has = f"{row.device}{_at(row)}", formatting.bytes_(memory.usable_bytes)
        needs, least = formatting.bytes_(memory.device_bytes), memory.peak_allocated_bytes + (memory.outside_bytes or 0)
        if least > memory.usable_bytes:
            found.append(f"{DOES_NOT_FIT}{where} would need {needs} of its {has}: this would not run")
        else:
            found.append(
                f"{DOES_NOT_FIT}{where} has {formatting.bytes_(least)} in use at its peak, but in pieces that do "
                f"not fit into the gaps of {has}: this would not run, even if all that is cached were given "
                f"back (it would take {needs} where there is no end)"
            )
    return tuple(found)


def barely(rows: Sequence[Prediction]) -> tuple[str, ...]:
    """Of several, those that run only because cached blocks are given back; one alone says so beside its numbers."""
    found = [f"{row.device}{_at(row)}" for row in rows if row.memory is not None and row.memory.retries]
    if len(rows) < 2 or not found:
        return ()
    return (f"{', '.join(found)}: fits barely, cached blocks are given back, which waits for the GPU",)


def _at(row: Prediction) -> str:
    return "" if row.batch is None else f" at batch {row.batch:,}"


def with_limits(
    found: Predictions,
    asked: StepRequest,
    places: Iterable[Deployment],
    memories: MemoryPredictor,
    *,
    max_batch: bool,
    max_seq: bool,
) -> Predictions:
    """The largest batch, and the longest sequence at the first batch, that each place takes."""
    limits: list[SizeLimit] = []
    near = found[0].batch
    any_batch = _StepAtAnyBatch.of(asked, near) if max_batch else None
    for place in places:
        if any_batch is not None:
            one = any_batch.largest(place, memories, near=near)
            wide = with_expandable_segments(memories)
            if wide is not None and place.device.kind == "gpu" and not one.why:
                more = any_batch.largest(place, wide, near=one.value or near).value
                one = structs.replace(one, with_expandable_segments=more, expandable_settings=asked.expandable)
            limits.append(one)
        if max_seq:
            limits.append(longest_sequence(asked, place, memories, batch=near or 1))
    known = {(limit.device, limit.what, limit.batch): limit.value for limit in limits}
    rows = tuple(
        structs.replace(
            row,
            max_batch=known.get((row.device, "batch", None)),
            max_seq=known.get((row.device, "sequence", row.batch or 1)),
        )
        for row in found
    )
    return structs.replace(found, predictions=rows, limits=tuple(limits))
