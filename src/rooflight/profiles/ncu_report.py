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

import msgspec

from rooflight.errors import BadFile
from rooflight.profiles import text_log
from rooflight.profiles.log import LogText, ProfilerLog
from rooflight.profiles.numbers import ENGLISH
from rooflight.profiles.table import LogRow, LogTable, formats, tables

MAGIC = b"NVR\0"
_CAPABILITY = "device__attribute_compute_capability"
_TOO_LONG_S = 600


def read(path: Path, content: bytes) -> ProfilerLog:
    """Through `ncu` where it is installed, else through the package `ncu_report`."""
    if (program := shutil.which("ncu")) is not None:
        return _through_ncu(program, path, content)
    try:
        package = import_module("ncu_report")
    except ImportError:
        remedy = f"export it elsewhere with: ncu --import {path.name} --csv --page raw --print-units base"
        what = "is a report that only Nsight Compute can open: install ncu, or pip install ncu_report"
        raise BadFile("no-ncu", f"{path} {what}, or {remedy}") from None
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
        plain = {**os.environ, "LC_ALL": "C"}
        try:
            done = subprocess.run(command, capture_output=True, timeout=_TOO_LONG_S, check=False, env=plain)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BadFile("report-not-opened", f"ncu could not open {path}: {error}; try a newer ncu") from None
    printed = done.stdout.decode(errors="replace")
    source = LogText(f"ncu's CSV of {path}", printed)
    log = text_log.read(source, log_tables) if done.returncode == 0 and (log_tables := tables(source)) else None
    if log is None:
        why = (done.stderr.decode(errors="replace") + printed).strip().splitlines() or ["it says nothing"]
        what = f"ncu could not open {path}: {why[-1].strip()}; try the ncu that wrote it, or a newer one"
        raise BadFile("report-not-opened", what)
    return log


def _through_package(package: ModuleType, path: Path, content: bytes) -> ProfilerLog:
    try:
        with _unpacked(content) as report:
            actions = [action for part in package.load_report(str(report)) for action in part]
            table = _raw_page(actions, str(path))
    except Exception as error:  # the package raises what it likes on a report of another version, or a cut one
        what = f"ncu_report cannot open it ({type(error).__name__}: {error}); try a newer one"
        raise BadFile("report-not-opened", f"{path}: {what}") from None
    log = text_log.read(table.source, [table])
    if log is None:
        why = "nothing was profiled, or the file is cut off; profile again"
        raise BadFile("nothing-profiled", f"{path} holds no kernels: {why}")
    return log


def _raw_page(actions: Sequence[Any], name: str) -> LogTable:
    """The table that ncu would print of the report."""
    page = next(each for each in formats() if each.tool == "ncu" and each.metrics)
    form = msgspec.structs.replace(page, about="ncu report", numbers="")
    units = {name: action[name].unit() or "" for action in actions for name in action}
    table = LogTable(LogText(name, ""), form, 1, ["ID", *units], {"id": [(0, None)]}, ENGLISH)
    table.rows.append(LogRow(table, 1, ["", *units.values()]))
    for number, action in enumerate(actions, start=2):
        texts = {name: _text(action[name].value()) for name in action}
        state = action.nvtx_state()
        domains = [] if state is None else [state.domain_by_id(domain) for domain in state.domains()]
        context = {
            "kernel": action.name(action.NameBase_DEMANGLED),
            "stream": texts.get("launch__stream_id", ""),
            "device": texts.get("device__attribute_display_name", ""),
            "grid": ",".join(texts.get(f"launch__grid_dim_{axis}", "") for axis in "xyz").strip(","),
            "block": ",".join(texts.get(f"launch__block_dim_{axis}", "") for axis in "xyz").strip(","),
            "capability": ".".join(texts.get(f"{_CAPABILITY}_{part}", "") for part in ("major", "minor")).strip("."),
            "label": "/".join(label for domain in domains for label in domain.push_pop_ranges()),
        }
        table.rows.append(LogRow(table, number, [str(number - 2), *(texts.get(name, "") for name in units)], context))
    return table


def _text(value: Any) -> str:
    return f"{Decimal(value):f}".removesuffix(".0") if type(value) in (int, float) else str(value)
