"""Any step of anybody's program: what is found in it, what its rows are, and that it is left as it was."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import rooflight
from rooflight import summary
from rooflight.errors import BadInput, RooflightError, TraceFailed
from rooflight.ledger import Ledger, total
from rooflight.spec import repeat
from rooflight.trace import program
from rooflight.trace.program_stage import ProgramStage
from tests.fixtures.foreign_steps import LIBRARY, PLAIN, changes, fingerprint
from tests.fixtures.notes import note_texts

X = torch.randn(4, 8)
Step = Callable[..., Any]


def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def rows(ledger: Ledger) -> Counter[tuple[str, str, str]]:
    return Counter((op.phase, op.module, op.name) for op in ledger.ops)


def products(ledger: Ledger) -> int:
    """What FlopCounterMode counts: useful ones, and those that are done again."""
    return sum((op.cost.flops or 0) + (op.cost.recompute_flops or 0) for op in ledger.ops if op.cost is not None)


def counted(step: Step, *args: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        step(*args)
    return counter.get_total_flops()


class OpNames(TorchDispatchMode):
    """What really runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def paths(ledger: Ledger) -> set[str]:
    return {module.path for module in ledger.modules}


# --- what is found ---------------------------------------------------------------------------------------------------


def test_several_models_have_the_names_that_the_program_has_for_them() -> None:
    step, args = PLAIN["GAN"]("cpu", True)
    ledger = rooflight.estimate(step, *args)
    assert {"generator.conv1", "critic.fc"} <= paths(ledger)
    assert {op.phase for op in ledger.ops} == {"forward", "backward", "optimizer", "other"}
    assert {op.module for op in ledger.ops if op.name == "aten::convolution" and op.phase == "forward"} == {
        "generator.project", "generator.conv1", "generator.conv2", "generator.conv3",
        "critic.conv1", "critic.conv2", "critic.conv3",
    }  # fmt: skip
    assert ledger.header.optimizer == "Adam"
    assert ledger.header.step == "train"


def test_a_single_model_has_the_paths_it_has_by_itself() -> None:
    model = small_net()
    ledger = rooflight.estimate(lambda x: model(x), X)
    assert paths(ledger) == {"", "0", "1", "2"}
    assert ledger.header.step == "infer"


def test_what_a_step_does_besides_is_other() -> None:
    step, args = PLAIN["clipping, groups, AdamW"]("cpu", True)
    other = [op.name for op in rooflight.estimate(step, *args).ops if op.phase == "other"]
    assert other.count("aten::_foreach_norm.Scalar") == 1  # all gradients at once, as a GPU takes them
    assert "aten::_local_scalar_dense" in other


def test_a_model_in_an_object_that_nothing_is_seen_of_is_found_when_it_is_called() -> None:
    class Box:
        __slots__ = ("model", "optimizer")

    box = Box()
    box.model = small_net()  # type: ignore[attr-defined]
    box.optimizer = torch.optim.Adam(box.model.parameters())  # type: ignore[attr-defined]

    def step(x: Tensor) -> None:
        box.model(x).mean().backward()  # type: ignore[attr-defined]
        box.optimizer.step()  # type: ignore[attr-defined]

    box.model(X).mean().backward()  # type: ignore[attr-defined]
    held = (box.model, box.optimizer)  # type: ignore[attr-defined]
    before = fingerprint(step, held)
    ledger = rooflight.estimate(step, X)
    assert ledger.header.optimizer == "Adam"
    assert not changes(before, fingerprint(step, held))


def test_an_iterator_cannot_be_taken_back_and_is_named() -> None:
    model = small_net()
    batches = iter([X] * 3)
    ledger = rooflight.estimate(lambda: model(next(batches)))
    assert "the step draws from an iterator (batches), which cannot be taken back: 1 step was taken" in note_texts(
        ledger.header.notes
    )
    assert len(list(batches)) == 2


def test_a_step_that_gives_its_work_for_later_is_refused() -> None:
    model = small_net()

    def generator() -> Iterator[Tensor]:
        yield model(X)

    async def later() -> Tensor:
        result: Tensor = model(X)
        return result

    with pytest.raises(BadInput, match=r"gives a generator.*lambda: list\(step\(\)\)"):
        rooflight.estimate(generator)
    with pytest.raises(BadInput, match=r"is async.*lambda: asyncio.run\(step\(\)\)"):
        rooflight.estimate(later)
    in_full = rooflight.estimate(lambda: asyncio.run(later()))
    assert rows(rooflight.estimate(lambda: list(generator()))) == rows(in_full) != Counter()


