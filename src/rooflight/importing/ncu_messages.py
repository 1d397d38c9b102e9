"""What Nsight Compute says about itself in a log: the lines between `==` marks, and what to do about the bad ones."""

from __future__ import annotations

import re

from rooflight.errors import BadFile
from rooflight.importing.source import Source

_MESSAGE = re.compile(r"==(ERROR|WARNING|PROF)== ?(.*)")
_OF_NVPROF = re.compile(r"==\d+== (Error|Warning): ?(.*)")

PERMISSION_REMEDY = (
    "run the profiler as root, or let an admin set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia driver "
    "(in a container: --cap-add=SYS_ADMIN)"
)


def messages(source: Source, kind: str) -> list[tuple[int, str]]:
    """The messages of one kind, ERROR, WARNING or PROF, with their lines."""
    found = []
    for number, line in source.numbered():
        at = line.find("==")
        match = _MESSAGE.match(line, at) if at >= 0 else None
        if match is not None and match[1] == kind:
            found.append((number, match[2].strip()))
    return found


def refuse_empty(source: Source, what: str) -> BadFile:
    """Why a profiler's log holds nothing to import, from its own errors where it has some."""
    if "ERR_NVGPUCTRPERM" in source.text:
        line = next(number for number, text in source.numbered() if "ERR_NVGPUCTRPERM" in text)
        return source.bad(
            line, f"the log holds no counters, because the user had no permission to read them: {PERMISSION_REMEDY}"
        )
    if errors := messages(source, "ERROR"):
        return source.bad(errors[0][0], f"{what}; ncu failed: {errors[0][1] or 'it does not say why'}")
    for line, text in messages(source, "WARNING"):
        if text.startswith("No kernels were profiled"):
            return source.bad(line, "ncu profiled no kernels: check its filters, or add --target-processes all")
    for number, line_text in source.numbered():
        if (match := _OF_NVPROF.match(line_text)) is not None:
            return source.bad(number, f"{what}; nvprof says: {match[2]}")
    return source.bad(len(source.lines), f"{what}: the file is cut off, or nothing was profiled; record it again")


def notes_of(source: Source, *, launches: int) -> list[str]:
    """What a reader of the numbers must know: errors, and a log that tells of more kernels than it holds."""
    notes = [f"ncu reported an error on line {line}: {text}" for line, text in messages(source, "ERROR") if text]
    profiled = sum(text.startswith("Profiling ") for _, text in messages(source, "PROF"))
    if profiled > launches:
        notes.append(f"ncu says that it profiled {profiled:,} kernels, the log holds {launches:,}: its end may be lost")
    if any("uncontrolled GPU caches" in text for _, text in messages(source, "WARNING")):
        notes.append("caches were left as they were between kernels (--cache-control none)")
    elif any(text.startswith("Connected") for _, text in messages(source, "PROF")):
        notes.append("ncu emptied the caches before every kernel, and left a kernel's last writes in L2")
    if any("unmodified GPU clocks" in text for _, text in messages(source, "WARNING")):
        notes.append("the GPU's clocks were not fixed while it was profiled (--clock-control none)")
    return notes
