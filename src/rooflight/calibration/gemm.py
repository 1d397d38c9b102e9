"""Matrix products: every size, layout and precision, with rows that fill their tiles and rows that do not."""

from __future__ import annotations

from functools import partial

import torch

from rooflight.calibration.case import Call, Cases, TensorPool, case
from rooflight.calibration.sampling import choice, is_power_of_two, points, unusual, whole
from rooflight.ops.kernel_task import Task

_LAYOUTS = ((4, 1), (3, 0), (3, 2), (0.5, 3))  # the bits: a transposed (2), b transposed (1)


def gemm_cases(precision: str, peak: float, seed: int, longest_s: float) -> Cases:
    """A product of two matrices as layers have them: one side counts tokens or samples, the others features."""
    for u in points(7, seed):
        step = choice(u[4], ((1, 1), (3, 8), (8, 64), (8, 128)))
        many = whole(u[0], 1, 131072, choice((u[0] * 7) % 1, ((3, 1), (2, 8), (4, 64))))
        n, k = whole(u[1], 8, 16384, step), whole(u[2], 8, 16384, step)
        if step == 128:  # whole tiles, of tokens or features that nobody has
            if many >= 11 * 128:
                many = 128 * unusual(many // 128)
            else:
                n = 128 * unusual(max(11, n // 128))
        if u[6] < 0.06:
            n = whole(u[1], 20000, 140000, choice(u[6] / 0.06, ((1, 1), (1, 8), (2, 64))))  # vocabularies
        layout, bias = choice(u[3], _LAYOUTS), int(u[5] < 0.4)
        m = many
        if layout == 2:  # the gradient of a weight: tokens are summed over
            m, k, bias = n, many, 0
            n = whole(u[2], 8, 16384, step)
        while (is_power_of_two(n) and is_power_of_two(k)) or n == k:
            n += step
        if 2 * m * n * k / peak > longest_s:
            continue
        # A single row or column lies in memory the same way round or the other.
        turned = layout >> 1 if m > 1 and k > 1 else 0
        yield case(_product, Task("gemm", precision, (1, m, n, k, turned, layout & 1, bias)))


def vector_cases(precision: str, peak: float, seed: int, longest_s: float) -> Cases:
    """A matrix times a few columns, down to one, and sums of any length: bound by memory, by kernels of their own."""
    for u in points(5, seed):
        few, many = (1 if u[2] < 0.5 else whole(u[2], 2, 16)), whole(u[0], 1, 100_000, 1 if u[4] < 0.3 else 8)
        k = unusual(whole(u[1], 16, 400_000)) * (1 if u[3] < 0.3 else 8)
        m, n = (many, few) if u[4] * 10 % 1 < 0.6 else (few, many)
        if (m + n) * k <= 2e8 and m * n > 1 and 2 * m * n * k / peak <= longest_s:
            yield case(_product, Task("gemm", precision, (1, m, n, k, 0, int(u[3] * 10 % 1 < 0.5 and n > 1), 0)))


def batched_cases(precision: str, peak: float, seed: int, longest_s: float) -> Cases:
    """Many small products at once, as attention written out has them."""
    for u in points(6, seed):
        batch = whole(u[0], 2, 8192)
        m, n, k = (whole(value, 8, 2048, choice((value * 5) % 1, ((1, 1), (4, 8)))) for value in u[1:4])
        if u[5] < 0.6:  # scores of queries and keys, or values weighted by them
            length, size = m, choice(u[3], ((2, 32), (4, 64), (1, 80), (1, 96), (3, 128)))
            m, n, k = (length, length, size) if u[5] < 0.3 else (length, size, length)
        layout = choice(u[4], _LAYOUTS)
        if 2 * batch * m * n * k / peak > longest_s or batch * (m * n + m * k + n * k) > 3e8:
            continue
        yield case(_product, Task("gemm", precision, (batch, m, n, k, layout >> 1, layout & 1, 0)))


def _product(task: Task, pool: TensorPool) -> Call:
    batch, m, n, k, a_transposed, b_transposed, bias = task.numbers
    take = pool.taking(task.precision)
    a = take(batch, k, m).mT if a_transposed else take(batch, m, k)
    b = take(batch, n, k).mT if b_transposed else take(batch, k, n)
    if batch > 1:
        return partial(torch.bmm, a, b)
    if bias:
        return partial(torch.addmm, take(n), a[0], b[0])
    return partial(torch.mm, a[0], b[0])
