"""docs/accuracy.md, from the table of timed steps that comes with rooflight: written by `accuracy.py --pages`."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from judged_steps import NEUSIGHT, ROOT, device_named, device_reported

from rooflight.formatting import seconds
from rooflight.prediction.accuracy import Accuracy, AccuracyGroup, accuracy
from rooflight.prediction.checked_steps import CheckedStep, judged, shipped_steps, spread_of
from rooflight.reporting.sections.accuracy_document import CONVENTIONS, spread_cells

PAGE = ROOT / "docs" / "accuracy.md"
_WORST = 25
_HEADING = ("rows", "mean", "median", "p90", "worst", "signed", "in 90%")


def write(path: Path = PAGE) -> None:
    path.write_text(page(accuracy()))
    print(f"wrote {path.relative_to(ROOT)}")


def page(whole: Accuracy) -> str:
    steps = whole.steps
    assert steps is not None
    devices = len({row.device for row in whole.rows})
    sections = [
        "<!-- Made by `python benchmarks/accuracy.py --pages`. Do not edit: run it again. -->\n"
        "# How far predictions are off",
        "## Steps that nobody has looked at",
        _sealed(),
        "## Steps that others timed",
        f"{len(whole.rows):,} times that others published or that were recorded, on {devices} devices, beside what "
        f"rooflight {whole.rooflight} predicts ({whole.made}). Single ops, not these rows, chose "
        "what predicts them ([what is held out](decisions/0031-what-is-held-out.md)). Not all was decided unseen: that "
        "hosts of other GPUs are unlike the calibrated one, and which ops no calibrated family resembled, was seen in "
        "KernelBench's rows, and was then timed or fitted on other ops ([decision 35](decisions/0035-whose-host.md)); a "
        "rule for boards that their power holds back in the T4's ([decision "
        "34](decisions/0034-points-correct-a-transfer.md)). The same for one device, or for models like yours: "
        "`rooflight accuracy --on t4`, `rooflight accuracy --like resnet50`; every prediction says how far those of its "
        "device were off.",
        f"Of whole steps: {_sentence(whole)} An error is{CONVENTIONS.removeprefix('an error is')}.",
        "## By device",
        "Each by the tier that `rooflight predict` takes for it. Single ops and chains of ops are KernelBench's: most "
        "take less than a millisecond, so that much of them is the host's time.",
        _groups(("device", "what", "tier"), whole.by("device")),
        "Times of kernels alone, where they were recorded:",
        _groups(("device", "what", "tier"), whole.by("kernels")),
        "## Whole steps by every tier",
        _tiers(whole.rows),
        "## Beside NeuSight",
        "On the rows of NeuSight's authors, with the mean errors of their own predictions of the same rows; all rows are "
        "in [predicting-published.md](predicting-published.md).",
        _beside_neusight(whole.rows),
        "## By kind of model",
        "The kind is told by the ops: recurrent layers; else attention, or most multiply-adds in convolutions, or both "
        "(hybrid), or neither (mlp).",
        _groups(("kind", "tier"), whole.by("kind")),
        "## By length of the step",
        _groups(("length", "tier"), whole.by("length")),
        "## By what bounds the step",
        "Where the host is the limit, the error is mostly that of a host that nobody described: rooflight takes the one of "
        "its calibration.",
        _groups(("bound", "tier"), whole.by("bound")),
        "## By what the ops rest on",
        "A prediction names the ops that nothing calibrated resembles: their times are guesses.",
        _groups(("evidence", "tier"), whole.by("evidence")),
        "## By source",
        _groups(("source", "tier"), whole.by("source")),
        *(f"- **{name}**: {source.title}. Timed: {source.timed}. {source.url}." for name, source in whole.sources.items()),
        "Which of timm's models: every fourth pair of name and image size in alphabetical order, chosen before any was "
        "predicted. KernelBench's times were taken before its problems were made larger (`b08d959`): they are predicted "
        "with the shapes of `a6dea99`. Licences: `hardware/published/NOTICE.md` in the package.",
        "## Farthest off",
        _worst(whole.rows),
        "## Never checked",
        *(f"- {note.text[:1].upper()}{note.text[1:]}." for note in whole.notes),
        "## How it is made",
        "`python benchmarks/accuracy.py --write --pages` predicts every row again and writes the table that comes with "
        "rooflight, this page and the one beside it, in about three minutes. It reads traces in "
        "`build/published-traces/`; where those are missing, `python benchmarks/accuracy.py --trace` makes them in half "
        "an hour (with timm, torchvision and transformers installed).",
    ]  # fmt: skip
    return "\n\n".join(sections).replace(".\n\n- **", ".\n- **").replace(".\n\n- ", ".\n- ") + "\n"


def _sealed() -> str:
    """The last look at the sealed half of the drawn steps."""
    with (ROOT / "benchmarks" / "sealed_looks.csv").open() as file:
        *_, look = csv.DictReader(file)
    share = {name: float(value) for name, value in look.items() if name not in ("date", "work", "commit")}
    return (
        f"{look['predicted']} steps, each of another model of timm, torchvision or transformers, drawn at random, measured "
        "on an H200 and sealed: no constant was chosen by them, and no row of them has been read ([decision "
        f"49](decisions/0049-a-sealed-draw.md)). At commit {look['commit']} ({look['date']}) GPU time is "
        f"{share['gpu_mean']:.1%} off in the mean, {share['gpu_p90']:.0%} at the 90th percentile and "
        f"{share['gpu_worst']:.0%} at worst; {share['gpu_coverage']:.0%} lie inside the 90% interval, whose half-width is "
        f"{share['gpu_half_width']:.1%} in the median. Wall time is {share['wall_mean']:.0%} off where the GPU bounds the "
        f"step, {share['wall_host_bound_mean']:.0%} where the host does; allocated peak memory "
        f"{share['allocated_median']:.1%} in the median, {share['allocated_p90']:.1%} at the 90th percentile. These are the "
        "figures to expect of a model of your own."
    )


def _sentence(whole: Accuracy) -> str:
    steps = whole.steps
    assert steps is not None
    return (
        f"{steps.rows:,} rows, {steps.mean:.0%} off in the mean, {steps.median:.0%} in the median; {steps.inside:.0%} "
        "inside their 90% interval."
    )


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _groups(heading: Sequence[str], groups: Sequence[AccuracyGroup]) -> str:
    names = {"device": "name", "kind": "name", "length": "name", "source": "name", "bound": "name", "evidence": "name"}
    fields = [names.get(name, name) for name in heading]
    return _table(
        (*heading, *_HEADING),
        ((*(getattr(group, field) for field in fields), *spread_cells(group.errors)) for group in groups),
    )


def _tiers(rows: Sequence[CheckedStep]) -> str:
    lines = []
    steps = [row for row in rows if row.is_step]
    for device in dict.fromkeys(group.name for group in accuracy().by("device")):
        of_device = [row for row in steps if row.device == device]
        for tier in dict.fromkeys(name for row in of_device for name in row.predictions):
            usual = " (usual)" if tier == shipped_steps().tiers[device] else ""
            lines.append((device, f"{tier}{usual}", *spread_cells(spread_of(judged(of_device, tier)))))
    return _table(("device", "tier", *_HEADING), lines)


def _beside_neusight(rows: Sequence[CheckedStep]) -> str:
    theirs: dict[tuple[str, str], list[float]] = {}
    data = json.loads(NEUSIGHT.read_text())
    for row in data["rows"]:
        device, model = device_reported(row["device"]), data["models"][row["model"]]
        predicted_s = row["theirs_s"].get("neusight")
        known = "why_not" not in model.get(row["step"], model)
        if known and device is not None and predicted_s is not None and row["timed"] in ("infer", "train"):
            key = device_named(device).name, row["step"]
            theirs.setdefault(key, []).append(abs(predicted_s / row["time_s"] - 1))
    groups: dict[tuple[str, str], list[tuple[CheckedStep, str]]] = {}
    for pair in judged([row for row in rows if row.source == "neusight"]):
        groups.setdefault((pair[0].device, pair[0].step), []).append(pair)
    lines = []
    for (device, step), pairs in groups.items():
        spread, beside = spread_of(pairs), theirs.get((device, step))
        cells = "–" if beside is None else f"{statistics.fmean(beside):.1%} ({len(beside)})"
        lines.append((device, step, pairs[0][1], str(len(pairs)), f"{spread.mean:.1%}", f"{spread.inside:.0%}", cells))
    return _table(("device", "step", "tier", "rows", "rooflight: mean", "in 90%", "NeuSight: mean (rows)"), lines)


def _worst(rows: Sequence[CheckedStep]) -> str:
    pairs = [pair for pair in judged(rows) if pair[0].is_step]
    ratios = sorted(pairs, key=lambda pair: max(r := 1 + pair[0].error(pair[1]), 1 / r), reverse=True)
    lines = []
    for row, tier in ratios[:_WORST]:
        batch = "–" if row.batch is None else f"{row.batch:,}"
        times = seconds(row.published_s), seconds(row.predictions[tier][0])
        error = f"{row.error(tier):+.0%}".replace("-", "−")
        lines.append((row.device, row.source, f"`{row.model}`", row.step, batch, *times, error))
    heading = ("device", "source", "model", "step", "batch", "measured", "predicted", "error")
    return (
        f"The {_WORST} steps whose ratio of predicted to measured time is farthest from 1.\n\n{_table(heading, lines)}"
    )
