"""Names of the kernels that Inductor writes: `triton_poi_fused_add_native_batch_norm_relu_3` has the ops it fused.

Their names are joined with the sign that is also part of them, in the order of the alphabet: only known names, in that
order and in one way, are told.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rooflight.ops.kernel_names.kernel_role import Generated, KernelRole, Role
from rooflight.ops.registry import FORMULAS

_NAME = re.compile(r"\btriton_(poi|red|per|tem|for|spl)_fused(?:_(\w+?))??(?:_\d+)?$")
_KINDS: dict[str, tuple[Generated, Role]] = {
    "poi": ("pointwise", "pointwise"),
    "red": ("reduction", "reduction"),
    "per": ("persistent reduction", "reduction"),
    "tem": ("template", "matrix"),
    "for": ("foreach", "pointwise"),
    "spl": ("scan", "reduction"),
}
_ATTENTION = re.compile(r"flex_attention|scaled_dot_product")
_MOST_OPS = 10
"""Inductor names no more: what was fused beyond them is not told."""


def generated_role(name: str) -> KernelRole | None:
    match = _NAME.search(name.strip())
    if match is None:
        return None
    generated, role = _KINDS[match[1]]
    text = match[2] or ""
    fused = fused_ops(text)
    if generated != "template":
        return KernelRole(role, "cuda", "triton", generated=generated, fused=fused)
    # A template is a product or an attention; which unit it takes is the compiler's choice.
    if _ATTENTION.search(text):
        return KernelRole("attention", None, "triton", generated=generated, fused=fused)
    return KernelRole("matrix", None, "triton", "product" if "mm" in text else None, generated=generated, fused=fused)


def fused_ops(text: str) -> tuple[str, ...] | None:
    """`add_native_batch_norm_relu` is add, native_batch_norm, relu; `None` where names are not known."""
    found = _told(text, "") if text else ()
    return found if found is None or len(found) <= _MOST_OPS else None


def _told(text: str, least: str) -> tuple[str, ...] | None:
    """The reading with the fewest ops: `native_batch_norm_backward` is one op, not two."""
    best: tuple[str, ...] | None = None
    names = _names()
    for end in [*(place for place, sign in enumerate(text[:-1]) if sign == "_" and place), len(text)]:
        first = text[:end]
        if first not in names or first <= least:
            continue
        rest = text[end + 1 :]
        others = _told(rest, first) if rest else ()
        if others is not None and (best is None or 1 + len(others) < len(best)):
            best = (first, *others)
    return best


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    """Of every op that there is a formula for, and the others below."""
    registered = {name.partition("::")[2].partition(".")[0] for name in FORMULAS.names() if name.startswith("aten::")}
    return frozenset(registered | _BESIDE)


_BESIDE = frozenset({
    "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_to_copy", "_unsafe_index",
    "_unsafe_view", "alias", "arange", "clone", "constant_pad_nd", "copy", "detach", "empty", "expand", "full",
    "full_like", "index", "iota", "lift_fresh", "new_zeros", "ones", "permute", "scalar_tensor", "select", "slice",
    "slice_backward", "slice_scatter", "split", "squeeze", "stack", "t", "transpose", "unbind", "unsqueeze", "view",
    "zeros", "zeros_like",
})  # fmt: skip
"""Ops of graphs that cost nothing or are written otherwise in eager mode."""
