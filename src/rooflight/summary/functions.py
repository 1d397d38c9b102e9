"""Functions that a module calls in its own `forward`, beside the modules it holds: `relu()`, `max_pool2d()`, `add()`.

They are no modules, yet they cost something: with a row for each of them, what stands below a module adds up to it. A
row is of all calls of one function in one module, forward and backward.
"""

from __future__ import annotations

import re
from collections import defaultdict

from rooflight.ledger import OUTSIDE, Ledger, Op

FUNCTIONAL = "<functional>"
"""One row for all functions of a module, where there are too many to be listed."""
OWN_PARAMETERS = "<parameters>"
"""Row of the parameters that a module with modules inside holds itself."""
FUSED = "<fused>"
"""Row of kernels that do the work of several rows below one module."""

_PREFIX = re.compile(r"^_*(native_|cudnn_|miopen_|mkldnn_)?")
_BACKWARD = re.compile(r"_backward(_data|_input)?$")
_CALLED = {
    "max_pool2d_with_indices": "max_pool2d",
    "max_pool3d_with_indices": "max_pool3d",
    "batch_norm_legit": "batch_norm",
    "batch_norm_legit_no_training": "batch_norm",
    "to_copy": "to",
    "constant_pad_nd": "pad",
}


def function_of(op: Op) -> str:
    """The function that somebody called, by the op that it became: `aten::_log_softmax` is `log_softmax`, and so is its
    backward; an op of another library keeps its own name."""
    library, _, packet = op.packet.partition("::")
    if library != "aten":
        return op.packet
    name = _BACKWARD.sub("", _PREFIX.sub("", packet).rstrip("_"))
    if name.startswith("scaled_dot_product_"):
        return "scaled_dot_product_attention"
    return _CALLED.get(name, name)


def is_function(row: str) -> bool:
    """Is a row, by its name, one of a function?"""
    return row.endswith("()")


def below(path: str, name: str) -> str:
    """A row inside a module: `layer1.0` and `add()` are `layer1.0.add()`."""
    return f"{path}.{name}" if path else name


def row_names(ledger: Ledger) -> list[str]:
    """For every op the innermost row that it is in: its module or, where that holds others, a function of it."""
    paths = {module.path for module in ledger.modules}
    holders = {path.rpartition(".")[0] for path in paths if path}
    forward: dict[str, set[str]] = defaultdict(set)
    for op in ledger.ops:
        if op.module in holders and op.phase == "forward":
            forward[op.module].add(function_of(op))
    return [_row_name(op, forward[op.module]) if op.module in holders else op.module for op in ledger.ops]


def _row_name(op: Op, forward: set[str]) -> str:
    if op.module in OUTSIDE:
        return op.module
    name = function_of(op)
    # The backward of a relu is that of a threshold at zero.
    if name == "threshold" and "relu" in forward and op.phase == "backward" and not op.args.get("threshold"):
        name = "relu"
    return below(op.module, f"{name}()")
