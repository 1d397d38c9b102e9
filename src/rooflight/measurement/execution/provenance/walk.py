"""Lays the launches that a profiler saw beside the calls of the generated code, in order, and names their ops."""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rooflight.ledger import Op
from rooflight.measurement.execution.provenance.graphs import Call, family
from rooflight.measurement.execution.provenance.rows import Rows


@dataclass(frozen=True)
class Launch:
    """A kernel as the profiler saw it.

    `stack` has the CPU ops it was launched in (`aten::...`), outermost first, each with a number that tells its calls
    apart; inside a compiled graph only those inside. `graph` is the name of the range around it,
    `## Call CompiledFxGraph NAME ##`, where the profiler has one.
    """

    name: str
    stack: tuple[tuple[str, int], ...] = ()
    graph: str | None = None


class Recorded(Protocol):
    """A `Provenance`, or what was kept of one."""

    def calls(self) -> list[tuple[str, tuple[Call, ...]]]: ...


def walk(launches: Sequence[Launch], provenance: Recorded, ops: Sequence[Op]) -> list[tuple[int, ...]]:
    """For each launch of one step, in the order of launching, the indices of its ops; empty where nothing tells.

    Generated kernels are known by name, library calls by the aten op they were launched in; both must come in the
    order in which the generated code has them. Inside a CUDA graph a library's kernel only has its place between
    generated ones; where several library calls stand there, it gets the ops of all. What was launched outside of
    compiled graphs is compared with the ops of the places that are not compiled: loss, optimizer, and modules that
    fell back to eager.
    """
    rows = Rows(ops)
    runs = provenance.calls()
    labelled = any(launch.graph is not None for launch in launches)
    sequences: dict[str | None, list[Call]] = defaultdict(list)
    for label, calls in runs:
        sequences[label if labelled else None].extend(calls)
    result: dict[int, tuple[int, ...]] = {}
    for graph, sequence in sequences.items():
        members = [i for i, launch in enumerate(launches) if not labelled or _label(launch) == graph]
        for position, found in _match([launches[i] for i in members], sequence, alone=labelled).items():
            result[members[position]] = rows.find(origin for call in found for origin in call.origins)
    origins = (origin for _, calls in runs for call in calls for origin in call.origins)
    places = {(origin.module, origin.call, origin.backward) for origin in origins}
    eager = [op for op in ops if op.kind == "compute" and (op.module, op.call, op.phase == "backward") not in places]
    rest = [i for i, launch in enumerate(launches) if i not in result and launch.graph is None]
    for position, index in _match_eager([launches[i] for i in rest], eager).items():
        result[rest[position]] = (index,)
    return [result.get(i, ()) for i in range(len(launches))]


def _label(launch: Launch) -> str | None:
    return None if launch.graph is None else launch.graph.strip("# ").rpartition(" ")[2]


def _match(launches: Sequence[Launch], calls: Sequence[Call], *, alone: bool) -> dict[int, list[Call]]:
    """Positions of launches and the calls they belong to, both in order. `alone`: nothing else was launched between."""
    generated = {call.name for call in calls if not call.extern}
    where: dict[int, int] = {}
    unknown: list[int] = []
    following = 0
    for position, launch in enumerate(launches):
        before = launches[position - 1] if position - 1 in where else None
        if before is not None and launch.stack and before.stack[:1] == launch.stack[:1]:
            where[position] = where[position - 1]  # one library call may launch several kernels
            continue
        names = [_kernel_name(name) for name in (launch.name, *(name for name, _ in launch.stack))]
        name = next((name for name in names if name in generated), None)
        if name is not None:
            found = next((i for i in range(following, len(calls)) if calls[i].name == name), None)
        else:
            wanted = {family(op) for op, _ in launch.stack}
            found = _next_extern(calls, following, wanted)
            if found is None and following and calls[following - 1].tail and wanted & _TAIL:
                where[position] = following - 1
            if not launch.stack:
                unknown.append(position)
        if found is not None:
            where[position] = found
            following = found + 1
    result = {position: [calls[index]] for position, index in where.items()}
    for position, between in _gaps(unknown, where, calls).items():
        if alone or len(between) == 1:
            result[position] = [calls[index] for index in between]
    return result


_TAIL = {"sum", "prod", "amin", "amax", "any", "_to_copy"}
"""Ops that finish a kernel with partial results."""


def _next_extern(calls: Sequence[Call], following: int, wanted: set[str]) -> int | None:
    """The next library call for one of these ops. A generated kernel in between would have been launched first."""
    for index in range(following, len(calls)):
        if not calls[index].extern:
            return None
        if _families(calls[index]) & wanted:
            return index
    return None


def _gaps(unknown: Sequence[int], where: dict[int, int], calls: Sequence[Call]) -> dict[int, list[int]]:
    """Launches that say nothing but a library's kernel name, as in a CUDA graph: the library calls they stand between.

    As many launches as calls are one each; else a launch belongs to one of them, and nothing tells which.
    """
    known = sorted(where)
    gaps: dict[tuple[int, int], list[int]] = defaultdict(list)
    for position in unknown:
        right = bisect(known, position)
        left = where[known[right - 1]] if right else -1
        gaps[left, where[known[right]] if right < len(known) else len(calls)].append(position)
    found = {}
    for (left, end), positions in gaps.items():
        between = [index for index in range(left + 1, end) if calls[index].extern]
        for number, position in enumerate(positions if between else []):
            found[position] = [between[number]] if len(between) == len(positions) else between
    return found


def _match_eager(launches: Sequence[Launch], ops: Sequence[Op]) -> dict[int, int]:
    """Positions of launches and indices of the ops they belong to: by the order of ops of the same family."""
    found: dict[int, int] = {}
    following = 0
    last: tuple[tuple[str, int], int] | None = None
    for position, launch in enumerate(launches):
        if last is not None and last[0] in launch.stack:
            found[position] = last[1]
            continue
        names = {family(op): (op, number) for op, number in launch.stack}
        index = next((i for i in range(following, len(ops)) if family(ops[i].name) in names), None)
        if index is not None:
            last = (names[family(ops[index].name)], ops[index].index)
            found[position] = last[1]
            following = index + 1
    return found


def _kernel_name(name: str) -> str:
    """The C++ backend shows the profiler the number of the graph before the name."""
    return re.sub(r"^graph_\d+_", "", name)


_CALLED_THROUGH = re.compile(
    r"^(extern_kernels\.|(torch\.ops\.)?(aten|mkldnn|mkl)\.|aoti_torch_(cuda|cpu)_|at::_ops::)"
)


def _families(call: Call) -> set[str]:
    """Of `extern_kernels.mm`, `torch.ops.aten.mm.default`, `aten.mm_out`, `aoti_torch_cuda_mm_out`: `mm`."""
    name = _CALLED_THROUGH.sub("", call.name)
    name = re.sub(r"(::call|_out)$", "", name.partition(".")[0])
    return {family(name), *(family(origin.aten) for origin in call.origins)}
