"""Several processes of one step: what one of them may not do alone, and their ledgers put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rooflight.errors import BadInput, CannotMeasure
from rooflight.ledger import FORMAT_VERSION, Arg, Ledger, Op, Storage, Tensor


def refuse_collectives(ops: Sequence[Op]) -> None:
    """Counters repeat the step on one rank, and slow it down: the others would wait for it, or it for them for ever."""
    found = next((op for op in ops if op.name.startswith(("c10d::", "_c10d_functional::"))), None)
    if found is not None:
        raise CannotMeasure(
            f"the step talks to other ranks ({found.name}), and a rank cannot repeat that alone: measure the model "
            "without DDP or FSDP around it, or put a rooflight.region into the training loop"
        )


def join(ledgers: Sequence[Ledger]) -> Ledger:
    """The ledgers of all ranks as one: ops in the order of ranks, each with its rank in its key.

    Modules and header are those of the lowest rank, which is the one that has counters unless asked otherwise.
    """
    if not ledgers:
        raise BadInput("nothing to join: give the ledgers of all ranks")
    ordered = sorted(ledgers, key=lambda ledger: ledger.header.rank)
    first = ordered[0].header
    ranks = [ledger.header.rank for ledger in ordered]
    if len(set(ranks)) != len(ranks):
        raise BadInput(f"rank {next(rank for rank in ranks if ranks.count(rank) > 1)} is there twice")
    for ledger in ordered:
        for name in ("model", "step", "dtype", "execution", "world"):
            ours, theirs = getattr(first, name), getattr(ledger.header, name)
            if ours != theirs:
                raise BadInput(
                    f"the ledgers are of different runs: {name} is {ours} on rank {first.rank}, and {theirs} on rank "
                    f"{ledger.header.rank}"
                )
    rows: dict[str, list[Any]] = {"storages": [], "ops": [], "kernels": [], "measurements": []}
    for ledger in ordered:
        _add(rows, ledger)
    notes = dict.fromkeys(note for ledger in ordered for note in ledger.header.notes)
    if missing := sorted(set(range(first.world)) - set(ranks)):
        notes[f"ranks {', '.join(map(str, missing))} of {first.world} are missing"] = None
    header = msgspec.structs.replace(first, notes=tuple(notes))
    return Ledger(
        format_version=FORMAT_VERSION, header=header, modules=ordered[0].modules,
        **{name: tuple(found) for name, found in rows.items()},
    )  # fmt: skip


def _add(rows: dict[str, list[Any]], ledger: Ledger) -> None:
    """Append a rank's rows, its numbers moved behind those that are there."""
    ops, storages = len(rows["ops"]), max((storage.id for storage in rows["storages"]), default=-1) + 1
    for storage in ledger.storages:
        rows["storages"].append(_storage(storage, ops=ops, storages=storages))
    for op in ledger.ops:
        rows["ops"].append(_op(op, rank=ledger.header.rank, ops=ops, storages=storages))
    for kernel in ledger.kernels:
        moved = tuple(index + ops for index in kernel.ops)
        rows["kernels"].append(msgspec.structs.replace(kernel, ops=moved))
    for row in ledger.measurements:
        name = row.name if row.scope == "op" else f"rank {ledger.header.rank}" + (f": {row.name}" if row.name else "")
        moved = tuple(index + ops for index in row.ops)
        rows["measurements"].append(msgspec.structs.replace(row, ops=moved, name=name))


def _storage(storage: Storage, *, ops: int, storages: int) -> Storage:
    return msgspec.structs.replace(
        storage,
        id=storage.id + storages,
        born=None if storage.born is None else storage.born + ops,
        dies=None if storage.dies is None else storage.dies + ops,
    )


def _op(op: Op, *, rank: int, ops: int, storages: int) -> Op:
    return msgspec.structs.replace(
        op,
        index=op.index + ops,
        rank=rank,
        args={name: _arg(value, storages) for name, value in op.args.items()},
        outputs=tuple(_tensor(tensor, storages) for tensor in op.outputs),
    )


def _arg(value: Arg, storages: int) -> Arg:
    if isinstance(value, Tensor):
        return _tensor(value, storages)
    if isinstance(value, list):
        return [_tensor(item, storages) if isinstance(item, Tensor) else item for item in value]
    return value


def _tensor(tensor: Tensor, storages: int) -> Tensor:
    return msgspec.structs.replace(tensor, storage=tensor.storage + storages)
