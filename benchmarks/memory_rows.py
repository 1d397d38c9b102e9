"""Steps whose peak memory was measured on an H200, each with what `rooflight.predict` says of it.

The 120 of tests/data/h200_open.jsonl, and those of h200/memory_rows.py: what benchmarks/memory.py and the tests judge.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from predict_rows import DEVICE, NAMES, OPTIMIZERS, ROWS
from time_errors import error_figures

from rooflight.hardware.devices import find
from rooflight.memory.allocator import CachingAllocator
from rooflight.memory.predict import MemoryPredictor
from rooflight.memory.replay import AllocatorRun
from rooflight.memory.result import Memory
from rooflight.prediction.api import predict
from rooflight.prediction.traces import Traces
from rooflight.spec import module_names
from rooflight.trace import TraceOptions

HELD_OUT = Path(__file__).parent / "h200" / "results" / "memory_rows.json"
OPTIONS = ("seq", "dtype", "step", "optimizer", "autocast", "accumulate", "checkpoint", "past")
"""Of the held-out rows: arguments of `rooflight.predict` by the same name."""


@dataclass(frozen=True)
class Measured:
    """A step and the bytes it took."""

    name: str
    model: str
    batch: int
    options: dict[str, Any]
    """The other arguments of `rooflight.predict`."""
    before: int
    """Allocated when the step began."""
    allocated: int
    reserved: int
    device: int
    """Of the whole process, as the driver says it."""

    @property
    def step(self) -> str:
        return str(self.options["step"])

    @property
    def dtype(self) -> str:
        return str(self.options.get("autocast") or self.options["dtype"])


def reference_rows(path: Path = ROWS) -> list[Measured]:
    """The 120 steps; their script built each model in fp32 on the GPU and cast it."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [_reference(row) for row in rows if "peak_allocated" in row]


def _reference(row: dict[str, Any]) -> Measured:
    model, seq = NAMES.get(row["model"], (row["model"], None))
    options = {"step": row["mode"], "dtype": row["dtype"], "seq": seq, "optimizer": OPTIMIZERS[row["optimizer"]]}
    return Measured(
        "{model} {mode} {dtype} b{batch}".format(**row), model, row["batch"], _with_loss(options),
        row["allocated_before"], row["peak_allocated"], row["peak_reserved"], row["device_used"],
    )  # fmt: skip


def held_out_rows(path: Path = HELD_OUT) -> list[Measured]:
    """Steps of other models, and of other ways to train; none where they were not measured yet."""
    if not path.exists():
        return []
    return [_held_out(row) for row in json.loads(path.read_text())["rows"] if "error" not in row]


def _held_out(row: dict[str, Any]) -> Measured:
    options = {name: row[name] for name in OPTIONS if row.get(name) is not None}
    if row.get("set"):
        options["overrides"] = row["set"]
    if row.get("loss"):
        options["loss"] = row["loss"]
    return Measured(
        _name(row), row["model"], row["batch"], _with_loss(options), row["allocated_before"], row["peak_allocated"],
        row["peak_reserved"], row["peak_reserved"] + row["outside"],
    )  # fmt: skip


def _name(row: dict[str, Any]) -> str:
    """What tells it from the other rows: model, sequence, step, precision, batch, and how it is done otherwise."""
    ways = [f"{name} {row[name]}" for name in ("past", "autocast", "accumulate", "optimizer", "loss") if row.get(name)]
    ways += ["checkpoint " + ",".join(row["checkpoint"])] if row.get("checkpoint") else []
    length = f" s{row['seq']}" if row.get("seq") else ""
    return ", ".join([f"{row['model']}{length} {row['step']} {row['dtype']} b{row['batch']}", *ways])


def _with_loss(options: dict[str, Any]) -> dict[str, Any]:
    return {"loss": "mse", **options} if options["step"] == "train" else options


@dataclass(frozen=True)
class Outcome:
    """A measured step and its prediction. Errors are relative: predicted over measured, less 1."""

    measured: Measured
    memory: Memory

    @property
    def name(self) -> str:
        return self.measured.name

    @property
    def reserved_bytes(self) -> int:
        return self.memory.peak_reserved_bytes or 0

    @property
    def grown_bytes(self) -> int:
        """The predicted peak less what is there before the step."""
        return self.memory.peak_allocated_bytes - self.memory.before_bytes

    @property
    def measured_grown(self) -> int:
        return self.measured.allocated - self.measured.before

    @property
    def allocated_error(self) -> float:
        return self.memory.peak_allocated_bytes / self.measured.allocated - 1

    @property
    def reserved_error(self) -> float:
        return self.reserved_bytes / self.measured.reserved - 1

    @property
    def grown_error(self) -> float:
        return self.grown_bytes / self.measured_grown - 1

    @property
    def device_error(self) -> float:
        return self.memory.device_bytes / self.measured.device - 1

    def is_off(self, limit: float) -> bool:
        """Of what is allocated or reserved."""
        return max(abs(self.allocated_error), abs(self.reserved_error)) > limit


