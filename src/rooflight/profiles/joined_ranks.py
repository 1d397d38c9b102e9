"""The ledgers of all ranks of a run as one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from rooflight.errors import BadInput
from rooflight.ledger import FORMAT_VERSION, Arg, Ledger, Note, Op, Storage, Tensor


def join(ledgers: Sequence[Ledger]) -> Ledger:
    """The ledgers of all ranks as one: ops in the order of ranks, each with its rank in its key.

    What has no place for a rank, kernels and what was measured over more than an op, has `rank 1` in its name or label.

    Modules and header are those of the lowest rank, which is the one that has counters unless asked otherwise.
    """
    if not ledgers:
        raise BadInput("nothing-to-join", "nothing to join: give the ledgers of all ranks")
    ordered = sorted(ledgers, key=lambda ledger: ledger.header.rank)
    first = ordered[0].header
    ranks = [ledger.header.rank for ledger in ordered]
    if len(set(ranks)) != len(ranks):
        raise BadInput(
            "duplicate-rank",
            f"rank {next(rank for rank in ranks if ranks.count(rank) > 1)} is there twice: give the "
            "ledger of each rank once",
        )
    for ledger in ordered:
        for name in ("model", "step", "dtype", "execution", "world"):
            ours, theirs = getattr(first, name), getattr(ledger.header, name)
            if ours != theirs:
                raise BadInput(
                    "different-runs",
                    f"the ledgers are of different runs: {name} is {ours} on rank {first.rank}, and {theirs} on rank "
                    f"{ledger.header.rank}",
                )
    rows: dict[str, list[Any]] = {"storages": [], "ops": [], "kernels": [], "measurements": []}
    for ledger in ordered:
        _add(rows, ledger)
    notes = dict.fromkeys(note for ledger in ordered for note in ledger.header.notes)
    if (missing := missing_ranks(ranks, first.world)) is not None:
        notes[missing] = None
    header = msgspec.structs.replace(first, notes=tuple(notes))
    return Ledger(
        format_version=FORMAT_VERSION,
        header=header,
        modules=ordered[0].modules,
        **{name: tuple(joined) for name, joined in rows.items()},
    )


def _add(rows: dict[str, list[Any]], ledger: Ledger) -> None:
    """Append a rank's rows, its numbers moved behind those that are there."""
    ops, storages = len(rows["ops"]), max((storage.id for storage in rows["storages"]), default=-1) + 1
    for storage in ledger.storages:
        rows["storages"].append(_storage(storage, ops=ops, storages=storages))
    for op in ledger.ops:
        rows["ops"].append(_op(op, rank=ledger.header.rank, ops=ops, storages=storages))
    for kernel in ledger.kernels:
        moved = tuple(index + ops for index in kernel.ops)
        label = _of_rank(ledger.header.rank, kernel.label)
        rows["kernels"].append(msgspec.structs.replace(kernel, ops=moved, label=label))
    for row in ledger.measurements:
        name = row.name if row.scope == "op" else _of_rank(ledger.header.rank, row.name)
        moved = tuple(index + ops for index in row.ops)
        rows["measurements"].append(msgspec.structs.replace(row, ops=moved, name=name))


def _of_rank(rank: int, name: str) -> str:
    return f"rank {rank}: {name}" if name else f"rank {rank}"


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


def missing_ranks(present: Collection[int], world: int) -> Note | None:
    """`ranks 1, 3 of 4 are missing`, or `None`."""
    missing = sorted(set(range(world)) - set(present))
    if not missing:
        return None
    numbers = [str(rank) for rank in missing] if len(missing) <= 8 else _runs(missing)
    return Note("missing-ranks", f"ranks {', '.join(numbers)} of {world} are missing")


def _runs(numbers: Sequence[int]) -> list[str]:
    """`8-15`: a few words for many machines."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
