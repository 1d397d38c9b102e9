"""`docs/coverage.md`, written from what `coverage.py` tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_TITLES = {
    "torchvision": "torchvision, every name",
    "timm": "timm",
    "hf": "transformers, `hf:TYPE`",
    "released": "released models by name",
}
_STEPS = {"infer": "inference", "train": "training"}


@dataclass(frozen=True)
class TriedStep:
    """What came of one step of one model."""

    zoo: str
    spec: str
    step: str
    failure: str = ""
    """The line that says why not; empty: it works."""
    flops: int | None = None
    torch_flops: int | None = None
    """The same by FlopCounterMode, where it runs."""
    uncounted: tuple[str, ...] = ()
    """Operators without a formula."""
    unused: str = ""
    """The note on parameters that no op reads."""
    time_s: float = 0.0
    real_data: bool = False
    """It was really run: data decides what it does."""
    versions: str = ""
    """Of the libraries that it was tried with."""


def page(rows: Sequence[TriedStep]) -> str:
    """The whole page."""
    return "\n".join([*_head(rows), *_table(rows), *_failures(rows), *_differences(rows)]) + "\n"


def _head(rows: Sequence[TriedStep]) -> list[str]:
    return [
        "<!-- Made by `python benchmarks/coverage.py --page`. Do not edit: run it again. -->",
        "# Models by name that were tried",
        "",
        "Every model was built by its name and its step traced without data, on default inputs of batch 2.",
        "How the names were chosen, and how to try them again: `benchmarks/coverage.py`. FLOPs are compared with",
        "torch's FlopCounterMode on the same step, where that runs on tensors without data; it forgets the groups of a",
        "convolution in the gradient of its weight, and what it has too many by that is taken off.",
        "",
        *_versions(rows),
        "",
    ]


def _versions(rows: Sequence[TriedStep]) -> list[str]:
    """Which steps were tried with which versions, the most first: of the others the models are named."""
    told: list[str] = []
    for versions, number in Counter(row.versions for row in rows).most_common():
        specs = sorted({row.spec for row in rows if row.versions == versions})
        which = f": {', '.join(f'`{spec}`' for spec in specs)}" if told else ""
        told.append(f"- {number:,} steps were tried with {versions}{which}.")
    return told


def _table(rows: Sequence[TriedStep]) -> list[str]:
    lines = [
        "| zoo | tried | inference works | training works | same FLOPs as FlopCounterMode |",
        "|---|---|---|---|---|",
    ]
    for zoo, title in _TITLES.items():
        own = [row for row in rows if row.zoo == zoo]
        if not own:
            continue
        works = [_works([row for row in own if row.step == step]) for step in _STEPS]
        same = _share([row.flops == row.torch_flops for row in own if row.torch_flops is not None])
        lines.append(f"| {title} | {len({row.spec for row in own})} | {' | '.join(works)} | {same} |")
    return [*lines, ""]


def _works(rows: Sequence[TriedStep]) -> str:
    on_data = sum(row.real_data and not row.failure for row in rows)
    return _share([not row.failure for row in rows]) + (f", {on_data} with `--real-data`" if on_data else "")


def _share(answers: Sequence[bool]) -> str:
    return f"{sum(answers)} of {len(answers)} ({sum(answers) / len(answers):.1%})" if answers else ""


def _failures(rows: Sequence[TriedStep]) -> list[str]:
    """What fails, by its line: those that fail alike stand together."""
    by_line: dict[str, list[TriedStep]] = {}
    for row in rows:
        if row.failure:
            by_line.setdefault(_without_name(row), []).append(row)
    if not by_line:
        return []
    lines = ["## What fails", "", "| models | step | line |", "|---|---|---|"]
    for line, alike in sorted(by_line.items(), key=lambda item: -len(item[1])):
        specs = ", ".join(f"`{spec}`" for spec in sorted({row.spec for row in alike}))
        steps = ", ".join(word for step, word in _STEPS.items() if any(row.step == step for row in alike))
        lines.append(f"| {specs} | {steps} | {_cell(line)} |")
    return [*lines, ""]


def _differences(rows: Iterable[TriedStep]) -> list[str]:
    other = [row for row in rows if row.torch_flops is not None and row.torch_flops != row.flops]
    if not other:
        return []
    lines = [
        "## Other FLOPs than FlopCounterMode's",
        "",
        "| model | step | rooflight | FlopCounterMode | ratio |",
        "|---|---|---|---|---|",
    ]
    for row in other:
        ratio = f"{row.flops / row.torch_flops:.4f}" if row.flops and row.torch_flops else ""
        lines.append(f"| `{row.spec}` | {_STEPS[row.step]} | {row.flops:,} | {row.torch_flops:,} | {ratio} |")
    return [*lines, ""]


def _without_name(row: TriedStep) -> str:
    return row.failure.replace(row.spec, "MODEL")


def _cell(line: str) -> str:
    return line.replace("|", "\\|").replace("<", "&lt;")
