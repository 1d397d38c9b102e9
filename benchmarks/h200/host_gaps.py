"""Measures steps that wait for their host, each in another way: what the account of the wall time is tested with.

usage: host_gaps.py FOLDER    (needs a CUDA GPU; writes ledgers and profiler traces, a minute)

A small network that asks for a number with `.item()` in its forward pass, one whose masks are chosen by `nonzero`, one that
does nothing of the kind, and the same under torch's profiler with a data loader that sleeps and an empty allocator.
"""

import gzip
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

import rooflight


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6)))
        self.last = nn.Linear(256, 10)

    def forward(self, x):
        return self.last(self.layers(x))


class Asking(Plain):
    """Looks at a number in the middle: the host waits until the GPU has it."""

    def forward(self, x):
        x = self.layers[:3](x)
        scale = x.abs().max().item()
        return self.last(self.layers[3:](x / max(scale, 1.0)))


class Choosing(Plain):
    """Rows are chosen by what is in them: how many there are, only the GPU knows."""

    def forward(self, x):
        x = self.layers[:3](x)
        rows = torch.nonzero(x.sum(1) > -1e9).squeeze(1)
        return self.last(self.layers[3:](x[rows]))


class Slow(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, place):
        time.sleep(20e-6)
        return torch.randn(256), place % 10


def traced(path: Path, empty: bool) -> None:
    """Four batches of a slow loader; with `empty` the allocator gives its memory back before each."""
    model = Asking().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of = nn.CrossEntropyLoss()
    for turn in range(2):  # the first is warm-up
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
            for x, y in DataLoader(Slow(), batch_size=128):
                if empty:
                    torch.cuda.empty_cache()
                optimizer.zero_grad()
                loss = loss_of(model(x.cuda()), y.cuda())
                loss.backward()
                optimizer.step()
                profiler.step()
            torch.cuda.synchronize()
        if turn:
            plain = path.with_suffix("")
            profiler.export_chrome_trace(str(plain))
            path.write_bytes(gzip.compress(plain.read_bytes(), 9, mtime=0))
            plain.unlink()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for kind in (Plain, Asking, Choosing):
        for step in ("infer", "train"):
            x = torch.randn(64, 256, device="cuda")
            ledger = rooflight.measure(kind().cuda(), x, step=step, repeat=5)
            rooflight.save(ledger, folder / f"{kind.__name__.lower()}-{step}.json.gz", force=True)
            waits = [(call.kind, call.name, round(call.time_s * 1e6, 1)) for call in ledger.host_calls]
            lines = [(op.name, op.line) for op in ledger.ops if op.line]
            print(kind.__name__, step, len(ledger.ops), "ops", waits, lines, flush=True)
    traced(folder / "loader.json.gz", empty=False)
    traced(folder / "empty-cache.json.gz", empty=True)
    print("done")


if __name__ == "__main__":
    main()
