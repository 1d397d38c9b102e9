"""`rooflight.measure` of a step of one's own, and `rooflight.record` around any code."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import rooflight
from rooflight.errors import BadInput, TraceFailed
from rooflight.ledger import LOSS, OPTIMIZER, OTHER
from tests.fixtures.notes import note_texts


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 64)
        self.conv1 = nn.Conv2d(1, 4, 3)

    def forward(self, noise):
        return self.conv1(self.fc(noise).view(-1, 1, 8, 8))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(144, 1)

    def forward(self, image):
        return self.fc(image.flatten(1))


def adversarial_step():
    """Two models and two optimizers, as a function that declares none of them."""
    generator, critic = Generator(), Critic()
    of_generator, of_critic = torch.optim.Adam(generator.parameters()), torch.optim.RMSprop(critic.parameters())

    def step():
        noise = torch.randn(8, 16)
        of_critic.zero_grad()
        loss = critic(generator(noise).detach()).mean() - critic(torch.randn(8, 4, 6, 6)).mean()
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(generator(noise)).mean()).backward()
        of_generator.step()

    return step, generator, critic


def classifier(batches=None):
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))

    def step():
        inputs, labels = (x, y) if batches is None else next(batches)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step, model, optimizer


def flops(ledger):
    return sum(op.cost.flops or 0 for op in ledger.ops if op.cost is not None)


def state_of(model, optimizer):
    return (
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        len(optimizer.state),
        torch.get_rng_state(),
    )


def same(one, other):
    return (
        all(torch.equal(one[0][name], other[0][name]) for name in one[0])
        and all(
            (a is None) == (b is None) and (a is None or torch.equal(a, b))
            for a, b in zip(one[1], other[1], strict=True)
        )
        and one[2] == other[2]
        and torch.equal(one[3], other[3])
    )


def test_recording_a_step_with_two_models_tells_them_apart():
    step, *_ = adversarial_step()
    step()
    with FlopCounterMode(display=False) as counter:
        step()
    with rooflight.record() as recording:
        step()
    ledger = recording.ledger
    assert flops(ledger) == counter.get_total_flops()
    places = {(op.phase, op.module) for op in ledger.ops if op.kind == "compute"}
    assert {("forward", "generator.conv1"), ("backward", "generator.conv1"), ("forward", "critic.fc")} <= places
    assert {("forward", LOSS), ("backward", LOSS), ("optimizer", OPTIMIZER), ("other", OTHER)} <= places
    assert ledger.header.step == "train"
    assert ledger.header.optimizer == "RMSprop + Adam"
    assert ledger.header.batch == 8
    timed = {row.ops[0] for row in ledger.measurements if row.scope == "op" and "host_time_s" in row.quantities}
    assert timed == {op.index for op in ledger.ops}


def test_recording_changes_nothing():
    outcomes = []
    for watched in (False, True):
        torch.manual_seed(3)
        step, model, optimizer = classifier()
        losses = [step()]
        if watched:
            with rooflight.record() as recording:
                losses.append(step())
            assert len(recording.ledger.ops) > 40
        else:
            losses.append(step())
        losses += [step() for _ in range(3)]
        outcomes.append((losses, state_of(model, optimizer)))
    assert outcomes[0][0] == outcomes[1][0]
    assert same(outcomes[0][1], outcomes[1][1])


def test_recording_survives_an_error_inside():
    recording = rooflight.record()

    def code():
        with recording:
            torch.ones(2, 3) @ torch.ones(3, 4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        code()
    assert flops(recording.ledger) == 2 * 2 * 3 * 4
    assert any("ZeroDivisionError ended it early" in note for note in note_texts(recording.ledger.header.notes))
    with rooflight.record() as after:
        torch.ones(2, 3) + 1
    assert [op.name for op in after.ledger.ops if op.kind == "compute"] == ["aten::ones", "aten::add.Tensor"]


def test_a_ledger_is_there_only_when_the_code_is_over():
    recording = rooflight.record()
    with pytest.raises(BadInput, match="nothing is recorded yet"):
        _ = recording.ledger
    with recording, pytest.raises(BadInput, match="nothing is recorded yet"):
        _ = recording.ledger


def test_one_recording_at_a_time():
    refused = "something is recorded already in this process"
    layer, x, lines = nn.Linear(4, 4), torch.ones(2, 4), []

    def elsewhere():
        try:
            with rooflight.record():
                layer(x)
        except BadInput as error:
            lines.append(str(error))

    recording = rooflight.record()
    with recording:
        layer(x)
        for another in (recording, rooflight.record()):
            with pytest.raises(BadInput, match=refused), another:
                pass
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        layer(x)
    assert [op.packet for op in recording.ledger.ops].count("aten::addmm") == 2
    assert len(lines) == 1 and refused in lines[0]
    with rooflight.record() as after:
        layer(x)
    assert [op.packet for op in after.ledger.ops].count("aten::addmm") == 1


def memory_known(ledger):
    return any("growth_bytes" in row.quantities for row in ledger.measurements)


def test_a_profiler_that_the_code_begins_gets_everything():
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    with torch.profiler.profile() as alone:
        layer(x)
    with rooflight.record() as recording:
        layer(x)
        with torch.profiler.profile() as inside:
            layer(x)
        layer(x)
    assert {row.key: row.count for row in inside.key_averages()} == {row.key: row.count for row in alone.key_averages()}
    assert [op.packet for op in recording.ledger.ops].count("aten::addmm") == 3
    assert not memory_known(recording.ledger)
    assert "memory of every op not measured: the program's own profiler began" in note_texts(
        recording.ledger.header.notes
    )
    with rooflight.record() as after:
        layer(x)
    assert memory_known(after.ledger)


def test_a_profiler_that_warms_up_is_left_alone():
    # torch would crash when that profiler ends, had another begun and ended meanwhile.
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=1)) as profiler:
        with rooflight.record() as recording:
            layer(x)
        profiler.step()
        layer(x)
    assert not memory_known(recording.ledger)
    assert "aten::addmm" in {row.key for row in profiler.key_averages()}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_is_not_recorded():
    before = nn.Module.__call__, torch.Tensor.backward
    with rooflight.record() as recording:
        torch.ones(2) + 1
        child = os.fork()
        if not child:
            torch.ones(3) * 2
            clean = not torch.autograd._profiler_enabled() and recording._watch._open is None
            clean = clean and (nn.Module.__call__, torch.Tensor.backward) == before
            os._exit(7 if clean and len(recording._watch._recorder.ops) <= 2 else 8)
        assert os.waitpid(child, 0)[1] >> 8 == 7
        torch.ones(2) + 1
    assert [op.packet for op in recording.ledger.ops].count("aten::add") == 2
    assert "memory of every op not measured: the process was forked" in note_texts(recording.ledger.header.notes)


def test_inference_mode_may_end_inside_a_recording():
    model = nn.Linear(4, 4)
    guard = torch.inference_mode()
    guard.__enter__()
    with rooflight.record() as recording:
        model(torch.ones(2, 4))
        guard.__exit__(None, None, None)
    assert any(op.packet == "aten::addmm" for op in recording.ledger.ops)
    assert not torch.is_inference_mode_enabled()
    model(torch.ones(2, 4)).sum().backward()
    assert model.weight.grad is not None


def test_a_measured_step_is_taken_back():
    torch.manual_seed(0)
    step, model, optimizer = classifier()
    before = state_of(model, optimizer)
    ledger = rooflight.measure(step, repeat=2)
    assert same(before, state_of(model, optimizer))
    assert ledger.header.model == "step (Sequential)"
    assert ledger.header.command == "rooflight.measure(step)"
    measured = {name for row in ledger.measurements if row.scope == "step" for name in row.quantities}
    assert {"wall_time_s", "peak_allocated_bytes"} <= measured
    # The step that is measured has its optimizer's state already.
    assert not any(op.packet == "aten::zeros_like" and op.phase == "optimizer" for op in ledger.ops)


class Endless:
    """Batches, each with one more row: no two steps are alike."""

    size = 5

    def __iter__(self):
        return self

    def __next__(self):
        self.size += 1
        return torch.randn(self.size, 8), torch.randint(0, 4, (self.size,))


def test_a_step_that_draws_from_an_iterator_is_taken_as_it_comes():
    batches = Endless()
    step, model, _ = classifier(batches)
    weight = model[0].weight.clone()
    ledger = rooflight.measure(step, repeat=2)
    assert not torch.equal(weight, model[0].weight)
    steps = next(note for note in note_texts(ledger.header.notes) if "cannot be taken back" in note)
    assert f"{batches.size - 5} steps were taken" in steps
    assert "(batches)" in steps
    timed = [row for row in ledger.measurements if row.scope == "op" and "host_time_s" in row.quantities]
    assert len(timed) == len(ledger.ops)
    assert all(row.quantities["host_time_s"].low is not None for row in timed)


def test_what_a_step_says_itself_is_refused():
    step, *_ = classifier()
    with pytest.raises(BadInput, match="a step of your own says that itself"):
        rooflight.measure(step, dtype="bf16")
    with pytest.raises(BadInput, match="on cpu, not on cuda"):
        rooflight.measure(step, device="cuda")


def test_a_step_that_fails_leaves_all_as_it_was():
    torch.manual_seed(0)
    step, model, optimizer = classifier()

    def failing():
        step()
        raise ValueError("out of data")

    before = state_of(model, optimizer)
    for verb in (rooflight.estimate, rooflight.measure):
        with pytest.raises(TraceFailed, match="ValueError: out of data"):
            verb(failing)
        assert same(before, state_of(model, optimizer))


TOGETHER = """
import sys, time, torch, torch.distributed as dist, rooflight
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
if sys.argv[1] == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(8, 16)
def step():
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
ledger = rooflight.measure(step, repeat=2)
rooflight.save(ledger, f"rank{dist.get_rank()}.json")
try:
    flops = sum(op.cost.flops or 0 for op in rooflight.estimate(step).ops if op.cost)
    print("estimated", flops)
