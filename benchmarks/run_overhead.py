"""What `rooflight run --ops` costs a script of 100 steps: the same script alone and watched, in turns.

    python benchmarks/run_overhead.py [ROUNDS]

The script trains a convolutional network on the GPU if there is one, on the CPU otherwise. Beside the whole time of each
run stands the median of its last 40 steps, in which nothing is measured any more, and whether its results are the same.
The table stands in docs/how-to/my-training-script.md.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
import hashlib, json, os, time
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
device = "cuda" if torch.cuda.is_available() else "cpu"
width, batch, side = (64, 64, 112) if device == "cuda" else (16, 8, 32)
layers = []
for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 4 * width)):
    layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)).to(device)
optimizer = torch.optim.AdamW(net.parameters())
times = []
for _ in range(100):
    began = time.perf_counter()
    pictures, labels = torch.randn(batch, 3, side, side, device=device), torch.randint(10, (batch,), device=device)
    loss = nn.functional.cross_entropy(net(pictures), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
    times.append(time.perf_counter() - began)
weights = b"".join(one.detach().cpu().numpy().tobytes() for one in net.parameters())
print(hashlib.sha256(weights).hexdigest())
open("times.json", "w").write(json.dumps(times))
"""


def run(folder: Path, *before: str) -> tuple[float, float, list[str]]:
    """Seconds in all, of one of the last steps, and what the script says."""
    began = time.perf_counter()
    command = [sys.executable, *before, "script.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    took = time.perf_counter() - began
    times = json.loads((folder / "times.json").read_text())
    return took, statistics.median(times[-40:]), done.stdout.splitlines()[:101]


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        watch = ["-m", "rooflight.commands.main", "run", "--ops", "-o", "run.json", "--force", "--", sys.executable]
        run(folder)  # reads everything from the disk once
        pairs = [(run(folder), run(folder, *watch)) for _ in range(rounds)]
    said = {tuple(one[2]) for pair in pairs for one in pair}
    print("| 100 steps | in all | one of the last 40 steps |\n| --- | --- | --- |")
    for place, way in enumerate(("alone", "under `rooflight run --ops`")):
        whole, step = (statistics.median(pair[place][part] for pair in pairs) for part in (0, 1))
        print(f"| {way} | {whole:.2f} s | {1e3 * step:.3g} ms |")
    print(f"losses and weights: {'the same bit for bit' if len(said) == 1 else 'NOT THE SAME'} in {2 * rounds} runs")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
