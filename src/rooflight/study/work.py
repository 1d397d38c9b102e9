"""What a cell asks for, done in this process: its step estimated, predicted on its device, measured where that is here.

Cells that differ in their batch alone share one trace. Whatever goes wrong with a cell is written into the journal and
the next one follows; only a folder that cannot be written ends the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rooflight import formatting
from rooflight.errors import BadInput, OutOfMemory, RooflightError
from rooflight.files import load
from rooflight.hardware.devices import find, recognise_name
from rooflight.ledger import Ledger
from rooflight.measurement.api import measure
from rooflight.prediction.api import predict
from rooflight.prediction.resolve_devices import device_of
from rooflight.study import values
from rooflight.study.cell import Side, StudyCell, StudyRow
from rooflight.study.journal import JournalEntry, StoreBroken, done, failed, key_of, lock_of
from rooflight.study.machine import is_here, place_of
from rooflight.study.plan import is_of_this_machine
from rooflight.study.shared_trace import SharedTrace, estimated, traced_once
from rooflight.study.store import Store, open_study
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import main_precision
from rooflight.summary.reliability import doubt

if TYPE_CHECKING:
    from rooflight.prediction.result import Predictions

Wrote = Callable[[], None]
"""Called whenever something has been written down."""


def run_cell(folder: Path, cell_id: str) -> StudyRow:
    """All that one cell asks for and this machine can do. What others are doing at this moment is waited for."""
    store = open_study(Path(folder))
    try:
        cell = store.by_id.get(cell_id)
        if cell is None:
            raise BadInput(f"{folder} has no cell {cell_id}")
        store.want([cell] if store.is_measurable(cell) and is_here(cell.on) else [])
        for side in store.sides(cell):
            if side != "measured" or is_here(cell.on):
                run_side(store, [cell], side, wait=True)
        return store.row(cell)
    finally:
        store.close()


def run_side(
    store: Store, cells: Sequence[StudyCell], side: Side, *, wait: bool = False, wrote: Wrote | None = None
) -> None:
    """One side of cells that differ in their batch alone; those that others have at this moment are left to them, or
    waited for."""
    names = {lock_of(key_of(cell, side)): cell for cell in cells}
    if wait:
        for name in names:
            store.locks.take(name, wait=True)
        ours = list(names)
    else:
        ours = [name for name in names if store.locks.take(name)]
    try:
        store.refresh(surely=True)  # somebody may have done it before the lock was ours
        left = [names[name] for name in ours if store.is_open(key_of(names[name], side))]
        if left:
            _DO[side](store, left, wrote or (lambda: None))
    finally:
        for name in ours:
            store.locks.give(name)


def _keep(store: Store, entries: Iterable[JournalEntry], wrote: Wrote) -> None:
    store.record(entries)
    wrote()


def _check_batch(cell: StudyCell, batch: int | None) -> None:
    """A factory that makes its own inputs has a batch of its own, and no number of it belongs into another's cell."""
    if batch not in (None, cell.batch):
        raise BadInput(
            f"the inputs that {cell.model} makes have a batch of {batch}, and the cell one of {cell.batch}: "
            "give the factory a parameter `batch` to make them by"
        )


# --- estimates ---


def _estimate(store: Store, cells: Sequence[StudyCell], wrote: Wrote) -> None:
    """One trace for all batches, except that of one sample, where some models skip sums over the batch."""
    steps = list({cell.alone.id: cell.alone for cell in cells}.values())
    many = [cell for cell in steps if cell.batch > 1]
    traced: SharedTrace | None = None
    if len(many) > 1:
        with suppress(Exception):  # then each for itself: what is wrong is said of the batch that was asked for
            traced = traced_once(many)
    for cell in steps:
        began = time.perf_counter()
        try:
            ledger = traced.at(cell) if traced is not None and cell.batch > 1 else estimated(cell)
            _check_batch(cell, ledger.header.batch)
            numbers = values.estimated(ledger, store.plan.layers)
            notes = (*ledger.header.notes, *values.missing_layers(ledger, store.plan.layers))
        except Exception as error:
            _keep(store, [failed(cell, "estimated", reason_of(error), seconds=time.perf_counter() - began)], wrote)
            continue
        file = store.save_ledger(ledger, cell, "estimated")
        entry = done(cell, "estimated", values=numbers, notes=notes, ledger=file, seconds=time.perf_counter() - began)
        _keep(store, [entry], wrote)


