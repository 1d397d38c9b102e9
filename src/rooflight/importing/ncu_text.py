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
from dataclasses import dataclass

from rooflight.importing.log import Launch, Log
from rooflight.importing.ncu_launches import Profiled, dim3, log_of, times
from rooflight.importing.ncu_messages import refuse_empty
from rooflight.importing.ncu_metrics import Printed
from rooflight.importing.source import Source

_DIM3 = r"\(\d+, \d+, \d+\)"
KERNEL = re.compile(
    rf"\s*(?P<name>\S.*?)(?: (?P<grid>{_DIM3})x(?P<block>{_DIM3}))?"
    r"(?:, \d{4}-\w{3}-\d\d \d\d:\d\d:\d\d)?"
    r"(?:, Context (?P<context>\d+))?(?:, Stream (?P<stream>\d+))?(?:, Device \d+)?"
    r"(?:, CC (?P<capability>\d+\.\d+))?(?:, Invocations (?P<invocations>[\d.,]+))?\s*"
)
_RULER = re.compile(r"\s*-{3,}(?: +-{3,}){2,}\s*")
_SECTION = re.compile(r"\s*Section: ")


@dataclass(frozen=True)
class _Column:
    start: int
    end: int


def is_kernel(line: str) -> re.Match[str] | None:
    """The heading of a kernel's tables."""
    if ", Context " not in line and ", Invocations " not in line:
        return None
    found = KERNEL.fullmatch(line)
    return found if found is not None and (found["context"] or found["invocations"]) else None


def read(source: Source) -> Log:
    found = [entry for entry in _kernels(source) if entry.metrics]
    if not found:
        raise refuse_empty(source, "the log names kernels and has no metrics of them")
    return log_of(source, found, about="ncu console output")


def _kernels(source: Source) -> Iterator[Profiled]:
    current: Profiled | None = None
    lines = iter(source.numbered())
    for number, line in lines:
        if (heading := is_kernel(line)) is not None:
            if current is not None:
                yield current
            current = _profiled(source, number, heading)
        elif current is not None and _SECTION.match(line):
            current.metrics.extend(_section(source, lines, number))
    if current is not None:
        yield current


def _profiled(source: Source, number: int, heading: re.Match[str]) -> Profiled:
    launch = Launch(
        name=heading["name"].strip(),
        grid=dim3(source, number, heading["grid"] or ""),
        block=dim3(source, number, heading["block"] or ""),
        stream=int(heading["stream"]) if heading["stream"] else None,
    )
    return Profiled(launch, [], "", heading["capability"] or "", times(source, number, heading["invocations"] or ""))


def _section(source: Source, lines: Iterator[tuple[int, str]], start: int) -> Iterator[Printed]:
    """The rows of one table. It is ruled above and below, and below its column names where it has them."""
    columns: list[_Column] | None = None
    summary = False
    rows = 0
    for number, line in lines:
        if _RULER.fullmatch(line):
            if columns is not None and rows:
                return
            columns = [_Column(*match.span()) for match in re.finditer("-+", line)]
        elif columns is None:
            if line.strip():
                return  # a section without a table says something in words
        elif line.split()[:2] == ["Metric", "Name"]:
            summary = "Average" in line
        elif line.strip():
            rows += 1
            yield _row(source, (number, line), columns, summary=summary)
    if columns is not None:
        raise source.bad(start, "the table of this section has no end: the file is not whole, record it again")


def _row(source: Source, row: tuple[int, str], columns: list[_Column], *, summary: bool) -> Printed:
    number, line = row
    line = re.sub(r"\(!\) (\S+)$", r"\1", line.rstrip())
    # The ruler shows where the columns are; a name too long for its own pushes the others to the right.
    if all(line[column.end : column.end + 1].strip() == "" for column in columns[:-1]) and len(line) <= columns[-1].end:
        cells = [line[column.start : column.end].strip() for column in columns]
    else:
        name, *rest = re.split(r"\s{2,}", line.strip())
        cells = [name, *([""] if len(rest) == len(columns) - 2 else []), *rest]
    if len(cells) != len(columns) or not cells[0] or not cells[-1]:
        raise source.bad(number, f"{line.strip()!r} is no row of name, unit and value: the file is not whole")
    if summary and len(cells) == 5:
        return Printed(cells[0], cells[1], cells[4], number, cells[2], cells[3])
    return Printed(cells[0], cells[1], cells[2], number)
