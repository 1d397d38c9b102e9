"""What torch's CUDA kernels borrow inside single ops: every allocation and every free, op by op.

usage: temporaries.py OUT.json.gz    (needs a CUDA GPU; about two minutes)

Runs small calls forward and backward under a dispatch mode, between two marker allocations of odd sizes, and cuts the
allocator's own history at the markers. Writes one row for every op that is unlike the rows before it:

    {"case", "name", "args", "outputs", "events"}

Arguments are by schema name, a tensor is {"shape", "dtype", "strides"} (no strides: contiguous). Events are in order:
["a", bytes] is an allocation, ["f", bytes, i] frees the one that is event i (-1: one from before the op).
"""

import gzip
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from temporary_calls import DTYPES, FAMILIES, Case, others
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

BEFORE, AFTER = 511, 13
"""Bytes of the markers: the allocator keeps the sizes that were asked for, and nothing else asks for these."""
LONGEST = 100_000
"""Bytes of JSON; a row of a long foreach list would be more than all others together."""


class Watch(TorchDispatchMode):
    """Writes down every op, between its two markers."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        row = {"name": func._schema.name, "args": {name: described(value) for name, value in given.items()}}
        mark(BEFORE)
        result = func(*args, **kwargs)
        mark(AFTER)
        row["outputs"] = [described(leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.ops.append(row)
        return result


def mark(size: int) -> None:
    torch.empty(size, dtype=torch.uint8, device="cuda")


def described(value: Any) -> Any:
    def leaf(item: Any) -> Any:
        if isinstance(item, Tensor):
            about = {"shape": list(item.shape), "dtype": str(item.dtype)[6:]}
            return about if item.is_contiguous() else {**about, "strides": list(item.stride())}
        return item if isinstance(item, (int, float, bool, str, type(None))) else type(item).__name__

    return tree_map(leaf, value)


def history(on: bool) -> None:
    if on:
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=20_000, clear_history=True)
    else:
        torch.cuda.memory._record_memory_history(enabled=None)


def inside() -> Iterator[list[list[Any]]]:
    """The events between the markers of each op, with the allocation that each free belongs to."""
    events: list[list[Any]] | None = None
    place: dict[int, int] = {}
    for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
        action, size, address = entry["action"], entry["size"], entry["addr"]
        if action == "alloc" and size == BEFORE:
            events, place = [], {}
        elif action == "alloc" and size == AFTER and events is not None:
            yield events
            events = None
        elif events is not None and action == "alloc":
            place[address] = len(events)
            events.append(["a", size])
        elif events is not None and action == "free_requested" and size != BEFORE:
            events.append(["f", size, place.pop(address, -1)])


def record(case: Case, rows: dict[str, dict[str, Any]]) -> None:
    name, make = case
    try:
        args, call = make()
        for _ in range(2):  # libraries allocate what they keep at the first call
            watch = Watch()
            history(True)
            with watch:
                result = call(*args)
                leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
                if leaves:
                    torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])
            del result, leaves
            for arg in args:
                if isinstance(arg, Tensor):
                    arg.grad = None
            found = list(inside())
            history(False)
        for op, events in zip(watch.ops, found, strict=True):
            key = json.dumps(op)
            if len(key) < LONGEST:
                rows.setdefault(key, {"case": name, **op, "events": events})
    except Exception as error:
        history(False)
        print(f"{name}: {error!r:.90}", flush=True)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def main() -> None:
    warnings.simplefilter("ignore")
    out, *wanted = sys.argv[1:]
    if not wanted:  # the allocator's history is slow to read: every family in a process of its own
        parts = [f"{name}-{family.__name__}" for name in ("fp32", "bf16") for family in FAMILIES] + ["other-dtypes"]
        running = [subprocess.Popen([sys.executable, __file__, f"{out}.{part}", part]) for part in parts]
        rows = []
        for part, process in zip(parts, running, strict=True):
            process.wait()
            path = Path(f"{out}.{part}")
            rows += json.loads(path.read_text())
            path.unlink()
        with gzip.open(out, "wt") as file:
            json.dump(rows, file, separators=(",", ":"))
        return
    dtype, _, family = wanted[0].partition("-")
    family_of = {one.__name__: one for one in FAMILIES}
    cases = others() if dtype == "other" else family_of[family](DTYPES[dtype])
    found: dict[str, dict[str, Any]] = {}
    for case in cases:
        record(case, found)
    Path(out).write_text(json.dumps(list(found.values()), separators=(",", ":")))


if __name__ == "__main__":
    main()