# --- predictions ---


def _predict(store: Store, cells: Sequence[StudyCell], wrote: Wrote) -> None:
    """All batches at once, again but for that of one sample; one by one where that fails."""
    for together in ([cell for cell in cells if cell.batch > 1], [cell for cell in cells if cell.batch == 1]):
        if not together:
            continue
        try:
            entries = _predicted(store, together)
        except Exception:
            if len(together) == 1:
                entries = [_predicted_or_why(store, together[0])]
            else:
                for cell in together:
                    _keep(store, [_predicted_or_why(store, cell)], wrote)
                continue
        _keep(store, entries, wrote)


def _predicted_or_why(store: Store, cell: StudyCell) -> JournalEntry:
    began = time.perf_counter()
    try:
        return _predicted(store, [cell])[0]
    except Exception as error:
        seconds = time.perf_counter() - began
        if (why := _undescribed(cell)) is not None:
            return done(cell, "predicted", values={}, notes=(f"no prediction: {why}",), seconds=seconds)
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
    predictions = predict(first.at([cell.batch for cell in cells]), on=[first.on], advice=True, find_savings=False)
    traced = _ops_of(store, first, predictions) if layers else None
    seconds = (time.perf_counter() - began) / len(cells)
    entries = []
    for cell, row in zip(cells, predictions, strict=True):
        _check_batch(cell, row.batch)
        numbers, facts = values.predicted(row, traced, layers)
        notes = () if row.memory is None or row.memory.fits else (_too_large(row),)
        entries.append(done(cell, "predicted", values=numbers, facts=facts, notes=notes, seconds=seconds))
    return entries


def _ops_of(store: Store, cell: StudyCell, predictions: Predictions) -> Ledger:
    """The ops that were predicted: as they were estimated where that is the same, traced for the device where not."""
    entry, target = store.entry(key_of(cell, "estimated")), predictions.header.target
    if entry is not None and store.is_intact(entry):
        with suppress(RooflightError):
            saved = _saved(store.folder / entry.ledger)
            same = not store.plan.layers and predictions.precisions == (main_precision(saved),)
            if same or saved.header.target == target:
                return saved
    return estimated(cell.alone, target=target)


@lru_cache(maxsize=4)
def _saved(path: Path) -> Ledger:
    """Devices that share an estimate come one after the other."""
    return load(path)


def _too_large(row: Any) -> str:
    memory = row.memory
    return (
        f"does not fit {row.device}: it needs {formatting.bytes_(memory.device_bytes)} of "
        f"{formatting.bytes_(memory.usable_bytes)}"
    )


# --- measurements ---


def _measure(store: Store, cells: Sequence[StudyCell], wrote: Wrote) -> None:
    for cell in cells:
        began = time.perf_counter()
        try:
            ledger = _measured(cell, store.plan.repeat)
            _check_batch(cell, ledger.header.batch)
            _check_device(cell, ledger.header.device)
            numbers, facts = values.measured(ledger, store.plan.layers)
        except Exception as error:
            _keep(store, [failed(cell, "measured", reason_of(error), seconds=time.perf_counter() - began)], wrote)
            continue
        file = store.save_ledger(ledger, cell, "measured")
        entry = done(
            cell,
            "measured",
            values=numbers,
            facts=facts,
            notes=(*filter(None, [doubt(Measured(ledger))]), *ledger.header.notes),
            ledger=file,
            seconds=time.perf_counter() - began,
        )
        _keep(store, [entry], wrote)


def _measured(cell: StudyCell, repeat: int) -> Ledger:
    where = place_of(cell.on)
    return measure(cell, device=where, repeat=repeat, command=cell.command("measure", on=where))


def _check_device(cell: StudyCell, ran_on: str | None) -> None:
    """torch takes the GPU that comes first for it: where a cell names its device, it must have been that one."""
    if cell.on is None or is_of_this_machine(cell.on):
        return
    ran, wanted = recognise_name(ran_on), find(cell.on)
    if ran is None or ran.name != wanted.name:
        raise BadInput(
            f"it ran on {ran_on or 'an unknown device'}, which is no {wanted.title}: choose the GPU with "
            "CUDA_VISIBLE_DEVICES; CUDA_DEVICE_ORDER=PCI_BUS_ID makes its numbers nvidia-smi's"
        )


_DO: dict[Side, Callable[[Store, Sequence[StudyCell], Wrote], None]] = {
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
