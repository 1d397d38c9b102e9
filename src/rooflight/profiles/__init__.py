"""Logs that people already have, read into a ledger: Nsight Compute, Nsight Systems, nvprof, PyTorch's profiler.

What a file is, is decided by its content, never by its name.
"""

from __future__ import annotations

import re
from pathlib import Path

from rooflight.errors import BadFile
from rooflight.files import read_bytes
from rooflight.ledger import Ledger
from rooflight.profiles import kineto_log, ncu_console, ncu_csv, ncu_report, nsys_csv, nvprof
from rooflight.profiles.log import LogText, ProfilerLog, decode
from rooflight.profiles.log_ledger import ledger_of
from rooflight.profiles.ncu_log import refuse_empty

KNOWN = (
    "Nsight Compute (CSV of the raw or details page, console output, .ncu-rep), Nsight Systems (CSV of the report "
    "cuda_gpu_trace), nvprof's metrics, a Chrome trace of PyTorch's profiler; any of them gzipped"
)


def read(path: str | Path) -> Ledger:
    """A log as a ledger of kernels; what is wrong with the file is said in one line."""
    path = Path(path)
    return ledger_of(_log(path), path)


def _log(path: Path) -> ProfilerLog:
    content = read_bytes(path, what="log")
    if not content.strip():
        raise BadFile(f"{path} is empty: the profiler wrote nothing into it, profile again")
    if content.startswith(ncu_report.MAGIC):
        return ncu_report.read(path, content)
    if content.startswith(b"SQLite format 3\0"):
        raise BadFile(
            f"{path} is a database: give rooflight what `nsys stats --report cuda_gpu_trace --format csv` prints"
        )
    text = decode(content)
    if text is None:
        raise BadFile(f"{path} is no log that rooflight knows; it reads {KNOWN}")
    source = LogText(str(path), text)
    if ncu_csv.HEADER.search(text):
        return ncu_csv.read(source)
    if nsys_csv.HEADER.search(text):
        return nsys_csv.read(source)
    if nvprof.RESULT.search(text):
        return nvprof.read(source)
    if any(ncu_console.is_kernel(line) for line in source.lines):
        return ncu_console.read(source)
    if re.match(r'\s*(\{\s*("|$)|\[\s*(\{|$))', text):
        return kineto_log.read(source)
    if "==PROF==" in text or "==ERROR==" in text or "NVPROF is profiling" in text:
        raise refuse_empty(source, "the log holds no table of kernels")
    raise BadFile(f"{path} is no log that rooflight knows; it reads {KNOWN}")