def outcomes(rows: Iterable[Measured]) -> list[Outcome]:
    """In the order of the rows; batches of one step share a trace, as in `rooflight predict --batch 1,16,64`."""
    rows = list(rows)
    assert len({row.name for row in rows}) == len(rows), "rows are told apart by their names"
    found = {outcome.name: outcome for group in _groups(rows) for outcome in _predicted(group)}
    return [found[row.name] for row in rows]


def _groups(rows: Iterable[Measured]) -> Iterable[list[Measured]]:
    """Rows that differ by their batch alone."""
    groups: dict[str, list[Measured]] = defaultdict(list)
    for row in rows:
        groups[f"{row.model} {row.options}"].append(row)
    return groups.values()


def _predicted(rows: Sequence[Measured]) -> Iterable[Outcome]:
    first = rows[0]
    found = predict(first.model, on=DEVICE, batch=[row.batch for row in rows], advice=False, **first.options)
    for row in rows:
        memory = found.at(DEVICE, row.batch).memory
        assert memory is not None
        yield Outcome(row, memory)


def figures(which: str) -> dict[str, float]:
    """Return the errors of the `reference` or the `held_out` rows, by kind of step."""
    found = outcomes({"reference": reference_rows, "held_out": held_out_rows}[which]())
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for row in found:
        groups[row.measured.step].append(row)
    result: dict[str, float] = {}
    for step, rows in sorted(groups.items()):
        result[f"{step}_rows"] = len(rows)
        for name in ("allocated", "grown", "reserved"):
            errors = [getattr(row, f"{name}_error") for row in rows]
            result |= error_figures(f"{step}_{name}", errors, "median", "p90")
    return result


# --- the way in which rows were measured ---

_TRACED = ("loss", "optimizer", "autocast", "accumulate", "checkpoint")


@dataclass(frozen=True)
class History:
    """What else happened before a measured step."""

    dropped: tuple[int, ...] = ()
    """Bytes of weights that were there while the model was built, and gone when it was cast."""
    emptied: bool = True
    """Was the cache emptied when the model was there?"""
    second_cache: bool = False
    """Was the cache of keys and values there once more, to start every step from?"""


_HEADS = {"gpt2_s128": 50257 * 768 * 4, "gpt2_s1024": 50257 * 768 * 4, "distilbert_s128": 30522 * 768 * 4}
"""In fp32. Each was made, and then tied to the embedding."""
HISTORIES = {
    "torchvision:vgg13_bn infer bf16 b24": History(emptied=False),
    "hf:llama decode bf16 b16, past 1500": History(second_cache=True),
}


def history_of(name: str) -> History:
    model, _, rest = name.partition(" ")
    if model in _HEADS and " bf16 " in f" {rest} ":
        return History(dropped=(_HEADS[model],))
    return HISTORIES.get(name, History())


def reserved_as_measured(rows: Iterable[Measured], *, shared_process: bool) -> dict[str, int]:
    """What the same model of the allocator holds at most where the cache is emptied before the third step, which alone
    counts. `shared_process`: what libraries keep is there before the model is built, as after another row; else the
    optimizer makes its state before the first step, as the stage of a measurement has it."""
    return {name: held for group in _groups(rows) for name, held in _played(group, shared_process=shared_process)}


def _played(rows: Sequence[Measured], *, shared_process: bool) -> Iterable[tuple[str, int]]:
    first = rows[0]
    traced = {name: value for name, value in first.options.items() if name in _TRACED}
    traced["checkpoint"] = module_names(traced["checkpoint"]) if traced.get("checkpoint") else ()
    which = {"seq": None, "past": None, "dtype": None, "overrides": None, "input_shape": None, "download": False}
    which |= {name: value for name, value in first.options.items() if name not in _TRACED}
    options = TraceOptions(target="cuda", on="meta", **traced)
    steps, _ = Traces(first.model, **which).steps([row.batch for row in rows], options)
    for row, step in zip(rows, steps, strict=True):
        script, allocator, history = (
            MemoryPredictor().script(step, find(DEVICE)),
            CachingAllocator(),
            history_of(row.name),
        )
        for number in script.lives.inputs if history.second_cache else ():
            allocator.allocate(script.nbytes[number])
        if shared_process:
            for size in (size for sizes in script.kept.values() for size in sizes):
                allocator.allocate(size)
            script = replace(script, kept={})
        run = AllocatorRun(script, allocator)
        run.build(dropped=history.dropped, emptied=history.emptied)
        if not shared_process:
            run.update_first()
        run.step()
        run.step()
        run.renew_inputs()
        allocator.empty_cache()
        yield row.name, run.step().reserved
