"""Nsight Compute's report files (.ncu-rep): a closed format, which ncu itself or its Python package opens."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rooflight.errors import BadFile
from rooflight.ledger import Note
from rooflight.profiles import text_log
from rooflight.profiles.log import Dim3, LoggedLaunch, LogText, MetricReading, ProfilerLog, dim3, exact
from rooflight.profiles.metrics import (
    TIME,
    is_measured,
    is_rollup,
    name_of,
    not_numeric,
    not_of_a_launch,
    without_rollups,
)
from rooflight.profiles.table import tables
from rooflight.units import printed_unit

MAGIC = b"NVR\0"
_TOO_LONG_S = 600


def read(path: Path, content: bytes) -> ProfilerLog:
    """Through `ncu` where it is installed, else through the package `ncu_report`."""
    if (program := shutil.which("ncu")) is not None:
        return _through_ncu(program, path, content)
    try:
        package = import_module("ncu_report")
    except ImportError:
        raise BadFile(
            "no-ncu",
            f"{path} is a report that only Nsight Compute can open: install ncu, or pip install ncu_report, or export "
            f"it elsewhere with: ncu --import {path.name} --csv --page raw --print-units base",
        ) from None
    return _through_package(package, path, content)


@contextmanager
def _unpacked(content: bytes) -> Iterator[Path]:
    """A file with the ending that ncu wants; it does not unpack by itself."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.ncu-rep"
        report.write_bytes(content)
        yield report


def _through_ncu(program: str, path: Path, content: bytes) -> ProfilerLog:
    with _unpacked(content) as report:
        command = [program, "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_TOO_LONG_S, check=False, env={**os.environ, "LC_ALL": "C"}
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BadFile("report-not-opened", f"ncu could not open {path}: {error}; try a newer ncu") from None
    printed = done.stdout.decode(errors="replace")
    source = LogText(f"ncu's CSV of {path}", printed)
    log = text_log.read(source, there) if done.returncode == 0 and (there := tables(source)) else None
    if log is None:
        why = (done.stderr.decode(errors="replace") + printed).strip().splitlines() or ["it says nothing"]
        raise BadFile(
            "report-not-opened",
            f"ncu could not open {path}: {why[-1].strip()}; try the ncu that wrote it, or a newer one",
        )
    return log


def _through_package(package: ModuleType, path: Path, content: bytes) -> ProfilerLog:
    try:
        with _unpacked(content) as report:
            context = package.load_report(str(report))
            actions = [action for part in context for action in part]
            launches = tuple(_launch(action) for action in actions)
            device = _value(actions[0], "device__attribute_display_name") if actions else None
            capability = _capability(actions[0]) if actions else None
            notes = _dropped(actions, launches)
    except Exception as error:  # the package raises what it likes on a report of another version, or a cut one
        raise BadFile(
            "report-not-opened", f"{path}: ncu_report cannot open it ({type(error).__name__}: {error}); try a newer one"
        ) from None
    if not launches:
        raise BadFile(
            "nothing-profiled", f"{path} holds no kernels: nothing was profiled, or the file is cut off; profile again"
        )
    return ProfilerLog(
        tool="ncu",
        about="ncu report",
        launches=launches,
        time_origin=f"ncu {TIME}",
        device=device if isinstance(device, str) and device else None,
        capability=capability,
        notes=tuple(notes),
    )


def _launch(action: Any) -> LoggedLaunch:
    metrics: dict[str, MetricReading] = {}
    for name in action:
        if is_measured(name) and (reading := _reading(name, action[name])) is not None:
            metrics.setdefault(name_of(name), reading)
    metrics = without_rollups(metrics)
    time = metrics.pop(TIME, None)
    stream = _number(action, "launch__stream_id")
    return LoggedLaunch(
        name=action.name(action.NameBase_DEMANGLED),
        grid=_dim3(action, "grid"),
        block=_dim3(action, "block"),
        stream=None if stream is None else int(stream),
        time_s=None if time is None else float(time.value),
        label="/".join(_ranges(action)),
        metrics=metrics,
    )


def _dropped(actions: Sequence[Any], launches: Sequence[LoggedLaunch]) -> list[Note]:
    """What became of the metrics that no launch has."""
    kept = {TIME}.union(*(launch.metrics for launch in launches))
    values = {name: action[name].value() for action in actions for name in action if name_of(name) not in kept}
    left_out = [name for name in values if not is_measured(name) or is_rollup(name, kept)]
    others = {name: str(value) for name, value in values.items() if name not in left_out}
    return [*not_of_a_launch(left_out), *not_numeric(others)]


def _reading(name: str, metric: Any) -> MetricReading | None:
    value = metric.value()
    unit = printed_unit(metric.unit() or "")
    if unit is None or isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return None
    signed = not name_of(name).endswith(".sum")
    return MetricReading(exact(unit.in_base(Decimal(value)), may_be_negative=signed), unit.base)


def _ranges(action: Any) -> list[str]:
    state = action.nvtx_state()
    if state is None:
        return []
    return [name for number in state.domains() for name in state.domain_by_id(number).push_pop_ranges()]


def _number(action: Any, name: str) -> float | None:
    value = _value(action, name)
    return value if isinstance(value, (int, float)) else None


def _value(action: Any, name: str) -> Any:
    metric = action.metric_by_name(name)
    return None if metric is None else metric.value()


def _dim3(action: Any, what: str) -> Dim3 | None:
    sizes = [_number(action, f"launch__{what}_dim_{axis}") for axis in "xyz"]
    return dim3(*(None if size is None else int(size) for size in sizes))


def _capability(action: Any) -> str | None:
    parts = [_number(action, f"device__attribute_compute_capability_{part}") for part in ("major", "minor")]
    return None if None in parts else ".".join(f"{part:.0f}" for part in parts)
