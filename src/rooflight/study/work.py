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

from rooflight.errors import BadInput, OutOfMemory, RooflightError
from rooflight.files import load
from rooflight.hardware.devices import find, recognise_name
from rooflight.ledger import Ledger
from rooflight.measured.step import main_precision
from rooflight.study import values
from rooflight.study.cell import Cell, Row, Side
from rooflight.study.commands import measure_command
from rooflight.study.machine import is_here, place_of
from rooflight.study.plan import is_of_this_machine
from rooflight.study.store import Entry, Store, StoreBroken, done, failed, key_of, lock_of, open_study, step_of
from rooflight.study.traced import Traced, estimated, traced_once

if TYPE_CHECKING:
    from rooflight.prediction.result import Predictions

Told = Callable[[], None]
"""Called whenever something has been written down."""


def run_cell(folder: Path, cell_id: str) -> Row:
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


def run_side(store: Store, cells: Sequence[Cell], side: Side, *, wait: bool = False, told: Told | None = None) -> None:
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
            _DO[side](store, left, told or (lambda: None))
    finally:
        for name in ours:
            store.locks.give(name)


def _keep(store: Store, entries: Iterable[Entry], told: Told) -> None:
    store.record(entries)
    told()


def _check_batch(cell: Cell, found: int | None) -> None:
    """A factory that makes its own inputs has a batch of its own, and no number of it belongs into another's cell."""
    if found not in (None, cell.batch):
        raise BadInput(f"the inputs that {cell.model} makes have a batch of {found}, and the cell one of {cell.batch}: "
                       "give the factory a parameter `batch` to make them by")  # fmt: skip


# --- estimates ---


def _estimate(store: Store, cells: Sequence[Cell], told: Told) -> None:
    """One trace for all batches, except that of one sample, where some models skip sums over the batch."""
    steps = list({step_of(cell).id: step_of(cell) for cell in cells}.values())
    many = [cell for cell in steps if cell.batch > 1]
    traced: Traced | None = None
    if len(many) > 1:
        with suppress(Exception):  # then each for itself: what is wrong is said of the batch that was asked for
            traced = traced_once(many)
    for cell in steps:
        began = time.perf_counter()
        try:
            ledger = traced.at(cell) if traced is not None and cell.batch > 1 else estimated(cell)
            _check_batch(cell, ledger.header.batch)
            found = values.estimated(ledger, store.plan.layers)
            notes = (*ledger.header.notes, *values.missing_layers(ledger, store.plan.layers))
        except Exception as error:
            _keep(store, [failed(cell, "estimated", reason_of(error), seconds=time.perf_counter() - began)], told)
            continue
        name = store.save_ledger(ledger, cell, "estimated")
        entry = done(cell, "estimated", values=found, notes=notes, ledger=name, seconds=time.perf_counter() - began)
        _keep(store, [entry], told)


# --- predictions ---


def _predict(store: Store, cells: Sequence[Cell], told: Told) -> None:
    """All batches at once, again but for that of one sample; one by one where that fails."""
    for some in ([cell for cell in cells if cell.batch > 1], [cell for cell in cells if cell.batch == 1]):
        if not some:
            continue
        try:
            entries = _predicted(store, some)
        except Exception:
            if len(some) == 1:
                entries = [_predicted_or_why(store, some[0])]
            else:
                for cell in some:
                    _keep(store, [_predicted_or_why(store, cell)], told)
                continue
        _keep(store, entries, told)


def _predicted_or_why(store: Store, cell: Cell) -> Entry:
    began = time.perf_counter()
    try:
        return _predicted(store, [cell])[0]
    except Exception as error:
        seconds = time.perf_counter() - began
        if (why := _undescribed(cell)) is not None:
            return done(cell, "predicted", values={}, notes=(f"no prediction: {why}",), seconds=seconds)
        return failed(cell, "predicted", reason_of(error), seconds=seconds)


def _undescribed(cell: Cell) -> str | None:
    """Why nothing can be predicted for the device of this machine, where nobody has calibrated it: no failure, for
    nobody named it."""
    from rooflight.prediction.asked import device_of

    if cell.on is None or not is_of_this_machine(cell.on):
        return None
    try:
        device_of(cell.on)
    except BadInput as error:
        return str(error)
    return None


