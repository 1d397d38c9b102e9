"""`rooflight run --ops` on scripts in the style of known projects: nothing in them is changed, nor in what they give."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rooflight.files import load
from tests.fixtures.paths import ROOT

pytestmark = pytest.mark.slow
SCRIPTS = ROOT / "tests" / "data" / "scripts"
# torch's counter has no formula for the attention of a CPU.
UNKNOWN_TO_TORCH = "aten::_scaled_dot_product_flash_attention_for_cpu"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

Case = tuple[str, str, int, set[str], tuple[str, ...]]
CASES: list[Case] = [
    # The script, what it needs, the step that is recorded, some modules of it, and what starts it.
    ("nanogpt_like", "torch", 8, {"h.0.attn.c_attn", "h.1.mlp.2", "lm_head"}, ()),  # 7 has an evaluation in it
    ("ddp", "torch", 7, {"0", "2"}, TORCHRUN),
    ("hf_trainer", "transformers", 8, {"transformer.h.0.attn.c_attn", "lm_head"}, ()),  # so has this
    ("accelerate_loop", "accelerate", 7, {"0", "2"}, ()),
    ("lightning_fit", "lightning", 8, {"net.0", "net.2"}, ()),  # and this
    ("timm_train", "timm", 7, {"model.conv1.0", "model.layer4.0.conv2", "model.fc"}, ()),
    ("diffusers_train", "diffusers", 7, {"conv_in", "mid_block.attentions.0.to_q", "conv_out"}, ()),
]


def python(*words, **options):
    alone = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    alone["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=alone, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(output: str) -> list[str]:
    """Losses and weights; a Trainer also tells how long it took."""
    return [line for line in output.splitlines() if line.startswith(("loss", "weights", "evaluated", "validated"))]


@pytest.mark.parametrize(("name", "needs", "step", "modules", "start"), CASES, ids=[case[0] for case in CASES])
def test_a_script_in_the_style_of(name, needs, step, modules, start, tmp_path):
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    script, folder = SCRIPTS / f"{name}.py", tmp_path / "output"
    alone = python(*start, script, folder, cwd=tmp_path)
    saved = tmp_path / "run.json"
    watched = python(
        "-m", "rooflight.commands.main", "run", "--ops", "-o", saved, "--", sys.executable, *start, script, folder,
        cwd=tmp_path,
    )  # fmt: skip
    assert told(watched) == told(alone)
    assert sum(line.startswith("weights") for line in told(alone)) == 1
    ledger = load(saved)
    assert ledger.header.step == "train"
    assert {op.module for op in ledger.ops} >= modules
    assert {op.phase for op in ledger.ops} == {"forward", "backward", "optimizer", "other"}
    assert flops_known_to_torch(ledger) == counted_by_torch(step, script, folder, start, tmp_path)


def flops_known_to_torch(ledger) -> int:
    return sum(
        op.cost.flops
        for op in ledger.ops
        if op.cost is not None and op.cost.flops and not op.name.startswith(UNKNOWN_TO_TORCH)
    )


def counted_by_torch(step: int, script: Path, folder: Path, start: tuple[str, ...], cwd: Path) -> int:
    output = python(*start, SCRIPTS / "count_flops.py", step, script, folder, cwd=cwd)
    counts = set(re.findall(r"FLOPs of the step: (\d+)", output))
    assert len(counts) == 1  # of two ranks both say it
    return int(counts.pop())


def test_all_ranks_end_after_the_same_step(tmp_path):
    saved = tmp_path / "run.json"
    output = python(
        "-m", "rooflight.commands.main", "run", "--ops", "--stop-after", "--steps", "2:3", "-o", saved, "--",
        sys.executable, *TORCHRUN, SCRIPTS / "ddp.py",
    )  # fmt: skip
    assert output.count("loss ") == 3  # it ends in the fourth step, after which the fourth loss would be printed
    ledger = load(saved)
    assert (ledger.header.rank, ledger.header.world) == (0, 2)
    assert ledger.header.notes[0].code == "steps-of-program"