def test_a_step_in_which_nothing_runs_is_told() -> None:
    assert note_texts(rooflight.estimate(lambda: None).header.notes) == (
        "nothing ran: the step called no operator of torch",
    )


def test_an_estimate_may_be_made_in_a_step() -> None:
    model, other = small_net(), small_net()

    def step() -> None:
        rooflight.estimate(lambda: other(X))
        for parameter in model.parameters():
            parameter.data = parameter.data * 0.9
        model(X).mean().backward()

    before = fingerprint(step)
    ledger = rooflight.estimate(step)
    assert [op.module for op in ledger.ops if op.name == "aten::addmm"] == ["model.0", "model.2"]
    assert not changes(before, fingerprint(step))
    assert "data" not in torch.Tensor.__dict__


def test_a_reproduction_is_of_the_step_by_its_name() -> None:
    model = small_net()

    def model_step(x: Tensor) -> Tensor:
        result: Tensor = model(x)
        return result

    assert repeat(rooflight.estimate(model_step, X).header, measured=False) == "rooflight.estimate(model_step, x0)"


# --- its rows --------------------------------------------------------------------------------------------------------


def test_rows_are_those_of_the_step_that_rooflight_composes() -> None:
    model, x = small_net(), torch.randn(4, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    composed = rooflight.estimate(model, x, step="train", optimizer="adamw")
    own = rooflight.estimate(step, x)
    for phase in ("forward", "backward", "optimizer"):
        of_both = [
            [
                (op.module, op.name, [one.shape for one in op.outputs], op.cost and (op.cost.flops, op.cost.bytes_read))
                for op in ledger.ops
                if op.phase == phase and op.module != "<loss>"
            ]
            for ledger in (own, composed)
        ]
        assert of_both[0] == of_both[1], phase


@pytest.mark.parametrize("name", ["GradScaler", "EMA", "GAN", "SAM", "GNN", "contrastive"])
def test_rows_are_those_of_the_step_that_really_runs(name: str) -> None:
    step, args = PLAIN[name]("cpu", True)
    estimated = rooflight.estimate(step, *args, target="cpu")
    for _ in range(2):  # the estimate is of a step with all that the first one makes
        step(*args)
    assert rows(estimated) == rows(rooflight.estimate(step, *args, target="cpu", on="cpu"))
    assert products(estimated) == counted(step, *args)


@pytest.mark.parametrize(
    "name", ["clipping, groups, AdamW", "accumulation by hand", "distillation", "Muon", "packed RNN"]
)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    step, args = PLAIN[name]("cpu", True)
    assert products(rooflight.estimate(step, *args, target="cpu")) == counted(step, *args)


def penalty() -> tuple[Step, int]:
    """Multiply-adds of a row: 8 x 16 = 128 and 16. Forward takes both, and so does the gradient of the input. What comes
    back from its norm takes 128 for what the first layer's weights were multiplied with, 128 for them and 16 for the
    second's; and from there through relu, whose second derivative is a tensor of zeros, another 2 x 128."""
    model = small_net()

    def step(x: Tensor) -> None:
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.norm(dim=1).mean().backward()

    return step, 2 * 4 * (144 + 144 + 2 * 128 + 16 + 2 * 128)


def test_a_penalty_on_gradients_is_differentiated_twice() -> None:
    step, flops = penalty()
    ledger = rooflight.estimate(step, X, target="cpu")
    assert products(ledger) == flops
    assert not any(op.recompute for op in ledger.ops)
    assert rows(ledger) == rows(rooflight.estimate(step, X, target="cpu", on="cpu"))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_parts_are_done_again(reentrant: bool) -> None:
    model = small_net()

    def step(x: Tensor) -> None:
        checkpoint(model, x.clone().requires_grad_(), use_reentrant=reentrant).mean().backward()

    ledger = rooflight.estimate(step, X, target="cpu")
    assert any(op.recompute for op in ledger.ops)
    assert products(ledger) == counted(step, X)


def test_an_optimizer_that_steps_in_a_pass_back_is_a_part_of_its_own() -> None:
    model = small_net()
    optimizers = {one: torch.optim.SGD([one], lr=0.1, momentum=0.9) for one in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    ledger = rooflight.estimate(lambda: model(X).mean().backward(), target="cpu")
    by_phase = {phase: {op.name for op in ledger.ops if op.phase == phase} for phase in ("backward", "optimizer")}
    assert by_phase["optimizer"] == {"aten::mul_.Tensor", "aten::add_.Tensor"}
    assert "aten::mm" in by_phase["backward"]


def test_a_pass_back_in_an_optimizers_step_is_backward() -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> Tensor:
        loss: Tensor = model(X).mean()
        loss.backward()
        return loss

    ledger = rooflight.estimate(lambda: optimizer.step(closure), target="cpu")
    assert {op.phase for op in ledger.ops if op.name == "aten::mm"} == {"backward"}
    assert {op.name for op in ledger.ops if op.phase == "optimizer"} == {"aten::add_.Tensor"}


@pytest.mark.parametrize(("momentum", "runs"), [(0.0, 1), (0.9, 2)])
def test_only_what_makes_state_is_run_again(momentum: float, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ran = small_net(), [0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    record = ProgramStage.record

    def counted_record(stage: ProgramStage) -> Any:
        ran[0] += 1
        return record(stage)

    def step() -> None:
        model(X).mean().backward()
        optimizer.step()

    monkeypatch.setattr(ProgramStage, "record", counted_record)
    ledger = rooflight.estimate(step)
    assert ran == [runs]
    assert "aten::clone" not in {op.name for op in ledger.ops if op.phase == "optimizer"}  # which makes the state


def test_branches_that_torch_keeps_whole_are_taken_one_way() -> None:
    model, wanted = small_net(), torch.tensor(True)
    ledger = rooflight.estimate(lambda: torch.cond(wanted, model, torch.exp, (X,)))
    assert [op.name for op in ledger.ops if op.module == "2"] == ["aten::t", "aten::addmm"]


class Named(torch.Tensor):
    pass


def test_tensors_of_a_class_of_the_programs_own() -> None:
    model, x = small_net(), X.as_subclass(Named)

    def step() -> None:
        model(x).mean().backward()

    assert products(rooflight.estimate(step, target="cpu")) == counted(step)


def test_a_layer_that_is_replaced_is_no_move() -> None:
    model = small_net()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        model[2] = nn.Linear(16, 3)
        optimizer.add_param_group({"params": list(model[2].parameters())})
        model(X).mean().backward()
        optimizer.step()

    before = fingerprint(step)
    ledger = rooflight.estimate(step, target="cpu")
    assert not changes(before, fingerprint(step))
    assert products(ledger) == counted(step)


def test_transforms_of_torch_func() -> None:
    model = small_net()
    parameters = {name: one.detach() for name, one in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(model, parameters, (x[None],)).pow(2).mean()
        return result

    def step(x: Tensor) -> Any:
        return torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)

    assert products(rooflight.estimate(step, X, target="cpu")) == counted(step, X)


@pytest.mark.slow
def test_compiled_models_are_followed_as_they_were_written() -> None:
    model = small_net()
    compiled = torch.compile(model)
    assert rows(rooflight.estimate(lambda x: compiled(x), X)) == rows(rooflight.estimate(lambda x: model(x), X))


def test_time_and_memory_are_predicted_as_those_of_the_step_that_rooflight_composes() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)), torch.randn(8, 3, 32, 32)
    model(x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    (own,) = rooflight.predict(step, x, on="h200", advice=False)
    (composed,) = rooflight.predict(model, x, on="h200", step="train", optimizer="adamw", advice=False)
    assert own.gpu_busy_s == pytest.approx(composed.gpu_busy_s, rel=0.01)
    assert own.memory is not None and composed.memory is not None
    assert own.memory.peak_allocated_bytes == pytest.approx(composed.memory.peak_allocated_bytes, rel=1e-3)


class Centers(nn.Module):
    """A loss that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.centers, self.scale = nn.Parameter(torch.zeros(3, 1)), nn.Linear(1, 1)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return (self.scale(features) - self.centers[labels]).square().mean()


def test_losses_that_are_modules_have_rows_of_their_own() -> None:
    model, criterion, centers = small_net(), nn.MSELoss(), Centers()
    labels = torch.tensor([0, 2, 1, 1])

    def step(x: Tensor) -> None:
        output = model(x)
        (criterion(output, torch.zeros(4, 1)) + centers(output, labels)).backward()

    ledger = rooflight.estimate(step, X)
    assert {"criterion", "centers", "centers.scale", "model.0"} < paths(ledger)
    of_loss = {op.name: op.module for op in ledger.ops if op.phase == "forward" and not op.module.startswith("model")}
    assert (of_loss["aten::mse_loss"], of_loss["aten::addmm"]) == ("criterion", "centers.scale")
    assert (of_loss["aten::index.Tensor"], of_loss["aten::add.Tensor"]) == ("centers", "<loss>")
    # The whole is called by what learns, as in the headline.
    assert (ledger.modules[0].type, ledger.header.model) == ("Centers + Sequential", "step (Centers + Sequential)")
    assert {s.name for s in ledger.storages if s.category == "gradient"} >= {"centers.centers", "centers.scale.weight"}


def test_what_follows_a_module_that_prepares_data_is_no_loss() -> None:
    model, prepare = small_net(), nn.Flatten(0)

    def step(x: Tensor) -> None:
        model(torch.stack([prepare(sample) for sample in x])).sum().backward()

    of_data = {(op.phase, op.module) for op in rooflight.estimate(step, X).ops if op.name == "aten::stack"}
    assert of_data == {("other", "<other>")}


def test_the_transforms_of_a_data_set_are_no_models() -> None:
    class Data(torch.utils.data.Dataset[Tensor]):
        def __init__(self) -> None:
            self.prepare = nn.LayerNorm(8, elementwise_affine=False)

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Tensor:
            return self.prepare(X[index])

    model, data = small_net(), Data()
    with rooflight.record() as recording:
        for batch in torch.utils.data.DataLoader(data, batch_size=4):
            model(batch).sum().backward()
    ledger = recording.ledger
    assert {op.phase for op in ledger.ops if op.name == "aten::native_layer_norm"} == {"other"}
    assert {module.type for module in ledger.modules} == {"Sequential", "Linear", "ReLU"}
    assert ledger.header.batch == 4


# --- it is left as it was --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in PLAIN if name not in ("PPO", "DDP, 2 processes")])
def test_everything_is_left_as_it_was(name: str) -> None:
    step, args = PLAIN[name]("cpu", True)
    before = fingerprint(step, *args)
    rooflight.estimate(step, *args)
    assert not changes(before, fingerprint(step, *args))


def test_of_a_model_of_ddp_it_is_said_what_is_missing() -> None:
    step, args = PLAIN["DDP"]("cpu", True)
    said = "a DDP model is followed as its one replica: its buckets, and what processes exchange, are no part of this"
    assert note_texts(rooflight.estimate(step, *args).header.notes).count(said) == 1


def test_a_step_that_fails_says_its_own_error_and_is_left_as_it_was() -> None:
    model, seen = small_net(), [0]
    optimizer = torch.optim.Adam(model.parameters())
    model(X).mean().backward()  # gradients from before

    def step(x: Tensor) -> None:
        seen[0] += 1
        model.register_forward_hook(lambda *_: None)
        model(x).mean().backward()
        optimizer.step()
        torch.randn(3)
        raise ValueError("no more data today")

    before = fingerprint(step, X)
    with pytest.raises(TraceFailed, match=r"test_program.py:\d+ .*ValueError: no more data today"):
        rooflight.estimate(step, X)
    assert not changes(before, fingerprint(step, X))


def test_data_that_is_set_by_hand_stays_what_it_was() -> None:
    model = small_net()

    def step(x: Tensor) -> None:
        model(x).mean().backward()
        for parameter in model.parameters():
            parameter.data = parameter.data - 0.1 * parameter.grad
            parameter.grad = None

    before = fingerprint(step, X)
    ledger = rooflight.estimate(step, X)
    assert not changes(before, fingerprint(step, X))
    assert [op.name for op in ledger.ops].count("aten::sub.Tensor") == 4


# --- values and refusals ---------------------------------------------------------------------------------------------


def test_checks_of_values_are_answered_as_usual_and_noted() -> None:
    model = nn.Linear(8, 5000)  # larger than what is followed

    def step(x: Tensor) -> float:
        loss = model(x).mean()
        if torch.isnan(loss):
            raise RuntimeError("not a number")
        loss.backward()
        return loss.item()

    notes = note_texts(rooflight.estimate(step, X).header.notes)
    assert any("checks that would raise an error pass" in note or "results are finite" in note for note in notes)
    assert any("a number that the step reads is 1" in note for note in notes)


def test_what_is_only_logged_is_one_in_the_form_that_it_has() -> None:
    model, x, given = small_net(), torch.randn(1024, 8), torch.arange(4.0)
    logged: list[Any] = []

    @torch.no_grad()
    def step(check: Step) -> None:
        output = model(x)
        loss = output.mean()
        logged.append(loss.detach().cpu().numpy())
        check(logged[-1], np.asarray(output.detach()), float(loss.detach()), output.tolist(), f"{loss:.2f}")
        assert given.numpy().tolist() == [0, 1, 2, 3] and (given + 1).numpy().tolist() == [1, 2, 3, 4]
        assert output.numpy(force=True).shape == np.from_dlpack(output.detach()).shape == (1024, 1)

    def check(scalar: Any, array: Any, number: float, listed: list[Any], text: str) -> None:
        assert (scalar.shape, scalar.dtype, float(scalar)) == ((), np.float32, 1.0)
        assert (array.shape, array.dtype, array.min(), array.max()) == ((1024, 1), np.float32, 1.0, 1.0)
        assert (number, listed, text) == (1.0, [[1.0]] * 1024, "1.00")

    ledger = rooflight.estimate(step, check, target="cpu")
    assert not logged  # the program's list is as it was
    (note,) = [note for note in note_texts(ledger.header.notes) if "a number that the step reads is 1" in note]
    assert "trace/test_program.py:" in note
    with OpNames() as real:
        step(lambda *values: None)
    assert [op.name for op in ledger.ops] == real.names


def right_answers(model: nn.Module, x: Tensor) -> Any:
    right: Tensor = model(x) > 0
    return right.sum().item()


def test_a_count_of_data_can_be_logged_and_decides_nothing() -> None:
    model, x, log = small_net(), torch.randn(1024, 8), {"right": 0.0, "seen": 0}
    told: list[str] = []

    def step(tell: Step) -> None:
        log["right"] += right_answers(model, x)
        log["seen"] += len(x)
        tell(f"{100 * log['right'] / log['seen']:.2f}% of {log['seen']}")

    ledger = rooflight.estimate(step, lambda text: told.append(text) if text == "0.10% of 1024" else 1 / 0)
    assert (log["right"], log["seen"], told) == (0, 0, [])
    assert sum(op.packet == "aten::_local_scalar_dense" for op in ledger.ops) == 1
    assert any("a number that the step reads is 1" in note for note in note_texts(ledger.header.notes))


def test_a_branch_by_a_number_of_data_is_noted_with_its_line() -> None:
    model, x, seen = small_net(), torch.randn(1024, 8), [0.5]

    def step() -> None:
        seen.append(model(x).mean().item())
        if sum(seen) / len(seen) < 0.015:
            model(x)

    notes = note_texts(rooflight.estimate(step).header.notes)
    (note,) = [note for note in notes if "a number that a branch depends on is 1" in note]
    line = step.__code__.co_firstlineno + 2
    assert f"trace/test_program.py:{line}" in note
    assert not any(
        "branch" in note
        for note in note_texts(rooflight.estimate(lambda: f"{model(x).mean().item():.2f}").header.notes)
    )


@pytest.mark.parametrize("decide", [range, bool, round, lambda count: count == 0, lambda count: count > 3])
def test_a_count_of_data_that_decides_fails_with_its_line(decide: Step) -> None:
    model, x = small_net(), torch.randn(1024, 8)
    with pytest.raises(TraceFailed, match=r"the step decides by a number of its data here.*real_data=True"):
        rooflight.estimate(lambda: decide(right_answers(model, x)))


def test_experts_of_a_step_of_ones_own_get_equal_shares() -> None:
    gate, experts, x = nn.Linear(64, 4), nn.ModuleList(nn.Linear(64, 64) for _ in range(4)), torch.randn(256, 64)

    def step() -> None:
        chosen, output = gate(x).argmax(-1), torch.zeros_like(x)
        for place, expert in enumerate(experts):
            marked = chosen == place
            if marked.any():
                output[marked] = expert(x[marked])

    ledger = rooflight.estimate(step)
    assert total(ledger.ops).flops == 2 * 256 * 64 * 4 + 2 * 256 * 64 * 64
    assert any("tokens choose all experts equally often" in note for note in note_texts(ledger.header.notes))


def test_a_list_of_a_real_tensor_is_what_the_step_made_of_it() -> None:
    lengths, model = torch.tensor([1, 2, 3]), small_net()

    def step() -> None:
        lengths.add_(10)
        model(torch.zeros(sum(lengths.tolist()), 8))

    (first, *_) = [op for op in rooflight.estimate(step).ops if op.packet == "aten::addmm"]
    assert first.outputs[0].shape[0] == 36
    assert lengths.tolist() == [1, 2, 3]


@pytest.mark.parametrize("read", [
    lambda output: output.argmax(0).numpy(), lambda output: output.argmax(0).tolist(),
    lambda output: 1 if output.mean() > 0 else 2, lambda output: np.asarray(output > 0).any(),
])  # fmt: skip
def test_what_decides_still_fails_with_its_line(read: Step) -> None:
    model, x = small_net(), torch.randn(1024, 8)
    with pytest.raises(TraceFailed, match=r"trace/test_program.py:\d+: the step looks at values of its data here"):
        rooflight.estimate(lambda: read(model(x).detach()))
    assert type(torch.ones(1).numpy()) is np.ndarray and "numpy" not in torch.Tensor.__dict__


def until_it_is_small() -> None:
    x = nn.functional.linear(X, torch.empty(5000, 8))  # larger than what is followed
    while x.norm().item() > 1e-3:
        x = x * 0.5


def test_a_loop_that_waits_for_a_number_ends_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_MOST_READS", 20)
    with pytest.raises(TraceFailed, match=r"trace/test_program.py:\d+: .*again and again.*real_data=True"):
        rooflight.estimate(until_it_is_small)


def test_checks_against_limits_that_are_never_reached_pass() -> None:
    model, x = small_net(), torch.randn(5000, 8)

    def step() -> None:
        loss = model(x).mean()
        assert loss.item() < math.inf
        assert loss.item() < 1e30
        assert loss.item() > -1e30
        if loss.item() == math.inf:
            raise ValueError("infinite")
        loss.backward()

    assert "aten::mm" in {op.name for op in rooflight.estimate(step).ops}


def test_known_values_decide_shapes() -> None:
    model, known = small_net(), torch.tensor([True, False, True, True])
    (product, _) = [op for op in rooflight.estimate(lambda x: model(x[known]), X).ops if op.name == "aten::addmm"]
    assert product.outputs[0].shape == (3, 16)


_MODEL = small_net()


_OPTIMIZER = torch.optim.SGD(_MODEL.parameters(), lr=0.1)


def moved_and_updated(x: Tensor) -> None:
    _MODEL.double()(x.double()).mean().backward()
    _OPTIMIZER.step()


def test_a_module_that_is_moved_is_followed_and_brought_back() -> None:
    before = fingerprint(lambda: _MODEL)
    ledger = rooflight.estimate(lambda x: (_MODEL.half()(x.half()), _MODEL.float()(x)), X)
    assert [op.outputs[0].dtype for op in ledger.ops if op.name == "aten::addmm"] == ["fp16", "fp16", "fp32", "fp32"]
    assert not changes(before, fingerprint(lambda: _MODEL))


def chosen(x: Tensor) -> Tensor:
    scores = nn.functional.linear(x, torch.empty(5000, 8))
    return x[int(scores.argmax()) % 4]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (chosen, r"test_program.py:\d+: the step looks at values of its data here \(aten::_local_scalar_dense\)"),
        (moved_and_updated, "moves a module to another device or type"),
        (lambda x: _MODEL(x.to_sparse()), "a sparse"),
        (lambda x: pickle.loads(pickle.dumps(_MODEL))(x), r"test_program.py:\d+: the step pickles a tensor"),
        (lambda x: _MODEL(x).as_subclass(Named), "makes a tensor of a class of its own here"),
    ],
)
def test_what_cannot_be_followed_is_said_in_a_line(step: Step, said: str) -> None:
    before = fingerprint(lambda: _MODEL)
    with pytest.raises(RooflightError, match=said) as failed:
        rooflight.estimate(step, X)
    assert "\n" not in str(failed.value)
    assert not changes(before, fingerprint(lambda: _MODEL))


def test_what_the_step_says_itself_is_not_asked_for() -> None:
    with pytest.raises(BadInput, match="a step of your own says that itself"):
        rooflight.estimate(lambda x: _MODEL(x), X, dtype="bf16")
    for verb in (rooflight.estimate, rooflight.measure, rooflight.predict):
        with pytest.raises(BadInput, match="labels: a step of your own says that itself"):
            verb(lambda x: _MODEL(x), X, labels=X)


# --- with libraries --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LIBRARY])
def test_steps_of_libraries(name: str) -> None:
    try:
        step, args = LIBRARY[name]("cpu", True)
    except ImportError as missing:
        pytest.skip(str(missing))
    before = fingerprint(step, *args)
    ledger = rooflight.estimate(step, *args, target="cpu")
    assert not changes(before, fingerprint(step, *args))
    # FlopCounterMode does not know the CPU's attention.
    known = msgspec.structs.replace(ledger, ops=tuple(op for op in ledger.ops if "attention" not in op.name))
    assert products(known) == counted(step, *args)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GradScaler", "GAN"])
def test_a_measured_step_is_repeated_and_left_as_it_was(name: str) -> None:
    step, args = PLAIN[name]("cpu", True)
    before = fingerprint(step, *args)
    ledger = rooflight.measure(step, *args, repeat=3)
    assert not changes(before, fingerprint(step, *args))
    assert ledger.measurements


def test_a_step_that_fails_where_it_is_measured_is_left_as_it_was() -> None:
    model = small_net()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: Tensor) -> None:
        model(x).mean().backward()
        optimizer.step()
        raise ValueError("no more data today")

    before = fingerprint(step, X)
    with pytest.raises(TraceFailed, match=r"test_program.py:\d+ .*ValueError: no more data today"):
        rooflight.measure(step, X, repeat=1)
    assert not changes(before, fingerprint(step, X))


@pytest.mark.slow
def test_measuring_draws_no_numbers_from_a_program_that_goes_on() -> None:
    model, batches = small_net(), iter([X] * 100)
    before = torch.get_rng_state()
    ledger = rooflight.measure(lambda: model(next(batches)), repeat=3)
    assert any("which cannot be taken back" in note for note in note_texts(ledger.header.notes))
    assert torch.equal(before, torch.get_rng_state())


def test_several_models_are_parts_of_one_step() -> None:
    """The tables have a row for the whole, and the rows below it add up to it."""
    generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    ledger = rooflight.estimate(lambda: critic(generator(torch.ones(2, 4))).sum().backward())
    flops = {row.name: row.totals.flops for row in summary.rows(ledger)}
    assert flops[""] == flops["generator"] + flops["critic"] > 0


def test_batches_that_are_accumulated_are_told() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.ones(6, 4)

    def accumulated() -> None:
        for part in inputs.chunk(3):
            model(part).sum().backward()
        optimizer.step()

    def twice_the_same() -> None:
        for _ in range(2):
            model(inputs).sum().backward()
        optimizer.step()

    def prepared_by_a_module() -> None:
        for part in inputs.chunk(3):
            model(nn.Dropout(0.5)(part)).sum().backward()
        optimizer.step()

    for step in (accumulated, prepared_by_a_module):
        header = rooflight.estimate(step).header
        assert (header.batch, header.accumulate) == (2, 3)
    assert rooflight.estimate(twice_the_same).header.accumulate == 1


def test_a_copy_that_a_model_keeps_of_itself_is_no_part_of_what_it_computes() -> None:
    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
            self.unused = nn.Linear(8, 8)
            self.average = copy.deepcopy(self.net)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    task = Task()
    optimizer = torch.optim.SGD([*task.net.parameters(), *task.unused.parameters()], lr=0.1)

    def step(x: Tensor) -> None:
        task(x).sum().backward()
        optimizer.step()
        with torch.no_grad():
            for mean, now in zip(task.average.parameters(), task.net.parameters(), strict=True):
                mean.lerp_(now, 0.1)

    ledger = rooflight.estimate(step, X)
    assert {path.partition(".")[0] for path in paths(ledger)} == {"", "net", "unused"}
    assert sum(module.params for module in ledger.modules) == (8 * 4 + 4) + (4 + 1) + (8 * 8 + 8)
    assert sum(op.name == "aten::lerp_.Scalar" for op in ledger.ops) == 4


def test_an_estimate_writes_no_checkpoint(tmp_path: Path) -> None:
    model, path = nn.Linear(4, 1), tmp_path / "model.pt"
    torch.save(model.state_dict(), path)
    before = path.read_bytes()

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        torch.save(model.state_dict(), path)

    assert any("is not written" in note for note in note_texts(rooflight.estimate(step).header.notes))
    assert path.read_bytes() == before


def test_an_optimizer_that_does_not_step_is_told() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(last: bool) -> None:
        model(torch.ones(2, 4)).sum().backward()
        if last:
            optimizer.step()

    assert "SGD did not step in this call" in note_texts(rooflight.estimate(step, False).header.notes)[0]
    assert not note_texts(rooflight.estimate(step, True).header.notes)


def test_numpys_generators_are_put_back() -> None:
    numpy = pytest.importorskip("numpy")
    generator = numpy.random.default_rng(0)
    before = generator.bit_generator.state
    rooflight.estimate(lambda: torch.ones(2) * float(generator.random()))
    assert generator.bit_generator.state == before


class _Eager:
    """Answers to no name but those it was given, and says so with something that `except Exception` lets through."""

    __slots__ = ("model",)

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __getattr__(self, name: str) -> None:
        raise KeyboardInterrupt(f"asked for {name}")


def test_objects_are_not_asked_for_names_they_may_not_have() -> None:
    eager = _Eager(small_net())
    holder: Any = type("Holder", (), {"__module__": __name__, "eager": eager})

    def step() -> None:
        holder.eager.model(X).mean().backward()

    assert rooflight.estimate(step).ops


@pytest.mark.parametrize(
    ("step", "batch"),
    [
        (lambda model, x: model(x), 12),
        (lambda model, x: [model(part) for part in x.chunk(4)], 12),
        (lambda model, x: model(x[:, None].expand(-1, 5, -1).reshape(-1, 4)), 12),
        (lambda model, x: (model(torch.ones(100, 4)), model(x)), 12),
        (lambda model, x: torch.func.vmap(model)(x), 12),
        (lambda model, x: model(x[torch.randint(12, (5,))]), 5),
    ],
    ids=["whole", "in parts", "points of samples", "after something else", "one by one", "drawn from a data set"],
)
def test_the_batch_is_that_of_the_step(step: Any, batch: int) -> None:
    model = nn.Linear(4, 4)
    assert rooflight.estimate(lambda x: step(model, x), torch.ones(12, 4)).header.batch == batch


def test_micro_batches_of_a_step_that_is_given_the_whole_batch() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        for part in x.chunk(4):
            model(part).sum().backward()
        optimizer.step()

    header = rooflight.estimate(step, torch.ones(12, 4)).header
    assert (header.batch, header.accumulate) == (3, 4)


class HandMadeLion:
    """No optimizer of torch's; it makes its state when it first steps."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.averages: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            if parameter not in self.averages:
                self.averages[parameter] = torch.zeros_like(parameter)
            average = self.averages[parameter]
            assert parameter.grad is not None
            parameter.sub_(average.mul(0.9).add(parameter.grad, alpha=0.1).sign(), alpha=1e-3)
            average.lerp_(parameter.grad, 0.01)
            parameter.grad = None


def test_an_optimizer_by_hand_is_in_the_middle_of_training_too() -> None:
    model = nn.Linear(4, 4)
    optimizer = HandMadeLion(model.parameters())

    def step() -> None:
        model(X[:, :4]).sum().backward()
        optimizer.step()

    ledger = rooflight.estimate(step)
    assert not any(op.packet == "aten::zeros_like" for op in ledger.ops)
    assert sum(op.packet == "aten::sign" for op in ledger.ops) == 2
    assert not optimizer.averages


def test_weights_that_are_read_without_a_call_of_their_module_count() -> None:
    """Frozen, as in a model that gets a new head: attention reads its projections itself, and code their weights."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True).requires_grad_(False)
            self.mixed, self.unread = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 100)
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.attention(x, x, x)[0]
            return self.head(nn.functional.linear(y, self.mixed.weight, self.mixed.bias))

    model = Model()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)

    def step(x: Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    ledger = rooflight.estimate(step, torch.ones(2, 3, 8))
    attention, mixed, head = 4 * (8 * 8 + 8), 8 * 8 + 8, 8 * 2 + 2
    assert sum(module.params for module in ledger.modules) == attention + mixed + head
    (note,) = (note for note in note_texts(ledger.header.notes) if "neither read nor trained" in note)
    assert note.endswith("model.unread")
