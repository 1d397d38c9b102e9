"""From origins to rows of the ledger: the same module, call and direction, and an op that does the same work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rooflight.ledger import Op
from rooflight.measurement.execution.provenance.graphs import UNKNOWN, Origin, family


class Rows:
    """The ledger's ops, to be found by origin."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self._groups: dict[tuple[str, int, str, bool], list[int]] = defaultdict(list)
        self._kinds: dict[tuple[str, bool], list[int]] = defaultdict(list)
        self._again: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._calls: dict[str, set[int]] = defaultdict(set)
        self._work: dict[tuple[str, int, bool], list[int]] = defaultdict(list)
        for position, op in enumerate(ops):
            if op.phase == "optimizer":
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
        """See `attribute`."""
        found: set[int] = set()
        again: set[int] = set()
        for origin in origins:
            (again if origin.recompute else found).update(self._of(origin))
        found.update(position for position in again if self.ops[position].recompute)
        found = found or again
        work = {position for position in found if self.ops[position].kind != "view"}
        return tuple(sorted(self.ops[position].index for position in work or found))

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


def attribute(origins: Iterable[Origin], ops: Sequence[Op]) -> tuple[int, ...]:
    """Indices of the ops that origins stand for.

    Where one call of a module has several ops of a kind, their order tells which; if the compiled code has another
    number of them, all are given. Views are left out, since no kernel works for them, unless there is nothing else.
    So are forward ops that a backward kernel does again on its way, unless the ledger has a row for doing them again.
    """
    return Rows(ops).find(origins)
