"""Real logs of Nsight Compute, and the same numbers printed as other pages and other locales print them."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "ncu"
Style = Callable[[str], str]

_ENGLISH = re.compile(r"\d{1,3}(,\d{3})*(\.\d+)?")


def real(name: str) -> str:
    """A log as ncu wrote it on an H200."""
    return gzip.decompress((FOLDER / f"{name}.csv.gz").read_bytes()).decode()


def grouped(digits: str, mark: str) -> str:
    return f"{int(digits):,}".replace(",", mark)


def style(decimal: str, group: str) -> Style:
    """Rewrite a number from ncu's English form."""

    def rewrite(text: str) -> str:
        whole, point, fraction = text.replace(",", "").partition(".")
        return grouped(whole, group) + (decimal + fraction if point else "")

    return rewrite


STYLES = {
    "german": style(",", "."),
    "french": style(",", "\u202f"),
    "spaced": style(",", " "),
    "swiss": style(".", "’"),
    "plain": style(".", ""),
    "plain with comma": style(",", ""),
}


def table(text: str) -> list[list[str]]:
    """The rows of a raw page: header, units, kernels."""
    return list(csv.reader(line for line in text.splitlines() if line.startswith('"')))


def printed(rows: list[list[str]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def in_style(text: str, rewrite: Style) -> str:
    """A raw page with all its metrics printed in another locale."""
    header, units, *rows = table(text)
    first = header.index("CC") + 1
    changed = [
        [rewrite(cell) if place >= first and _ENGLISH.fullmatch(cell) else cell for place, cell in enumerate(row)]
        for row in rows
    ]
    return printed([header, units, *changed])


def measured(text: str) -> list[tuple[dict[str, str], list[tuple[str, str, str]]]]:
    """Of a raw page: the identity of every kernel, and the name, unit and value of its metrics with a sum."""
    header, units, *rows = table(text)
    first = header.index("CC") + 1
    return [
        (
            dict(zip(header[:first], row, strict=False)),
            [
                entry
                for entry in zip(header[first:], units[first:], row[first:], strict=True)
                if re.match(r"(?!profiler).*\.sum", entry[0])
            ],
        )
        for row in rows
    ]


def details_page(text: str) -> str:
    """The same log as `--page details` prints it: a row for every metric, empty cells where advice would stand."""
    names = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
             "Device", "CC"]  # fmt: skip
    rows = [[*names, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type",
             "Rule Description"]]  # fmt: skip
    for identity, metrics in measured(text):
        fixed = [identity[name] for name in names]
        rows += [[*fixed, "Command line profiler metrics", *metric, "", "", ""] for metric in metrics]
        rows.append(
            [*fixed, "Occupancy", "", "", "", "Occupancy", "WRN", 'Theoretical occupancy is "low", about 6,25%.']
        )
    return printed(rows)


def console(text: str, *, old: bool = False) -> str:
    """The same log as ncu prints it without --csv; `old`: as before 2022."""
    lines = ["==PROF== Connected to process 718 (/usr/bin/python3.12)", "epoch 1, Context 3: loss 0.25", ""]
    lines += ["==PROF== Disconnected from process 718", "[718] python3.12@127.0.0.1"]
    for identity, metrics in measured(text):
        end = f"Context {identity['Context']}, Stream {identity['Stream']}"
        name = identity["Kernel Name"]
        sizes = f"{identity['Grid Size']}x{identity['Block Size']}"
        heading = (
            f"{name}, 2023-Apr-25 02:52:58, {end}" if old else f"{name} {sizes}, {end}, Device 0, CC {identity['CC']}"
        )
        widths = (70, 15, 30) if old else (max(len(metric[0]) for metric in metrics), 11, 14)
        ruler = "    " + " ".join("-" * width for width in widths)
        lines += [f"  {heading}", "    Section: Command line profiler metrics", ruler]
        if not old:
            lines += [
                "    " + f"{'Metric Name':{widths[0]}} {'Metric Unit':>{widths[1]}} {'Metric Value':>{widths[2]}}",
                ruler,
            ]
        lines += [f"    {name:{widths[0]}} {unit:>{widths[1]}} {value:>{widths[2]}}" for name, unit, value in metrics]
        lines += [ruler, "    OPT   This workload is small: 4 blocks of 128 threads.", ""]
    return "\n".join([*lines, ""])
