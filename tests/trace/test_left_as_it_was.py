"""Wherever a program keeps what its step changes: an estimate leaves it as it was, and so does a measurement."""

# Programs hang things where nothing is declared; that is what this is about.
# mypy: disable-error-code="attr-defined, union-attr, operator, name-defined, arg-type, index"

from __future__ import annotations

import array
import dataclasses
import functools
import gc
import sys
import threading
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import rooflight
from rooflight.errors import TraceFailed
from tests.fixtures.notes import note_texts

X = torch.ones(8, 4)
SEEN: list[torch.Tensor] = []
COUNT = 0


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


class Memory:
    def __init__(self):
        self.bank, self.count = torch.zeros(4), 0


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.memory = nn.Linear(4, 4), Memory()

    def forward(self, x):
        y = self.layer(x)
        self.memory.bank.add_(y.detach().mean(0))
        self.memory.last = y
        self.memory.count += 1
        SEEN.append(y)
        return y


class Trainer:
    total = 0
    bank = torch.zeros(4)

    def __init__(self):
        self.model = layers()

    def step(self):
        self._inner()

    def _inner(self):
        global COUNT
        COUNT += 1
        Trainer.total += 1
        Trainer.bank = Trainer.bank + self.model(X).detach().mean(0)
        Trainer.new = COUNT


class WithSlots:
    __slots__ = ("average", "model", "not_filled", "unset")

    def __getattr__(self, name):
        """It answers to names that it has not, as a class does to `__doc__`."""
        if name == "not_filled":
            return None
        raise AttributeError(name)

    def __init__(self):
        self.model, self.average = layers(), torch.zeros(4)

    def step(self):
        y = self.model(X).detach().mean(0)
        self.average.mul_(0.9).add_(y)
        self.average = self.average + y
        self.unset = y


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    losses: list = dataclasses.field(default_factory=list)
    rate: float = 0.1


class Squared(torch.autograd.Function):
    calls = 0
    last = None

    @staticmethod
    def forward(ctx, x):
        Squared.calls += 1
        Squared.last = x
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


def objects_of_submodules():
    model = nn.Sequential(Remembering(), Remembering())

    def look():
        return [(one.memory.bank.tolist(), one.memory.count, sorted(vars(one.memory))) for one in model], len(SEEN)

    return lambda: model(X).sum().backward(), look


def hooks_of_submodules():
    model, features = layers(), []
    model[0].register_forward_hook(lambda module, given, result: features.append(result))
    return lambda: model(X), lambda: len(features)


def globals_and_classes_of_methods():
    trainer = Trainer()
    return trainer.step, lambda: (COUNT, Trainer.total, Trainer.bank.tolist(), hasattr(Trainer, "new"))


def slots():
    kept = WithSlots()
    return kept.step, lambda: (kept.average.tolist(), hasattr(kept, "unset"))


def frozen():
    kept, model = Frozen(), layers()

    def step():
        kept.losses.append(model(X).sum())
        object.__setattr__(kept, "rate", 0.2)

    return step, lambda: (len(kept.losses), kept.rate)


def functions_of_autograd():
    model = layers()
    return lambda: Squared.apply(model(X)).sum().backward(), lambda: (Squared.calls, Squared.last)


def attributes_and_hooks_of_tensors():
    model = layers()
    weight = model[0].weight
    weight.main_grad = torch.zeros(4, 4)

    def step():
        weight.register_hook(lambda grad: grad * 2)
        weight.register_post_accumulate_grad_hook(lambda parameter: None)
        model(X).sum().backward()
        weight.main_grad.add_(weight.grad)
        weight.seen = weight.grad

    def look():
        hooks = weight._backward_hooks, weight._post_accumulate_grad_hooks
        return weight.main_grad.tolist(), sorted(vars(weight)), hooks, weight.grad

    return step, look


def names_that_are_new():
    model, late = layers(), None
    del late

    def step():
        nonlocal late
        global NEW
        late = NEW = model(X)
        step.count = getattr(step, "count", 0) + 1

    return step, lambda: ("NEW" in globals(), step.__closure__[0] == types.CellType(), vars(step).copy())


