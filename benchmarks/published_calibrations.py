"""Makes the calibrations of the tier `published` from single ops that others timed: src/rooflight/hardware/calibrations.

usage: published_calibrations.py FOLDER     (needs openpyxl for DeepBench's tables; half a minute)

FOLDER holds the public tables, condensed to CSV as their projects publish them: NeuSight's micro-benchmarks, GEMM and
attention of aiconfigurator, layers of LLMServingSim, DeepBench. Sources, commits and licences: NOTICE.md beside the
calibrations. Nothing but single ops is read (benchmarks/held_out.toml).
"""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hosts import host_ratio
from published_tables import table

from rooflight import __version__
from rooflight.hardware.calibration import FORMAT_VERSION, Calibration, TimedPoints
from rooflight.hardware.devices import find
from rooflight.hardware.recorded_tables import encode
from rooflight.ledger import Value
from rooflight.ops.kernel_task import Task, attention_task
from rooflight.prediction.host_speed import HOST_RATIO

CALIBRATIONS = Path(__file__).parents[1] / "src" / "rooflight" / "hardware" / "calibrations"
_MOST = {"gemm": 3000, "conv": 1000, "attention": 800}
_MOST_OF_OTHERS = 400
"""Points of one family and precision, from all sources: more would say the same again, and take time to read."""
_LAUNCH = 0.55
"""Of the shortest time of an op, what a long one still has in it: times of elementwise ops grow with their bytes from
0.48 to 0.67 of it, on all GPUs."""
_LEAST = 3.0
"""Times shorter than so many of the shortest say more of the host than of the op."""


class Timed(NamedTuple):
    task: Task
    seconds: float
    source: str


def attention(
    kernel: str, *, batch: int, heads: int, heads_kv: int, length_q: int, length_kv: int, head_dim: int, causal: bool
) -> Task:
    numbers = (batch, heads, heads_kv, length_q, length_kv, head_dim, int(causal), 0)
    return attention_task(kernel, "bf16", "forward", numbers)


Reader = Callable[[Path], Iterator[Timed]]


# --- NeuSight: fp32, forward, the launch is in the time ---


def neusight(name: str) -> Reader:
    def read(folder: Path) -> Iterator[Timed]:
        by_op: dict[str, list[dict[str, str]]] = defaultdict(list)
        for row in table(folder / f"neusight-micro-{name}.csv.gz"):
            by_op[row["OPName"]].append(row)
        for op, rows in by_op.items():
            seconds = np.array([float(row["Latency"]) for row in rows]) * 1e-3
            shortest = float(np.quantile(seconds, 0.01))
            source = f"NeuSight 6945927, {op}, torch 2.1, {_LAUNCH * shortest * 1e6:.0f} us of launch taken off"
            for row, taken in zip(rows, seconds.tolist(), strict=True):
                task = _neusight_task(op, row) if taken >= _LEAST * shortest else None
                if task is not None:
                    yield Timed(task, taken - _LAUNCH * shortest, source)

    return read


def _neusight_task(op: str, row: dict[str, str]) -> Task | None:
    def number(column: str) -> int:
        return int(float(row[column]))

    if op == "linear":  # Linear(N, K) of B x M rows
        return Task.of(
            "gemm", "fp32", m=number("B") * number("M"), n=number("K"), k=number("N"), b_transposed=1, bias=1
        )
    if op == "bmm":  # [B, M, N] x [B, N, K]
        return Task.of("gemm", "fp32", batch=number("B"), m=number("M"), n=number("K"), k=number("N"))
    if op == "conv":
        side, kernel, pad = number("Input_Size"), number("Kernel_Szie"), number("Padding")
        sizes = {"n": number("B"), "c": number("Input_Channel"), "h": side, "w": side, "k": number("Output_Channel")}
        window = {"r": kernel, "s": kernel, "stride": number("Stride"), "pad": pad}
        return Task.of("conv-forward", "fp32", **sizes, **window) if side + 2 * pad >= kernel else None
    rows, columns = number("B"), number("H")
    if op in ("softmax", "ln"):
        return Task("softmax-forward" if op == "softmax" else "layer-norm-forward", "fp32", (rows, columns))
    nbytes = 4 * rows * columns
    family = "math" if op in ("tanh", "gelu", "pow", "powu") else "plain"
    return Task(family, "fp32", (rows * columns, nbytes * (2 if op in ("add", "mul", "div", "pow") else 1), nbytes))


# --- aiconfigurator: bf16, replayed as CUDA graphs, inputs in the cache where they fit ---


