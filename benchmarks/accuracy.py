"""Predictions of this version beside every step that somebody timed (judged_steps.py).

usage: accuracy.py [--only SOURCE] [--on DEVICE] [--tier TIER] [--quick] [--worst N]   prints errors, in about a minute
       accuracy.py --trace [--quick]      makes the traces that are not in build/published-traces/ (half an hour from
                                          nothing; needs timm, torchvision, transformers), which all else reads
       accuracy.py --write                predicts every row by every tier: the table that comes with rooflight
       accuracy.py --pages                docs/accuracy.md and docs/predicting-published.md, from that table
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

import numpy as np
from judged_steps import ROOT, SOURCES, PublishedStep, device_named, steps
from judged_traces import NotTraced, group_of, in_empty_folder, prepared, trace_all
from time_errors import TimeError, time_figures

from rooflight import __version__
from rooflight.errors import BadInput
from rooflight.prediction.checked_steps import (
    FORMAT_VERSION,
    NAME,
    PARTS,
    CheckedStep,
    CheckedSteps,
    ErrorSpread,
    encoded,
    shipped_steps,
)
from rooflight.prediction.clocks import Clocks
from rooflight.prediction.device_run import (
    DeviceRun,
    SpecTier,
    TimeSource,
    device_runs,
    gap_of,
    host_of,
    predicted,
)
from rooflight.prediction.host_speed import IDLE_CALL
from rooflight.prediction.result import Interval
from rooflight.prediction.tiers import ORIGIN, TIERS, Predictor, predictor
from rooflight.step.costed_step import Step
from rooflight.step.model_kind import kind_of

TABLE = ROOT / "src" / "rooflight" / "hardware" / "published" / NAME
_DIGITS = 4


@dataclass(frozen=True)
class Outcome:
    """A timed step beside its prediction. Seconds."""

    step: PublishedStep
    predicted_s: float
    low_s: float
    high_s: float
    tier: str
    kind: str
    """What the model mostly does, by its ops."""
    guessed: bool
    """Does rooflight say of some of its ops that nothing like them was timed?"""
    host_bound: bool

    @property
    def error(self) -> float:
        return self.predicted_s / self.step.published_s - 1

    @property
    def inside(self) -> bool:
        return self.low_s <= self.step.published_s <= self.high_s


def errors(
    rows: Sequence[PublishedStep], tier: str | None = None, *, make: bool = False
) -> tuple[list[Outcome], list[tuple[PublishedStep, str]]]:
    """Outcomes of the rows that have a trace, and the others with the reason. `make`: trace what is not there yet."""
    sources = {name: (source_of(name, tier),) for name in {row.device for row in rows}}
    return outcomes(rows, sources, make=make)


def source_of(device: str, tier: str | None) -> TimeSource:
    return SpecTier(device_named(device)) if tier == "spec" else predictor(device_named(device), tier)


def outcomes(
    rows: Sequence[PublishedStep], sources: Mapping[str, Sequence[TimeSource]], *, make: bool = False
) -> tuple[list[Outcome], list[tuple[PublishedStep, str]]]:
    """Every row by every source of times of its device."""
    done: list[Outcome] = []
    left: list[tuple[PublishedStep, str]] = []
    ordered = sorted(rows, key=lambda row: (row.trace.model, str(group_of(row))))
    for _, group in groupby(ordered, key=group_of):
        some = list(group)
        try:
            trace = prepared(some[0], make=make)
        except NotTraced as why:
            left += [(row, str(why)) for row in some]
            continue
        for row in some:
            step = trace.at(None if trace.prime is None else row.batch)
            done += [_outcome(row, step, source) for source in sources[row.device]]
    return done, left


def _outcome(row: PublishedStep, step: Step, source: TimeSource) -> Outcome:
    gaps_s = 0.0
    if isinstance(source, SpecTier):
        prediction = predicted(step, source)
    else:
        (run,) = device_runs(step, [source])
        prediction = run.prediction()
        gaps_s = gap_of(source, graphs=False) * float(run.times.kernels.sum()) if row.scope == "events" else 0.0
    if row.scope == "wall":
        value, interval = prediction.time_s, prediction.time_interval_s
    elif row.scope == "call" and isinstance(source, Predictor):
        value, interval = _one_call(run)
    else:
        value, interval = prediction.gpu_time_s, prediction.gpu_time_interval_s
    kind = row.family if row.family in PARTS else kind_of(step)
    return Outcome(
        row, value + gaps_s, interval.low + gaps_s, interval.high + gaps_s, prediction.tier, kind,
        guessed=bool(step.guessed.any()), host_bound=prediction.bound == "host",
    )  # fmt: skip


def _one_call(run: DeviceRun) -> tuple[float, Interval]:
    """Of a step that begins on an idle device: nothing was launched ahead."""
    gaps = run.times.kernels * gap_of(run.predictor, graphs=False)
    work = run.times.seconds + np.where(run.times.seconds > 0, gaps, 0.0)
    host = host_of(run.step, run.predictor, run.times.kernels)
    clocks = Clocks(host.tolist(), work.tolist(), meets=run.step.waits.tolist())
    clocks.run(range(len(host)))
    idle = run.predictor.host.get(IDLE_CALL)
    value = clocks.device_s + (0.0 if idle is None else float(idle.value))
    waited = max(0.0, value - float(work.sum()))
    deviation = math.hypot(run.predictor.host_speed.deviation * waited, run.times.deviation_s)
    return value, Interval.around(value, deviation, least=float(run.times.floor_s.sum()))


def figures(rows: str) -> dict[str, float]:
    """Return the figures of published steps by device; `rows`: the source, and the kind of step if not all of them.

    Every step is traced anew: a kept trace may be older than the code.
    """
    source, _, step = rows.partition(" ")
    with in_empty_folder():
        done, _ = errors([row for row in steps(source) if step in ("", row.step)], make=True)
    groups: dict[str, list[TimeError]] = {}
    for one in done:
        name = f"{one.step.device}-{one.step.scope}" if source.startswith("h200") else one.step.device
        judged = TimeError.of(one.step.published_s, one.predicted_s, one.low_s, one.high_s)
        groups.setdefault(name, []).append(judged)
    found: dict[str, float] = {}
    for name, some in sorted(groups.items()):
        found |= {f"{name}_steps": len(some), **time_figures(name, some)}
    return found


# --- the table on the screen ---


def by_source(outcome: Outcome) -> tuple[str, ...]:
    step = outcome.step
    kind = "nhwc" if step.channels_last else ""
    if step.source == "kernelbench":
        kind = step.family
    elif step.source.startswith("h200"):
        kind = step.scope
    return step.source, step.device, step.step, kind, outcome.tier


def spread_of(some: Sequence[Outcome]) -> ErrorSpread:
    return ErrorSpread.of([(outcome.error, outcome.inside) for outcome in some])


def table(done: Sequence[Outcome]) -> str:
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in done:
        groups.setdefault(by_source(outcome), []).append(outcome)
    words = ("source", "device", "step", "kind", "tier")
    widths = (13, 18, 5, 12, 11)
    heading = [f"{word:{width}}" for word, width in zip(words, widths, strict=True)]
    lines = [" ".join([*heading, "   n    mean  median     p90   worst  signed  inside"])]
    for key, some in sorted(groups.items()):
        spread = spread_of(some)
        values = (spread.mean, spread.median, spread.p90, spread.worst)
        cells = [f"{word:{width}}" for word, width in zip(key, widths, strict=True)]
        cells += [
            f"{len(some):4}",
            *(f"{value:7.1%}" for value in values),
            f"{spread.signed:+7.1%}",
            f"{spread.inside:7.0%}",
        ]
        lines.append(" ".join(cells))
    return "\n".join(lines)


def worst(done: Sequence[Outcome], count: int) -> Iterator[str]:
    largest = sorted(done, key=lambda outcome: -abs(np.log(outcome.predicted_s / outcome.step.published_s)))
    for one in largest[:count]:
        yield f"{one.error:+8.0%} {1e3 * one.step.published_s:10.3f} ms  {one.step.source} {one.step.device} {one.step.name}"


# --- the table that comes with rooflight ---


def all_sources(device: str) -> dict[str, TimeSource]:
    """By tier, the default first. Carried over to itself, the origin would only be the calibrated tier again."""
    found: dict[str, TimeSource] = {}
    for tier in (None, *TIERS):
        if device == ORIGIN and tier == "transferred":
            continue
        try:
            source = source_of(device, tier)
        except BadInput:
            continue
        name = "spec" if isinstance(source, SpecTier) else source.tier
        if tier in (None, name):
            found.setdefault(name, source)
    return found


def checked_steps(rows: Sequence[PublishedStep]) -> tuple[CheckedSteps, list[tuple[PublishedStep, str]]]:
    sources = {name: all_sources(name) for name in {row.device for row in rows}}
    done, left = outcomes(rows, {name: list(some.values()) for name, some in sources.items()})
    by_row: dict[PublishedStep, list[Outcome]] = {}
    for outcome in done:
        by_row.setdefault(outcome.step, []).append(outcome)
    table = CheckedSteps(
        format_version=FORMAT_VERSION,
        rooflight=__version__,
        made=f"{datetime.now(UTC):%Y-%m-%d}",
        sources=SOURCES,
        tiers={device_named(name).name: next(iter(some)) for name, some in sorted(sources.items())},
        rows=tuple(_checked(row, by_row[row]) for row in rows if row in by_row),
    )
    return table, left


def _checked(row: PublishedStep, done: Sequence[Outcome]) -> CheckedStep:
    return CheckedStep(
        source=row.source,
        device=device_named(row.device).name,
        model=row.model,
        kind=done[0].kind,
        step=row.step,
        batch=row.batch,
        size=row.size,
        precision=row.precision,
        channels_last=row.channels_last,
        scope=row.scope,
        published_s=_rounded(row.published_s),
        predictions={one.tier: (_rounded(one.predicted_s), _rounded(one.low_s), _rounded(one.high_s)) for one in done},
        guessed=done[0].guessed,
        host_bound=done[0].host_bound,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


# --- the command ---


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="SOURCE", choices=list(SOURCES))
    parser.add_argument("--on", metavar="DEVICE")
    parser.add_argument("--tier")
    parser.add_argument("--quick", action="store_true", help="a part of timm's and KernelBench's rows")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="show the N worst rows, too")
    parser.add_argument("--trace", action="store_true", help="make the traces that are not there")
    parser.add_argument("--write", action="store_true", help="write the table that comes with rooflight")
    parser.add_argument("--pages", action="store_true", help="write the pages of the docs from that table")
    given = parser.parse_args()
    if given.pages and not given.write:
        _write_pages()
        return
    rows = [row for row in steps(given.only, quick=given.quick) if given.on in (None, row.device)]
    if given.trace:
        trace_all(rows)
        return
    if given.write:
        _write(rows, whole=not (given.only or given.on or given.quick), pages=given.pages)
        return
    done, left = errors(rows, given.tier)
    print(table(done))
    for line in worst(done, given.worst):
        print(line)
    _say_left(left)


def _write(rows: Sequence[PublishedStep], *, whole: bool, pages: bool) -> None:
    if not whole:
        sys.exit("the table that comes with rooflight has all rows: leave --only, --on and --quick out")
    checked, left = checked_steps(rows)
    if any("not traced yet" in why for _, why in left):
        sys.exit("traces are missing: run `python benchmarks/accuracy.py --trace` first, which needs timm")
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_bytes(encoded(checked))
    shipped_steps.cache_clear()
    _say_left(left)
    print(f"{TABLE.relative_to(ROOT)}: {len(checked.rows):,} rows, {TABLE.stat().st_size / 1e3:.0f} kB")
    if pages:
        _write_pages()


def _write_pages() -> None:
    import accuracy_page
    import predict_published

    accuracy_page.write()
    predict_published.write()


def _say_left(left: Sequence[tuple[PublishedStep, str]]) -> None:
    reasons: dict[str, list[str]] = {}
    for row, why in left:
        reasons.setdefault(why, []).append(row.model)
    for why, models in sorted(reasons.items(), key=lambda pair: -len(pair[1])):
        print(f"{len(models)} rows not predicted ({', '.join(sorted(set(models))[:3])}): {why}")


if __name__ == "__main__":
    main()
