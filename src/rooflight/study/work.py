"""What a cell asks for, done in this process: its step estimated, predicted on its device, measured where that is here.

Cells that differ in their batch alone share one trace. Whatever goes wrong with a cell is written into the journal and
the next one follows; only a folder that cannot be written ends the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from msgspec.structs import replace

from rooflight import formatting
from rooflight.errors import BadInput, OutOfMemory, RooflightError
from rooflight.estimation.api import estimate
from rooflight.files import load
from rooflight.hardware.devices import find, recognise_name
from rooflight.ledger import Ledger, Note
from rooflight.measurement.api import measure
from rooflight.prediction.api import predict
from rooflight.prediction.resolve_devices import device_of
from rooflight.prediction.traces import Traces
from rooflight.step.costed_step import PreparedTrace, ledger_of
from rooflight.step.other_batches import DoesNotScale, prime_for
from rooflight.study import values
from rooflight.study.cell import Side, StudyCell, StudyRow
from rooflight.study.journal import JournalEntry, StoreBroken, done, failed
from rooflight.study.launch import wanted_here
from rooflight.study.machine import can_measure, place_of
from rooflight.study.plan import is_of_this_machine
from rooflight.study.store import Store, open_study
from rooflight.summary.measured import Measured
from rooflight.summary.reliability import UNRELIABLE, doubt
from rooflight.trace import TraceOptions

if TYPE_CHECKING:
    from rooflight.prediction.result import Predictions

Portions = Iterator[list[JournalEntry]]
"""Entries of the journal, as they are found."""


def run_cell(folder: Path, cell_id: str) -> StudyRow:
    """All that one cell asks for and this machine can do. What others are doing at this moment is waited for."""
    with open_study(folder) as store:
        cell = store.by_id.get(cell_id)
        if cell is None:
            raise BadInput("unknown-cell", f"{folder} has no cell {cell_id}")
        store.want(wanted_here(store, [cell]))
        for side in store.sides(cell):
            if side != "measured" or can_measure(cell):
                run_side(store, [cell], side, wait=True)
        return store.row(cell)


def run_side(
    store: Store,
    cells: Sequence[StudyCell],
    side: Side,
    *,
    wait: bool = False,
    wrote: Callable[[], None] = lambda: None,
) -> None:
    """One side of cells that differ in their batch alone; those that others have at this moment are left to them, or
    waited for. `wrote` is called whenever something has been written down."""
    by_key = {cell.key(side): cell for cell in cells}
    with ExitStack() as locks:
        ours = [key for key in by_key if locks.enter_context(store.holding(key, wait=wait))]
        store.refresh(surely=True)  # somebody may have done it before the lock was ours
        for entries in _DO[side](store, [by_key[key] for key in ours if store.is_open(key)]):
            store.record(entries)
            wrote()


class _LedgerResult(NamedTuple):
    """A ledger, and what a row has of it."""

    ledger: Ledger
    numbers: values.Values
    facts: dict[str, str]
    notes: tuple[Note, ...]


def _with_ledger(store: Store, cell: StudyCell, side: Side, find: Callable[[StudyCell], _LedgerResult]) -> JournalEntry:
    """One side of a cell: what is found is saved, what goes wrong is written down."""
    began = time.perf_counter()
    try:
        result = find(cell)
    except Exception as error:
        return failed(cell, side, reason_of(error), seconds=time.perf_counter() - began)
    return done(
        cell,
        side,
        values=result.numbers,
        facts=result.facts,
        notes=result.notes,
        ledger=store.save_ledger(result.ledger, cell, side),
        seconds=time.perf_counter() - began,
    )


def _check_batch(cell: StudyCell, batch: int | None) -> None:
    """A factory that makes its own inputs has a batch of its own, and no number of it belongs into another's cell."""
    if batch not in (None, cell.batch):
        raise BadInput(
            "batch-mismatch",
            f"the inputs that {cell.model} makes have a batch of {batch}, and the cell one of {cell.batch}: "
            "give the factory a parameter `batch` to make them by",
        )


