"""Logs that people already have, read into a ledger: of Nsight, nvprof, rocprof and PyTorch's profiler.

What a file is, is decided by its content, never by its name.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from rooflight.errors import BadFile, BadInput
from rooflight.files import read_bytes
from rooflight.hardware.devices import find, names, recognise_name
from rooflight.ledger import Ledger, Note
from rooflight.profiles import kineto_log, ncu_report, nsys_sqlite, text_log
from rooflight.profiles.joined_logs import joined
from rooflight.profiles.log import LogText, ProfilerLog, decode
from rooflight.profiles.log_ledger import ledger_of
from rooflight.profiles.ncu_messages import refuse_empty
from rooflight.profiles.table import tables

KNOWN = (
    "Nsight Compute (CSV of the raw or details page, console output, .ncu-rep), Nsight Systems (its SQLite export, or "
    "the report cuda_gpu_trace or cuda_gpu_kern_sum), any CSV with columns of kernels and times, nvprof's metrics, "
    "rocprofv3 and rocprof (kernel trace, counters, statistics), Chrome traces of PyTorch's profiler, one or those of "
    "all ranks; any of them gzipped"
)


def read(path: str | Path, *more: str | Path, device: str | None = None) -> Ledger:
    """A log as a ledger of kernels; what is wrong with the file is said in one line.

    `more`: logs of the same program, whose counters and times are joined with it. `device`: the GPU they are of, by a
    name of `rooflight.hardware`, where no log tells it.
    """
    paths = [Path(path), *map(Path, more)]
    logs = [replace(_log(path), file=path.name) for path in paths]
    log = _on(joined(logs), device)
    return ledger_of(log, next(path for path, log in zip(paths, logs, strict=True) if log.counts or len(logs) == 1))


def _on(log: ProfilerLog, device: str | None) -> ProfilerLog:
    """The log with the device that its user says it is of."""
    if device is None:
        return log
    named = find(device)
    if named.name not in names():
        known = "only a device that rooflight knows by name (`rooflight list devices`)"
        raise BadInput("unknown-device", f"--device {device}: {known}")
    if log.device:
        logged = recognise_name(log.device)
        if logged is None or logged.name != named.name:
            text = f"the log is of a {log.device}, not of a {named.title}: leave --device out"
            raise BadInput("device-mismatch", text)
    capability = None if named.capability is None else f"{named.capability // 10}.{named.capability % 10}"
    note = Note("device-given", f"the log names no device: that it is a {named.title} was said with --device")
    return replace(
        log,
        device=log.device or (named.recognised_as[0] if named.recognised_as else named.name),
        capability=log.capability or capability,
        notes=log.notes if log.device else (*log.notes, note),
    )


def _log(path: Path) -> ProfilerLog:
    if nsys_sqlite.is_database(path):
        return nsys_sqlite.read(path)
    content = read_bytes(path, what="log")
    if not content.strip():
        raise BadFile("empty-file", f"{path} is empty: the profiler wrote nothing into it, profile again")
    if content.startswith(ncu_report.MAGIC):
        return ncu_report.read(path, content)
    if content.startswith(nsys_sqlite.MAGIC):
        return nsys_sqlite.read(path, content)
    text = decode(content)
    if text is None:
        raise BadFile("unknown-file", f"{path} is no log that rooflight knows; it reads {KNOWN}")
    source = LogText(str(path), text)
    if re.match(r'\s*(\{\s*("|$)|\[\s*(\{|$))', text) and not re.search(r'==PROF==|"Process ID","', text):
        return kineto_log.read(source)
    log_tables = tables(source)
    log = text_log.read(source, log_tables) if log_tables else None
    if log is not None:
        return log
    if log_tables:
        why = "the table of kernels has a header and no rows: it was cut, or nothing ran"
        raise source.bad(log_tables[0].line, why)
    if "==PROF==" in text or "==ERROR==" in text or "NVPROF is profiling" in text:
        raise refuse_empty(source)
    raise BadFile("unknown-file", f"{path} is no log that rooflight knows; it reads {KNOWN}")
