"""Measures one tool on one case in this process, and prints what came out as one line of JSON.

python -m peers.worker TOOL CASE TENSORS
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from peers.cases import CASES, Case, tiny
from peers.tools import TOOLS, Answer, Tensors, Tool
from rooflight.models import build
from rooflight.models.workload import Workload

REPEATS = 3
ENOUGH_S = 6.0  # a slow tool is not asked again once it has taken this long


def measure(tool: Tool, case: Case, tensors: Tensors, repeats: int = REPEATS) -> dict[str, Any]:
    """Warm up on a tiny model, then the best time of some runs, the peak memory of the first, and the answer.

    Memory counts from before the model is built, so that real weights show; time is that of the tool alone.
    """
    model, options = tiny(case)
    with contextlib.suppress(Exception):  # what fails here fails again below, where it is reported
        _plain_forward(_workload(model, options, case, tensors), tensors)
        _ask(tool, case, _workload(model, options, case, tensors), tensors)
    gc.collect()
    before = _reset_peak_bytes()
    times: list[float] = []
    while True:
        taken, answer = _ask(tool, case, _workload(case.model, case.options, case, tensors), tensors)
        if not times:
            added = _peak_bytes() - before
        times.append(taken)
        gc.collect()
        if len(times) >= repeats or sum(times) > ENOUGH_S:
            return dataclasses.asdict(answer) | {"time_s": min(times), "added_bytes": max(added, 0)}


def _workload(model: str, options: dict[str, Any], case: Case, tensors: Tensors) -> Workload:
    workload = build(model, step=case.step, device="cpu" if tensors == "cpu" else "meta", **options)
    return _faked(workload) if tensors == "fake" else workload


def _faked(workload: Workload) -> Workload:
    """The same model and inputs as fake tensors (of the meta device: without CUDA there is no fake CUDA)."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    known: dict[int, Any] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = mode.from_tensor(tensor)
        return known[id(tensor)]

    for module in workload.model.modules():
        for container in (module._parameters, module._buffers):
            for name, tensor in container.items():
                if tensor is not None:
                    container[name] = fake(tensor)
    return dataclasses.replace(workload, args=tuple(fake(value) for value in workload.args))


def _plain_forward(workload: Workload, tensors: Tensors) -> None:
    """No tool: what torch imports late is imported now. ptflops, for one, fails when that happens under its patches."""
    with torch.no_grad(), _mode(workload, tensors):
        workload.model(*workload.args)


def _mode(workload: Workload, tensors: Tensors) -> contextlib.AbstractContextManager[Any]:
    return workload.args[0].fake_mode if tensors == "fake" else contextlib.nullcontext()


def _ask(tool: Tool, case: Case, workload: Workload, tensors: Tensors) -> tuple[float, Answer]:
    with torch.set_grad_enabled(case.optimizer is not None), _mode(workload, tensors):
        start = time.perf_counter()
        answer = tool.ask(workload, case)
        whole_s = time.perf_counter() - start
        return whole_s if answer.time_s is None else answer.time_s, answer


def _reset_peak_bytes() -> int:
    """What this process holds now. Where the system can (Linux), its record of the peak starts anew from here."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what the warm-up freed is given back, and not silently used again
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
    return _peak_bytes()


def _peak_bytes() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def reason(error: BaseException) -> str:
    """An error in one short line, without the paths of this machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return " ".join(word for word in text.split() if not word.startswith("/"))[:160]


def main() -> None:
    tool, case, tensors = sys.argv[1:4]
    warnings.simplefilter("ignore")
    # The tools print as they like: only the last line is ours.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        result = measure(TOOLS[tool], CASES[case], tensors)  # type: ignore[arg-type]
    except Exception as error:
        result = {"failed": reason(error)}
    report.write(json.dumps(result) + "\n")
    report.flush()
    os._exit(0)  # some tools leave threads or exit hooks behind


if __name__ == "__main__":
    main()
