"""What is known of operators, by name. The families fill it; everything after them asks it.

A family is one file of this package (`convolution.py`, `reductions.py`, ...). Of each of its operators it says what
there is to say:

    @formula("aten::sort")      the work, as an expression over its shapes: FLOPs and bytes
    @task("aten::sort")         what its kernels have to do, in tasks that calibration timed the like of
    @workspace("aten::sort")    the memory its kernels borrow while they run
    @result_bytes("aten::sort") sizes of results that tensors without data do not tell
    @products("aten::mm")       the matrix products it consists of, which explain the tiles of its kernels

A name is `namespace::op`, which stands for all overloads, or `namespace::op.overload` for one alone. Registering the
same thing twice raises. Operators of your own are registered in the same way, from your own file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rooflight.errors import RooflightError
from rooflight.ledger import Op
from rooflight.ops.kernel_task import Task
from rooflight.ops.matrix_product import MatrixProduct
from rooflight.ops.workspace_phases import Chip, WorkspacePhases


@dataclass(frozen=True)
class Work:
    """What an op does, as expressions over the symbols in `where` (see `expressions`).

    `macs` counts multiply-adds of matrix work, `other` single operations of everything else. `causal_macs` is `macs`
    when only the causal half counts (`None`: the same), `recompute_macs` what is computed a second time. `reads` and
    `writes` are bytes; `None` asks for the compulsory rule: every distinct input once, every output once.
    """

    macs: str | int = 0
    """Multiply-adds of matrix work."""
    other: str | int = 0
    """Operations of everything else."""
    causal_macs: str | int | None = None
    """`macs` with a causal mask; `None`: the same."""
    recompute_macs: str | int = 0
    """Multiply-adds done a second time."""
    reads: str | int | None = None
    """Bytes; `None`: every distinct input once."""
    writes: str | int | None = None
    """Bytes; `None`: every output once."""
    where: Mapping[str, int | float] = field(default_factory=dict)
    """The numbers that the symbols stand for."""
    note: str = ""
    """A sentence for `--explain`."""


Formula = Callable[[Op], Work]
TaskList = Callable[[Op], list[Task]]
Workspace = Callable[[Op, Chip], WorkspacePhases]
ResultBytes = Callable[[Op, Chip], dict[int, int]]
Products = Callable[[Op], Iterable[MatrixProduct]]
Function = TypeVar("Function", bound=Callable[..., Any])


class OpRegistry(Generic[Function]):
    """One kind of knowledge: a pure function for every operator that has it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._functions: dict[str, Function] = {}

    def register(self, *names: str) -> Callable[[Function], Function]:
        def add(function: Function) -> Function:
            for name in names:
                if "::" not in name:
                    raise ValueError(f"{name!r} is no operator name: write it as 'namespace::op'")
                if name in self._functions:
                    taken = self._functions[name].__qualname__
                    raise ValueError(f"a {self._kind} for {name} is already registered ({taken})")
                self._functions[name] = function
            return function

        return add

    def find(self, op: Op) -> Function | None:
        """That of the op's overload, or else that of its name."""
        return self._functions.get(op.name) or self._functions.get(op.packet)

    def name_of(self, op: Op) -> str:
        """The name under which `find` finds it."""
        return op.name if op.name in self._functions else op.packet

    def __getitem__(self, name: str) -> Function:
        """What is registered under exactly this name."""
        return self._functions[name]

    def names(self) -> list[str]:
        return sorted(self._functions)

    def unregister(self, name: str) -> None:
        """Take it back, e.g. at the end of a test."""
        del self._functions[name]


FORMULAS = OpRegistry[Formula]("formula")
TASKS = OpRegistry[TaskList]("task")
WORKSPACES = OpRegistry[Workspace]("workspace")
RESULT_BYTES = OpRegistry[ResultBytes]("size of results")
PRODUCTS = OpRegistry[Products]("list of products")
NEVER_TIMED: set[str] = set()
"""Operators of many dependent steps or passes, of which nothing like them is calibrated."""


def formula(*names: str) -> Callable[[Formula], Formula]:
    """Register a formula for `namespace::op`, all overloads, or `namespace::op.overload` alone."""
    return FORMULAS.register(*names)


def task(*names: str) -> Callable[[TaskList], TaskList]:
    """Register the kernel tasks of an op, which `predict` asks for the time of; named as for `formula`.

    An op without any is taken for one that reads its inputs and writes its outputs once, or, where its formula counts
    matrix work, for one product of as many FLOPs.
    """
    return TASKS.register(*names)


workspace = WORKSPACES.register
"""What an op borrows of the device's memory inside itself."""
result_bytes = RESULT_BYTES.register
"""The real bytes of results, by position, where the ledger cannot know them."""
products = PRODUCTS.register
"""The matrix products of an op."""


def counted(other: str, sizes: Callable[[Op], Mapping[str, int]], *, why: str = "", note: str = "") -> Formula:
    """A formula that is one expression; `why` is its derivation, as the comment above is of one that is a function. It
    is of the family that `sizes` is of."""

    def work(op: Op) -> Work:
        return Work(other=other, where=sizes(op), note=note)

    work.__doc__, work.__module__ = why, sizes.__module__
    return work


def never_timed(*names: str) -> None:
    """Of these a predicted time is the least it can be, and says so."""
    NEVER_TIMED.update(names)


def aten(names: str) -> tuple[str, ...]:
    """Names of torch's own operators, written without their namespace and with blanks between.

    >>> aten("mm bmm")
    ('aten::mm', 'aten::bmm')
    """
    return tuple(f"aten::{name}" for name in names.split())


Result = TypeVar("Result")


def applied(kind: str, function: Callable[..., Result], op: Op, *more: object) -> Result:
    """What a family's function says of an op. One that trips over it is a bug of the function, or the op is out of a
    damaged file: either way the line says which."""
    try:
        return function(op, *more)
    except RooflightError:
        raise
    except Exception as error:
        raise RooflightError(
            "formula-failed",
            f"the {kind} {getattr(function, '__qualname__', function)} for {op.name} fails on "
            f"{[tensor.shape for tensor in op.inputs]}: {type(error).__name__}: {error}",
        ) from error


def formula_of(op: Op) -> Formula | None:
    """That of the op's overload, or else that of its name."""
    return FORMULAS.find(op)


def workspace_of(op: Op, chip: Chip) -> WorkspacePhases:
    """The phases of an op in which it holds more than its results; empty: it borrows nothing, or is not known."""
    describe = WORKSPACES.find(op)
    return applied("workspace", describe, op, chip) if describe is not None else ()


def result_bytes_of(op: Op, chip: Chip) -> dict[int, int]:
    """Real bytes of those results, by position, that on a GPU are larger or smaller than the ledger says."""
    sizes = RESULT_BYTES.find(op)
    return applied("size of results", sizes, op, chip) if sizes is not None else {}


def products_of(op: Op) -> list[MatrixProduct]:
    """Empty where an op is no matrix product, or one that is not taken apart, or whose arguments are not told."""
    take_apart = PRODUCTS.find(op)
    try:
        return list(take_apart(op)) if take_apart is not None else []
    except (KeyError, IndexError, StopIteration):
        return []
