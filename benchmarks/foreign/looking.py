"""One step, looked at by everybody: what rooflight says before it runs, what it measures, and what torch's own tools say.

usage: python -m foreign.looking NAME cpu|cuda OUT.json    (in benchmarks/; on a GPU with a file for turns, GPU_LOCK)
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import rooflight
from foreign.fingerprint import changes, fingerprint
from foreign.library_steps import LIBRARY
from foreign.plain_steps import PLAIN
from rooflight.ledger import Ledger, Op
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import busy_s, wall_s

STEPS = {**PLAIN, **LIBRARY}
Row = dict[str, Any]
LIMIT_S = 60


def look_at_times(name: str) -> Row:
    """How long it takes to count the FLOPs of a step as large as those on a GPU, on a CPU."""
    step, args = STEPS[name]("cpu", False)
    row: Row = {"name": name}
    _estimated(row, step, args, "cpu")
    _tried(row, "flop_counter", lambda: _flop_counter(step, args))
    return row


def look(name: str, device: str) -> Row:
    """Everything that can be said; what failed is said in its place. What needs the device waits for its turn."""
    torch.manual_seed(0)
    row: Row = {"name": name, "device": device, "torch": torch.__version__}
    with _turn(device):
        step, args = STEPS[name](device, device == "cpu")
        before = fingerprint(step, args)
    ledger = _estimated(row, step, args, device)
    if device == "cuda":
        _tried(row, "predicted", lambda: _predicted(step, args))
    with _turn(device):
        row["changed"] = changes(before, fingerprint(step, args))[:10]
        _tried(row, "plain_s", lambda: _plain_time(step, args, device))
        counted = _tried(row, "flop_counter", lambda: _flop_counter(step, args))
        if ledger is not None and isinstance(counted, dict):
            row["differences"] = _differences(ledger, counted)
        _tried(row, "mem_tracker", lambda: _mem_tracker(step, args))
        _tried(row, "measured", lambda: _measured(step, args, ledger, device))
    return row


@contextmanager
def _turn(device: str) -> Iterator[None]:
    """One process at a time on a GPU, and none for longer than `LIMIT_S`: a signal ends it, and with it the lock."""
    if device == "cpu":
        yield
        return
    torch.zeros(1, device=device)  # what takes long at first needs no turn
    with open(os.environ["GPU_LOCK"], "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        signal.alarm(LIMIT_S)
        yield
        torch.cuda.synchronize()
        signal.alarm(0)


def _tried(row: Row, key: str, ask: Callable[[], Any]) -> Any:
    try:
        row[key] = ask()
    except Exception as error:
        row[key] = f"failed: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
    return row[key]


def _estimated(row: Row, step: Any, args: tuple[Any, ...], device: str) -> Ledger | None:
    """Of the device that it is on, so that what runs there can be set beside it."""
    target = "cuda:{}{}".format(*torch.cuda.get_device_capability()) if device == "cuda" else "cpu"
    made: list[Ledger] = []

    def estimate() -> Row:
        took = []
        for _ in range(
            2
        ):  # the first time with all that a process does once; the others come to a process that is warm
            start = time.perf_counter()
            ledger = rooflight.estimate(step, *args, target=target)
            took.append(time.perf_counter() - start)
        made.append(ledger)
        return {
            "first_s": took[0], "time_s": took[1], "flops": _flops(ledger), "ops": len(ledger.ops), "notes": [*map(str, ledger.header.notes)],
            "phases": dict(Counter(op.phase for op in ledger.ops)),
            "modules": [module.path for module in ledger.modules][:4],
        }  # fmt: skip

    _tried(row, "estimated", estimate)
    return made[0] if made else None


def _flops(ledger: Ledger) -> int:
    """What FlopCounterMode counts: those of matrix products, done again or not."""
    return sum(map(_products, ledger.ops))


def _products(op: Op) -> int:
    return 0 if op.cost is None else (op.cost.flops or 0) + (op.cost.recompute_flops or 0)


def _predicted(step: Any, args: tuple[Any, ...]) -> Row:
    start = time.perf_counter()
    (found,) = rooflight.predict(step, *args, on="h200", advice=False)
    assert found.memory is not None
    return {
        "time_s": time.perf_counter() - start, "step_s": found.time_s, "busy_s": found.gpu_busy_s,
        "interval_s": [found.time_interval_s.low, found.time_interval_s.high],
        "peak_bytes": found.memory.peak_allocated_bytes, "reserved_bytes": found.memory.peak_reserved_bytes,
    }  # fmt: skip


def _plain_time(step: Any, args: tuple[Any, ...], device: str) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        step(*args)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _flop_counter(step: Any, args: tuple[Any, ...]) -> Row:
    counter = FlopCounterMode(display=False)
    start = time.perf_counter()
    with counter:
        step(*args)
    by_op = {
        f"aten::{str(packet).removeprefix('aten.')}": flops
        for packet, flops in counter.get_flop_counts()["Global"].items()
    }
    return {"time_s": time.perf_counter() - start, "flops": counter.get_total_flops(), "by_op": by_op}


def _differences(ledger: Ledger, counted: Row) -> dict[str, list[int]]:
    """Ops whose FLOPs are not the same: ours, theirs."""
    ours: Counter[str] = Counter()
    for op in ledger.ops:
        ours[op.packet] += _products(op)
    theirs = counted["by_op"]
    return {
        name: [ours[name], theirs.get(name, 0)]
        for name in sorted({*ours, *theirs})
        if ours[name] != theirs.get(name, 0)
    }


def _mem_tracker(step: Any, args: tuple[Any, ...]) -> Row:
    """It wants to be told what there is; so it is told all that the step can reach."""
    from torch.distributed._tools.mem_tracker import MemTracker

    from rooflight.trace.snapshot import Snapshot

    reached = Snapshot.of_call(step, args, {}, saves=False)
    start = time.perf_counter()
    tracker = MemTracker()
    tracker.track_external(
        *reached.modules.values(), *reached.optimizers, *(one for one in args if isinstance(one, torch.Tensor))
    )
    with tracker:
        step(*args)
    took = time.perf_counter() - start
    peaks = tracker.get_tracker_snapshot("peak").values()
    return {"time_s": took, "peak_bytes": max(peak["Total"] for peak in peaks)}


def _measured(step: Any, args: tuple[Any, ...], ledger: Ledger | None, device: str) -> Row:
    before = fingerprint(step, args)
    start = time.perf_counter()
    found = rooflight.measure(step, *args, repeat=5, device=device)
    took = time.perf_counter() - start
    measured = Measured(found)
    busy, wall = busy_s(measured), wall_s(measured)
    total = measured.total
    return {
        "time_s": took, "wall_s": wall, "busy_s": busy, "ops_s": total.time_s, "notes": [*map(str, found.header.notes)],
        "executed_flops": total.executed_flops, "flops": _flops(found), "ops": len(found.ops),
        "peak_bytes": next((one.quantities["peak_allocated_bytes"].value for one in found.measurements
                            if one.scope == "step" and "peak_allocated_bytes" in one.quantities), None),
        "changed": changes(before, fingerprint(step, args))[:10],
        **(_other_rows(ledger, found) if ledger is not None else {}),
    }  # fmt: skip


def _other_rows(estimated: Ledger, measured: Ledger) -> Row:
    """Rows that only one of the two has: how many, and of which ops."""
    ours, real = (Counter((op.phase, op.module, op.name) for op in ledger.ops) for ledger in (estimated, measured))
    apart = {"estimated": ours - real, "measured": real - ours}
    names = {side: Counter(name for _, _, name in rows.elements()) for side, rows in apart.items()}
    return {"other_rows": sum(one.total() for one in apart.values()),
            "other_ops": {side: dict(found.most_common(6)) for side, found in names.items()}}  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[2] == "cpu":
        torch.set_num_threads(1)
    looked = look_at_times(sys.argv[1]) if sys.argv[2] == "large" else look(sys.argv[1], sys.argv[2])
    if os.environ.get("RANK", "0") == "0":
        Path(sys.argv[3]).write_text(json.dumps(looked, default=str))