except rooflight.RooflightError as error:
    print("refused", error)
dist.destroy_process_group()
time.sleep(0.5)  # gloo's thread drops its last work; while the interpreter ends it cannot, and torch aborts
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_processes_that_work_together(way, tmp_path):
    script = tmp_path / "together.py"
    script.write_text(TOGETHER)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), way]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ledger = rooflight.load(tmp_path / "rank0.json")
    useful = 2 * 8 * (16 * 32 + 32 * 4)
    assert flops(ledger) == 2 * useful + 2 * 8 * 32 * 4  # no gradient of the input
    names = Counter(op.packet.partition("::")[0] for op in ledger.ops)
    assert names["c10d"] >= 1
    assert {op.module for op in ledger.ops if op.packet == "aten::addmm"} == {"0", "2"}
    assert any("the program's next step" in note for note in note_texts(ledger.header.notes))
    assert "wall_time_s" in next(row for row in ledger.measurements if row.scope == "step").quantities
    # The other process took the same steps, and has the same ops.
    assert [op.key[1:] for op in rooflight.load(tmp_path / "rank1.json").ops] == [op.key[1:] for op in ledger.ops]
    said = f"estimated {flops(ledger)}" if way == "ddp" else "is sharded over processes (FSDP)"
    assert said in done.stdout
