"""What the GPU waited for while no kernel ran: gaps between kernels, each by what the host did meanwhile.

A gap before a kernel that was launched too late is the host's: a wait that had begun while the GPU still ran, and let
it run dry, the allocator, the data loader, or else Python and torch on the way to the next launch. A gap before a
kernel that was launched already is the device's own. Gaps are those of a step under the profiler, which slows the host:
their sum is scaled down to the idle time of the step without it. Idle time beyond all gaps is called what it is,
unexplained: a ledger does not tell when the step began and ended.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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
ALL = (HOST, PYTHON, AUTOGRAD, OPTIMIZER, WAITS, ALLOCATOR, DATA, LAUNCHING, QUEUED)

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
    """The idle time of a step by what it was spent on; in one part where the profiler saw no launches. What lies in no
    gap between kernels, before the first or after the last, is not told: a ledger does not have its step's begin."""
    parts = list(gap_parts(ledger))
    found = sum(part.time_s for part in parts)
    if idle_s <= 0 or not parts or found <= 0:
        return [CauseSum(HOST, idle_s, 0, "wall time minus the time in which any kernel runs", None)]
    scale = min(1.0, idle_s / found)
    by_cause: dict[str, list[GapPart]] = defaultdict(list)
    for part in parts:
        by_cause[part.cause].append(part)
    return [_sum(cause, some, scale) for cause, some in by_cause.items()]


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
    host = _HostTimeline(ledger, kernels)
    reached: float | None = None
    for kernel in kernels:
        start, end = kernel.start_s or 0.0, (kernel.start_s or 0.0) + (kernel.time_s or 0.0)
        if reached is not None and start > reached:
            yield from _parts(host, kernel, reached, start)
        reached = end if reached is None else max(reached, end)


class _HostTimeline:
    """What the host did. It is asked about one gap after another, each later than those before: an import may have a
    million of them, and as many calls, which are gone through once."""

    def __init__(self, ledger: Ledger, kernels: Sequence[Kernel]) -> None:
        self._ops = ledger.ops
        calls = sorted(ledger.host_calls, key=lambda call: call.start_s)
        self._kept = _one_at_a_time(call for call in calls if call.kind != "synchronisation")
        self._passed = 0
        self._waits = [call for call in calls if call.kind == "synchronisation"]
        self._begun = 0
        self._waiting: list[HostCall] = []
        self._launched = sorted((k for k in kernels if k.launch_s is not None), key=lambda k: k.launch_s or 0.0)
        self._launches = [kernel.launch_s or 0.0 for kernel in self._launched]

    def kept(self, begin: float, until: float) -> Iterator[tuple[HostCall, float]]:
        """The calls of the allocator and the loader in this time, and how much of it each took."""
        while self._passed < len(self._kept) and self._kept[self._passed][1] <= begin:
            self._passed += 1
        for place in range(self._passed, len(self._kept)):
            start, end, call = self._kept[place]
            if start >= until:
                return
            yield call, min(end, until) - max(start, begin)

    def waiting(self, moment: float) -> HostCall | None:
        """The wait for the GPU that had begun last and was not over at this moment."""
        while self._begun < len(self._waits) and self._waits[self._begun].start_s <= moment:
            self._waiting.append(self._waits[self._begun])
            self._begun += 1
        while self._waiting and self._waiting[-1].start_s + self._waiting[-1].time_s < moment:
            self._waiting.pop()
        return self._waiting[-1] if self._waiting else None

    def launched_before(self, moment: float) -> Kernel | None:
        place = bisect_right(self._launches, moment)
        return self._launched[place - 1] if place else None

    def op(self, kernel: Kernel | None) -> Op | None:
        if kernel is None or not kernel.ops or kernel.ops[0] >= len(self._ops):
            return None
        return self._ops[kernel.ops[0]]


def _one_at_a_time(calls: Iterable[HostCall]) -> list[tuple[float, float, HostCall]]:
    """Begin and end of each that no earlier one covers: a call of the runtime has one of the driver inside."""
    found: list[tuple[float, float, HostCall]] = []
    reached = -math.inf
    for call in calls:
        end = call.start_s + call.time_s
        if end > reached:
            found.append((max(call.start_s, reached), end, call))
            reached = end
    return found


def _parts(host: _HostTimeline, kernel: Kernel, begin: float, end: float) -> Iterator[GapPart]:
    """Of the gap before a kernel."""
    op, launch = host.op(kernel), kernel.launch_s
    if launch is None:  # of an older file: a gap that is longer than the device's own is the host's
        launch = end if end - begin > _OWN_S else begin
    if launch <= begin:
        yield GapPart(QUEUED, end - begin, op)
        return
    launch = min(launch, end)
    if end > launch:
        yield GapPart(LAUNCHING, end - launch, op)
    left = launch - begin
    for call, inside in host.kept(begin, launch):
        cause, why = (DATA, "waits for the next batch") if call.kind == "data" else (ALLOCATOR, "asks the driver")
        yield GapPart(cause, min(inside, left), op, f"{call.name} {why} for {call.time_s * 1e6:,.0f} µs")
        left = max(0.0, left - inside)
    if left > 0:
        yield _late(host, op, begin, left)


def _late(host: _HostTimeline, op: Op | None, begin: float, left: float) -> GapPart:
    """The host was not there in time. Where it waited for the GPU as that ran dry, that is why: nothing was queued.

    A wait that began later found the GPU idle already, and is over at once: it explains nothing.
    """
    call = host.waiting(begin)
    if call is None:
        return GapPart(_OF_PHASE.get(op.phase if op is not None else "", PYTHON), left, op)
    last = host.launched_before(call.start_s)
    asked = host.op(last)
    at = f" at {asked.line}" if asked is not None and asked.line else ""
    of = f" for {asked.name}{at}" if asked is not None else f" after {last.label}" if last is not None else ""
    return GapPart(WAITS, left, asked, f"{call.name} waits{of}: the GPU runs dry")
