"""Predicted peak memory against steps measured on an H200, and beside other tools. Needs no GPU.

    python benchmarks/memory.py                   errors on the measured steps, printed (a minute)
    python benchmarks/memory.py --write           the same, and docs/memory-errors.md written anew
    python benchmarks/memory.py --peers           other tools on the same 120 steps (seven minutes)
    python benchmarks/memory.py --peers --write   the same, and the section of docs/benchmarks.md written anew
    --save FILE, --load FILE                      keep what the other tools said and all times; show them again beside
                                                  what rooflight predicts now

`--peers` wants an environment that has the other tools (`make bench` makes one).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import left_out_workspaces
from largest_rows import Limit, largest_batches
from memory_rows import HELD_OUT, Measured, Outcome, held_out_rows, outcomes, reference_rows, reserved_as_measured
from predict_rows import Spread

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "memory-errors.md"
LARGE = 0.1
"""An error above this, of what is allocated or reserved, has its reason told."""

# --- reasons ---

EARLIER_WORKSPACE = (
    "The rows share a process, in which cuBLAS's workspace has a segment of its own since an earlier row. In a process "
    "of its own, which is what is predicted, it is cut from a cached block that an op has given back, and the step then "
    "needs other blocks."
)
EMPTIED_CACHE = (
    "The cache was emptied before the measured step. What is predicted is a loop that never does so, whose steps find the "
    "blocks of earlier ones: where these serve, less is reserved, and more where they were split and do not."
)
TIED_HEAD = (
    "The weight that the head had before it was tied to the embedding was in the cache when the model was cast: the cast "
    "embedding took half of its block, and the other half stays reserved."
)
PROTOTYPE = (
    "`nn.Transformer` copies a layer six times and drops it: what its weights leave free among those of the copies cannot "
    "be given back. That is half of what is missing (found by hand, not simulated below); of the other half nothing is known."
)
BUILDING = (
    "Building and casting the model had left blocks in the cache, and cuBLAS's workspace went into one of them; what is "
    "predicted begins with an empty cache."
)
STATE_FIRST = (
    "The stage of a measurement lets the optimizer make its state before the first step, which leaves other blocks."
)
CACHE_TWICE = (
    "The script that measured held a second copy of the cache of keys and values, to start every step from: 188 MiB. "
    "Without it 1,155 MiB were allocated at the peak."
)
OTHER_FORM = (
    "The convolution at the peak borrows another amount than the layers most like it do, and in a step this small one "
    "segment of 20 MiB more or less is that much."
)
OTHER_AMOUNTS = (
    "Seven convolutions borrow other amounts than the layers most like them, which hardly moves the allocated peak, but "
    "which cached blocks serve depends on each. Simulated by hand with the measured amounts, after an earlier row, it came "
    "out within 2%; that is not among the simulations below."
)
REASONS: dict[str, str] = {
    "mnist_cnn infer fp32 b64": OTHER_FORM,
    "mnist_cnn train fp32 b32": OTHER_FORM,
    "googlenet infer fp32 b1": OTHER_FORM,
    "torchvision:vgg13_bn infer bf16 b24": BUILDING,
    "hf:llama s1024 train bf16 b4, checkpoint blocks": STATE_FIRST,
    "hf:llama decode bf16 b16, past 1500": CACHE_TWICE,
    "alexnet infer fp32 b64": EARLIER_WORKSPACE,
    "alexnet infer bf16 b1": EARLIER_WORKSPACE,
    "alexnet infer bf16 b16": EARLIER_WORKSPACE,
    "alexnet infer bf16 b64": EARLIER_WORKSPACE,
    "googlenet infer bf16 b64": EARLIER_WORKSPACE,
    "vgg11 infer fp32 b64": EARLIER_WORKSPACE,
    "vgg16 infer fp32 b16": EARLIER_WORKSPACE,
    "vgg16 infer fp32 b64": EARLIER_WORKSPACE,
    "vgg19 infer fp32 b16": EARLIER_WORKSPACE,
    "vgg19 infer fp32 b64": EARLIER_WORKSPACE,
    "resnet18 infer fp32 b16": EARLIER_WORKSPACE,
    "resnet18 infer fp32 b64": EARLIER_WORKSPACE,
    "resnet18 infer bf16 b64": EARLIER_WORKSPACE,
    "resnet50 infer bf16 b16": EARLIER_WORKSPACE,
    "resnet50 infer bf16 b64": EARLIER_WORKSPACE,
    "gpt2_s128 infer bf16 b1": TIED_HEAD,
    "gpt2_s128 infer bf16 b16": TIED_HEAD,
    "gpt2_s1024 infer bf16 b1": TIED_HEAD,
    "distilbert_s128 infer bf16 b1": TIED_HEAD,
    "transformer_s128 infer fp32 b1": PROTOTYPE,
    "gpt2_s1024 train bf16 b32": EMPTIED_CACHE,
    "distilbert_s128 train fp32 b8": EMPTIED_CACHE,
    "torchvision:efficientnet_b3 infer bf16 b24": EMPTIED_CACHE,
    "torchvision:efficientnet_b3 infer fp32 b24": EMPTIED_CACHE,
    "torchvision:vgg13_bn infer fp32 b24": EMPTIED_CACHE,
    "torchvision:efficientnet_v2_s infer bf16 b24": EMPTIED_CACHE,
    "torchvision:regnet_y_800mf infer fp32 b24": EMPTIED_CACHE,
    "torchvision:mobilenet_v3_large infer fp32 b24": EMPTIED_CACHE,
    "torchvision:densenet169 infer fp32 b24": EMPTIED_CACHE,
    "hf:qwen2 s384 train bf16 b4": STATE_FIRST,
    "torchvision:vgg13_bn train fp32 b16": OTHER_AMOUNTS,
}
"""By row, of all that are off by more than `LARGE`."""
NOT_PLAYED = (OTHER_FORM, PROTOTYPE, OTHER_AMOUNTS)
"""What no other history explains: in all other rows, that in which they were measured does (`PLAYED`)."""
PLAYED = 0.06


def unexplained(rows: Sequence[Outcome]) -> list[str]:
    """Rows that are far off and have no reason, with what is known of their peak."""
    return [f"{row.name}: allocated {signed(row.allocated_error)}, reserved {signed(row.reserved_error)}; {at_peak(row)}"
            for row in rows if row.is_off(LARGE) and row.name not in REASONS]  # fmt: skip


def at_peak(row: Outcome) -> str:
    peak = row.memory.peak
    parts = ", ".join(f"{name} {mib(size)}" for name, size in sorted(peak.split.items(), key=lambda one: -one[1])[:3])
    return f"`{peak.name}`{f' in {peak.module}' if peak.module else ''}: {parts} MiB"


# --- groups and tables ---

Error = Callable[[Outcome], float]
ERRORS: dict[str, Error] = {
    "allocated": lambda row: row.allocated_error,
    "reserved": lambda row: row.reserved_error,
    "peak less before": lambda row: row.grown_error,
}


def groups(rows: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """All of them, by kind of step, by precision, and by both."""
    found: dict[str, list[Outcome]] = {"all rows": list(rows)}
    steps = list(dict.fromkeys(row.measured.step for row in rows))
    dtypes = list(dict.fromkeys(row.measured.dtype for row in rows))
    for step in steps:
        found[step] = [row for row in rows if row.measured.step == step]
    for dtype in dtypes:
        found[dtype] = [row for row in rows if row.measured.dtype == dtype]
    for step in steps:
        for dtype in dtypes:
            found[f"{step} {dtype}"] = [row for row in found[step] if row.measured.dtype == dtype]
    return {name: some for name, some in found.items() if some}


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """In Markdown; the first `words` columns are text, the others numbers."""
    rule = ["---" if place < words else "---:" for place in range(len(heads))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))


def summary(rows: Sequence[Outcome], errors: dict[str, Error] = ERRORS) -> str:
    """Median, 90th percentile and maximum of every group."""
    lines = []
    for name, some in groups(rows).items():
        spreads = [Spread.of(map(error, some)) for error in errors.values()]
        cells = [cell for spread in spreads if spread is not None
                 for cell in (percent(spread.median), percent(spread.p90), percent(spread.greatest))]  # fmt: skip
        lines.append([name, str(len(some)), *cells])
    heads = [f"{name}: median" if part == "median" else part for name in errors for part in ("median", "p90", "max")]
    return table(("rows", "n", *heads), lines)


def far_off(rows: Sequence[Outcome], played: dict[str, int]) -> list[str]:
    """The reasons, and a table that names one for every row."""
    found = [row for row in rows if row.is_off(LARGE)]
    if not found:
        return [f"No row is off by more than {LARGE:.0%}."]
    numbers = {why: str(number) for number, why in enumerate(dict.fromkeys(_reasons(found)), start=1)}
    lines = [
        [row.name, at_peak(row), numbers[why], signed(row.allocated_error), signed(row.reserved_error),
         signed(played[row.name] / row.measured.reserved - 1)]
        for row, why in zip(found, _reasons(found), strict=True)
    ]  # fmt: skip
    heads = ("row", "the predicted peak", "reason", "allocated", "reserved", "reserved, simulated as measured")
    return ["\n".join(f"{number}. {why}" for why, number in numbers.items()), table(heads, lines, words=2)]


def _reasons(rows: Sequence[Outcome]) -> list[str]:
    return [REASONS.get(row.name, "**Not known.**") for row in rows]


def every_row(rows: Sequence[Outcome]) -> str:
    lines = [
        [row.name,
         mib(row.measured.allocated), mib(row.memory.peak_allocated_bytes), signed(row.allocated_error),
         mib(row.measured.reserved), mib(row.reserved_bytes), signed(row.reserved_error),
         mib(row.measured.before), mib(row.memory.before_bytes), signed(row.grown_error),
         mib(row.measured.device), mib(row.memory.device_bytes), signed(row.device_error)]
        for row in rows
    ]  # fmt: skip
    heads = ("row, MiB", "allocated", "predicted", "error", "reserved", "predicted", "error", "before the step",
             "predicted", "peak less before: error", "device", "predicted", "error")  # fmt: skip
    return table(heads, lines)


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def signed(value: float) -> str:
    return f"{100 * value:+.1f}%".replace("-", "−")


def mib(size: int) -> str:
    return f"{size / 2**20:,.1f}" if size < 100 * 2**20 else f"{size / 2**20:,.0f}"


# --- docs/memory-errors.md ---


def page(rows: Sequence[Outcome], held_out: Sequence[Outcome]) -> str:
    played = reserved_as_measured((row.measured for row in rows), shared_process=True)
    sections = [
        "<!-- Made by `python benchmarks/memory.py --write`. Do not edit: run it again. -->\n"
        "# How far predicted memory is off on an H200",
        f"{len(rows)} steps of 12 models, measured on an NVIDIA H200 (`tests/data/h200_open.jsonl`, torch 2.11): fp32 and "
        "bf16, inference at batches 1, 16 and 64, training at 8 and 32 (mean-square loss, SGD with momentum for vision, "
        "AdamW for transformers), eager. Each is what `rooflight.predict` says as anybody gets it; how it is worked out "
        "is in [memory.md](memory.md).",
        "Nothing was fitted to these rows. Looking at them led to this: our own ResNet and GoogLeNet now let go of what a "
        "layer has read when torchvision's do, and all the recorded layers come with rooflight, not a fourth of them "
        "(held-out layers had said so too). Errors are relative, predicted over measured less 1; median, 90th percentile "
        "and maximum are of their absolute values. *Allocated* and *reserved* are torch's peaks "
        "(`max_memory_allocated`, `max_memory_reserved`); *peak less before* is the allocated peak less what was "
        "allocated when the step began, which is the part that depends on what runs; *device* is what the driver counts "
        "as used.",
        "Not all that is reserved can be foreseen: it depends on what the process did before. The rows were taken one "
        "after the other in one process, each model built on the GPU in fp32 and then cast; after two steps the cache "
        "was emptied, and the third was measured. A prediction is of a process of its own that trains on without emptying "
        "anything. Played as the rows were measured, the model of the allocator gives for *reserved*: "
        + _as_measured(rows, played),
        "## Errors",
        summary(rows),
        "What the device has in use:",
        summary(rows, {"device": lambda row: row.device_error}),
        f"## Rows off by more than {LARGE:.0%}",
        "Of what is allocated or reserved, for these reasons. In the last column the model of the allocator "
        "simulates the history in which the row was measured.",
        *far_off(rows, played),
        "## Every row",
        every_row(rows),
        "## Models held out",
        *_held_out(held_out),
        "## The largest batch",
        *_largest(),
        "## What convolutions borrow",
        *_borrowed(),
    ]
    return "\n\n".join(sections) + "\n"


def _borrowed() -> list[str]:
    return [
        "The layers whose workspaces were recorded on the H200, a fifth of them left out and predicted from the rest "
        "(`benchmarks/left_out_workspaces.py`). Errors are in bytes of the layer's own tensors: input, output and weight.",
        table(left_out_workspaces.HEADS, left_out_workspaces.lines(left_out_workspaces.left_out())),
    ]


def _as_measured(rows: Sequence[Outcome], played: dict[str, int]) -> str:
    said = []
    for name in ("infer", "train"):
        some = [row for row in rows if row.measured.step == name]
        spread = Spread.of(played[row.name] / row.measured.reserved - 1 for row in some)
        if spread is not None:
            said.append(f"{name}: median {percent(spread.median)}, 90th percentile {percent(spread.p90)}")
    return "; ".join(said) + "."


def _held_out(rows: Sequence[Outcome]) -> list[str]:
    if not rows:
        return ["Not measured yet: run `benchmarks/h200/memory_rows.py`."]
    made = json.loads(HELD_OUT.read_text())
    failed = sum("error" in row for row in made["rows"])
    played = reserved_as_measured((row.measured for row in rows), shared_process=False)
    return [
        f"{len(rows)} steps of models that nothing here was developed on, and of other ways to run a step (autocast, "
        "checkpoints, accumulation, other optimizers, decoding with a cache), measured by "
        f"`benchmarks/h200/memory_rows.py` ({made['device']}, torch {made['torch']}). The cache was emptied before the "
        "measured step, as above; what cuBLAS keeps was given back between them. One rule was found by looking at a row "
        "of theirs (`regnet_x_3_2gf`), and was kept because it serves recorded layers that were left out (decision 19): "
        "engines pad the channels of a group to a power of two."
        + (f" {failed} more would not run on the GPU." if failed else ""),
        summary(rows),
        f"### Held-out rows off by more than {LARGE:.0%}",
        *far_off(rows, played),
        "### Every held-out row",
        every_row(rows),
    ]


def _largest() -> list[str]:
    """The true limits beside the predicted ones."""
    return [
        "By halving, each batch in a process of its own (`benchmarks/h200/largest_batch.py`). *Plain*: the optimizer's "
        "state is made by the first step, as in a training script, which is what `rooflight predict --max-batch` simulates; "
        "*expandable*: the same with `expandable_segments:True`, for which the answer names the batch as well; *state "
        "first*: by an update before the first step, as `rooflight measure` does, which no answer is about, but the same "
        "model of the allocator simulates it. How large a batch fits depends on it: where blocks lie decides whether the "
        "largest tensor finds one.",
        limits_table(largest_batches()),
    ]


def limits_table(limits: Sequence[Limit]) -> str:
    heads = ("training on an H200", "script", "measured: fits", "fails", "predicted")
    lines = [
        [row.name, row.way, f"{row.largest:,}", "not found" if row.fails is None else f"{row.fails:,}",
         f"{row.predicted:,}"]
        for row in limits
    ]  # fmt: skip
    return table(heads, lines, words=2)


# --- docs/benchmarks.md ---


def peers_section(rows: Sequence[Measured], load: Path | None, save: Path | None) -> str:
    """Imports what only the environment of the other tools has."""
    from peers import memory_peers

    found = memory_peers.loaded(load) if load else memory_peers.measure(rows)
    if save:
        save.write_text(memory_peers.saved(found), encoding="utf-8")
    return memory_peers.section(memory_peers.with_predictions(found, outcomes(rows)), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the page, or with --peers the section")
    parser.add_argument("--peers", action="store_true", help="other tools on the same steps")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep what the other tools said, as JSON")
    parser.add_argument("--load", type=Path, metavar="FILE", help="show what was kept instead of asking again")
    given = parser.parse_args()
    # What this user has calibrated changes times only, and would be read for them.
    os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp()
    if given.peers:
        from peers.sections import BENCHMARKS, with_section

        text = peers_section(reference_rows(), given.load, given.save)
        print(text)
        if given.write:
            BENCHMARKS.write_text(with_section(BENCHMARKS.read_text(encoding="utf-8"), text), encoding="utf-8")
        return
    rows, held_out = outcomes(reference_rows()), outcomes(held_out_rows())
    print(summary(rows))
    if held_out:
        print(summary(held_out))
    missing = unexplained([*rows, *held_out])
    if missing:
        raise SystemExit(f"{len(missing)} rows are off by more than {LARGE:.0%} without a reason in REASONS:\n"
                         + "\n".join(missing))  # fmt: skip
    if given.write:
        PAGE.write_text(page(rows, held_out), encoding="utf-8")


if __name__ == "__main__":
    main()
