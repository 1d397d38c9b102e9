"""What `nsys stats` and `nsys profile --stats=true` print for people, as people paste it, turned into the CSV that the
same report has: `--format column` (the default) and `--format table`.

     Time (%)  Total Time (ns)  Instances  Avg (ns)   ...              Name
     --------  ---------------  ---------  ---------       ------------------------------
         83.1        1,108,928          2  554,464.0       void gemm<float>(float *, int)

Columns stand below their rule, numbers have commas between thousands, and long names are cut off with `…`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from itertools import pairwise

from rooflight.ledger import Note
from rooflight.profiles import nsys_csv, time_table
from rooflight.profiles.log import LogText, ProfilerLog

_RULE = re.compile(r"\s*(?:-{2,}(?:\s{1,3}-{2,}){2,}|\+-{2,}(?:\+-{2,}){2,}\+)\s*")
_SPAN = re.compile(r"-{2,}")
_NUMBER = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_TRACE = tuple(map(re.compile, (r"\bStart ?\(", r"\bDuration ?\(", r"\bName\b")))
_SUMMARY = tuple(map(re.compile, (r"\bTotal Time ?\(", r"\bInstances\b", r"\bName\b")))
"""In the headers of cuda_gpu_trace and of cuda_gpu_kern_sum, in this order: looked for one after the other, as one
pattern of all three tries every two of them on a long line of something else."""
_STYLE = re.compile(r"\bStyle\b")
"""nvtx_sum has instances too, of ranges of a style."""
_CUT = re.compile(r"(…|\.\.\.)$")
_NOT_OF_THE_GPU = re.compile(r"\bResult\b|\bPid\b")


def is_one(source: LogText) -> bool:
    return bool(_headers(source))


def read(source: LogText) -> ProfilerLog:
    table = _as_csv(source)
    log = nsys_csv.read(table) if nsys_csv.HEADER.search(table.text) else time_table.read(table)
    if not any(_CUT.search(launch.name) for launch in log.launches):
        return log
    note = Note(
        "cut-names",
        "nsys cut long names off: kernels that differ only behind the cut are one here (--format csv has them whole)",
    )
    return replace(log, notes=(*log.notes, note))


def _as_csv(source: LogText) -> LogText:
    """The tables of GPU work, each row on the line where it stood, the header on that of its rule, and all
    other lines empty."""
    lines = [""] * len(source.lines)
    for line, spans in _headers(source):
        lines[line + 1] = _row(source, line, spans)  # an empty line would part it from its rows
        for number in range(line + 2, len(source.lines)):
            if not source.lines[number].strip() or _RULE.fullmatch(source.lines[number]):
                break
            lines[number] = _row(source, number, spans)
    return LogText(source.name, "\n".join([*lines, ""]))


def _headers(source: LogText) -> list[tuple[int, list[tuple[int, int]]]]:
    """Lines, counted from 0, that are the header of a table of GPU work; and where its columns stand."""
    return [
        (line, [match.span() for match in _SPAN.finditer(source.lines[line + 1])])
        for line, text in enumerate(source.lines[:-1])
        if _is_wanted(text) and not _NOT_OF_THE_GPU.search(text) and _RULE.fullmatch(source.lines[line + 1])
    ]


def _is_wanted(text: str) -> bool:
    return _in_order(_TRACE, text) or (_in_order(_SUMMARY, text) and not _STYLE.search(text))


def _in_order(words: Sequence[re.Pattern[str]], text: str) -> bool:
    place = 0
    for word in words:
        found = word.search(text, place)
        if found is None:
            return False
        place = found.end()
    return True


def _row(source: LogText, line: int, spans: list[tuple[int, int]]) -> str:
    """The cells below their rules; the last one may be longer than its rule."""
    text = source.lines[line]
    gaps = [text[end:start] for (_, end), (start, _) in pairwise(spans)]
    if len(text) <= spans[-1][0] or any(gap.strip(" |") for gap in gaps):
        raise source.torn(line + 1, "the cells of this row do not stand below their columns")
    ends = [*(end for _, end in spans[:-1]), None]
    cells = [text[start:end].strip(" |") for (start, _), end in zip(spans, ends, strict=True)]
    written = StringIO()
    csv.writer(written, lineterminator="").writerow(
        [cell.replace(",", "") if _NUMBER.fullmatch(cell) else cell for cell in cells]
    )
    return written.getvalue()
