"""What Nsight Compute and nvprof say of themselves, on lines that begin with `==`."""

from __future__ import annotations

import re

from rooflight.errors import BadFile
from rooflight.ledger import Note
from rooflight.profiles.log import LogText
from rooflight.profiles.metrics import unknown_to_ncu

_MESSAGE = re.compile(r".*?==(?:\d+== (?P<nvprof>\w+):|(?P<ncu>[A-Z]+)==) ?(?P<text>.*)")
_NO_PERMISSION = "ERR_NVGPUCTRPERM"
_REMEDY = (
    "run the profiler as root, or let an admin set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia driver "
    "(in a container: --cap-add=SYS_ADMIN)"
)
_OF_WARNINGS = {
    "uncontrolled GPU caches": Note(
        "warm-caches", "caches were left as they were between kernels (--cache-control none)"
    ),
    "unmodified GPU clocks": Note(
        "clocks-not-fixed", "the GPU's clocks were not fixed while it was profiled (--clock-control none)"
    ),
}
_COLD = Note("cold-caches", "ncu emptied the caches before every kernel, and left a kernel's last writes in L2")


def _messages(source: LogText, kind: str) -> list[tuple[int, str]]:
    """The messages of one kind, ERROR, WARNING or PROF, with their lines."""
    marked = ((number, _MESSAGE.match(line)) for number, line in source.numbered() if "==" in line)
    messages = ((number, match["nvprof"] or match["ncu"], match["text"].strip()) for number, match in marked if match)
    return [(number, text) for number, own, text in messages if own.upper() == kind]


def refuse_empty(source: LogText) -> BadFile:
    """Return why a profiler's log holds nothing to import, from its own errors where it has some."""
    empty = "the log holds no table of kernels"
    messages = _messages(source, "ERROR") + _messages(source, "WARNING")
    line, text = next((each for each in messages if _NO_PERMISSION in each[1]), next(iter(messages), (0, "")))
    if _NO_PERMISSION in text:
        what = f"{empty}, because the user had no permission to read counters: {_REMEDY}"
        return BadFile("no-permission-to-count", f"{source.at(line)}: {what}")
    if messages:
        meant = "".join(f"; {note}" for note in unknown_to_ncu([text for _, text in messages]))
        return BadFile("profiler-failed", f"{source.at(line)}: {empty}; the profiler says: {text}{meant}")
    why = "the file is cut off, or nothing was profiled: check ncu's filters, or add --target-processes all"
    return BadFile("nothing-profiled", f"{source.at(len(source.lines))}: {empty}: {why}")


def notes_of(source: LogText, *, launches: int) -> list[Note]:
    """Return notes on errors, on kernels that the log lacks, and on caches and clocks."""
    errors = [(line, text) for line, text in _messages(source, "ERROR") if text]
    notes = [Note("profiler-error", f"ncu reported an error on line {line}: {text}") for line, text in errors]
    notes += unknown_to_ncu([text for _, text in errors])
    progress, warnings = _messages(source, "PROF"), _messages(source, "WARNING")
    profiled = sum(text.startswith("Profiling ") for _, text in progress)
    if profiled > launches:
        missing = f"ncu says that it profiled {profiled:,} kernels, the log holds {launches:,}: its end may be lost"
        notes.append(Note("log-cut-off", missing))
    caches = [note for words, note in _OF_WARNINGS.items() if any(words in text for _, text in warnings)]
    if any(text.startswith("Connected") for _, text in progress) and all(note.code != "warm-caches" for note in caches):
        caches.insert(0, _COLD)
    return [*notes, *caches]
