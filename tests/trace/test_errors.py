"""A model that cannot be traced: one line that says where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rooflight
from rooflight.errors import BadInput, TraceFailed
from tests.fixtures.tracing import infer, train

LINES = Path(__file__).read_text().splitlines()


def line_of(mark: str) -> str:
    """`file:line` of the line of this file that ends with the mark."""
    (number,) = (n for n, line in enumerate(LINES, 1) if line.endswith(f"# {mark}"))
    return f"{__file__}:{number} "


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if x.sum() > 0:  # branch
            return x
        return -x


class Item(Branch):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.layer(x).sum().item()  # item


class ToList(Branch):
    def forward(self, x: Tensor) -> Tensor:
        return x * len(self.layer(x).tolist())  # tolist


class MaskIndex(Branch):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y[y > 0]  # mask index


class Nonzero(Branch):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nonzero(self.layer(x))  # nonzero


class Loop(Branch):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.abs().max()) + 1):  # loop
            x = self.layer(x)
        return x


class ToNumpy(Branch):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.layer(x).detach().numpy())  # numpy


CASES = [
    (Branch, "branch"), (Item, "item"), (ToList, "tolist"), (MaskIndex, "mask index"), (Nonzero, "nonzero"),
    (Loop, "loop"), (ToNumpy, "numpy"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "mark"), CASES)
@pytest.mark.parametrize("nested", [False, True])
def test_a_look_at_the_data_is_named_with_its_line(model: type[nn.Module], mark: str, nested: bool) -> None:
    made = nn.Sequential(nn.Identity(), model()) if nested else model()
    with pytest.raises(TraceFailed) as caught:
        infer(made, torch.randn(2, 4))
    message = str(caught.value)
    assert message.startswith(line_of(mark))
    assert "values of its data" in message
    assert "trace it on real data with real_data=True" in message
    assert "with --real-data" in caught.value.on_command_line
    assert "\n" not in message


@pytest.mark.parametrize(("model", "mark"), [case for case in CASES if case[0] is not ToNumpy])
def test_real_tensors_are_the_way_out(model: type[nn.Module], mark: str) -> None:
    ledger = infer(model(), torch.randn(2, 4), real_data=True)
    assert ledger.header.traced_on == "cpu"
    assert [op.packet for op in ledger.ops if op.module == "layer"][-1] == "aten::addmm"


@pytest.mark.parametrize(("model", "mark"), CASES[:2])
def test_a_failure_tells_nothing_on_the_terminal(
    model: type[nn.Module], mark: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TraceFailed):
        infer(model(), torch.randn(2, 4))
    assert capfd.readouterr() == ("", "")


class Raises(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        raise self.error  # own error


@pytest.mark.parametrize(
    ("error", "text"),
    [(KeyError("no such head"), "KeyError: 'no such head'"), (ValueError("bad\nsecond line"), "ValueError: bad"),
     (AssertionError(), "AssertionError"), (ValueError("must be nonzero"), "ValueError: must be nonzero"), (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero")],
)  # fmt: skip
@pytest.mark.parametrize("step", ["infer", "train"])
def test_an_error_of_the_models_own_is_passed_on_with_its_line(error: Exception, text: str, step: str) -> None:
    trace = infer if step == "infer" else train
    with pytest.raises(TraceFailed) as caught:
        trace(Raises(error), torch.randn(2, 4))
    assert str(caught.value).startswith(line_of("own error"))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error or caught.value.__cause__ is None


def test_an_interrupt_is_not_an_error() -> None:
    class Interrupted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        infer(Interrupted(), torch.randn(2))


def test_a_folder_named_like_a_package_is_still_the_users(tmp_path: Path) -> None:
    for folder in ("torch", "rooflight"):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "mine.py"
        file.write_text(
            "from torch import nn\nclass Mine(nn.Module):\n    def forward(self, x):\n        return x.item()\n"
        )
        space: dict[str, type[nn.Module]] = {}
        exec(compile(file.read_text(), str(file), "exec"), space)
        with pytest.raises(TraceFailed) as caught:
            infer(space["Mine"](), torch.randn(1))
        assert str(caught.value).startswith(f"{file}:4 ")


@pytest.mark.parametrize(
    ("model", "shape", "text"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(5, 2)), (2, 4), r"1 \(Linear\) wants 5 input features, got 3"),
        (nn.Sequential(nn.Conv2d(3, 4, 3)), (2, 1, 8, 8), r"0 \(Conv2d\) wants 3 input channels, got 1"),
        (nn.Sequential(nn.LSTM(6, 8)), (5, 2, 7), r"0 \(LSTM\) wants 6 input features, got 7"),
        (nn.Linear(4, 3), (2, 5), r"Linear wants 4 input features, got 5"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", ["infer", "train"])
def test_a_wrong_shape_is_bad_input_and_names_the_layer(
    model: nn.Module, shape: tuple[int, ...], text: str, step: str
) -> None:
    with pytest.raises(BadInput, match=text):
        (infer if step == "infer" else train)(model, torch.randn(shape))


def test_a_model_without_a_floating_output_cannot_be_trained() -> None:
    class Winner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.argmax(-1)

    assert infer(Winner(), torch.randn(2, 4)).ops
    with pytest.raises(BadInput, match="no floating-point tensor to take a loss of"):
        train(Winner(), torch.randn(2, 4))


def test_lazy_parameters_want_a_first_run() -> None:
    with pytest.raises(TraceFailed, match="run it once on a real input"):
        infer(nn.LazyLinear(3), torch.randn(2, 4))


@pytest.mark.parametrize("call", [rooflight.estimate, partial(rooflight.measure, device="cpu", repeat=1)])
def test_an_own_step_over_lazy_parameters_wants_a_first_run(call: Callable[..., Any]) -> None:
    model, x = nn.LazyLinear(3), torch.randn(2, 4)

    def step(x: Tensor) -> None:
        model(x).sum().backward()

    with pytest.raises(TraceFailed, match="run it once on a real input") as caught:
        call(step, x)
    assert caught.value.code == "lazy-parameters"
    step(x)
    assert call(step, x).ops


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("nested", [False, True])
def test_a_scripted_model_is_refused_and_left_alone(nested: bool) -> None:
    scripted: nn.Module = torch.jit.script(nn.Linear(4, 3))
    model, x = nn.Sequential(scripted) if nested else scripted, torch.randn(2, 4)
    expected = model(x)
    with pytest.raises(TraceFailed, match="scripted"):
        infer(model, x)
    assert torch.equal(model(x), expected)


def test_something_else_than_a_model_is_refused() -> None:
    with pytest.raises(BadInput, match=r"expected the name of a model, an nn\.Module or a step to call, got dict"):
        infer({}, torch.randn(2))  # type: ignore[arg-type]  # no module, and nothing to call


def test_sparse_gradients_are_refused_by_name() -> None:
    with pytest.raises(TraceFailed, match="a sparse tensor, which cannot be followed without data"):
        train(nn.Embedding(10, 4, sparse=True), torch.randint(0, 10, (2, 3)), optimizer="sgd")


def test_a_model_without_its_inputs_is_told_what_to_pass() -> None:
    with pytest.raises(TraceFailed, match=r"forward\(\) missing .* pass what it is called with behind the model"):
        infer(nn.Linear(3, 4))


class Kept(nn.Module):
    def __init__(self, kept: Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("kept", kept)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_a_nested_buffer_is_refused_by_name() -> None:
    rows = torch.nested.nested_tensor([torch.randn(2, 4)], layout=torch.jagged)
    with pytest.raises(TraceFailed, match="the buffer kept is a nested tensor, which cannot be followed"):
        infer(Kept(rows), torch.randn(2, 4))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_inputs_are_refused(layout: torch.layout) -> None:
    rows = [torch.randn(2, 4), torch.randn(3, 4)]
    with pytest.raises(BadInput, match=r"nested tensor, .* pass a padded one"):
        infer(nn.Linear(4, 4), torch.nested.nested_tensor(rows, layout=layout))


def test_what_only_a_compiler_runs_is_said_so() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    class Flex(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return flex_attention(x, x, x)  # flex

    with pytest.raises(TraceFailed, match="runs only where it is compiled, or on real data") as caught:
        infer(Flex(), torch.randn(1, 2, 16, 16))
    assert str(caught.value).startswith(line_of("flex"))
