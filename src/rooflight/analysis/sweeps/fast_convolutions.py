"""What the kernels of fast convolutions go over: spectra and transformed tiles that are written and read again."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rooflight.analysis.sweeps.pieces import Borrowed, Sweep
from rooflight.ledger import Kernel
from rooflight.ops.kernel_names import KernelRole

_TRANSFORM = re.compile(r"fft2d_(r2c|c2r)_(\d{1,4})x\d+")
_TRANSFORMS_A_BLOCK = {16: 16, 32: 16, 64: 1}
_PRODUCT = re.compile(r"_cf32cf32|pointwise_mult_and_sum_complex")
_COMPLEX = 8


def fast_convolution(
    whole: Sweep, kernels: Sequence[Kernel], names: Sequence[KernelRole | None], workspace: int
) -> list[Sweep]:
    """`whole`: operands and results. `workspace`: what the allocator gave the op beside them."""
    if any(_TRANSFORM.search(kernel.name) for kernel in kernels):
        return [*_spectra(whole, kernels), *_beside(whole, names)]
    if workspace and any(name is not None and name.role == "winograd" for name in names):
        tiles = Borrowed("transformed tiles", workspace, evidence="tiles that Winograd's way transforms: the workspace")
        return [replace(whole, writes=[tiles]), Sweep([tiles], whole.writes), *_beside(whole, names)]
    return [whole]


def _beside(whole: Sweep, names: Sequence[KernelRole | None]) -> Iterator[Sweep]:
    """A bias is added to the results; its gradient is summed up from the first operand."""
    for name in names:
        if name is not None and name.role == "pointwise":
            yield Sweep(whole.writes[:1], whole.writes[:1])
        elif name is not None and name.role == "reduction":
            yield Sweep(whole.reads[:1], ())


def _spectra(whole: Sweep, kernels: Sequence[Kernel]) -> Iterator[Sweep]:
    """Each transform writes its spectra, a product reads the largest and the oldest that none has read, and what it
    writes is transformed back. In parts, where the results are more than fit in the workspace."""
    back = [_spectrum(kernel, "results") for kernel in kernels if "c2r" in kernel.name]
    parts, done, first = max(len(back), 1), 0, True
    fresh: list[Borrowed] = []
    held: list[Borrowed] = []
    made: list[Borrowed] = []
    for kernel in kernels:
        match = _TRANSFORM.search(kernel.name)
        if match is not None and match[1] == "r2c":
            spectrum = _spectrum(kernel, "operands")
            yield replace(whole, reads=whole.reads if first else (), writes=[spectrum])
            first = False
            fresh.append(spectrum)
        elif _PRODUCT.search(kernel.name) and fresh + held and len(made) < len(back):
            large = max(fresh + held, key=lambda one: one.nbytes)
            other = next((one for one in fresh if one != large), None)
            read = [large] if other is None else [large, other]
            fresh = [one for one in fresh if one not in read]
            held = [large]
            made.append(back[len(made)])
            yield Sweep(read, [made[-1]])
        elif "region_transform" in kernel.name and (made or fresh):
            source = made[-1] if made else max(fresh, key=lambda one: one.nbytes)
            yield Sweep([source], [replace(source, name=f"{source.name} in another order")])
        elif match is not None and done < len(made):
            yield Sweep([made[done]], whole.writes, place=done, count=parts)
            done += 1
    if not done:
        yield Sweep((), whole.writes)


def _spectrum(kernel: Kernel, of: str) -> Borrowed:
    match = _TRANSFORM.search(kernel.name)
    size = int(match[2]) if match is not None else 0
    blocks = math.prod(kernel.grid or (0,))
    nbytes = blocks * _TRANSFORMS_A_BLOCK.get(size, 1) * size * (size // 2 + 1) * _COMPLEX
    return Borrowed(f"spectra of {of}, {blocks} blocks", nbytes,
                    evidence=f"spectra of {size}×{size} are written and read again: {kernel.name[:60]}")  # fmt: skip
