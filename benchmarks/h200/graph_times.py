"""Wall times of steps as CUDA graphs, to judge predictions by: the steps of wall_times.py that can be captured.

usage: graph_times.py OUT.json SECONDS    (needs a CUDA GPU, torchvision and transformers)

A graph hardly waits for its host: these rows may be of another machine than the host's costs. Captured and replayed as
`rooflight measure --graphs` does.
"""

import gc
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
from wall_times import SET, cases

import rooflight


def timed(case):
    """The case and what was measured of it, or why nothing was."""
    length = {"past": case["seq"]} if case["step"] == "decode" else {"seq": case["seq"]}
    loss = {"loss": "mse"} if case["step"] == "train" else {}
    try:
        ledger = rooflight.measure(case["model"], batch=case["batch"], step=case["step"], dtype=case["dtype"],
                                   overrides=SET.get(case["model"], {}), graphs=True, counters="none", repeat=10,
                                   **length, **loss)  # fmt: skip
        whole = next(one for one in ledger.measurements if one.scope == "step").quantities
        found = {key: whole[key].value for key in ("wall_time_s", "gpu_busy_s", "kernels") if key in whole}
        return {"case": case, **found}
    except Exception as error:
        return {"case": case, "error": f"{type(error).__name__}: {error}"[:200]}


def main():
    out, end = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2])
    head = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__),
            "made": datetime.now(UTC).isoformat(timespec="minutes")}  # fmt: skip
    rows = []
    more = {"model": "llama3-8b", "seq": 1024, "step": "decode", "batch": 1, "dtype": "bf16"}
    for case in (more, *cases()):
        if time.monotonic() > end:
            print("out of time before", case)
            break
        begun = time.monotonic()
        rows.append(row := timed(case))
        print(*case.values(), row.get("wall_time_s", row.get("error")), f"{time.monotonic() - begun:.1f} s", flush=True)
        out.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
