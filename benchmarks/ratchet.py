"""Compute every figure of ratchet.toml again, and fail where one is worse than its bar.

    python benchmarks/ratchet.py                  all groups, two at a time; speed alone, at the end
    python benchmarks/ratchet.py --only GROUP     these groups alone (may be repeated)
    python benchmarks/ratchet.py --write          the same, and lower the bars that were beaten; no bar is raised

It needs no GPU and no network, and traces every step anew. docs/decisions/0048 says what is held, and why.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent
BARS = HERE / "ratchet.toml"
AT_ONCE = 2
Verdict = Literal["worse", "better", "as before", "no bar", "not computed"]
FAILS = ("worse", "no bar", "not computed")
_ROUNDING = 1e-12
_LINE = re.compile(r"(?P<name>[\w-]+) = (?P<bar>[\d.e-]+)(?P<rest>.*)")


@dataclass(frozen=True)
class Unit:
    """How figures of one kind are compared."""

    better: Literal["lower", "higher", "target"]
    floor: float
    """A difference that always passes."""
    slack: float = 0.05
    """A difference that passes, as a share of the bar."""
    target: float = 0.0
    """Where `better` is `target`: the bar is the distance below it, and all above is as good."""
    shown: str = ".2%"
    fixed: bool = False
    """A bar that was decided: it is not lowered when it is beaten."""

    def badness(self, value: float) -> float:
        return {"lower": value, "higher": -value, "target": max(0.0, self.target - value)}[self.better]

    def verdict(self, bar: float, now: float) -> Verdict:
        worse = self.badness(now) - self.badness(bar)
        passes = max(self.slack * abs(self.badness(bar)), self.floor) + _ROUNDING
        if not math.isfinite(now) or worse > passes:
            return "worse"
        by_more_than_rounding = worse < -1e-3 * abs(self.badness(bar))
        return "better" if by_more_than_rounding and not self.fixed else "as before"


@dataclass(frozen=True)
class Group:
    """Figures that one function makes."""

    name: str
    made_by: str
    """`module.function` in benchmarks/, or `package.module.function` in the repository."""
    of: str | None
    """What the function is asked for, where it makes several groups."""
    alone: bool
    """Durations: nothing else may run meanwhile."""
    recorded: str
    """The commit whose recordings are judged."""
    bars: dict[str, tuple[Unit, float]]


@dataclass(frozen=True)
class Row:
    group: str
    name: str
    unit: Unit | None
    bar: float | None
    now: float | None

    @property
    def verdict(self) -> Verdict:
        if self.unit is None or self.bar is None:
            return "no bar"
        return "not computed" if self.now is None else self.unit.verdict(self.bar, self.now)

    @property
    def cells(self) -> list[str]:
        unit = self.unit or Unit("lower", 0.0, shown=".4g")
        apart = None if self.bar is None or self.now is None else self.now - self.bar
        shown = [format(value, unit.shown) if value is not None else "-" for value in (self.bar, self.now)]
        difference = "-" if apart is None else format(apart, "+" + unit.shown)
        difference = difference if difference.strip("+-0.%") else ""
        return [f"{self.group}.{self.name}", *shown, difference, "" if self.verdict == "as before" else self.verdict]


def groups_of(text: str) -> list[Group]:
    """Read the bars: `units`, and of each group what makes it and a table of figures by unit."""
    data = tomllib.loads(text)
    units = {name: Unit(**given) for name, given in data.pop("units").items()}
    return [_group(name, given, units) for name, given in data.items()]


def _group(name: str, given: dict[str, Any], units: dict[str, Unit]) -> Group:
    bars = {
        figure: (units[unit], float(bar))
        for unit, figures in given.items() if isinstance(figures, dict)
        for figure, bar in figures.items()
    }  # fmt: skip
    return Group(name, given["made_by"], given.get("of"), given.get("alone", False), given.get("recorded", ""), bars)


def compared(group: Group, now: dict[str, float]) -> list[Row]:
    """Every figure that has a bar or was computed."""
    names = dict.fromkeys([*group.bars, *now])
    return [Row(group.name, name, *group.bars.get(name, (None, None)), now.get(name)) for name in names]


def lowered(text: str, rows: Iterable[Row]) -> str:
    """The same file with the bars that were beaten at what they are now; comments stay."""
    beaten = {(row.group, row.name): f"{row.now:.4g}" for row in rows if row.verdict == "better"}
    lines, group = [], ""
    for line in text.splitlines(keepends=True):
        group = line[1:].split("]")[0].split(".")[0] if line.startswith("[") else group
        found = _LINE.match(line)
        now = beaten.get((group, found["name"])) if found else None
        lines.append(line if found is None or now is None else f"{found['name']} = {now}{found['rest']}\n")
    return "".join(lines)


# --- computing ---


def function_of(made_by: str) -> Callable[..., dict[str, float]]:
    module, _, name = made_by.rpartition(".")
    function: Callable[..., dict[str, float]] = getattr(import_module(module), name)
    return function


def computed(group: Group) -> tuple[dict[str, float], float, str]:
    """The figures now, how long they took, and why there are none."""
    start = time.perf_counter()
    warnings.simplefilter("ignore")
    try:
        function = function_of(group.made_by)
        figures = function() if group.of is None else function(group.of)
    except Exception as error:
        return {}, time.perf_counter() - start, f"{type(error).__name__}: {error}"
    return {name: float(value) for name, value in figures.items()}, time.perf_counter() - start, ""


def all_computed(groups: Sequence[Group]) -> Iterator[tuple[Group, dict[str, float], float, str]]:
    """In processes of their own; durations when nothing else runs."""
    together = [group for group in groups if not group.alone]
    with ProcessPoolExecutor(AT_ONCE, get_context("spawn"), max_tasks_per_child=1) as pool:
        yield from ((group, *found) for group, found in zip(together, pool.map(computed, together), strict=True))
    yield from ((group, *computed(group)) for group in groups if group.alone)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if not place else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="GROUP", help="compute this group alone")
    parser.add_argument("--write", action="store_true", help="lower the bars that were beaten")
    options = parser.parse_args(arguments)
    text = BARS.read_text()
    known = {group.name: group for group in groups_of(text)}
    unknown = [name for name in options.only or () if name not in known]
    if unknown:
        parser.error(f"no such group: {', '.join(unknown)}; there are {', '.join(known)}")
    groups = [known[name] for name in options.only or known]
    rows: list[Row] = []
    for group, figures, seconds, failure in all_computed(groups):
        recorded = f", recorded at {group.recorded}" if group.recorded else ""
        print(
            f"{group.name}: {seconds:.0f} s, {group.made_by}{recorded}{': ' + failure if failure else ''}", flush=True
        )
        rows += compared(group, figures)
    print("\n".join(table([["figure", "bar", "now", "difference", ""], *(row.cells for row in rows)])))
    failing = [row for row in rows if row.verdict in FAILS]
    if options.write:
        BARS.write_text(lowered(text, rows))
    print(f"{len(rows)} figures, {len(failing)} fail")
    return 1 if failing else 0


if __name__ == "__main__":
    sys.path[1:1] = [str(HERE.parent)]
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")])
    )
    with tempfile.TemporaryDirectory() as empty:  # a calibration or trace of this user would be taken first
        os.environ["XDG_DATA_HOME"] = os.environ["XDG_CACHE_HOME"] = empty
        sys.exit(main())
