"""The same counters by CUPTI inside the process and by ncu around it: do they agree op by op, and what do they cost?

usage: against_ncu.py OUT.json [MODEL ARGUMENTS ...]    (needs a CUDA GPU and ncu)

Both sides are the command line. The time of the counters alone is what is compared: CUPTI's own, as its note says, and
for ncu the whole process less the same process without ncu.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rooflight.files import load
from rooflight.measurement import ncu
from rooflight.measurement.options import MeasureOptions

QUANTITIES = (
    "tensor_flops_tf32",
    "tensor_flops_bf16",
    "cuda_flops_fp32",
    "cuda_flops_fp16",
    "cuda_flops_fp64",
    "dram_bytes_read",
    "dram_bytes_written",
)


def timed(line: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(line, check=True, capture_output=True)
    return time.perf_counter() - start


def by_op(ledger) -> dict:
    return {row.ops[0]: row.quantities for row in ledger.measurements if row.scope == "op"}


def main() -> None:
    arguments = sys.argv[2:] or ["resnet50", "--batch", "16", "--step", "train"]
    measure = [sys.executable, "-m", "rooflight", "measure", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cupti.json"
        whole = timed([*measure, "-o", str(path), "--repeat", "5"])
        ours = load(path)
    note = next(note.text for note in ours.header.notes if note.code == "counter-passes")
    cupti_s = float(re.search(r"in ([\d.]+) s", note)[1])
    step = [*measure, "--profile-op", "all"]
    plain_s = timed(step)
    start = time.perf_counter()
    theirs = ncu.count(ours, step, MeasureOptions(counters="ncu"))
    ncu_s = time.perf_counter() - start
    rows, left = [], by_op(ours)
    for index, right in by_op(theirs).items():
        for name in QUANTITIES:
            one, other = left.get(index, {}).get(name), right.get(name)
            if one is not None and other is not None and other.origin.startswith("ncu") and (one.value or other.value):
                rows.append((index, ours.ops[index].name, ours.ops[index].module, name, one.value, other.value))
    result = {
        "command": " ".join(["rooflight", "measure", *arguments]), "cupti_counters_s": cupti_s, "cupti_process_s": whole,
        "ncu_process_s": ncu_s, "plain_process_s": plain_s, "ncu_counters_s": ncu_s - plain_s,
        "ratio": (ncu_s - plain_s) / cupti_s, "note": note, "quantities": {},
    }  # fmt: skip
    for name in QUANTITIES:
        found = [row for row in rows if row[3] == name]
        if not found:
            continue
        differ = [row for row in found if row[4] != row[5]]
        result["quantities"][name] = {
            "ops": len(found), "equal": len(found) - len(differ), "sum_cupti": sum(row[4] for row in found), "sum_ncu": sum(row[5] for row in found),
            "worst": sorted(differ, key=lambda row: -abs(row[4] - row[5]))[:8],
        }  # fmt: skip
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1))
    print({name: value for name, value in result.items() if name != "quantities"})
    for name, value in result["quantities"].items():
        print(
            f"  {name}: {value['equal']} of {value['ops']} ops equal; {value['sum_cupti']:,} and {value['sum_ncu']:,}; worst {value['worst'][:2]}"
        )


main()