# --- estimates ---


def _estimate(store: Store, cells: Sequence[StudyCell]) -> Portions:
    """One trace for all batches, as `rooflight predict` does it, except that of one sample, where some models skip sums
    over the batch."""
    steps = list({cell.alone.id: cell.alone for cell in cells}.values())
    many = [cell for cell in steps if cell.batch > 1]
    trace: PreparedTrace | None = None
    if len(many) > 1:
        with suppress(Exception):  # then each for itself: what is wrong is said of the batch that was asked for
            trace = _shared_trace(many)

    def find(cell: StudyCell) -> _LedgerResult:
        ledger = _estimated(cell) if trace is None or cell.batch == 1 else _scaled(trace, cell)
        _check_batch(cell, ledger.header.batch)
        layers = store.plan.layers
        notes = (*ledger.header.notes, *values.missing_layers(ledger, layers))
        return _LedgerResult(ledger, values.estimated(ledger, layers), {}, notes)

    for cell in steps:
        yield [_with_ledger(store, cell, "estimated", find)]


def _shared_trace(cells: Sequence[StudyCell]) -> PreparedTrace:
    """Of cells that differ in their batch alone; raises `DoesNotScale` where that cannot be."""
    cell, prime = cells[0], prime_for([cell.batch for cell in cells])
    trace = Traces(cell.model, **cell.build).for_all_batches(TraceOptions.of(cell), prime)
    if isinstance(trace, DoesNotScale):
        raise trace
    if ":" in cell.model:  # nobody has tried whether its ops stay the same whatever the batch
        largest = max(cells, key=lambda cell: cell.batch)
        if _scaled(trace, largest) != _estimated(largest):
            raise DoesNotScale(f"at a batch of {largest.batch} the model runs other ops")
    return trace


def _scaled(trace: PreparedTrace, cell: StudyCell) -> Ledger:
    """What `rooflight estimate` gives for the cell."""
    ledger = ledger_of(trace.at(cell.batch))
    return replace(ledger, header=replace(ledger.header, command=cell.command("estimate")))


def _estimated(cell: StudyCell, target: str = "cuda") -> Ledger:
    return estimate(cell, target=target, command=cell.command("estimate"))


# --- predictions ---


def _predict(store: Store, cells: Sequence[StudyCell]) -> Portions:
    """All batches at once, again but for that of one sample; one by one where that fails."""
    for together in ([cell for cell in cells if cell.batch > 1], [cell for cell in cells if cell.batch == 1]):
        portions: Iterable[list[JournalEntry]]
        try:
            portions = [_predicted(store, together)] if together else []
        except Exception:
            portions = ([_predicted_or_why(store, cell)] for cell in together)
        yield from portions


def _predicted_or_why(store: Store, cell: StudyCell) -> JournalEntry:
    began = time.perf_counter()
    try:
        return _predicted(store, [cell])[0]
    except Exception as error:
        seconds = time.perf_counter() - began
        if (why := _undescribed(cell)) is not None:
            return done(
                cell, "predicted", values={}, notes=(Note("no-prediction", f"no prediction: {why}"),), seconds=seconds
            )
        return failed(cell, "predicted", reason_of(error), seconds=seconds)


def _undescribed(cell: StudyCell) -> str | None:
    """Why nothing can be predicted for the device of this machine, where nobody has calibrated it: no failure, for
    nobody named it."""
    if cell.on is None or not is_of_this_machine(cell.on):
        return None
    try:
        device_of(cell.on)
    except BadInput as error:
        return str(error)
    return None


