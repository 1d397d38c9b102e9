"""When each block of memory is born and dies, and what it is for; derived by hand for small models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rooflight
from rooflight.ledger import Ledger, Op, Storage
from rooflight.summary import sizes
from rooflight.trace.storages import Storages
from tests.fixtures.notes import note_texts
from tests.fixtures.tracing import infer, only, rows, train


def storage_of(ledger: Ledger, op: Op, output: int = 0) -> Storage:
    return ledger.storages[op.outputs[output].storage]


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2  # op 0
        x = x.exp()  # op 1
        x = x.view(-1)  # op 2, a view
        x.add_(1)  # op 3, in place
        return x.sin()  # op 4


def test_births_and_deaths_of_a_chain() -> None:
    ledger = infer(Chain(), torch.randn(2, 4))
    assert [op.packet.removeprefix("aten::") for op in ledger.ops] == ["mul", "exp", "view", "add_", "sin"]
    assert [(s.category, s.nbytes, s.born, s.dies) for s in ledger.storages] == [
        ("input", 32, None, None),
        ("temporary", 32, 0, 2),  # the product is freed once exp has read it
        ("temporary", 32, 1, 5),  # exp's result lives on in the view and in place
        ("output", 32, 4, None),
    ]
    exp, view, add = ledger.ops[1].outputs[0], ledger.ops[2].outputs[0], ledger.ops[3].outputs[0]
    assert exp.storage == view.storage == add.storage
    assert (exp.shape, view.shape) == ((2, 4), (8,))
    assert ledger.ops[3].mutates == ("self",)
    assert ledger.ops[2].kind == "view"


class Exponential(nn.Module):
    """exp keeps its result for backward, the product with a number keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).exp() * 3


def test_births_and_deaths_of_a_training_step() -> None:
    ledger = train(Exponential(), torch.randn(2, 4), optimizer="sgd", loss="mse")
    product, exp, scaled = only(ledger, "mm", phase="forward"), only(ledger, "exp"), rows(ledger, "mul", module="")[0]

    hidden = storage_of(ledger, product)
    assert (hidden.category, hidden.nbytes, hidden.born) == ("temporary", 24, product.index)
    assert hidden.dies == scaled.index  # gone before the next op that computes

    kept = storage_of(ledger, exp)
    used = next(op for op in rows(ledger, phase="backward") if exp.outputs[0].storage in {t.storage for t in op.inputs})
    assert (kept.category, kept.nbytes, kept.born, kept.dies) == ("activation", 24, exp.index, used.index + 1)

    output = storage_of(ledger, scaled)
    assert (output.category, output.born, output.dies) == ("output", scaled.index, None)

    loss = storage_of(ledger, only(ledger, "mean"))
    first_step = rows(ledger, phase="optimizer")[0].index
    assert (loss.category, loss.name, loss.nbytes, loss.dies) == ("output", "loss", 4, first_step)

    gradient = next(s for s in ledger.storages if s.category == "gradient")
    made = only(ledger, "mm", phase="backward")
    assert (gradient.name, gradient.nbytes, gradient.born, gradient.dies) == ("fc.weight", 48, made.index, None)
    assert storage_of(ledger, made) == gradient

    weight = next(s for s in ledger.storages if s.category == "parameter")
    assert (weight.name, weight.nbytes, weight.born, weight.dies) == ("fc.weight", 48, None, None)
    assert only(ledger, "_foreach_add_").tensors("self")[0].storage == weight.id


def test_what_is_made_in_backward_is_temporary_and_dies_there() -> None:
    ledger = train(Exponential(), torch.randn(2, 4), optimizer="sgd")
    optimizer = rows(ledger, phase="optimizer")[0].index
    backward = {op.index for op in ledger.ops if op.phase == "backward"}
    made = [s for s in ledger.storages if s.born in backward and s.category != "gradient"]
    assert made
    assert {s.category for s in made} == {"temporary"}
    assert all(s.dies is not None and s.born is not None and s.born < s.dies <= optimizer for s in made)


def test_relu_in_place_needs_no_memory_of_its_own() -> None:
    x = torch.randn(2, 4)
    apart = train(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), x)
    in_place = train(nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)), x)
    linear, relu = only(in_place, "addmm", module="0"), only(in_place, "relu_")
    assert linear.outputs[0].storage == relu.outputs[0].storage == relu.tensor("self").storage
    # One tensor of 2 x 3 less; both keep the same for backward.
    assert len(apart.storages) - len(in_place.storages) == 1
    assert sizes(apart).kept_for_backward_bytes == sizes(in_place).kept_for_backward_bytes


def test_an_input_kept_for_backward_stays_an_input() -> None:
    ledger = train(nn.Linear(4, 3), torch.randn(2, 4))
    given = next(s for s in ledger.storages if s.name == "input 0")
    assert (given.category, given.nbytes, given.born, given.dies) == ("input", 32, None, None)


def test_running_statistics_are_buffers_written_in_place() -> None:
    ledger = train(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), torch.randn(2, 3, 5, 5))
    buffers = {s.name: (s.nbytes, s.born, s.dies) for s in ledger.storages if s.category == "buffer"}
    assert buffers == {
        "1.running_mean": (16, None, None), "1.running_var": (16, None, None), "1.num_batches_tracked": (8, None, None),
    }  # fmt: skip
    counted = only(ledger, "add_", module="1").tensor("self").storage
    assert ledger.storages[counted].name == "1.num_batches_tracked"