def arrays():
    model, queue, history = layers(), np.zeros((2, 4), dtype=np.float32), np.zeros(3)

    def step():
        queue[0] = model(X).detach().mean(0).numpy()
        history[1] += 1

    return step, lambda: (queue.tolist(), history.tolist())


def older_generators_of_numpy():
    model, state = layers(), np.random.RandomState(0)
    return lambda: model(X[state.randint(0, 8, size=2)]), lambda: state.get_state()[2]


def data_sets():
    class Data(torch.utils.data.Dataset):
        position = 0

        def __getitem__(self, place):
            self.position += 1
            return X[place]

    model, data = layers(), Data()
    return lambda: model(torch.stack([data[0], data[1]])), lambda: data.position


def modules_of_the_program():
    settings, model = types.ModuleType("settings"), layers()
    settings.count, settings.last = 0, None

    def step():
        settings.count += 1
        settings.last = settings.new = model(X)

    return step, lambda: (settings.count, settings.last, hasattr(settings, "new"))


def classes_of_modules():
    model = layers()

    def step():
        parametrize.register_parametrization(model[0], "weight", nn.Identity())
        return model(X)

    return step, lambda: (type(model[0]), sorted(model[0]._parameters))


def settings_of_torch():
    model = layers()

    def step():
        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("medium")
        torch.set_default_dtype(torch.float64)
        torch.backends.cudnn.benchmark = True
        return model(X)

    def look():
        precision = torch.get_float32_matmul_precision(), torch.get_default_dtype()
        return torch.are_deterministic_algorithms_enabled(), precision, torch.backends.cudnn.benchmark

    return step, look


def sparse_gradients():
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    return lambda: table(torch.tensor([1, 2])).sum().backward(), lambda: table.weight.grad.to_dense().tolist()


def variables_of_hooks_of_gradients():
    """A running average of gradients, as training loops keep one."""
    model = layers()
    average, counts = {"weight": torch.zeros(4, 4)}, []

    def hook(gradient):
        average["weight"] = 0.9 * average["weight"] + 0.1 * gradient

    model[0].weight.register_hook(hook)
    model[2].weight.register_post_accumulate_grad_hook(lambda parameter: counts.append(parameter.grad))
    return lambda: model(X).sum().backward(), lambda: (type(average["weight"]), average["weight"].tolist(), len(counts))


def buffers_of_bytes():
    model, flags, history = layers(), bytearray(4), array.array("d", [0, 0])

    def step():
        flags[0], history[1] = 1, 2
        return model(X)

    return step, lambda: (bytes(flags), history.tolist())


def filters_of_warnings():
    model = layers()

    def step():
        warnings.simplefilter("ignore")
        return model(X)

    return step, lambda: tuple(warnings.filters)