def aiconfigurator(name: str, kernel: str) -> Reader:
    """`kernel`: the family of attention that torch has the like of on this GPU."""

    def read(folder: Path) -> Iterator[Timed]:
        for row in table(folder / f"aic-{name}-gemm_perf.csv.gz"):
            if row["gemm_dtype"] == "bfloat16":
                sizes = {side: int(row[side]) for side in "mnk"}
                source = f"aiconfigurator 095f58a, gemm, vLLM {row['version']}"
                yield Timed(Task.of("gemm", "bf16", **sizes, b_transposed=1), float(row["latency"]) * 1e-3, source)
        for what, causal in (("context", True), ("generation", False)):
            for row in table(folder / f"aic-{name}-{what}_attention_perf.csv.gz"):
                known = row["kv_cache_dtype"] == "bfloat16" and not int(row.get("window_size") or 0)
                if not known or (causal and int(row["step"])) or row["kernel_source"].endswith("fa4"):
                    continue
                past = int(row["isl"]) if causal else int(row["step"]) + int(row["isl"])
                task = attention(
                    kernel, batch=int(row["batch_size"]), heads=int(row["num_heads"]),
                    heads_kv=int(row["num_key_value_heads"]), length_q=int(row["isl"]) if causal else 1,
                    length_kv=past, head_dim=int(row["head_dim"]), causal=causal,
                )  # fmt: skip
                source = f"aiconfigurator 095f58a, {what} attention, vLLM {row['version']}, {row['kernel_source']}"
                yield Timed(task, float(row["latency"]) * 1e-3, source)

    return read


# --- LLMServingSim: layers of Llama-3.1-8B in bf16, vLLM's kernels ---

_WIDTH, _INNER, _WORDS, _SHARED = 4096, 14336, 128256, 1024
_LAYERS = {
    "q_proj": (_WIDTH, _WIDTH), "k_proj": (_SHARED, _WIDTH), "v_proj": (_SHARED, _WIDTH), "o_proj": (_WIDTH, _WIDTH),
    "gate_proj": (_INNER, _WIDTH), "up_proj": (_INNER, _WIDTH), "down_proj": (_WIDTH, _INNER),
    "lm_head": (_WORDS, _WIDTH), "qkv_proj": (_WIDTH + 2 * _SHARED, _WIDTH), "gate_up_proj": (2 * _INNER, _WIDTH),
}  # fmt: skip
_HEADS = {"heads": 32, "heads_kv": 8, "head_dim": 128}


def servingsim_3090(folder: Path) -> Iterator[Timed]:
    for row in table(folder / "llmservingsim-rtx3090-llama8b-layers.csv.gz"):
        tokens, past, seconds = int(row["input"]), int(row["kv_cache"]), float(row["latency(ns)"]) * 1e-9
        if row["layer_name"] in _LAYERS and row["tp_size"] == "1":
            yield _layer(row["layer_name"], tokens, seconds)
        elif row["layer_name"] == "attn" and not past and tokens > 1:
            yield _serving_attention(seconds, length_q=tokens, length_kv=tokens, causal=True)


def servingsim_4090(folder: Path) -> Iterator[Timed]:
    for row in table(folder / "llmservingsim-rtx4090-llama8b-dense.csv.gz"):
        if row["layer"] in _LAYERS:
            yield _layer(row["layer"], int(row["tokens"]), float(row["time_us"]) * 1e-6)
    for row in table(folder / "llmservingsim-rtx4090-llama8b-attention.csv.gz"):
        chunk, before, decoding, past = (
            int(row[name]) for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
        )
        seconds = float(row["time_us"]) * 1e-6
        if chunk > 1 and not before and not decoding:
            yield _serving_attention(seconds, length_q=chunk, length_kv=chunk, causal=True)
        elif decoding and not chunk:
            yield _serving_attention(seconds, batch=decoding, length_q=1, length_kv=past, causal=False)


def _layer(name: str, tokens: int, seconds: float) -> Timed:
    outputs, inputs = _LAYERS[name]
    task = Task.of("gemm", "bf16", m=tokens, n=outputs, k=inputs, b_transposed=1)
    return Timed(task, seconds, f"LLMServingSim 5daddb2, {name} of Llama-3.1-8B, vLLM")


def _serving_attention(seconds: float, *, length_q: int, length_kv: int, causal: bool, batch: int = 1) -> Timed:
    task = attention("flash", batch=batch, length_q=length_q, length_kv=length_kv, causal=causal, **_HEADS)
    return Timed(task, seconds, "LLMServingSim 5daddb2, attention of Llama-3.1-8B, vLLM")


# --- DeepBench: GEMM and convolutions with both gradients ---


def deepbench(name: str, sheets: dict[str, str]) -> Reader:
    def read(folder: Path) -> Iterator[Timed]:
        import openpyxl  # only this script's

        book = openpyxl.load_workbook(folder / f"deepbench-train-{name}.xlsx", data_only=True)
        for sheet, precision in sheets.items():
            yield from _deepbench_rows(list(book[sheet].iter_rows(values_only=True)), precision)

    return read


