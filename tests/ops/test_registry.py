"""What families say of their ops is found by name, and said once."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rooflight
from rooflight.ledger import Cost, Op, Tensor
from rooflight.ops.kernel_task import FAMILIES, Task
from rooflight.ops.op_tasks import is_guess, tasks_of
from rooflight.ops.registry import (
    FORMULAS,
    NEVER_TIMED,
    PRODUCTS,
    RESULT_BYTES,
    TASKS,
    WORKSPACES,
    OpRegistry,
    formula,
    products,
    result_bytes,
    task,
    workspace,
)

OPS = Path(rooflight.__file__).parent / "ops"


def op(name: str, macs: int = 0) -> Op:
    x, y = Tensor(0, (4, 8), "fp32"), Tensor(1, (4, 2), "fp32")
    cost = Cost("formula", macs, 2 * macs, 0, x.nbytes, y.nbytes, 2 * macs, 0)
    return Op(index=0, phase="forward", module="", call=0, name=name, ordinal=0, args={"x": x}, outputs=(y,), cost=cost)


@pytest.mark.parametrize(
    ("register", "taken"),
    [
        (formula, "aten::mm"),
        (task, "aten::mm"),
        (workspace, "aten::sort"),
        (result_bytes, "aten::_cudnn_rnn"),
        (products, "aten::mm"),
    ],
)
def test_a_name_is_registered_once_and_with_its_namespace(register: Callable[..., Any], taken: str) -> None:
    with pytest.raises(ValueError, match=f"for {taken} is already registered"):
        register(taken)(lambda op: None)
    with pytest.raises(ValueError, match="namespace::op"):
        register("mm")(lambda op: None)


def test_an_overload_of_its_own_comes_before_the_name_of_all() -> None:
    registry = OpRegistry[Callable[[Op], int]]("number")
    registry.register("mylib::scale")(lambda op: 1)
    registry.register("mylib::scale.out")(lambda op: 2)
    numbers = [registry.find(op(name)) for name in ("mylib::scale", "mylib::scale.default", "mylib::scale.out")]
    assert [number(op("")) for number in numbers if number is not None] == [1, 1, 2]
    assert registry.find(op("other::scale")) is None  # another library's op is another op
    assert registry.name_of(op("mylib::scale.out")) == "mylib::scale.out"
    assert registry.name_of(op("mylib::scale.default")) == "mylib::scale"
    registry.unregister("mylib::scale")
    assert registry.names() == ["mylib::scale.out"]


def test_whoever_has_an_op_says_what_its_kernels_do() -> None:
    """[4, 8] by [8, 2]: 64 multiply-adds. Untold it is a product of that output and depth; told, what is told."""
    project = op("rooflighttests::told", macs=64)
    assert tasks_of(project) == [Task.of("gemm", "fp32", m=4, n=2, k=8, b_transposed=1)]

    @rooflight.task("rooflighttests::told")
    def told(op: Op) -> list[rooflight.Task]:
        rows, columns = op.tensor("x").shape
        return [rooflight.Task.of("softmax-forward", "fp32", rows=rows, columns=columns)]

    try:
        assert tasks_of(project) == [Task("softmax-forward", "fp32", (4, 8))]
        assert not is_guess(project)
    finally:
        TASKS.unregister("rooflighttests::told")


def test_the_numbers_of_a_task_are_those_of_its_family() -> None:
    with pytest.raises(ValueError, match="no family of tasks is called 'softmax'"):
        Task.of("softmax", "fp32", rows=1, columns=1)
    with pytest.raises(ValueError, match="has the numbers rows, columns, not rows"):
        Task.of("softmax-forward", "fp32", rows=1)
    with pytest.raises(ValueError, match="not rows, columns, groups"):
        Task.of("softmax-forward", "fp32", rows=1, columns=1, groups=2)
    assert Task.of("softmax-forward", "fp32", columns=3, rows=2).numbers == (2, 3)
    assert Task.of("gemm", "bf16", m=2, n=3, k=4, bias=1).numbers == (1, 2, 3, 4, 0, 0, 1)
    assert list(FAMILIES["softmax-forward"]) == ["rows", "columns"]


def test_what_was_never_timed_has_a_formula_and_no_tasks() -> None:
    assert set(FORMULAS.names()) >= NEVER_TIMED
    assert not NEVER_TIMED & set(TASKS.names())


def test_what_is_said_of_an_op_is_said_in_the_file_of_its_formula() -> None:
    """Adding an op is one file, and so is reading all that is known of one."""
    homes = {name: FORMULAS[name].__module__ for name in FORMULAS.names()}
    shared = {"rooflight.ops.pointwise", "rooflight.ops.copies", "rooflight.ops.softmax"}  # functions others register
    for registry in (TASKS, WORKSPACES, RESULT_BYTES, PRODUCTS):
        places = {name: registry[name].__module__ for name in registry.names() if name in homes}
        apart = {name for name, place in places.items() if place != homes[name] and place not in shared}
        assert apart == set()


@pytest.mark.parametrize("path", sorted(OPS.glob("*.py")), ids=lambda path: path.stem)
def test_no_family_imports_torch(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if name.partition(".")[0] == "torch"}
