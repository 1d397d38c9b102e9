"""A script while it is being turned into that of one rank."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from rooflight.ledger import PASSES, Ledger
from rooflight.memory.allocation_script import AllocationScript
from rooflight.memory.storage_lifetimes import AddedStorage, numbers_in, numbers_of, places_of
from rooflight.ops.workspace_phases import WorkspacePhase


class RankDraft:
    """Sizes are changed storage by storage; lives are put together at the end."""

    def __init__(self, ledger: Ledger, script: AllocationScript) -> None:
        self.ledger = ledger
        self.places = places_of(ledger)
        self._script = script
        self.nbytes = list(script.nbytes)
        self.moments = list(script.moments)
        self.dies: dict[int, int] = {}
        """Storages that are freed before another op than the ledger says."""
        self._gone: set[int] = set()
        self._born: dict[int, int] = {}
        self._rows: list[AddedStorage] = []
        self._row_bytes: list[int] = []

    def holds(self, number: int) -> bool:
        return number not in self._gone

    def cut(self, number: int, share: float) -> None:
        """Keep so much of a storage, in whole bytes."""
        self.nbytes[number] = math.ceil(round(self.nbytes[number] * share, 3))

    def drop(self, number: int) -> None:
        self._gone.add(number)

    def receive(self, number: int, op: int) -> None:
        """It is made on another rank, and there from this op on."""
        self._born[number] = op

    def made_at(self, number: int) -> int | None:
        """The op from which on it is there."""
        return self._born.get(number, self.ledger.storages[number].born)

    def is_of_update(self, number: int) -> bool:
        """Is it the optimizer's state, or does the update itself make it?"""
        storage, ops = self.ledger.storages[number], self.ledger.ops
        made = storage.born is not None and storage.born < len(ops) and ops[storage.born].phase == "optimizer"
        return storage.category == "optimizer-state" or made

    def gradients(self) -> list[int]:
        """Those that lie on a device, whether the rank holds them or not."""
        return [number for number in numbers_in("gradient", self.ledger) if not self.ledger.storages[number].host]

    def touched(self, ops: Iterable[int]) -> tuple[dict[int, int], dict[int, int]]:
        """The first and the last of these ops that see each storage, of the model's passes."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for index in ops:
            op = self.ledger.ops[index]
            if op.phase in PASSES:
                for number in numbers_of((*op.inputs, *op.outputs), self.places):
                    first.setdefault(number, index)
                    last[number] = index
        return first, last

    def add(self, row: AddedStorage, nbytes: int) -> None:
        if nbytes > 0:
            self._rows.append(row)
            self._row_bytes.append(nbytes)

    def cut_moments(self, op: int, share: float) -> None:
        """Keep so much of what the op borrows."""
        self.moments[op] = tuple(
            WorkspacePhase(moment.results, tuple(math.ceil(size * share) for size in moment.temporaries))
            for moment in self.moments[op]
        )

    def cut_update_moments(self, share: float) -> None:
        for op in self.ledger.ops:
            if op.phase == "optimizer":
                self.cut_moments(op.index, share)

    def borrow(self, op: int, sizes: tuple[int, ...]) -> None:
        """Let the op hold these, too, while it runs."""
        moments = self.moments[op] or (WorkspacePhase(len(self._script.lives.results[op]), ()),)
        self.moments[op] = tuple(WorkspacePhase(moment.results, (*moment.temporaries, *sizes)) for moment in moments)

    def script(self) -> AllocationScript:
        before = self._script
        lives = before.lives.changed(
            storages=len(before.nbytes), gone=self._gone, born=self._born, dies=self.dies, rows=self._rows
        )
        cast = before.cast_from
        if cast is not None:
            uncut = dict(zip(before.lives.model, cast, strict=True))
            cast = [
                math.ceil(uncut[number] * self.nbytes[number] / before.nbytes[number]) if before.nbytes[number] else 0
                for number in lives.model
            ]
        return replace(
            before, lives=lives, nbytes=[*self.nbytes, *self._row_bytes], moments=self.moments, cast_from=cast
        )


def most_requested(script: AllocationScript) -> int:
    """Bytes at the highest moment of a step, before any rounding: quick, to tell ranks apart."""
    lives = script.lives

    def size(numbers: Iterable[int]) -> int:
        return sum(script.nbytes[number] for number in numbers)

    held = highest = size((*lives.model, *lives.optimizer_state, *lives.inputs))
    for freed, results, moments in zip(lives.freed, lives.results, script.moments, strict=False):
        held -= size(freed)
        for moment in moments:
            highest = max(highest, held + size(results[: moment.results]) + sum(moment.temporaries))
        held += size(results)
        highest = max(highest, held)
    return highest
