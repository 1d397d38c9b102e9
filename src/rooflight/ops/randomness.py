"""Random numbers: a number drawn counts 1, whatever the distribution; a fill writes and reads nothing."""

from __future__ import annotations

import math

from rooflight.ledger import Op
from rooflight.ops.kernel_task import Task, precision_of
from rooflight.ops.pointwise import elements, fill_tasks
from rooflight.ops.radix_sort import INDEX_BYTES, radix_sort_bytes
from rooflight.ops.registry import Work, aten, formula, task, workspace
from rooflight.ops.workspace_phases import Chip, WorkspacePhase, WorkspacePhases


@formula(
    *aten("rand randn randint randperm rand_like randn_like randint_like uniform_ normal_ exponential_ random_"),
    *aten("geometric_ cauchy_ log_normal_"),
)
def draw(op: Op) -> Work:
    return Work(other="n", reads=0, where={"n": elements(op)})


# The parameters of the distribution are tensors, and read.
@formula("aten::normal", "aten::poisson", "aten::binomial", "aten::_standard_gamma", "aten::_sample_dirichlet")
def draw_from(op: Op) -> Work:
    return Work(other="n", where={"n": elements(op)})


# Draw, then compare with the probability: one number, or read from a tensor.
@formula("aten::bernoulli", "aten::bernoulli_")
def bernoulli(op: Op) -> Work:
    where = {"n": elements(op)}
    if isinstance(op.args.get("p"), float | int) or (op.packet.endswith("_") and not op.has("p")):
        return Work(other="2 * n", reads=0, where=where)
    probabilities = op.tensor("p" if op.has("p") else "self")
    return Work(other="2 * n", reads="P", where={**where, "P": probabilities.nbytes})


# Draw, compare, then x * mask * scale. Without training (or with p = 0) it hands the input on.
@formula("aten::native_dropout", "aten::_fused_dropout")
def dropout(op: Op) -> Work:
    if op.args.get("train") is False or op.args.get("p") == 0:
        return Work(note="copies: not training, or p = 0")
    return Work(other="4 * n", where={"n": elements(op)})


@formula("aten::native_dropout_backward", "aten::_masked_scale")
def dropout_backward(op: Op) -> Work:
    return Work(other="2 * n", where={"n": elements(op)})


# R rows of C probabilities. One sample, or several without replacement: draw n numbers, divide, then the largest of
# each row (n - R comparisons), or the k largest by sorting. With replacement: divide by the sum (2n - R), add up
# (n - R), then for each of the s samples draw and search among C.
@formula("aten::multinomial")
def multinomial(op: Op) -> Work:
    p, samples = op.tensor("self"), op.ints("num_samples")[0]
    classes = p.shape[-1]
    where = {"n": p.numel, "R": p.numel // classes, "C": classes, "s": samples}
    if samples == 1:
        return Work(other="3 * n - R", where=where)
    if op.args.get("replacement"):
        return Work(other="3 * n - 2 * R + R * s * (1 + ceil(log2(C)))", where=where)
    return Work(other="2 * n + n * ceil(log2(C))", where=where)


# --- kernel tasks

task(*aten("uniform_ normal_ random_ bernoulli_ exponential_ rand_like randn_like randint_like"))(fill_tasks)


@task("aten::native_dropout")
def dropout_tasks(op: Op) -> list[Task]:
    x = op.tensor("input")
    return [Task("dropout", precision_of(x.dtype), (max(1, x.numel), x.nbytes, x.nbytes + x.numel))]


# --- workspaces


@workspace("aten::randperm")
def randperm_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """Random keys with the numbers, sorted by the keys."""
    n = op.outputs[0].numel
    bits = _key_bits(n)
    key = 4 if bits <= 32 else 8
    return (WorkspacePhase(1, (n * INDEX_BYTES, n * key, n * key, radix_sort_bytes(n, key, INDEX_BYTES, bits))),)


def _key_bits(n: int) -> int:
    """So many random bits that more than a few keys alike are unlikely: torch allows one chance in ten of twelve."""
    return min(64, math.ceil(math.log2(n + (6 * n * n + 1) / (-12 * math.log(0.9)))))
