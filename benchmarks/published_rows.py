"""Collects the times that NeuSight's authors published into tests/data/published_steps.json and published_ops.json.

usage: published_rows.py CLONE --commit HASH     CLONE: a checkout of https://github.com/sitar-lab/NeuSight

Only numbers are taken, each with the file it stands in. What a time is was read from the scripts that took it
(`neusight/Tracing/trace.py`, `neusight/Dataset/collect.py`, `scripts/asplos/collect_label*.py`) and is said in the
files themselves.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STEPS = ROOT / "tests" / "data" / "published_steps.json"
OPS = ROOT / "tests" / "data" / "published_ops.json"
SOURCE = "https://github.com/sitar-lab/NeuSight"
STALLED_BELOW = 1.4
"""Backward takes 1.5 to 2.1 times its forward in the rows that agree with each other."""

FACTORY = "benchmarks/published_models.py"
MODELS: dict[str, dict[str, Any]] = {
    "bert_large": {
        "infer": {"spec": f"{FACTORY}:bert", "set": {}, "parameters": 335_143_938},
        "train": {"spec": f"{FACTORY}:bert", "set": {"pretraining": "true"}, "parameters": 336_226_108},
    },
    "gpt2_large": {"spec": f"{FACTORY}:gpt2", "set": {}, "parameters": 774_030_080},
    "gpt3_xl": {
        "spec": f"{FACTORY}:gpt2",
        "set": {"n_embd": "3072", "n_layer": "24", "n_head": "24", "n_positions": "2048"},
        "parameters": 2_879_554_560,
    },
    "gpt3_27": {
        "spec": f"{FACTORY}:gpt2",
        "set": {"n_embd": "2560", "n_layer": "32", "n_head": "32", "n_positions": "2048"},
        "parameters": 2_651_553_280,
    },
    "opt_13": {"spec": f"{FACTORY}:opt", "set": {}, "parameters": 1_315_758_080},
    "switchxl4": {"why_not": "which expert a token goes to, and so the shapes, depend on values"},
    "switch4": {"why_not": "its configuration is not published"},
}
TIMED = {
    "infer": "CUDA events around model(input_ids) under no_grad, eval mode, eager, tokens all 1; the events also see "
    "the GPU wait for the host. Mean of the 5 least of 25 calls; the allocator's cache is emptied before each",
    "train": "forward plus backward, each between its own CUDA events, train mode, eager. The forward of the loss "
    "(cross-entropy over all tokens) lies between the two and is not in it, its backward is; no optimizer; gradients "
    "are never set to None, so backward adds to them. Mean of the 5 least of 25 for each; the allocator's cache is "
    "emptied before each step, so the forward pays for cudaMalloc",
    "compile": "as infer, with torch.compile",
    "parallel": "CUDA events on rank 0 around one step of Megatron-LM (core 0.5.0) through accelerate 1.0.0, fp32, one "
    "micro-batch. There model(**batch) zeroes gradients, runs forward and backward, reduces gradients, clips them and "
    "updates the parameters (Megatron's optimizer; the optimizer.step() outside the events does nothing): unlike in "
    "`train`, the optimizer is in it. Mean of the 10 least of 50. `batch` is that of all GPUs together",
}
TORCH = "2.1.0 with CUDA 12.1 (NVIDIA), 2.4.1 (AMD): so say the tables of single ops; the files of the steps do not say"


# --- whole steps ---


def steps(clone: Path) -> Iterator[dict[str, Any]]:
    predicted = _predictions(clone / "scripts/asplos/summary/summary.csv")
    for path in sorted((clone / "scripts/asplos/label").glob("*/*.json")):
        label = json.loads(path.read_text())
        model, mode, seq, batch, *option = path.stem.split("-")
        step = "train" if mode == "train" else "infer"
        parallel = option[0] if option and option[0] != "fusion" else None
        row: dict[str, Any] = {
            "device": path.parent.name.replace("_", " "), "model": model, "batch": int(batch), "seq": int(seq),
            "step": step, "dtype": "fp32", "tf32": False,
            "timed": "parallel" if parallel else "compile" if option else step,
            "rooflight_args": _arguments(model, step, batch=int(batch), seq=int(seq)),
            "time_s": _seconds(label["e2e_latency"]),
        }  # fmt: skip
        if parallel:
            row |= {"gpus": 4, "parallel": {"dp4": "ddp", "tp4": "tp", "pp4_1": "pp"}[parallel]}
        elif step == "train":
            forward, backward = label["fw_latency"], label["bwall_latency"]
            row |= {"forward_s": _seconds(forward), "backward_s": _seconds(backward)}
            if backward < STALLED_BELOW * forward:
                row["forward_stalled"] = True
        row["theirs_s"] = predicted.get((path.parent.name, model, mode, seq, batch, option[0] if option else ""), {})
        yield row | {"source": str(path.relative_to(clone))}


def _arguments(model: str, step: str, *, batch: int, seq: int) -> str | None:
    """How rooflight is asked for the same step."""
    known = MODELS[model].get(step, MODELS[model])
    if "why_not" in known:
        return None
    settings = "".join(f" --set {name}={value}" for name, value in known["set"].items())
    return f"{known['spec']}{settings} --batch {batch} --seq {seq} --step {step} --dtype fp32"


def _predictions(summary: Path) -> dict[tuple[str, ...], dict[str, float]]:
    """What NeuSight's authors predicted for a step, by their own tool and by those they compared it with."""
    columns = {"neusight": "neusight", "roofline": "roofline", "habitat": "habitat", "li": "micro"}
    found = {}
    for row in csv.DictReader(summary.open()):
        key = (row["device"], row["model_name"], row["mode"], row["seqlen"], row["batch"], row["option"])
        found[key] = {
            name: _seconds(float(value))
            for name, column in columns.items()
            if (value := row[f"{column}_all_e2e_latency"])
        }
    return found


