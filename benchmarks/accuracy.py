"""Predictions of this version beside every step that somebody published (judged_steps.py).

usage: accuracy.py [--only SOURCE] [--on DEVICE] [--tier TIER] [--quick]    prints errors by source and device
       accuracy.py --trace [--quick]                                        fills build/published-traces/ first
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from judged_steps import PublishedStep, device_named, steps
from judged_traces import NotTraced, group_of, prepared, trace_all

from rooflight.prediction.device_run import device_runs, gap_of
from rooflight.prediction.tiers import predictor


@dataclass(frozen=True)
class Outcome:
    """A published step beside its prediction. Seconds."""

    step: PublishedStep
    predicted_s: float
    low_s: float
    high_s: float
    tier: str

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
    outcomes: list[Outcome] = []
    left: list[tuple[PublishedStep, str]] = []
    predictors = {name: predictor(device_named(name), tier) for name in {row.device for row in rows}}
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
            (run,) = device_runs(step, [predictors[row.device]])
            prediction = run.prediction()
            if row.scope == "wall":
                value, interval, more = prediction.time_s, prediction.time_interval_s, 0.0
            else:
                gaps = gap_of(run.predictor, graphs=False) * float(run.times.kernels.sum())
                more = gaps if row.scope == "events" else 0.0
                value, interval = prediction.gpu_time_s, prediction.gpu_time_interval_s
            outcomes.append(Outcome(row, value + more, interval.low + more, interval.high + more, prediction.tier))
    return outcomes, left


# --- the table ---

Group = Callable[[Outcome], tuple[str, ...]]


def by_source(outcome: Outcome) -> tuple[str, ...]:
    step = outcome.step
    kind = "nhwc" if step.channels_last else ""
    if step.source == "kernelbench":
        kind = step.family
    elif step.source.startswith("h200"):
        kind = step.scope
    return step.source, step.device, step.step, kind, outcome.tier


def table(outcomes: Iterable[Outcome], group: Group = by_source) -> str:
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(group(outcome), []).append(outcome)
    lines = ["source          device                step  kind          tier          n    mean  median    p90   worst  signed  inside"]
    for key, some in sorted(groups.items()):
        source, device, step, kind, tier = key
        lines.append(
            f"{source:15} {device:21} {step:5} {kind:13} {tier:12} {len(some):4} {' '.join(statistics_of(some))}"
        )
    return "\n".join(lines)


def statistics_of(outcomes: Sequence[Outcome]) -> list[str]:
    absolute = sorted(abs(outcome.error) for outcome in outcomes)
    p90 = absolute[math.ceil(0.9 * len(absolute)) - 1]
    values = (statistics.fmean(absolute), statistics.median(absolute), p90, absolute[-1])
    signed = statistics.fmean(outcome.error for outcome in outcomes)
    inside = sum(outcome.inside for outcome in outcomes) / len(outcomes)
    return [f"{value:7.1%}" for value in values] + [f"{signed:+7.1%}", f"{inside:7.0%}"]


def worst(outcomes: Iterable[Outcome], count: int) -> str:
    largest = sorted(outcomes, key=lambda outcome: -abs(math.log(outcome.predicted_s / outcome.step.published_s)))
    return "\n".join(
        f"{o.error:+8.0%}  {1e3 * o.step.published_s:10.3f} ms  {o.step.source} {o.step.device} {o.step.name}"
        for o in largest[:count]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="SOURCE")
    parser.add_argument("--on", metavar="DEVICE")
    parser.add_argument("--tier")
    parser.add_argument("--quick", action="store_true", help="a part of timm's and KernelBench's rows")
    parser.add_argument("--trace", action="store_true", help="make the traces that are not there")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="show the N worst rows, too")
    given = parser.parse_args()
    rows = [row for row in steps(given.only, quick=given.quick) if given.on in (None, row.device)]
    if given.trace:
        trace_all(rows)
        return
    outcomes, left = errors(rows, given.tier)
    print(table(outcomes))
    if given.worst:
        print(worst(outcomes, given.worst))
    reasons: dict[str, int] = {}
    for _, why in left:
        reasons[why] = reasons.get(why, 0) + 1
    for why, count in sorted(reasons.items(), key=lambda pair: -pair[1])[:12]:
        print(f"{count} rows not predicted: {why}")


if __name__ == "__main__":
    main()
