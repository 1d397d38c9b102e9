"""A script while it is being turned into that of one rank."""

from __future__ import annotations

import math
from dataclasses import replace

from rooflight.ledger import Ledger
from rooflight.memory.allocation_script import AllocationScript
from rooflight.memory.storage_lifetimes import AddedStorage
from rooflight.ops.workspace_phases import WorkspacePhase


class RankDraft:
    """Sizes are changed storage by storage; lives are put together at the end."""

    def __init__(self, ledger: Ledger, script: AllocationScript) -> None:
        self.ledger = ledger
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

    def borrow(self, op: int, sizes: tuple[int, ...]) -> None:
        """Let the op hold these, too, while it runs."""
        made = len(self._script.lives.results[op])
        moments = self.moments[op] or (WorkspacePhase(made, ()),)
        self.moments[op] = tuple(WorkspacePhase(one.results, (*one.temporaries, *sizes)) for one in moments)

    def script(self) -> AllocationScript:
        before = self._script
        lives = before.lives.changed(
            storages=len(before.nbytes), gone=self._gone, born=self._born, dies=self.dies, rows=self._rows
        )
        cast = before.cast_from
        if cast is not None:
            whole = dict(zip(before.lives.model, cast, strict=True))
            cast = [
                math.ceil(whole[one] * self.nbytes[one] / before.nbytes[one]) if before.nbytes[one] else 0
                for one in lives.model
            ]
        return replace(
            before, lives=lives, nbytes=[*self.nbytes, *self._row_bytes], moments=self.moments, cast_from=cast
        )


def most_requested(script: AllocationScript) -> int:
    """Bytes at the highest moment of a step, before any rounding: quick, to tell ranks apart."""
    lives, nbytes = script.lives, script.nbytes
    held = sum(nbytes[one] for one in (*lives.model, *lives.optimizer_state, *lives.inputs))
    highest = held
    for freed, results, moments in zip(lives.freed, lives.results, script.moments, strict=False):
        held -= sum(nbytes[one] for one in freed)
        for moment in moments:
            made = sum(nbytes[one] for one in results[: moment.results])
            highest = max(highest, held + made + sum(moment.temporaries))
        held += sum(nbytes[one] for one in results)
        highest = max(highest, held)
    return highest
