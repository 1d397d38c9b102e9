"""Nsight Compute's console output, as `ncu --metrics ... python main.py > log` leaves it.

    [2615901] main.py@127.0.0.1
      sgemm(float*, float*) (22, 1, 64)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.0
        Section: Command line profiler metrics
        ------------------------------------------------------ ----------- ------------
        Metric Name                                            Metric Unit Metric Value
        ------------------------------------------------------ ----------- ------------
        smsp__sass_thread_inst_executed_op_fadd_pred_on.sum           inst        1,234
        ------------------------------------------------------ ----------- ------------

Versions before 2022 print a date instead of the sizes, and no row of column names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rooflight.profiles.log import LogRow, LogText, ProfilerLog
from rooflight.profiles.ncu_log import PrintedMetric, ProfiledKernel, kernel_of, log_of, refuse_empty

_DIM3 = r"\(\d+, \d+, \d+\)"
KERNEL = re.compile(
    rf"\s*(\S.*?)(?: ({_DIM3})x({_DIM3}))?(?:, \d{{4}}-\w{{3}}-\d\d \d\d:\d\d:\d\d)?"
    r"(?:, Context (\d+))?(?:, Stream (\d+))?(?:, Device \d+)?(?:, CC (\d+\.\d+))?"
    r"(?:, Invocations ([\d.,]+))?\s*"
)
_COLUMNS = ("Kernel Name", "Grid Size", "Block Size", "Context", "Stream", "CC", "Invocations")
_PLACES = {name: place for place, name in enumerate(_COLUMNS)}
"""What the groups of a heading are, as the CSV calls it."""
_RULER = re.compile(r"\s*-{3,}(?: +-{3,}){2,}\s*")
_SECTION = re.compile(r"\s*Section: ")


def is_kernel(line: str) -> re.Match[str] | None:
    """The heading of a kernel's tables."""
    if ", Context " not in line and ", Invocations " not in line:
        return None
    heading = KERNEL.fullmatch(line)
    return heading if heading is not None and (heading[4] or heading[7]) else None


def read(source: LogText) -> ProfilerLog:
    kernels: list[ProfiledKernel] = []
    lines = iter(source.numbered())
    for number, line in lines:
        if (heading := is_kernel(line)) is not None:
            cells = [text or "" for text in heading.groups()]
            kernels.append(kernel_of(LogRow(source, number, cells, _PLACES)))
        elif kernels and _SECTION.match(line):
            kernels[-1].metrics.extend(_section(source, lines, number))
    kernels = [kernel for kernel in kernels if kernel.metrics]
    if not kernels:
        raise refuse_empty(source, "the log names kernels and has no metrics of them")
    return log_of(source, kernels, about="ncu console output")


def _section(source: LogText, lines: Iterator[tuple[int, str]], start: int) -> Iterator[PrintedMetric]:
    """The rows of one table. It is ruled above and below, and below its column names where it has them."""
    columns: list[slice] | None = None
    summary = False
    rows = 0
    for number, line in lines:
        if _RULER.fullmatch(line):
            if columns is not None and rows:
                return
            columns = [slice(*match.span()) for match in re.finditer("-+", line)]
        elif columns is None:
            if line.strip():
                return  # a section without a table says something in words
        elif line.split()[:2] == ["Metric", "Name"]:
            summary = "Average" in line
        elif line.strip():
            rows += 1
            yield _row(source, (number, line), columns, summary=summary)
    if columns is not None:
        raise source.torn(start, "the table of this section has no end", again="record")


def _row(source: LogText, row: tuple[int, str], columns: list[slice], *, summary: bool) -> PrintedMetric:
    number, line = row
    line = re.sub(r"\(!\) (\S+)$", r"\1", line.rstrip())
    # The ruler shows where the columns are; a name too long for its own pushes the others to the right.
    if (
        all(line[column.stop : column.stop + 1].strip() == "" for column in columns[:-1])
        and len(line) <= columns[-1].stop
    ):
        cells = [line[column].strip() for column in columns]
    else:
        name, *rest = re.split(r"\s{2,}", line.strip())
        cells = [name, *([""] if len(rest) == len(columns) - 2 else []), *rest]
    if len(cells) != len(columns) or not cells[0] or not cells[-1]:
        raise source.bad(number, f"{line.strip()!r} is no row of name, unit and value: the file is not whole")
    if summary and len(cells) == 5:
        return PrintedMetric(cells[0], cells[1], cells[4], number, cells[2], cells[3])
    return PrintedMetric(cells[0], cells[1], cells[2], number)