def _predicted(store: Store, cells: Sequence[StudyCell]) -> list[JournalEntry]:
    began, first, layers = time.perf_counter(), cells[0], store.plan.layers
    assert first.on is not None
    # However many batches there are: the gain is a quantity of every cell.
    # Memory over the step tells what layers borrow.
    batches = first.at([cell.batch for cell in cells])
    predictions = predict(batches, on=[first.on], advice=True, find_savings=False, memory=bool(layers))
    traced = _ops_of(store, first, predictions) if layers else None
    seconds = (time.perf_counter() - began) / len(cells)
    entries = []
    for cell, row in zip(cells, predictions, strict=True):
        _check_batch(cell, row.batch)
        numbers, facts = values.predicted(row, traced, layers)
        notes: tuple[Note, ...] = ()
        memory = row.memory
        if memory is not None and not memory.fits:
            need, usable = formatting.bytes_(memory.device_bytes), formatting.bytes_(memory.usable_bytes)
            notes = (Note("does-not-fit", f"does not fit {row.device}: it needs {need} of {usable}"),)
        entries.append(done(cell, "predicted", values=numbers, facts=facts, notes=notes, seconds=seconds))
    return entries


def _ops_of(store: Store, cell: StudyCell, predictions: Predictions) -> Ledger:
    """The ops that were predicted: as they were estimated where that is the same, traced for the device where not."""
    entry, target = store.entry(cell.key("estimated")), predictions.header.target
    if entry is not None and store.is_intact(entry):
        with suppress(RooflightError):
            saved = _saved(store.folder / entry.ledger, entry.digest)
            if saved.header.target == target:
                return saved
    return _estimated(cell.alone, target)


@lru_cache(maxsize=4)
def _saved(path: Path, digest: str) -> Ledger:
    """Devices that share an estimate come one after the other. `digest`: of the file, which may be written anew."""
    return load(path)


# --- measurements ---


def _measure(store: Store, cells: Sequence[StudyCell]) -> Portions:
    def find(cell: StudyCell) -> _LedgerResult:
        where = place_of(cell.on)
        ledger = measure(cell, device=where, repeat=store.plan.repeat, command=cell.command("measure", on=where))
        _check_batch(cell, ledger.header.batch)
        _check_device(cell, ledger.header.device)
        unreliable = doubt(Measured(ledger))
        notes = (*([Note(UNRELIABLE, unreliable)] if unreliable else []), *ledger.header.notes)
        return _LedgerResult(ledger, *values.measured(ledger, store.plan.layers), notes)

    for cell in cells:
        yield [_with_ledger(store, cell, "measured", find)]


def _check_device(cell: StudyCell, ran_on: str | None) -> None:
    """torch takes the GPU that comes first for it: where a cell names its device, it must have been that one."""
    if cell.on is None or is_of_this_machine(cell.on):
        return
    ran, wanted = recognise_name(ran_on), find(cell.on)
    if ran is None or ran.name != wanted.name:
        raise BadInput(
            "device-mismatch",
            f"it ran on {ran_on or 'an unknown device'}, which is no {wanted.title}: choose the GPU with "
            "CUDA_VISIBLE_DEVICES; CUDA_DEVICE_ORDER=PCI_BUS_ID makes its numbers nvidia-smi's",
        )


_DO: dict[Side, Callable[[Store, Sequence[StudyCell]], Portions]] = {
    "estimated": _estimate,
    "predicted": _predict,
    "measured": _measure,
}


_NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "not enough memory", "out of memory")


def reason_of(error: BaseException) -> str:
    """One line that says what went wrong with a cell; what is wrong with the folder is raised again."""
    if isinstance(error, StoreBroken):
        raise error
    text = " ".join(str(error).split())
    memory = any(isinstance(cause, (MemoryError, torch.OutOfMemoryError, OutOfMemory)) for cause in _causes(error))
    if memory or any(sign in text for sign in _NO_MEMORY):
        said = text or "the machine has no more of it"
        return said if said.startswith("out of memory") else f"out of memory: {said}"
    if isinstance(error, RooflightError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
