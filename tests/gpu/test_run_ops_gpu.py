"""`rooflight run --ops` on a real GPU: kernels, counters over the next steps, and a program that notices nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rooflight.files import load
from tests.fixtures.notes import note_texts

pytestmark = pytest.mark.gpu
# Two products of 256 x 512 x 512 for the first layer (its input wants no gradient), three for the second.
FLOPS = 5 * 2 * 256 * 512 * 512
SCRIPT = """
import hashlib, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 512)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(60):
    loss = net(torch.randn(256, 512, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:  # the program's own
    net(torch.randn(256, 512, device="cuda"))
    torch.cuda.synchronize()
print("kernels", sum(event.device_type.name == "CUDA" for event in profile.events()) > 3)
print("weights", hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in net.parameters())).hexdigest())
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What the script says alone, what it says when it is watched, and the ledger."""
    folder = tmp_path_factory.mktemp("run")
    script, saved = folder / "train.py", folder / "run.json"
    script.write_text(SCRIPT)
    watch = ["-m", "rooflight.commands.main", "run", "--ops", "-o", str(saved), "--", sys.executable]
    said = []
    for before in ([], watch):
        command = [sys.executable, *before, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    return *said, load(saved)


def test_the_program_notices_nothing(runs):
    alone, watched, _ = runs
    assert watched.startswith(alone)
    assert "kernels True" in alone


def test_ops_have_kernels_and_counts(runs):
    _, _, ledger = runs
    assert sum(op.cost.flops for op in ledger.ops if op.cost is not None and op.cost.flops) == FLOPS
    assert any(kernel.ops for kernel in ledger.kernels)
    assert " counted" in note_texts(ledger.header.notes)[0]
    assert not any("missing counts" in note for note in note_texts(ledger.header.notes))
    products = {op.index for op in ledger.ops if op.cost is not None and op.cost.flops}
    # Of a small one the bytes are no more than an empty range shows, which is unknown.
    counted = {row.ops[0] for row in ledger.measurements if row.scope == "op" and "cuda_flops_fp32" in row.quantities}
    assert products <= counted
