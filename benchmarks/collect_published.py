"""Condenses other people's tables of step times into benchmarks/published/: the rows that judge predictions.

usage: collect_published.py FOLDER      FOLDER: `timm-*.csv.gz` (results/ of huggingface/pytorch-image-models) and
                                        `kernelbench-*-torch.json.gz` (results/timing/ of ScalingIntelligence/KernelBench)

Only figures are taken. Which models are taken was settled without a look at any error: every fourth of the pairs of
name and image size in alphabetical order, timm's own `test_*` models left out.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

OUT = Path(__file__).parent / "published"
EVERY = 4
INFERENCE = {
    "timm-infer-amp-nhwc-pt240-cu124-rtx4090": ("rtx-4090", True),
    "timm-infer-amp-nchw-pt240-cu124-rtx4090": ("rtx-4090", False),
    "timm-infer-amp-nhwc-pt240-cu124-rtx3090": ("rtx-3090", True),
    "timm-infer-amp-nchw-pt240-cu124-rtx3090": ("rtx-3090", False),
}
"""File -> device, channels_last. The pairs are chosen among the first one's."""
TRAINING = {"timm-train-amp-nchw-pt112-cu113-rtx3090": ("rtx-3090", False)}
KERNELBENCH = {
    "kernelbench-T4_modal-torch": "t4", "kernelbench-A100_modal-torch": "a100-sxm-40",
    "kernelbench-A100-80GB_modal-torch": "a100-sxm-80", "kernelbench-H100_together-torch": "h100-sxm",
}  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    _write(OUT / "timm.csv.gz", "device,step,channels_last,model,size,batch,time_ms,table", timm(folder))
    _write(OUT / "kernelbench.csv.gz", "device,level,problem,time_ms,deviation_ms,least_ms", kernelbench(folder))


def timm(folder: Path) -> Iterator[tuple[object, ...]]:
    for step, tables in (("infer", INFERENCE), ("train", TRAINING)):
        chosen: set[tuple[str, int]] | None = None
        for name, (device, channels_last) in tables.items():
            rows = _rows(folder / f"{name}.csv.gz", step)
            if chosen is None:
                chosen = set(sorted(rows)[::EVERY])
            for (model, size), (batch, time_ms) in sorted(rows.items()):
                if (model, size) in chosen:
                    yield device, step, int(channels_last), model, size, batch, time_ms, name


def _rows(path: Path, step: str) -> dict[tuple[str, int], tuple[int, float]]:
    """By model and image size: batch and milliseconds. A pair is there once; step time and throughput must agree."""
    rows: dict[tuple[str, int], tuple[int, float]] = {}
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            if row["model"].startswith("test_"):
                continue
            batch, time_ms = int(row[f"{step}_batch_size"]), float(row[f"{step}_step_time"])
            per_s = float(row[f"{step}_samples_per_sec"])
            assert abs(per_s * time_ms / 1e3 / batch - 1) < 0.02, row
            rows.setdefault((row["model"], int(row[f"{step}_img_size"])), (batch, time_ms))
    return rows


def kernelbench(folder: Path) -> Iterator[tuple[object, ...]]:
    for name, device in KERNELBENCH.items():
        with gzip.open(folder / f"{name}.json.gz", "rt") as file:
            for level, problems in json.load(file).items():
                for problem, row in problems.items():
                    if row is not None:
                        yield device, level[-1], problem.removesuffix(".py"), row["mean"], row["std"], row["min"]


def _write(path: Path, heading: str, rows: Iterator[tuple[object, ...]]) -> None:
    text = io.StringIO()
    text.write(heading + "\n")
    csv.writer(text, lineterminator="\n").writerows(rows)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    print(f"{path.name}: {text.getvalue().count(chr(10)) - 1:,} rows")


if __name__ == "__main__":
    main()
