"""The registry of formulas: by aten name, a pure function from an op's shapes to the work it does.

@formula("mylib::scale")
def scale(op: Op) -> Work:
    return Work(other="n", where={"n": op.tensor("x").numel})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rooflight.ledger import Op


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

_FORMULAS: dict[str, Formula] = {}


def formula(*names: str) -> Callable[[Formula], Formula]:
    """Register a formula for `namespace::op`, all overloads, or `namespace::op.overload` alone."""

    def register(function: Formula) -> Formula:
        for name in names:
            if "::" not in name:
                raise ValueError(f"{name!r} is no operator name: write it as 'namespace::op'")
            if name in _FORMULAS:
                raise ValueError(f"a formula for {name} is already registered ({_FORMULAS[name].__qualname__})")
            _FORMULAS[name] = function
        return function

    return register


def find(op: Op) -> Formula | None:
    """The formula for this op: that of its overload, or else that of its name."""
    return _FORMULAS.get(op.name) or _FORMULAS.get(op.packet)


def origin(op: Op) -> str:
    """How a formula is cited."""
    return f"formula {op.name if op.name in _FORMULAS else op.packet}"


def registered() -> list[str]:
    """Every name that has a formula."""
    return sorted(_FORMULAS)


def lookup(name: str) -> Formula:
    """The formula that is registered under exactly this name."""
    return _FORMULAS[name]


def unregister(name: str) -> None:
    """Take a formula back, e.g. at the end of a test."""
    del _FORMULAS[name]