PLACES = [
    objects_of_submodules, hooks_of_submodules, globals_and_classes_of_methods, slots, frozen, functions_of_autograd,
    attributes_and_hooks_of_tensors, names_that_are_new, arrays, older_generators_of_numpy, data_sets,
    modules_of_the_program, classes_of_modules, settings_of_torch,
    variables_of_hooks_of_gradients, buffers_of_bytes, filters_of_warnings,
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_an_estimate_leaves(place):
    step, look = place()
    before = look()
    ledger = rooflight.estimate(step)
    assert look() == before
    assert ledger.ops
    assert not any("left in the program" in note for note in note_texts(ledger.header.notes))


@pytest.mark.parametrize("place", [*PLACES, sparse_gradients])
def test_a_run_on_real_data_leaves(place):
    """As a measurement does, which repeats it."""
    step, look = place()
    before = look()
    if place is sparse_gradients:  # which cannot be written down, so nothing has to be known of it
        rooflight.measure(step, repeat=2)
    else:
        assert rooflight.estimate(step, real_data=True).ops
    assert look() == before


def test_gradients_of_a_model_in_the_frame_of_a_generator():
    def training():
        model = layers()
        while True:
            model(X).sum().backward()
            yield model

    steps = training()
    model = next(steps)
    gradient = model[0].weight.grad
    values = gradient.clone()
    rooflight.estimate(lambda: next(steps))
    assert model[0].weight.grad is gradient
    assert torch.equal(gradient, values)


def test_caches_forget_what_they_learnt_without_data():
    @functools.lru_cache
    def mask(length):
        return torch.tril(torch.ones(length, length))

    model = layers()

    def step():
        return (model(X) @ X.T * mask(8)).sum()

    rooflight.estimate(step)
    assert type(mask(8)) is torch.Tensor
    assert type(step()) is torch.Tensor


def test_what_a_measured_step_saves_is_there_and_said(tmp_path):
    model, path = layers(), tmp_path / "best.pt"

    def step():
        torch.save(model(X), path)

    ledger = rooflight.measure(step, repeat=2)
    assert path.exists()
    assert any("the step saves (torch.save), and so did every run" in note for note in note_texts(ledger.header.notes))
    path.unlink()
    assert any("is not written" in note for note in note_texts(rooflight.estimate(step).header.notes))
    assert not path.exists()


def test_a_tensor_that_gets_its_size_in_the_step():
    """As the observers of quantization have them, and lists of what was seen."""
    model, seen = layers(), torch.tensor([])
    model.register_buffer("least", torch.tensor([]))

    def step():
        y = model(X)
        model.least.resize_(4).copy_(y.detach().amin(0))
        seen.resize_(2).fill_(1)
        y.sum().backward()

    for run in (rooflight.estimate, functools.partial(rooflight.estimate, real_data=True), rooflight.measure):
        run(step)
        assert (model.least.shape, seen.shape) == ((0,), (0,))


def test_optimizers_that_step_in_hooks_of_gradients_leave_nothing():
    model = layers()
    optimizers = {parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()}

    def hook(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    ledger = rooflight.estimate(lambda: model(X).sum().backward())
    assert any(op.phase == "optimizer" for op in ledger.ops)
    assert not any("left in the program" in note for note in note_texts(ledger.header.notes))
    assert not any(optimizer.state for optimizer in optimizers.values())


def test_what_is_hidden_from_it_is_said():
    library, model = types.ModuleType("library"), layers()
    library.__file__ = "/lib/site-packages/library.py"
    library.kept = None

    def step():
        library.kept = model(X)

    notes = note_texts(rooflight.estimate(step).header.notes)
    assert "tensors without data are left in the program (library.kept)" in notes[0]
    library.kept = None
    assert not any(
        "left in the program" in note for note in note_texts(rooflight.estimate(lambda: model(X)).header.notes)
    )


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("kind", ["model", "tensor"])
def test_other_threads_do_not_touch_what_is_real(kind):
    model, plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.zeros(4)

    def work():
        if kind == "model":
            model(X).sum().backward()
        else:
            plain.add_(1)

    with pytest.raises(TraceFailed, match=r"in another thread.*real_data=True"):
        rooflight.estimate(lambda: (in_a_thread(work), model(X)))
    assert int(model[1].num_batches_tracked) == 0
    assert plain.tolist() == [0] * 4
    assert "start_kept_off" not in repr(threading.Thread.start)


def test_threads_that_have_other_things_to_do_go_on():
    model, read = layers(), []
    ledger = rooflight.estimate(lambda: (in_a_thread(lambda: read.append(torch.arange(4).sum())), model(X)))
    assert sum(op.name == "aten::addmm" for op in ledger.ops) == 2
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("frozen", [False, True])
def test_what_the_garbage_collector_was_told_is_left(frozen: bool) -> None:
    if frozen:
        gc.freeze()
    before = gc.get_freeze_count()
    try:
        rooflight.estimate(lambda x: x + 1, torch.ones(2))
        assert bool(gc.get_freeze_count()) is bool(before)
        with pytest.raises(TraceFailed):
            rooflight.estimate(lambda x: bool((x > 1).any()), torch.ones(2, 1 << 13))
        assert bool(gc.get_freeze_count()) is bool(before)
    finally:
        gc.unfreeze()
