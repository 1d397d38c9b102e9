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
    return _told(text, "", _MOST_OPS) if text else ()


def _told(text: str, least: str, most: int) -> tuple[str, ...] | None:
    """The reading with the fewest ops: `native_batch_norm_backward` is one op, not two. None with more than `most`."""
    best: tuple[str, ...] | None = None
    names, longest = _names()
    for end in _ends(text, longest) if most else ():
        first = text[:end]
        if first not in names or first <= least:
            continue
        rest = text[end + 1 :]
        others = _told(rest, first, most - 1) if rest else ()
        if others is not None and (best is None or 1 + len(others) < len(best)):
            best = (first, *others)
    return best


def _ends(text: str, longest: int) -> list[int]:
    """Where a first name may end: looked for no further than the longest, however long a text somebody's file has."""
    inside = [place for place, sign in enumerate(text[: min(longest + 1, len(text) - 1)]) if sign == "_" and place]
    return [*inside, len(text)] if len(text) <= longest else inside


@lru_cache(maxsize=1)
def _names() -> tuple[frozenset[str], int]:
    """Of every op that there is a formula for, and the others below; and how long the longest is."""
    registered = {name.partition("::")[2].partition(".")[0] for name in FORMULAS.names() if name.startswith("aten::")}
    names = frozenset(registered | _BESIDE)
    return names, max(map(len, names))


_BESIDE = frozenset({
    "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_to_copy", "_unsafe_index",
    "_unsafe_view", "alias", "arange", "clone", "constant_pad_nd", "copy", "detach", "empty", "expand", "full",
    "full_like", "index", "iota", "lift_fresh", "new_zeros", "ones", "permute", "scalar_tensor", "select", "slice",
    "slice_backward", "slice_scatter", "split", "squeeze", "stack", "t", "transpose", "unbind", "unsqueeze", "view",
    "zeros", "zeros_like",
})  # fmt: skip
"""Ops of graphs that cost nothing or are written otherwise in eager mode."""
