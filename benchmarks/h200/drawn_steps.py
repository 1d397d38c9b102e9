"""Measure the steps of a plan that benchmarks/draw.py drew, each in a process of its own.

usage: drawn_steps.py PLAN.json FOLDER SECONDS     (needs a CUDA GPU, torchvision, timm and transformers)

Writes FOLDER/draw_open.json and FOLDER/draw_sealed.json.gz, and prints counts only: nobody sees a sealed row. A step that
does not run (memory, a model that this machine's version of the library lacks) is replaced by the plan's next candidate
of the same half. What FOLDER holds already is not measured again.

Processes import their libraries side by side, then measure one after the other, while the others wait and do nothing.
"""

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

HALF = 60
AT_ONCE = 12
STEP_LIMIT_S = 45
REPEATS = 10
STEP_QUANTITIES = (
    "wall_time_s", "gpu_busy_s", "kernel_time_s", "kernels", "allocated_before_bytes", "peak_allocated_bytes",
    "peak_reserved_bytes",
)  # fmt: skip


def worker() -> None:
    """Import, say so, wait for the turn, measure, print the row."""
    case = json.loads(sys.argv[2])
    import torch  # noqa: F401

    import rooflight
    from rooflight.models.optional_packages import imported

    imported({"hf": "transformers"}.get(zoo := case["model"].partition(":")[0], zoo))
    print("READY", flush=True)
    sys.stdin.readline()
    row = {key: case[key] for key in ("model", "step", "dtype", "batch", "seq")}
    try:
        ledger = rooflight.measure(**row, counters="none", repeat=REPEATS)
        step = next(one for one in ledger.measurements if one.scope == "step").quantities
        row |= {name: step[name].value for name in STEP_QUANTITIES if name in step}
        row |= {"wall_low_s": step["wall_time_s"].low, "wall_high_s": step["wall_time_s"].high, "ops": len(ledger.ops)}
        row |= {"flops": rooflight.ledger.total(ledger.ops).flops}
    except Exception as error:
        row |= {"error": f"{type(error).__name__}: {error}"[:200]}
    print("ROW " + json.dumps(row), flush=True)


def started(case: dict) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, __file__, "--worker", json.dumps(case)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip


def line_of(process: subprocess.Popen, word: str) -> str | None:
    for line in process.stdout:
        if line.startswith(word):
            return line[len(word) :].strip()
    return None


def measured(process: subprocess.Popen) -> dict:
    """The row of a process that waits for its turn."""
    try:
        output, _ = process.communicate("go\n", timeout=STEP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return {"error": f"longer than {STEP_LIMIT_S} s"}
    rows = [line[4:] for line in output.splitlines() if line.startswith("ROW ")]
    return json.loads(rows[0]) if rows else {"error": "the process ended"}


def read(path: Path) -> dict:
    if not path.exists():
        return {"rows": [], "failed": []}
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


def write(path: Path, data: dict) -> None:
    text = (json.dumps(data, indent=1) + "\n").encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def main() -> None:
    plan, folder, end = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), time.time() + float(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    import torch

    head = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__), "seed": plan["seed"]}
    head |= {"cudnn": torch.backends.cudnn.version(), "commit": sys.argv[4] if len(sys.argv) > 4 else ""}
    paths = {False: folder / "draw_open.json", True: folder / "draw_sealed.json.gz"}
    halves = {sealed: {**head, **read(path)} for sealed, path in paths.items()}
    tried = {row["model"] for half in halves.values() for row in (*half["rows"], *half["failed"])}
    queue = [case for case in plan["candidates"] if case["model"] not in tried]
    while queue and time.time() < end:
        some = []
        for sealed, half in halves.items():
            wanted = min(AT_ONCE // 2, HALF - len(half["rows"]))
            some += [case for case in queue if case["sealed"] == sealed][: max(0, wanted)]
        if not some:
            break
        queue = [case for case in queue if case not in some]
        processes = [started(case) for case in some]
        ready = [line_of(process, "READY") is not None for process in processes]
        for case, process, is_ready in zip(some, processes, ready, strict=True):
            if time.time() > end:
                process.kill()
                continue
            row = measured(process) if is_ready else {"error": "its libraries cannot be imported"}
            half = halves[case["sealed"]]
            if "error" in row:
                half["failed"].append({"model": case["model"], "error": row["error"]})
            else:
                half["rows"].append(row)
            write(paths[case["sealed"]], half)
        print(*(f"{len(half['rows'])} + {len(half['failed'])} failed" for half in halves.values()),
              f"{end - time.time():.0f} s left", flush=True)  # fmt: skip


if __name__ == "__main__":
    worker() if sys.argv[1] == "--worker" else main()