def _seconds(milliseconds: float) -> float:
    return float(f"{milliseconds / 1e3:.6g}")


# --- single ops ---

GEMM_DEVICES = {
    "linear": ("NVIDIA H100 80GB HBM3", "NVIDIA A100-PCIE-40GB", "Tesla V100-PCIE-32GB", "NVIDIA L4", "Tesla T4"),
    "bmm": ("NVIDIA H100 80GB HBM3", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe", "NVIDIA L4", "Tesla T4"),
}
GEMM_SHAPES = 18
POINTWISE_DEVICES = GEMM_DEVICES["linear"]
POINTWISE_STEPS = ("gpt2_large-inf-1024-4", "bert_large-inf-512-16", "opt_13-inf-2048-2")
POINTWISE = {
    "softmax": ("softmax",), "layer_norm": ("ln_1", "LayerNorm", "final_layer_norm"), "gelu": ("gelu",),
    "relu": ("activation_fn",), "tanh": ("tanh",), "pow": ("pow",), "where": ("where",), "div": ("truediv",),
    "add": ("function add",), "mul": ("function mul",), "maximum": ("max of",), "copy": ("contiguous",),
}  # fmt: skip
OP_TIMED = (
    "CUDA events around one call, fp32, TF32 off, no_grad, the GPU idle before it: the time of the launch is in it "
    "(about 7 us on the H100 machine). Mean of the 5 least of 25 calls. torch 2.1.0, CUDA 12.1"
)


def gemms(clone: Path, op: str) -> Iterator[dict[str, Any]]:
    """A sample of the matmuls that were timed on every one of the devices, evenly spread over their FLOPs."""
    path = clone / f"scripts/asplos/data/dataset/test/{op}.csv"
    found: dict[tuple[int, ...], dict[str, list[Any]]] = {}
    for row in csv.DictReader(path.open()):
        shape = tuple(int(row[name]) for name in "BMNK")
        grid = [int(row[f"Grid {axis}"]) for axis in "xyz"]
        kernel = row["Kernel Name"].removeprefix("void cutlass::Kernel<").partition(">")[0]
        found.setdefault(shape, {})[row["Device"]] = [_seconds(float(row["Latency"])), kernel, grid]
    devices = GEMM_DEVICES[op]
    common = sorted((shape for shape in found if set(devices) <= set(found[shape])), key=_flops)
    for index in range(GEMM_SHAPES):
        B, M, K, N = common[index * (len(common) - 1) // (GEMM_SHAPES - 1)]  # theirs: [B, M, N] @ [B, N, K]
        shape = {"batch": B, "m": M, "n": N, "k": K} if op == "bmm" else {"m": B * M, "n": N, "k": K}
        times = {device: found[B, M, K, N][device] for device in devices}
        yield {"op": op, **shape, "times": times, "source": str(path.relative_to(clone))}


def _flops(shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    B, M, N, K = shape
    return 2 * B * M * N * K, shape


def pointwise(clone: Path) -> Iterator[dict[str, Any]]:
    """The memory-bound ops of one layer of three of the steps, on every one of the devices."""
    for step in POINTWISE_STEPS:
        folder = clone / "scripts/asplos/label"
        nodes = {
            device: list(csv.DictReader((folder / device.replace(" ", "_") / f"{step}.csv").open()))
            for device in POINTWISE_DEVICES
        }
        seen = set()
        for index, node in enumerate(nodes[POINTWISE_DEVICES[0]]):
            op = _pointwise(node)
            inputs = [shape for shape in json.loads(node["input_shapes"]) if shape != [1]]
            key = (op, len(inputs))
            if op is None or key in seen or any(nodes[device][index]["Name"] != node["Name"] for device in nodes):
                continue
            seen.add(key)
            times = {device: [_seconds(float(nodes[device][index]["fw_latency"]))] for device in POINTWISE_DEVICES}
            yield {"op": op, "inputs": inputs, "times": times, "source": f"scripts/asplos/label/*/{step}.csv"}


def _pointwise(node: dict[str, str]) -> str | None:
    if node["dtype"] != "torch.float32" or node["op"] not in ("call_function", "call_module", "call_method"):
        return None
    sizes = [_size(shape) for shape in json.loads(node["input_shapes"])]
    if max(sizes, default=0) < 1 << 20 or (node["target"] == "contiguous" and node["input_contiguous"] == "[True]"):
        return None
    target = f"{node['op'].removeprefix('call_')} {node['target']}".replace("<built-in function ", "").replace(">", "")
    return next((op for op, names in POINTWISE.items() if any(name in target for name in names)), None)


def _size(shape: list[int]) -> int:
    return shape[0] * _size(shape[1:]) if shape else 1


# --- the files ---


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--commit", required=True)
    given = parser.parse_args()
    csv.field_size_limit(1 << 30)
    head = {"from": SOURCE, "commit": given.commit, "licence": "MIT", "read": "2026-11-15"}
    rows = list(steps(given.clone))
    _write(STEPS, head | {"torch": TORCH, "transformers": "4.38.1", "timed": TIMED, "models": MODELS}, rows)
    ops = [*gemms(given.clone, "linear"), *gemms(given.clone, "bmm"), *pointwise(given.clone)]
    layout = "times: device -> [seconds, kernel, grid], or [seconds]. linear: [m, k] x [n, k]^T + bias; bmm: batch x [m, k] x [k, n]"
    _write(OPS, head | {"timed": OP_TIMED, "layout": layout}, ops)
    print(f"{len(rows)} steps, {len(ops)} ops, {sum(len(op['times']) for op in ops)} times of ops")


def _write(path: Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """One row a line, so that a change of one row is a change of one line."""
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    path.write_text(json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + body + "\n ]\n}\n")


if __name__ == "__main__":
    main()
