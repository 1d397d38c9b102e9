"""From launches to rows of the ledger. The launches that a profiler saw are laid beside the calls of the generated
code, in order; what a call was made of is found among the ops by module, call, direction and kind of work.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rooflight.ledger import PASSES, Op
from rooflight.measurement.execution.provenance.graphs import UNKNOWN, CompiledCall, Origin, family


@dataclass(frozen=True)
class LaunchContext:
    """A kernel as the profiler saw it.

    `stack` has the CPU ops it was launched in (`aten::...`), outermost first, each with a number that tells its calls
    apart; inside a compiled graph only those inside. `graph` is the name of the range around it,
    `## Call CompiledFxGraph NAME ##`, where the profiler has one.
    """

    name: str
    stack: tuple[tuple[str, int], ...] = ()
    graph: str | None = None


def walk(
    launches: Sequence[LaunchContext], runs: Sequence[tuple[str, tuple[CompiledCall, ...]]], ops: Sequence[Op]
) -> list[tuple[int, ...]]:
    """For each launch of one step, in the order of launching, the indices of its ops; empty where nothing tells.

    `runs` are the calls of every graph that ran, as `Provenance.calls` gives them.

    Generated kernels are known by name, library calls by the aten op they were launched in; both must come in the
    order in which the generated code has them. Inside a CUDA graph a library's kernel only has its place between
    generated ones; where several library calls stand there, it gets the ops of all. What was launched outside of
    compiled graphs is compared with the ops of the places that are not compiled: loss, optimizer, and modules that
    fell back to eager.
    """
    rows = LedgerRows(ops)
    labelled = any(launch.graph is not None for launch in launches)
    sequences: dict[str | None, list[CompiledCall]] = defaultdict(list)
    for label, calls in runs:
        sequences[label if labelled else None].extend(calls)
    result: dict[int, tuple[int, ...]] = {}
    for graph, sequence in sequences.items():
        members = [i for i, launch in enumerate(launches) if not labelled or _label(launch) == graph]
        for position, matched in _match([launches[i] for i in members], sequence, alone=labelled).items():
            result[members[position]] = rows.find(origin for call in matched for origin in call.origins)
    origins = (origin for _, calls in runs for call in calls for origin in call.origins)
    places = {(origin.module, origin.call, origin.backward) for origin in origins}
    eager = [op for op in ops if op.kind == "compute" and (op.module, op.call, op.phase == "backward") not in places]
    rest = [i for i, launch in enumerate(launches) if i not in result and launch.graph is None]
    for position, index in _match_eager([launches[i] for i in rest], eager).items():
        result[rest[position]] = (index,)
    return [result.get(i, ()) for i in range(len(launches))]


def _label(launch: LaunchContext) -> str | None:
    return None if launch.graph is None else launch.graph.strip("# ").rpartition(" ")[2]


def _match(
    launches: Sequence[LaunchContext], calls: Sequence[CompiledCall], *, alone: bool
) -> dict[int, list[CompiledCall]]:
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
            called = next((i for i in range(following, len(calls)) if calls[i].name == name), None)
        else:
            wanted = {family(op) for op, _ in launch.stack}
            called = _next_extern(calls, following, wanted)
            if called is None and following and calls[following - 1].tail and wanted & _TAIL:
                where[position] = following - 1
            if not launch.stack:
                unknown.append(position)
        if called is not None:
            where[position] = called
            following = called + 1
    result = {position: [calls[index]] for position, index in where.items()}
    for position, between in _gaps(unknown, where, calls).items():
        if alone or len(between) == 1:
            result[position] = [calls[index] for index in between]
    return result


_TAIL = {"sum", "prod", "amin", "amax", "any", "_to_copy"}
"""Ops that finish a kernel with partial results."""


def _next_extern(calls: Sequence[CompiledCall], following: int, wanted: set[str]) -> int | None:
    """The next library call for one of these ops. A generated kernel in between would have been launched first."""
    for index in range(following, len(calls)):
        if not calls[index].extern:
            return None
        if _families(calls[index]) & wanted:
            return index
    return None


def _gaps(unknown: Sequence[int], where: dict[int, int], calls: Sequence[CompiledCall]) -> dict[int, list[int]]:
    """Launches that say nothing but a library's kernel name, as in a CUDA graph: the library calls they stand between.

    As many launches as calls are one each; else a launch belongs to one of them, and nothing tells which.
    """
    matched = sorted(where)
    gaps: dict[tuple[int, int], list[int]] = defaultdict(list)
    for position in unknown:
        right = bisect(matched, position)
        left = where[matched[right - 1]] if right else -1
        gaps[left, where[matched[right]] if right < len(matched) else len(calls)].append(position)
    calls_between = {}
    for (left, end), positions in gaps.items():
        between = [index for index in range(left + 1, end) if calls[index].extern]
        for number, position in enumerate(positions if between else []):
            calls_between[position] = [between[number]] if len(between) == len(positions) else between
    return calls_between


def _match_eager(launches: Sequence[LaunchContext], ops: Sequence[Op]) -> dict[int, int]:
    """Positions of launches and indices of the ops they belong to: by the order of ops of the same family."""
    ops_of_launches: dict[int, int] = {}
    following = 0
    last: tuple[tuple[str, int], int] | None = None
    for position, launch in enumerate(launches):
        if last is not None and last[0] in launch.stack:
            ops_of_launches[position] = last[1]
            continue
        names = {family(op): (op, number) for op, number in launch.stack}
        index = next((i for i in range(following, len(ops)) if family(ops[i].name) in names), None)
        if index is not None:
            last = (names[family(ops[index].name)], ops[index].index)
            ops_of_launches[position] = last[1]
            following = index + 1
    return ops_of_launches


def _kernel_name(name: str) -> str:
    """The C++ backend shows the profiler the number of the graph before the name."""
    return re.sub(r"^graph_\d+_", "", name)


_CALLED_THROUGH = re.compile(
    r"^(extern_kernels\.|(torch\.ops\.)?(aten|mkldnn|mkl)\.|aoti_torch_(cuda|cpu)_|at::_ops::)"
)


def _families(call: CompiledCall) -> set[str]:
    """Of `extern_kernels.mm`, `torch.ops.aten.mm.default`, `aten.mm_out`, `aoti_torch_cuda_mm_out`: `mm`."""
    name = _CALLED_THROUGH.sub("", call.name)
    name = re.sub(r"(::call|_out)$", "", name.partition(".")[0])
    return {family(name), *(family(origin.aten) for origin in call.origins)}


class LedgerRows:
    """The ledger's ops, to be found by origin."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self._groups: dict[tuple[str, int, str, bool], list[int]] = defaultdict(list)
        self._kinds: dict[tuple[str, bool], list[int]] = defaultdict(list)
        self._again: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._calls: dict[str, set[int]] = defaultdict(set)
        self._work: dict[tuple[str, int, bool], list[int]] = defaultdict(list)
        for position, op in enumerate(ops):
            if op.phase not in PASSES:
                continue
            if op.recompute:
                self._again[op.module, family(op.name)].append(position)
                continue
            self._groups[op.module, op.call, family(op.name), op.phase == "backward"].append(position)
            self._kinds[family(op.name), op.phase == "backward"].append(position)
            self._calls[op.module].add(op.call)
            if op.kind == "compute":
                self._work[op.module, op.call, op.phase == "backward"].append(position)

    def find(self, origins: Iterable[Origin]) -> tuple[int, ...]:
        """Indices of the ops that origins stand for.

        Where one call of a module has several ops of a kind, their order tells which; if the compiled code has another
        number of them, all are given. Views are left out, since no kernel works for them, unless there is nothing else.
        So are forward ops that a backward kernel does again on its way, unless the ledger has a row for doing them
        again.
        """
        done: set[int] = set()
        again: set[int] = set()
        for origin in origins:
            (again if origin.recompute else done).update(self._of(origin))
        done.update(position for position in again if self.ops[position].recompute)
        done = done or again
        work = {position for position in done if self.ops[position].kind != "view"}
        return tuple(sorted(self.ops[position].index for position in work or done))

    def _of(self, origin: Origin) -> list[int]:
        name = family(origin.aten)
        if origin.module == UNKNOWN:
            rows = self._kinds.get((name, origin.backward), [])
            return [rows[origin.order]] if origin.order is not None and origin.of == len(rows) else []
        rows = self._again.get((origin.module, name), []) if origin.recompute else []
        if not rows:
            calls = self._calls.get(origin.module, set())
            call = next(iter(calls)) if len(calls) == 1 else origin.call
            rows = self._groups.get((origin.module, call, name, origin.backward), [])
            for part in () if rows else _PARTS.get(name, ()):
                rows = [*rows, *self._groups.get((origin.module, call, part, origin.backward), [])]
            if not rows and origin.backward:
                # Autograd has other formulas for the compiler than for eager: where only one op works, it is that one.
                work = self._work.get((origin.module, call, origin.backward), [])
                rows = work if len(work) == 1 else []
        # Counted differently on the two sides: it is some of these, and nothing tells which.
        return rows if origin.order is None or origin.of != len(rows) else [rows[origin.order]]


# Ops that are one for the compiler and several in eager mode on some device.
_PARTS = {"dropout": ("bernoulli", "div", "mul"), "native_dropout_backward": ("mul",)}
