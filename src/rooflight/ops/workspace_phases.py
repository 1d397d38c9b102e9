"""What an op takes of the device's memory inside itself: its results one after the other, and what it borrows.

Bytes are as asked for; the allocator rounds them. The families' workspaces were read from torch 2.11 and cuDNN 9.19 on
an H200, whose every allocation inside some thousand calls the tests compare (`benchmarks/h200/temporaries.py` records
them). Matrix products borrow nothing per call; convolutions borrow what cuDNN was seen to (`memory/cudnn_workspaces`).
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflight.ledger import Op


@dataclass(frozen=True, slots=True)
class WorkspacePhase:
    """A stretch of an op: so many of its results are there, and these temporaries, all freed when it ends."""

    results: int
    temporaries: tuple[int, ...]


WorkspacePhases = tuple[WorkspacePhase, ...]
"""In order; empty: the op makes its results and borrows nothing."""


def beside_results(op: Op, *temporaries: int) -> WorkspacePhases:
    """These, while all results are there; nothing where there are none."""
    return (WorkspacePhase(len(op.outputs), temporaries),) if temporaries else ()


@dataclass(frozen=True, slots=True)
class Chip:
    """What of a GPU decides how much torch's kernels borrow."""

    sms: int = 132
    threads_per_sm: int = 2048
