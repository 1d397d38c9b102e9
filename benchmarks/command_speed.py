"""How long commands take, here and in another tree, one after the other in the same minutes.

    python benchmarks/command_speed.py OTHER/src [ROUNDS] [WORD]

All commands, or those whose name has the word. Each runs on one core; what counts is the least CPU time (user and
system) of the rounds, and the ratio of the two: other work on the machine makes both longer. The first round of each
tree is not counted: it fills Python's, Vega's and the traces' caches, each tree its own. The last column is the first
time that a step is asked for, of which no trace is kept.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1] / "src"
LARGE = HERE.parent / "benchmarks" / "large_ledger.py"
GPT2 = "estimate gpt2 --seq 1024 --batch 4 --step train -o gpt2.json.gz --force"
COMMANDS = {
    "help": "--help",
    "estimate, ResNet-50 training": "estimate resnet50 --batch 16 --step train",
    "estimate, GPT-2 training": "estimate gpt2 --seq 1024 --batch 4 --step train",
    "predict, ResNet-50 training": "predict resnet50 --batch 16 --step train --on h200",
    "predict, GPT-2 training": "predict gpt2 --seq 1024 --batch 4 --step train --on h200",
    "predict, GPT-2 training, four GPUs": "predict gpt2 --seq 1024 --batch 4 --step train --on h200,a100,rtx-4090,t4",
    "predict, Llama 3 8B decoding": "predict llama3-8b --step decode --past 1024 --dtype bf16 --on h200",
    "report, ResNet-50 training, measured, page": "report recorded:h200/resnet50-train-fp32 -o report.html --force",
    "report, ResNet-50 training, measured, Markdown": "report recorded:h200/resnet50-train-fp32 -o report.md --force",
    "report, GPT-2 training, estimated, page": "report gpt2.json.gz --on h200,a100 -o report.html --force",
    "report, 22 steps of GPT-2 as one, measured, page": "report large.json.gz -o report.html --force",
}


def main() -> None:
    trees = (Path(sys.argv[1]).resolve(), HERE)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print("| command | before | now | before / now | now, the first |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, LARGE, f"{folder}/large.json.gz"], check=True,
                       env=os.environ | {"PYTHONPATH": str(trees[0])})  # fmt: skip
        for what, line in COMMANDS.items():
            if len(sys.argv) > 3 and sys.argv[3] not in what:
                continue
            seconds: tuple[list[float], list[float]] = ([], [])
            first: list[float] = []
            for _ in range(rounds + 1):
                for tree, found in zip(trees, seconds, strict=True):
                    kept = f"{folder}/{trees.index(tree)}"
                    if "gpt2.json.gz" in line:
                        cpu_s(GPT2, tree, folder, kept)  # a ledger of its own format
                    found.append(cpu_s(line, tree, folder, kept))
            for _ in range(rounds):
                for trace in Path(folder).glob("1/rooflight/trace-*"):
                    trace.unlink()
                first.append(cpu_s(line, HERE, folder, f"{folder}/1"))
            before, now = (min(found[1:]) for found in seconds)
            shown = f"{before:.2f} s | {now:.2f} s | {before / now:.2f} | {min(first):.2f} s"
            print(f"| {what} | {shown} |", flush=True)


def cpu_s(line: str, tree: Path, folder: str, kept: str) -> float:
    def used() -> float:
        found = resource.getrusage(resource.RUSAGE_CHILDREN)
        return found.ru_utime + found.ru_stime

    began = used()
    subprocess.run([sys.executable, "-m", "rooflight", *line.split()], check=True, capture_output=True, cwd=folder,
                   env=os.environ | {"PYTHONPATH": str(tree), "XDG_CACHE_HOME": kept, "PYTHONDONTWRITEBYTECODE": "",
                                     "PYTHONPYCACHEPREFIX": f"{folder}/compiled"})  # fmt: skip
    return used() - began


if __name__ == "__main__":
    main()