def _predicted(store: Store, cells: Sequence[Cell]) -> list[Entry]:
    from rooflight.prediction.api import predict

    began, first, layers = time.perf_counter(), cells[0], store.plan.layers
    assert first.on is not None
    # However many batches there are: the gain is a quantity of every cell.
    found = predict(first.at([cell.batch for cell in cells]), on=[first.on], advice=True, find_savings=False)
    traced = _ops_of(store, first, found) if layers else None
    seconds = (time.perf_counter() - began) / len(cells)
    entries = []
    for cell, row in zip(cells, found, strict=True):
        _check_batch(cell, row.batch)
        numbers, facts = values.predicted(row, traced, layers)
        notes = () if row.memory is None or row.memory.fits else (_too_large(row),)
        entries.append(done(cell, "predicted", values=numbers, facts=facts, notes=notes, seconds=seconds))
    return entries


def _ops_of(store: Store, cell: Cell, found: Predictions) -> Ledger:
    """The ops that were predicted: as they were estimated where that is the same, traced for the device where not."""
    entry, target = store.entry(key_of(cell, "estimated")), found.header.target
    if entry is not None and entry.ledger:
        with suppress(RooflightError):
            saved = _saved(store.folder / entry.ledger)
            same = not store.plan.layers and found.precisions == (main_precision(saved),)
            if same or saved.header.target == target:
                return saved
    return estimated(step_of(cell), target=target)


@lru_cache(maxsize=4)
def _saved(path: Path) -> Ledger:
    """Devices that share an estimate come one after the other."""
    return load(path)


def _too_large(row: Any) -> str:
    from rooflight import units

    memory = row.memory
    return (f"does not fit {row.device}: it needs {units.bytes_(memory.device_bytes)} of "
            f"{units.bytes_(memory.usable_bytes)}")  # fmt: skip


# --- measurements ---


def _measure(store: Store, cells: Sequence[Cell], told: Told) -> None:
    for cell in cells:
        began = time.perf_counter()
        try:
            ledger = _measured(cell, store.plan.repeat)
            _check_batch(cell, ledger.header.batch)
            _check_device(cell, ledger.header.device)
            numbers, facts = values.measured(ledger, store.plan.layers)
        except Exception as error:
            _keep(store, [failed(cell, "measured", reason_of(error), seconds=time.perf_counter() - began)], told)
            continue
        name = store.save_ledger(ledger, cell, "measured")
        entry = done(cell, "measured", values=numbers, facts=facts, notes=(*_doubt(ledger), *ledger.header.notes),
                     ledger=name,
                     seconds=time.perf_counter() - began)  # fmt: skip
        _keep(store, [entry], told)


def _doubt(ledger: Ledger) -> tuple[str, ...]:
    """What `rooflight report` says on top of a run whose times cannot be trusted."""
    from rooflight.measured import Measured
    from rooflight.reporting.measure_text import doubt

    said = doubt(Measured(ledger))
    return (said,) if said else ()


def _measured(cell: Cell, repeat: int) -> Ledger:
    from rooflight.measurement.api import measure

    where = place_of(cell.on)
    return measure(cell, device=where, repeat=repeat, command=measure_command(cell, where))


def _check_device(cell: Cell, ran_on: str | None) -> None:
    """torch takes the GPU that comes first for it: where a cell names its device, it must have been that one."""
    if cell.on is None or is_of_this_machine(cell.on):
        return
    found, wanted = recognise_name(ran_on), find(cell.on)
    if found is None or found.name != wanted.name:
        raise BadInput(f"it ran on {ran_on or 'an unknown device'}, which is no {wanted.title}: choose the GPU with "
                       "CUDA_VISIBLE_DEVICES; CUDA_DEVICE_ORDER=PCI_BUS_ID makes its numbers nvidia-smi's")  # fmt: skip


_DO: dict[Side, Callable[[Store, Sequence[Cell], Told], None]] = {
    "estimated": _estimate, "predicted": _predict, "measured": _measure,
}  # fmt: skip


_NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "not enough memory", "out of memory")


def reason_of(error: BaseException) -> str:
    """One line that says what went wrong with a cell; what is wrong with the folder is raised again."""
    if isinstance(error, StoreBroken):
        raise error
    text = " ".join(str(error).split())
    memory = any(isinstance(one, (MemoryError, torch.OutOfMemoryError, OutOfMemory)) for one in _causes(error))
    if memory or any(sign in text for sign in _NO_MEMORY):
        said = text or "the machine has no more of it"
        return said if said.startswith("out of memory") else f"out of memory: {said}"
    if isinstance(error, RooflightError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__