def test_gradients_of_a_second_micro_batch_are_added_to_the_first() -> None:
    ledger = train(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(2, 4), accumulate=2)
    gradients = {s.id for s in ledger.storages if s.category == "gradient"}
    assert len(gradients) == 4
    assert {op.tensor("self").storage for op in rows(ledger, "add_", phase="backward")} == gradients
    # What the first micro-batch kept is gone before the second one's forward.
    second = next(op.index for op in ledger.ops if op.phase == "forward" and op.call == 1)
    kept = [s for s in ledger.storages if s.category == "activation" and s.born is not None and s.born < second]
    assert kept
    assert all(s.dies is not None and s.dies <= second for s in kept)


def test_a_checkpointed_activation_is_born_again_in_backward() -> None:
    from torch.utils.checkpoint import checkpoint

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(checkpoint(lambda y: self.a(y).exp().sin(), x, use_reentrant=False))

    ledger = train(Saving(), torch.randn(2, 4))
    first, again = rows(ledger, "exp")
    assert (first.phase, again.phase, again.recompute) == ("forward", "backward", True)
    assert storage_of(ledger, first).category == "temporary"
    assert storage_of(ledger, again).category == "temporary"
    assert storage_of(ledger, first).nbytes == storage_of(ledger, again).nbytes == 64


def test_sizes_of_a_step_by_category() -> None:
    ledger = train(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(2, 4), optimizer="adam")
    found = sizes(ledger)
    params = 4 * (4 * 8 + 8 + 8 * 2 + 2)
    assert found.param_bytes == found.gradient_bytes == params
    # Two moments for each parameter, and a counter of 4 bytes for each of the four.
    assert found.optimizer_state_bytes == 2 * params + 4 * 4
    # relu's output, 2 x 8 floats; the output of the last layer and the loss are filed as outputs.
    assert found.kept_for_backward_bytes == 2 * 8 * 4


def test_no_storage_is_read_after_its_death() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2))
    ledger = train(model, torch.randn(2, 3, 8, 8))
    for op in ledger.ops:
        for tensor in (*op.inputs, *op.outputs):
            life = ledger.storages[tensor.storage]
            assert life.born is None or life.born <= op.index
            assert life.dies is None or life.dies > op.index
            assert tensor.nbytes <= life.nbytes


def test_accumulated_steps_keep_one_micro_batch_at_a_time() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    kept = [sizes(train(model, torch.randn(4, 8), accumulate=times)) for times in (1, 2, 4)]
    assert len({size.kept_for_backward_bytes for size in kept}) == 1
    assert len({size.leaf_output_bytes for size in kept}) == 1
    assert kept[0].leaf_output_bytes == 3 * 4 * 8 * 4


def test_what_gets_no_gradient_has_no_optimizer_state() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    found = sizes(train(Unused(), torch.randn(2, 4), optimizer="momentum"))
    assert found.gradient_bytes == found.optimizer_state_bytes == 4 * (4 * 4 + 4)


def test_outputs_made_again_count_once() -> None:
    class Net(nn.Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            self.block, self.again = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), again

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, x, use_reentrant=False) if self.again else self.block(x)

    plain, again = (sizes(train(Net(flag), torch.randn(2, 8))) for flag in (False, True))
    assert plain.leaf_output_bytes == again.leaf_output_bytes == 3 * 2 * 8 * 4
    assert again.kept_for_backward_bytes < plain.kept_for_backward_bytes


def test_a_step_that_trains_nothing_says_so() -> None:
    ledger = train(nn.ReLU(), torch.randn(2, 4))
    assert any("nothing is trained" in note for note in note_texts(ledger.header.notes))
    assert note_texts(train(nn.Linear(4, 4), torch.randn(2, 4)).header.notes) == ()


def test_a_model_that_gives_a_loss_is_trained_on_it() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).abs().mean()

    ledger = train(Own(), torch.randn(2, 4), loss="cross-entropy")
    assert [op.module for op in rows(ledger, "mean")] == [""]
    assert len(rows(ledger, "mm", phase="backward")) == 1


def test_a_storage_among_the_arguments_is_not_read_out() -> None:
    """Its text would be all of its numbers, brought from the device one by one: measuring an LSTM never ended."""

    class Laid(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.empty(0).set_(x.untyped_storage(), 0, (4,), (1,)) + 1

    ledger = rooflight.measure(Laid(), torch.arange(1 << 12, dtype=torch.float32), repeat=1)
    (laid,) = (op for op in ledger.ops if op.packet == "aten::set_")
    assert "storage" in laid.args.values()


@pytest.mark.parametrize(("works_on", "tensor_on", "host"), [
    ("cuda", "cpu", True), ("meta", "cpu", True), ("cpu", "cpu", False), ("cpu", "meta", False), ("meta", "meta", False),
])  # fmt: skip
def test_only_tensors_of_a_cpu_are_the_hosts(works_on, tensor_on, host):
    """What a program on a CPU moves to a GPU itself, of which meta is the like here, is the device's."""
    storages = Storages(lambda: 0, works_on)
    assert storages.is_host(storages.id_of(torch.ones(2, device=tensor_on), "input")) == host
