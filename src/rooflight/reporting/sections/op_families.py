"""Ops sorted into a few families that people tell apart: as many as there are colours.

An op belongs where its formula stands; what has no formula is among the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from rooflight.ledger import OPTIMIZER, Op
from rooflight.ops.registry import formula_of

OTHER = "copies, other"
OPTIMIZERS = "optimizer"
_MODULES = {
    "convolution": ("convolution",),
    "matrix product": ("matmul", "linear_algebra", "recurrent"),
    "attention": ("attention", "fused_layers"),
    "normalisation": ("normalisation",),
    "element by element": ("pointwise", "activations", "randomness"),
    "pooling, reduction, loss": ("pooling", "reductions", "softmax", "losses", "sorting"),
    OPTIMIZERS: ("optimizers",),
    OTHER: (),
}
FAMILIES = tuple(_MODULES)
"""In the order in which they are shown; where several share a kernel, the first of them names it."""
_BY_MODULE = {module: family for family, modules in _MODULES.items() for module in modules}


def family_of(op: Op) -> str:
    return OPTIMIZERS if op.module == OPTIMIZER else _by_name(op.name)


def family_of_all(ops: Iterable[Op]) -> str:
    """Of a kernel that several ops share, or that belongs to none."""
    return min((family_of(op) for op in ops), key=FAMILIES.index, default=OTHER)


_KERNELS = {
    "attention": r"fmha|flash|attention",
    "convolution": r"conv(?!ert)|fprop|dgrad|wgrad|implicit_gemm|winograd",
    "matrix product": r"gemm|gemv|cutlass|matmul|splitkreduce",
    "normalisation": r"norm|bn_",
    OPTIMIZERS: r"adam|sgd|multi_tensor_apply",
    "pooling, reduction, loss": r"pool|reduce|softmax|nll|loss|sort|topk",
    "element by element": r"elementwise|functor|activation|relu|dropout",
}
"""Of kernels that no op is known of: by words of their names, the first that is found."""


def family_of_kernel(name: str) -> str:
    """What a kernel of somebody's log does, as far as its name tells."""
    return next((family for family, words in _KERNELS.items() if re.search(words, name.lower())), OTHER)


@cache
def _by_name(name: str) -> str:
    probe = Op(index=0, phase="forward", module="", call=0, name=name, ordinal=0)
    formula = formula_of(probe)
    return OTHER if formula is None else _BY_MODULE.get(formula.__module__.rpartition(".")[2], OTHER)
