"""What the GPU waited for while no kernel ran: gaps between kernels, each by what the host did meanwhile.

A gap before a kernel that was launched too late is the host's: a wait for the GPU that let it run dry, the allocator,
the data loader, or else Python and torch on the way to the next launch. A gap before a kernel that was launched already
is the device's own. Gaps are those of a step under the profiler, which slows the host: their sum is scaled down to the
idle time of the step without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rooflight.analysis.cause import CauseSum
from rooflight.ledger import HostCall, Kernel, Ledger, Op

HOST = "host (launches)"
PYTHON = "host: Python and dispatch"
AUTOGRAD = "host: autograd"
OPTIMIZER = "host: optimizer"
WAITS = "host: synchronisation"
ALLOCATOR = "host: allocator"
DATA = "host: data loading"
LAUNCHING = "host: from launch to start"
QUEUED = "between queued kernels"
EDGES = "begin and end of the step"
ALL = (HOST, PYTHON, AUTOGRAD, OPTIMIZER, WAITS, ALLOCATOR, DATA, LAUNCHING, QUEUED, EDGES)

_OWN_S = 2e-6
"""A GPU needs less than this between two kernels that are queued."""
_OF_PHASE = {"backward": AUTOGRAD, "optimizer": OPTIMIZER}
_WORDS = {
    PYTHON: "the next kernel was launched late",
    AUTOGRAD: "the next kernel of backward was launched late",
    OPTIMIZER: "the next kernel of the optimizer was launched late",
    LAUNCHING: "from the call that launches a kernel to its start, on a GPU that waits",
    QUEUED: "kernels that were launched in time",
}


@dataclass(frozen=True)
class GapPart:
    """Seconds of a gap before a kernel, and why."""

    cause: str
    time_s: float
    op: Op | None
    """Whose kernel was waited for; of a synchronisation, the op that the host waited for."""
    what: str = ""


def explain_host(ledger: Ledger, idle_s: float) -> list[CauseSum]:
    """The idle time of a step in parts that sum to it. In one part where the profiler saw no launches."""
    parts = list(gap_parts(ledger))
    found = sum(part.time_s for part in parts)
    if idle_s <= 0 or not parts or found <= 0:
        return [CauseSum(HOST, idle_s, 0, "wall time minus the time in which any kernel runs", None)]
    scale = min(1.0, idle_s / found)
    by_cause: dict[str, list[GapPart]] = defaultdict(list)
    for part in parts:
        by_cause[part.cause].append(part)
    sums = [_sum(cause, some, scale) for cause, some in by_cause.items()]
    left = idle_s - scale * found
    if left > 1e-9:
        sums.append(CauseSum(EDGES, left, 0, "idle time that lies in no gap between kernels", None))
    return sums


def _sum(cause: str, parts: Sequence[GapPart], scale: float) -> CauseSum:
    by_op: dict[int | None, list[GapPart]] = defaultdict(list)
    for part in parts:
        by_op[None if part.op is None else part.op.index].append(part)
    largest = max(by_op.values(), key=lambda some: sum(part.time_s for part in some))
    op, spent = largest[0].op, sum(part.time_s for part in largest)
    words = largest[0].what or _WORDS[cause]
    before = f": {spent * scale * 1e6:,.0f} µs before {op.name}" if op is not None and not largest[0].what else ""
    shares = "" if scale == 1.0 else f"; the profiled step's gaps times {scale:.2f}"
    return CauseSum(cause, scale * sum(part.time_s for part in parts), len(by_op), f"{words}{before}{shares}", op)


def gap_parts(ledger: Ledger) -> Iterator[GapPart]:
    """Of all gaps between kernels, in the order of time; none where their starts were not recorded."""
    kernels = sorted(
        (kernel for kernel in ledger.kernels if kernel.start_s is not None and kernel.time_s is not None),
        key=lambda kernel: kernel.start_s or 0.0,
    )
    launched = sorted((kernel for kernel in kernels if kernel.launch_s is not None), key=lambda k: k.launch_s or 0.0)
    reached: float | None = None
    for kernel in kernels:
        start, end = kernel.start_s or 0.0, (kernel.start_s or 0.0) + (kernel.time_s or 0.0)
        if reached is not None and start > reached:
            yield from _Gap(ledger, kernel, reached, start, launched).parts()
        reached = end if reached is None else max(reached, end)


@dataclass(frozen=True)
class _Gap:
    ledger: Ledger
    kernel: Kernel
    begin: float
    end: float
    launched: Sequence[Kernel]
    """All kernels in the order of their launches."""

    def parts(self) -> Iterator[GapPart]:
        op, launch = self._op(self.kernel), self.kernel.launch_s
        if launch is None:  # of an older file: a gap that is longer than the device's own is the host's
            launch = self.end if self.end - self.begin > _OWN_S else self.begin
        if launch <= self.begin:
            yield GapPart(QUEUED, self.end - self.begin, op)
            return
        launch = min(launch, self.end)
        if self.end > launch:
            yield GapPart(LAUNCHING, self.end - launch, op)
        left = launch - self.begin
        for call in self.ledger.host_calls:
            inside = min(call.start_s + call.time_s, launch) - max(call.start_s, self.begin)
            if call.kind == "synchronisation" or inside <= 0:
                continue
            cause, why = (DATA, "waits for the next batch") if call.kind == "data" else (ALLOCATOR, "asks the driver")
            yield GapPart(cause, min(inside, left), op, f"{call.name} {why} for {call.time_s * 1e6:,.0f} µs")
            left = max(0.0, left - inside)
        if left > 0:
            yield self._late(op, left, launch)

    def _late(self, op: Op | None, left: float, launch: float) -> GapPart:
        """The host was not there in time. Where it had waited for the GPU, that is why: nothing was queued."""
        waited = [
            call
            for call in self.ledger.host_calls
            if call.kind == "synchronisation" and call.start_s < launch and call.start_s + call.time_s >= self.begin
        ]
        if waited:
            return self._waited(waited[-1], left)
        return GapPart(_OF_PHASE.get(op.phase if op is not None else "", PYTHON), left, op)

    def _waited(self, call: HostCall, left: float) -> GapPart:
        before = [kernel for kernel in self.launched if (kernel.launch_s or 0.0) <= call.start_s]
        asked = self._op(before[-1]) if before else None
        at = f" at {asked.line}" if asked is not None and asked.line else ""
        of = f" for {asked.name}{at}" if asked is not None else f" after {before[-1].label}" if before else ""
        return GapPart(WAITS, left, asked, f"{call.name} waits{of}: the GPU runs dry")

    def _op(self, kernel: Kernel) -> Op | None:
        return self.ledger.ops[kernel.ops[0]] if kernel.ops and kernel.ops[0] < len(self.ledger.ops) else None
