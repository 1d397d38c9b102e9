"""Traces of the steps of judged_steps.py, each made once and kept in build/published-traces/ (half an hour from nothing).

A trace is a ledger; predicting from it needs no torch. What cannot be traced leaves a file that says why not.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from judged_steps import ROOT, PublishedStep, TraceKey, as_data

from rooflight.errors import RooflightError
from rooflight.ledger import Ledger
from rooflight.step.costed_step import PreparedTrace
from rooflight.step.other_batches import DoesNotScale

FOLDER = ROOT / "build" / "published-traces"
PRIME = 1619
KERNELBENCH = Path(__file__).parent / "published" / "kernelbench-ledgers.msgpack.gz"


@contextlib.contextmanager
def in_empty_folder() -> Iterator[None]:
    """Trace anew whatever is asked for meanwhile, and keep no trace."""
    global FOLDER
    before = FOLDER
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        try:
            yield
        finally:
            FOLDER = before


class NotTraced(Exception):
    """Why a step has no trace."""


def _path(key: TraceKey, batch: int | None) -> Path:
    written = json.dumps([as_data(key), batch], sort_keys=True)
    name = key.model.replace("/", "-").replace(":", "-")[-40:]
    return FOLDER / f"{name}-{key.step}-{blake2b(written.encode(), digest_size=8).hexdigest()}.msgpack"


def prepared(step: PublishedStep, *, make: bool = True) -> PreparedTrace:
    """The trace that serves the step; raises `NotTraced`. `make`: trace it now if no file holds it."""
    key = step.trace
    if key.batch is not None or step.batch is None:
        return PreparedTrace(_ledger(key, None, make=make), None)
    try:
        return PreparedTrace(_with_layout(_ledger(key, None, make=make), step), PRIME)
    except NotTraced:
        return PreparedTrace(_with_layout(_ledger(key, step.batch, make=make), step), None)


def group_of(step: PublishedStep) -> tuple[Any, ...]:
    """Steps of one group have one prepared trace."""
    return step.trace, step.channels_last, None if _path(step.trace, None).is_file() else step.batch


def _with_layout(ledger: Ledger, step: PublishedStep) -> Ledger:
    """The layout is applied when a step is prepared: one plain trace serves both."""
    if not step.channels_last:
        return ledger
    return msgspec.structs.replace(ledger, header=msgspec.structs.replace(ledger.header, channels_last=True))


def _ledger(key: TraceKey, batch: int | None, *, make: bool) -> Ledger:
    """`batch`: of a step whose trace does not serve every batch."""
    if key.how == "kernelbench":
        return _problem(key)
    path = _path(key, batch)
    failed = path.with_suffix(".failed")
    if path.is_file():
        return msgspec.msgpack.decode(path.read_bytes(), type=Ledger)
    if failed.is_file():
        raise NotTraced(failed.read_text())
    if not make:
        raise NotTraced("not traced yet")
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        ledger = _traced(key, batch)
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        if not isinstance(error, (RooflightError, DoesNotScale, NotTraced)):
            what += " | " + traceback.format_exc().splitlines()[-3].strip()
        failed.write_text(what)
        raise NotTraced(what) from None
    path.write_bytes(msgspec.msgpack.encode(ledger))
    return ledger


@cache
def _problems() -> dict[str, Any]:
    """By problem: a ledger by target; they are decoded when they are asked for."""
    held = msgspec.msgpack.decode(gzip.decompress(KERNELBENCH.read_bytes()), type=dict[str, dict[str, msgspec.Raw]])
    return held


def _problem(key: TraceKey) -> Ledger:
    """Made by kernelbench_ledgers.py. A target that runs the same ops as the newest has no ledger of its own."""
    held = _problems()
    if key.model not in held["ledgers"]:
        raise NotTraced(msgspec.msgpack.decode(held["failed"][key.model], type=str))
    by_target = msgspec.msgpack.decode(held["ledgers"][key.model], type=dict[str, msgspec.Raw])
    return msgspec.msgpack.decode(by_target.get(key.target, by_target["cuda"]), type=Ledger)


def _traced(key: TraceKey, batch: int | None) -> Ledger:
    if key.how == "neusight":
        from published_steps import traced

        assert key.batch is not None and key.seq is not None
        return traced(key.model, key.settings, key.batch, key.seq, key.step)
    return _traced_model(key, batch)


def _traced_model(key: TraceKey, batch: int | None) -> Ledger:
    """By name; images of another size than the network's own may need its `img_size`, too."""
    try:
        return _traced_with(key, batch, dict(key.settings))
    except RooflightError:
        if not key.model.startswith("timm:") or key.input is None or batch is not None:
            raise
        return _traced_with(key, batch, {**dict(key.settings), "img_size": key.input.split("x")[-1]})


def _traced_with(key: TraceKey, batch: int | None, overrides: dict[str, str]) -> Ledger:
    from rooflight.models.resolve import given_workload
    from rooflight.spec import StepSpec
    from rooflight.step.other_batches import check_scales
    from rooflight.trace import TraceOptions, trace

    given: dict[str, Any] = {
        "batch": batch or PRIME, "seq": key.seq, "step": key.step, "dtype": key.dtype, "autocast": key.autocast,
        "loss": key.loss, "optimizer": key.optimizer, "foreach": key.foreach, "tf32": key.tf32, "input_shape": key.input,
        "overrides": overrides,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value not in (None, {})}
    spec = StepSpec.given(key.model, given, verb="predict", inputs=(), kwargs=None)
    with contextlib.nullcontext() if key.fused_attention else _attention_written_out():
        workload = given_workload(spec.model, (), None, batch=batch or PRIME, device="meta", **spec.build)
    ledger = trace(workload, TraceOptions.of(spec, target=key.target))
    if batch is None:
        parameters = workload.model.parameters()
        check_scales(ledger, PRIME, {size for tensor in parameters for size in (*tensor.shape, tensor.numel())})
    return ledger


@contextlib.contextmanager
def _attention_written_out() -> Iterator[None]:
    """As timm's networks had it before torch 2.0; they look when they are built."""
    from rooflight.models.optional_packages import imported

    layers = imported("timm").layers
    layers.set_fused_attn(False)
    try:
        yield
    finally:
        layers.set_fused_attn(True)


def trace_all(steps: Iterable[PublishedStep]) -> None:
    """Fill the folder, saying what happens."""
    import time

    done: set[tuple[Any, ...]] = set()
    for step in steps:
        path = _path(step.trace, None)
        if path.is_file() or step.trace.how == "kernelbench" or (step.trace, step.batch) in done:
            continue
        done.add((step.trace, step.batch))
        start = time.perf_counter()
        try:
            ops = len(prepared(step).ledger.ops)
            print(f"{time.perf_counter() - start:5.1f} s  {ops:5} ops  {step.name}", flush=True)
        except NotTraced as why:
            print(f"{time.perf_counter() - start:5.1f} s  not traced: {step.name}: {why}", flush=True)
