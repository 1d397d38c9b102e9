"""Steps of models that nothing here was developed on, timed: neither the reference rows, nor built-in, nor those of
whole_steps.py. What predictions say of them is reported as it comes.

usage: held_out.py OUT.json SECONDS    (needs a CUDA GPU, torchvision and transformers)

What is in OUT already, from the same device and torch, is not timed again. `LATER` was added when the first ones had
been looked at; its rows were timed after the last change to the model of time.
"""

import gc
import json
import sys
import time
from pathlib import Path

import torch
from held_out_models import cases

import rooflight


def timed(case):
    """The case and what was measured of it, or why nothing was."""
    options = {key: case[key] for key in ("batch", "seq", "step", "dtype")}
    try:
        ledger = rooflight.measure(case["model"], overrides=case["set"], counters="none", repeat=5, **options,
                                   **({"loss": "mse"} if case["step"] == "train" else {}))  # fmt: skip
        whole = next(one for one in ledger.measurements if one.scope == "step").quantities
        times = {key: whole[key].value for key in ("wall_time_s", "gpu_busy_s", "kernels")}
        return case | times | {"gpu_time_s": whole["kernel_time_s"].value}
    except Exception as error:
        return case | {"error": f"{type(error).__name__}: {error}"[:200]}


def main() -> None:
    out, end = Path(sys.argv[1]), time.time() + float(sys.argv[2])
    head = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__)}
    rows = []
    if out.exists():
        before = json.loads(out.read_text())
        if {key: before[key] for key in head} != head:
            sys.exit(f"{out} is of {before['device']} with torch {before['torch']}: choose another file")
        rows = [row for row in before["rows"] if "error" not in row]
    known = [{key: row[key] for key in ("model", "set", "seq", "batch", "dtype", "step")} for row in rows]
    for case in cases():
        if case in known:
            continue
        if time.time() > end:
            print("out of time before", case)
            break
        rows.append(row := timed(case))
        print(*case.values(), row.get("gpu_time_s", row.get("error")), flush=True)
        out.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")
        gc.collect()
        torch.cuda.empty_cache()


main()
