"""A kernel's name as every profiler can be brought to write it, so that two logs of one program can be joined.

Nsight Systems writes `void at::native::vectorized_elementwise_kernel<(int)4, ...>(int, T2, T3)`, Nsight Compute
`void at::vectorized_elementwise_kernel<4, ...>(int, T2, T3)` (it leaves namespaces out), PyTorch's profiler
`(anonymous namespace)` where the others have `<unnamed>`; `:base` reports have the bare name, `:mangled` ones `_ZN...`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from rooflight.ops.kernel_names import short_name

_CAST = re.compile(r"\([A-Za-z_][\w: ]*\)(?=-?\d)")
"""`(int)4`, `(bool)1`, `(cudnnKernelDataType_t)2`: the type of a template's argument."""
_MANGLED_PART = re.compile(r"[rVK]*(\d+)")


@lru_cache(maxsize=16384)
def brief(name: str) -> str:
    """With its template arguments, without namespaces, parameters, and all that is only a matter of spelling."""
    if name.startswith("_Z"):
        return _mangled(name)
    text = short_name(_CAST.sub("", name)).removeprefix("void ")
    return re.sub(r"\s", "", re.sub(r"\btrue\b", "1", re.sub(r"\bfalse\b", "0", text)))


@lru_cache(maxsize=16384)
def base(name: str) -> str:
    """The function's name alone."""
    return brief(name).partition("<")[0]


SIGNATURES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("name", str),
    ("name without namespaces", brief),
    ("name without template arguments", base),
)
"""From the finest to the coarsest, with what to call it."""


def is_bare(name: str) -> bool:
    """Does it tell nothing but the function's name? `void gemm<float>(...)` tells more."""
    return brief(name) == base(name)


def _mangled(name: str) -> str:
    """The name in `_ZN2at6native13reduce_kernelILi512E...`, whose template arguments are left out."""
    place, part = (3 if name.startswith("_ZN") else 2), ""
    while (match := _MANGLED_PART.match(name, place)) is not None:
        place = match.end() + int(match[1])
        part = name[match.end() : place] or part
    return part or name