def _deepbench_rows(rows: list[tuple[Any, ...]], precision: str) -> Iterator[Timed]:
    columns: dict[str, int] = {}
    for row in rows:
        texts = {str(cell).strip(): place for place, cell in enumerate(row) if isinstance(cell, str)}
        if {"M", "N", "K", "Time (msec)"} <= texts.keys() or "Forward (msec)" in texts:
            columns = texts
        elif any(text.startswith(("Recurrent", "All-Reduce")) for text in texts):
            columns = {}
        elif "M" in columns and all(isinstance(row[columns[side]], (int, float)) for side in ("M", "N", "K")):
            # Column-major there: C' = B' A' has its rows for columns.
            a, b = (str(row[columns[f"{side} Transpose"]]).strip() == "T" for side in "AB")
            sizes = {"m": int(row[columns["N"]]), "n": int(row[columns["M"]]), "k": int(row[columns["K"]])}
            task = Task.of("gemm", precision, **sizes, a_transposed=int(b), b_transposed=int(a))
            if isinstance(taken := row[columns["Time (msec)"]], (int, float)):
                yield Timed(task, float(taken) * 1e-3, "DeepBench da81ba7, GEMM")
        elif "C" in columns and isinstance(row[columns["C"]], (int, float)):
            yield from _deepbench_convolution(row, columns, precision)


def _deepbench_convolution(row: tuple[Any, ...], columns: dict[str, int], precision: str) -> Iterator[Timed]:
    def number(column: str) -> int:
        return int(row[columns[column]])

    high, wide = ("R", "S") if "R" in columns else ("R (Filter height)", "S (Filter width)")
    strides, pads = {number("Horizontal stride"), number("Vertical stride")}, {number("pad_w"), number("pad_h")}
    if len(strides) > 1 or len(pads) > 1:
        return
    sizes = {name.lower(): number(name) for name in "NCHW"} | {"k": number("K")}
    window = {"r": number(high), "s": number(wide), "stride": strides.pop(), "pad": pads.pop()}
    ways = {"Forward (msec)": "forward", "wrt Inputs (msec)": "dgrad", "wrt Parameters (msec)": "wgrad"}
    for column, way in ways.items():
        if isinstance(taken := row[columns[column]], (int, float)) and taken > 0:
            task = Task.of(f"conv-{way}", precision, **sizes, **window)
            yield Timed(task, float(taken) * 1e-3, f"DeepBench da81ba7, convolution, {way}")


# --- the files ---

READERS: dict[str, list[Reader]] = {
    "v100-pcie-32": [neusight("v100-pcie-32")],
    "v100-sxm2-16": [deepbench("v100", {"Results FP32": "fp32", "Results - FP16 ip, Mixed math": "fp16"})],
    "p100-pcie": [neusight("p100-pcie-16"), deepbench("p100", {"Results FP32": "fp32"})],
    "t4": [neusight("t4")],
    "p4": [neusight("p4")],
    "a100-pcie-40": [neusight("a100-pcie-40")],
    "a100-pcie-80": [neusight("a100-pcie-80")],
    "a100-sxm-80": [aiconfigurator("a100_sxm", "flash")],
    "l40s": [aiconfigurator("l40s", "flash")],
    "h100-sxm": [aiconfigurator("h100_sxm", "cudnn")],
    "rtx-3090": [servingsim_3090],
    "rtx-4090": [servingsim_4090],
}


def points(rows: Iterable[Timed]) -> tuple[TimedPoints, ...]:
    """By family, precision and source; where there are many, some of them by lot."""
    groups: dict[tuple[str, str, str], list[list[int]]] = defaultdict(list)
    for timed in rows:
        taken = max(1, round(timed.seconds * 1e9))
        groups[timed.task.family, timed.task.precision, timed.source].append([*timed.task.numbers, taken, taken, 1])
    lots, counts = random.Random(0), Counter((family, precision) for family, precision, _ in groups)

    def most(family: str, precision: str) -> int:
        return _MOST.get(family.partition("-")[0], _MOST_OF_OTHERS) // counts[family, precision]

    return tuple(
        TimedPoints(family, precision, lots.sample(some, min(most(family, precision), len(some))), source)
        for (family, precision, source), some in sorted(groups.items())
    )


HOSTS = {"v100-pcie-32": "v100-pcie-32", "a100-pcie-40": "a100-pcie-40", "p100-pcie": "p100-pcie-16", "p4": "p4",
         "t4": "t4"}  # fmt: skip
"""GPUs whose shortest ops tell what the host took, by the names of NeuSight's tables."""


def host(folder: Path, name: str) -> dict[str, Value]:
    if name not in HOSTS:
        return {}
    words = "the shortest of NeuSight's single ops (6945927), over what the calibrated host takes (benchmarks/hosts.py)"
    return {HOST_RATIO: Value(round(host_ratio(folder, HOSTS[name]), 2), words)}


def main() -> None:
    folder = Path(sys.argv[1])
    for name, readers in READERS.items():
        device = find(name)
        calibration = Calibration(
            format_version=FORMAT_VERSION,
            rooflight=__version__,
            torch="2.1.0",
            device=device.recognised_as[0] if device.recognised_as else device.title,
            cuda="12.1",
            made="2026-11-17",
            host=host(folder, name),
            points=points(timed for reader in readers for timed in reader(folder)),
            notes=("made of single ops that others timed and published; NOTICE.md names them",),
            partial=True,
        )
        path = CALIBRATIONS / f"{name}-published.json.gz"
        path.write_bytes(encode(calibration))
        count = sum(len(group.rows) for group in calibration.points)
        print(f"{path.name:36} {count:6,} points {path.stat().st_size / 1e3:6.0f} kB")


if __name__ == "__main__":
    main()
